// What every public Metal header is here: a mark that it was included. The library itself (metalsim/metal.h) is put in
// front of the whole kernel when the mark is seen, because it must come before the words `device`, `thread`, ...
// vanish.
extern int metalsim_standard_library;
