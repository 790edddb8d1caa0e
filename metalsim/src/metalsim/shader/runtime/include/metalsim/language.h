// Words of the Metal Shading Language that mean nothing, or little, on a CPU with one address space.
#pragma once
#pragma clang system_header
#define METAL_FUNC inline __attribute__((always_inline))
#define METAL_CONST const
#define METAL_THREAD
#define kernel
#define device
#define thread
#define threadgroup
#define constant const
#define restrict __restrict
#define double metal_has_no_double
#define goto metal_has_no_goto
#define virtual metal_has_no_virtual
