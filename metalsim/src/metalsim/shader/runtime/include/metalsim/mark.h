// What every public Metal header is here: a mark that it was included. If it is seen, the library (metalsim/metal.h) is
// put in front of the whole kernel, because it must come before the words `device`, `thread`, ... vanish.
extern int metalsim_standard_library;
