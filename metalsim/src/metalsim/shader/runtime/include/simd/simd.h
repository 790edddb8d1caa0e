#include <metalsim/mark.h>
