// <metal_relational>: for every floating type, bfloat too.
#pragma once
#pragma clang system_header

namespace metal {
#define METALSIM_TEST(f, expression)                                              \
  template <class T, enable_if_t<is_floating_point_v<T>, int> = 0>                \
  inline bool f(T a) {                                                            \
    const uint bits = as_type<uint>(float(a)), magnitude = bits & 0x7fffffffu;    \
    return expression;                                                            \
  }                                                                               \
  METALSIM_MAP(f)
METALSIM_TEST(isnan, magnitude > 0x7f800000u)
METALSIM_TEST(isinf, magnitude == 0x7f800000u)
METALSIM_TEST(isfinite, magnitude < 0x7f800000u)
METALSIM_TEST(isnormal, magnitude < 0x7f800000u && magnitude >= 0x00800000u)
METALSIM_TEST(signbit, bits >> 31)
#undef METALSIM_TEST
template <class T, enable_if_t<is_floating_point_v<T>, int> = 0>
inline bool isunordered(T a, T b) {
  return isnan(a) || isnan(b);
}
METALSIM_MAP(isunordered)
template <class T, enable_if_t<is_floating_point_v<T>, int> = 0>
inline bool isordered(T a, T b) {
  return !isunordered(a, b);
}
METALSIM_MAP(isordered)

inline bool all(bool a) { return a; }
inline bool any(bool a) { return a; }
template <int N>
inline bool any(vec<bool, N> a) {
  for (int i = 0; i < N; i++)
    if (a.at(i)) return true;
  return false;
}
template <int N>
inline bool all(vec<bool, N> a) {
  return !any(!a);
}
// select(a, b, c) is c ? b : a
template <class T, enable_if_t<is_arithmetic_v<T> || is_vector_v<T>, int> = 0>
inline T select(T a, T b, bool c) {
  return c ? b : a;
}
template <class T, int N>
inline vec<T, N> select(vec<T, N> a, vec<T, N> b, vec<bool, N> c) {
  for (int i = 0; i < N; i++)
    if (c.at(i)) a.at(i) = b.at(i);
  return a;
}

// Here nothing is fast and imprecise: all three spellings are one function. Each is named, so that it stays where a
// header adds an overload of its own to one of the namespaces, as MLX's do.
#define METALSIM_USING(f) using metal::f;
#define METALSIM_MATHEMATICS                                                                                  \
  using namespace ::metal;                                                                                    \
  METALSIM_ALL1(METALSIM_USING)                                                                               \
  METALSIM_ALL2(METALSIM_USING)                                                                               \
  using metal::saturate; using metal::sign; using metal::copysign; using metal::fdim; using metal::step;      \
  using metal::fma; using metal::mix; using metal::abs; using metal::max; using metal::min;                   \
  using metal::clamp; using metal::max3; using metal::min3; using metal::fmax3; using metal::fmin3;           \
  using metal::fmedian3; using metal::nextafter; using metal::ilogb; using metal::ldexp; using metal::frexp;  \
  using metal::modf; using metal::sincos;
namespace precise {
METALSIM_MATHEMATICS
}
namespace fast {
METALSIM_MATHEMATICS
}
#undef METALSIM_MATHEMATICS
}  // namespace metal
