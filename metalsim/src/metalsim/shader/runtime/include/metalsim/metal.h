// The Metal standard library for compute kernels, as C++14 for clang on a CPU.
// No libc or libstdc++ header is included, on purpose: a kernel that reaches for std:: or erf() fails here as it fails
// in Apple's compiler. What is missing fails to compile; nothing is silently replaced.
#pragma once
#pragma clang system_header
#include <metalsim/types.h>
#include <metalsim/traits.h>
#include <metalsim/vector.h>
#include <metalsim/limits.h>
#include <metalsim/integer.h>
#include <metalsim/math.h>
#include <metalsim/relational.h>
#include <metalsim/simdgroup.h>
#include <metalsim/atomic.h>
#include <metalsim/matrix.h>
#include <metalsim/intrinsics.h>
#include <metalsim/launch.h>
#include <metalsim/language.h>  // last: it defines words of the language as macros
