// Of Metal 4, and empty: what a kernel takes from it is refused with its line (source.py).
#include <metalsim/mark.h>
