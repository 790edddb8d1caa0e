// What Apple's own headers call below their functions, and MLX's headers call, too, to give bfloat16 functions of its
// own. A last argument says whether mathematics is fast, which changes nothing here.
#pragma once
#pragma clang system_header

#define __METAL_PRECISE_MATH__ 0
#define __METAL_FAST_MATH__ 1
#define __METAL_MAYBE_FAST_MATH__ 0

#define METALSIM_INTRINSIC1(f) \
  inline float __metal_##f(float a, int) { return metal::f(a); }
#define METALSIM_INTRINSIC2(f) \
  inline float __metal_##f(float a, float b, int) { return metal::f(a, b); }
#define METALSIM_INTRINSIC3(f) \
  inline float __metal_##f(float a, float b, float c, int) { return metal::f(a, b, c); }

METALSIM_ALL1(METALSIM_INTRINSIC1)
METALSIM_ALL2(METALSIM_INTRINSIC2)
METALSIM_INTRINSIC3(fmax3)
METALSIM_INTRINSIC3(fmedian3)
METALSIM_INTRINSIC3(fmin3)
inline float __metal_fma(float a, float b, float c) { return metal::fma(a, b, c); }
inline float __metal_ldexp(float a, int exponent, int) { return metal::ldexp(a, exponent); }
inline float __metal_nextafter(float a, float b) { return metal::nextafter(a, b); }
inline float __metal_frexp(float a, int* exponent) { return metal::frexp(a, *exponent); }

inline ushort __metal_get_simdgroup_size(ushort) { return 32; }
#define METALSIM_ACROSS_LANES(f)      \
  template <class T, class... A>      \
  inline T __metal_##f(T a, A... b) { \
    return metal::f(a, b...);         \
  }
METALSIM_ACROSS_LANES(simd_broadcast) METALSIM_ACROSS_LANES(simd_sum) METALSIM_ACROSS_LANES(simd_product)
METALSIM_ACROSS_LANES(simd_max) METALSIM_ACROSS_LANES(simd_min)
METALSIM_ACROSS_LANES(simd_prefix_exclusive_product) METALSIM_ACROSS_LANES(simd_prefix_exclusive_sum)
METALSIM_ACROSS_LANES(simd_prefix_inclusive_product) METALSIM_ACROSS_LANES(simd_prefix_inclusive_sum)
METALSIM_ACROSS_LANES(simd_shuffle) METALSIM_ACROSS_LANES(simd_shuffle_xor)
METALSIM_ACROSS_LANES(simd_shuffle_down) METALSIM_ACROSS_LANES(simd_shuffle_up)
METALSIM_ACROSS_LANES(simd_shuffle_rotate_down) METALSIM_ACROSS_LANES(simd_shuffle_rotate_up)
METALSIM_ACROSS_LANES(simd_shuffle_and_fill_down) METALSIM_ACROSS_LANES(simd_shuffle_and_fill_up)
inline uint __metal_simd_xor(uint a) { return metal::simd_xor(a); }  // MLX hands it a float, which becomes a number
