// <metal_limits>
#pragma once
#pragma clang system_header

namespace metal {
// Where Apple's own header keeps them, and candle's kernels add those of a structure.
template <class T>
struct _numeric_limits_impl {
  static constexpr bool is_specialized = true, is_integer = true, is_signed = __is_signed(T);
  static constexpr bool has_infinity = false, has_quiet_NaN = false;
  static constexpr int digits = is_same_v<T, bool> ? 1 : sizeof(T) * 8 - __is_signed(T);
  static constexpr T max() { return T(is_signed ? ~(1ull << (sizeof(T) * 8 - 1)) : ~0ull); }
  static constexpr T min() { return T(is_signed ? 1ull << (sizeof(T) * 8 - 1) : 0); }
  static constexpr T lowest() { return min(); }
  static constexpr T infinity() { return 0; }
  static constexpr T quiet_NaN() { return 0; }
  static constexpr T epsilon() { return 0; }
};
#define METALSIM_LIMITS(T, largest, smallest, step, bits)                                   \
  template <>                                                                               \
  struct _numeric_limits_impl<T> {                                                          \
    static constexpr bool is_specialized = true, is_integer = false, is_signed = true;      \
    static constexpr bool has_infinity = true, has_quiet_NaN = true;                        \
    static constexpr int digits = bits;                                                     \
    static constexpr T max() { return T(largest); }                                         \
    static constexpr T lowest() { return T(-largest); }                                     \
    static constexpr T min() { return T(smallest); }                                        \
    static constexpr T epsilon() { return T(step); }                                        \
    static constexpr T infinity() { return T(__builtin_inff()); }                           \
    static constexpr T quiet_NaN() { return T(__builtin_nanf("")); }                        \
    static constexpr T signaling_NaN() { return quiet_NaN(); }                              \
  };
METALSIM_LIMITS(float, 3.402823466e+38f, 1.175494351e-38f, 1.1920928955e-07f, 24)
METALSIM_LIMITS(half, 65504.0f, 6.103515625e-05f, 9.765625e-04f, 11)
METALSIM_LIMITS(bfloat, 3.38953139e+38f, 1.175494351e-38f, 7.8125e-03f, 8)
#undef METALSIM_LIMITS
template <class T>
struct numeric_limits : _numeric_limits_impl<T> {};
}  // namespace metal
