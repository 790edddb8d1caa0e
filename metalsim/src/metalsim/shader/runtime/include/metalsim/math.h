// <metal_math>, <metal_common>, <metal_geometric>: for float, half and vectors of them, as the specification has it (no
// bfloat, no double). half is computed in float and rounded once.
#pragma once
#pragma clang system_header

namespace metal {
// A function given as an expression of floats, for float, half and vectors.
#define METALSIM_MATH1(f, expression)                   \
  inline float f(float a) { return expression; }        \
  inline half f(half a) { return half(f(float(a))); }   \
  METALSIM_MAP(f)
#define METALSIM_MATH2(f, expression)                                     \
  inline float f(float a, float b) { return expression; }                 \
  inline half f(half a, half b) { return half(f(float(a), float(b))); }   \
  METALSIM_MAP(f)
#define METALSIM_MATH3(f, expression)                                                       \
  inline float f(float a, float b, float c) { return expression; }                          \
  inline half f(half a, half b, half c) { return half(f(float(a), float(b), float(c))); }   \
  METALSIM_MAP(f)

// The C library's functions; and all those of one float, and of two, that are written in precise:: and __metal_ too.
#define METALSIM_C1(each)                                                                                     \
  each(acos) each(acosh) each(asin) each(asinh) each(atan) each(atanh) each(ceil) each(cos) each(cosh)        \
  each(exp) each(exp2) each(fabs) each(floor) each(log) each(log2) each(log10) each(rint) each(round)         \
  each(sin) each(sinh) each(sqrt) each(tan) each(tanh) each(trunc)
#define METALSIM_C2(each) each(atan2) each(fmax) each(fmin) each(fmod) each(pow)
#define METALSIM_ALL1(each) \
  METALSIM_C1(each) each(exp10) each(rsqrt) each(sinpi) each(cospi) each(tanpi) each(fract)
#define METALSIM_ALL2(each) METALSIM_C2(each) each(divide) each(powr)
#define METALSIM_BUILTIN1(name) METALSIM_MATH1(name, __builtin_##name##f(a))
#define METALSIM_BUILTIN2(name) METALSIM_MATH2(name, __builtin_##name##f(a, b))
METALSIM_C1(METALSIM_BUILTIN1)
METALSIM_C2(METALSIM_BUILTIN2)
METALSIM_BUILTIN2(copysign)
METALSIM_BUILTIN2(fdim)
METALSIM_MATH1(exp10, __builtin_powf(10.0f, a))
METALSIM_MATH1(rsqrt, 1.0f / __builtin_sqrtf(a))
METALSIM_MATH1(sinpi, __builtin_sinf(M_PI_F * a))
METALSIM_MATH1(cospi, __builtin_cosf(M_PI_F * a))
METALSIM_MATH1(tanpi, __builtin_tanf(M_PI_F * a))
METALSIM_MATH1(fract, __builtin_fminf(a - __builtin_floorf(a), 0.99999994f))
METALSIM_MATH1(saturate, __builtin_fminf(__builtin_fmaxf(a, 0.0f), 1.0f))
METALSIM_MATH1(sign, a > 0.0f ? 1.0f : a < 0.0f ? -1.0f : a == 0.0f ? a : 0.0f)  // NaN gives 0, -0 gives -0
METALSIM_MATH2(powr, a < 0.0f ? __builtin_nanf("") : __builtin_powf(a, b))
METALSIM_MATH2(divide, a / b)
METALSIM_MATH2(step, b < a ? 0.0f : 1.0f)
METALSIM_MATH3(fma, __builtin_fmaf(a, b, c))
METALSIM_MATH3(mix, a + (b - a) * c)

inline float metalsim_hermite(float t) { return t * t * (3.0f - 2.0f * t); }
METALSIM_MATH3(smoothstep, metalsim_hermite(saturate((c - a) / (b - a))))

// The next number of each type: that of half is a whole step of half away, so it is no rounded float.
inline float nextafter(float a, float b) { return __builtin_nextafterf(a, b); }
inline half nextafter(half a, half b) {
  if (a != a || b != b) return a + b;
  if (a == b) return b;
  if (a == half(0)) return as_type<half>(b > half(0) ? ushort(1) : ushort(0x8001));
  const ushort bits = as_type<ushort>(a);
  const bool grows = (a < b) == (a > half(0));  // away from zero
  return as_type<half>(ushort(grows ? bits + 1 : bits - 1));
}
METALSIM_MAP(nextafter)
inline int ilogb(float a) { return __builtin_ilogbf(a); }
METALSIM_MAP(ilogb)
inline float ldexp(float a, int e) { return __builtin_ldexpf(a, e); }
inline half ldexp(half a, int e) { return half(__builtin_ldexpf(a, e)); }

// Functions that write a second result.
inline float frexp(float a, int& e) { return __builtin_frexpf(a, &e); }
inline half frexp(half a, int& e) { return half(__builtin_frexpf(a, &e)); }
inline float modf(float a, float& whole) { return __builtin_modff(a, &whole); }
inline half modf(half a, half& whole) {
  float wide;
  const half fraction = half(modf(float(a), wide));
  whole = half(wide);
  return fraction;
}
inline float sincos(float a, float& cosine) {
  cosine = __builtin_cosf(a);
  return __builtin_sinf(a);
}
inline half sincos(half a, half& cosine) {
  cosine = half(__builtin_cosf(a));
  return half(__builtin_sinf(a));
}

// For vectors METALSIM_MAP does not fit these: they take vectors of two types, or write one.
template <class T, int N>
inline vec<T, N> ldexp(vec<T, N> a, vec<int, N> e) {
  for (int i = 0; i < N; i++) a.at(i) = ldexp(a.at(i), e.at(i));
  return a;
}
template <class T, int N>
inline vec<T, N> ldexp(vec<T, N> a, int e) {
  return ldexp(a, vec<int, N>(e));
}
template <class T, int N>
inline vec<T, N> frexp(vec<T, N> a, vec<int, N>& e) {
  for (int i = 0; i < N; i++) a.at(i) = frexp(a.at(i), e.at(i));
  return a;
}
template <class T, int N>
inline vec<T, N> modf(vec<T, N> a, vec<T, N>& whole) {
  for (int i = 0; i < N; i++) a.at(i) = modf(a.at(i), whole.at(i));
  return a;
}
template <class T, int N>
inline vec<T, N> sincos(vec<T, N> a, vec<T, N>& cosine) {
  for (int i = 0; i < N; i++) a.at(i) = sincos(a.at(i), cosine.at(i));
  return a;
}

METALSIM_MATH1(abs, __builtin_fabsf(a))
METALSIM_MATH2(max, __builtin_fmaxf(a, b))
METALSIM_MATH2(min, __builtin_fminf(a, b))
METALSIM_MATH3(clamp, __builtin_fminf(__builtin_fmaxf(a, b), c))
METALSIM_MATH3(max3, __builtin_fmaxf(__builtin_fmaxf(a, b), c))
METALSIM_MATH3(min3, __builtin_fminf(__builtin_fminf(a, b), c))
METALSIM_MATH3(fmax3, __builtin_fmaxf(__builtin_fmaxf(a, b), c))
METALSIM_MATH3(fmin3, __builtin_fminf(__builtin_fminf(a, b), c))
METALSIM_MATH3(fmedian3, __builtin_fmaxf(__builtin_fminf(a, b), __builtin_fminf(__builtin_fmaxf(a, b), c)))

template <class T, int N>
inline T dot(vec<T, N> a, vec<T, N> b) {
  T s = T(a.at(0) * b.at(0));
  for (int i = 1; i < N; i++) s = T(s + a.at(i) * b.at(i));
  return s;
}
template <class T, int N>
inline T length_squared(vec<T, N> a) {
  return dot(a, a);
}
template <class T, int N>
inline T length(vec<T, N> a) {
  return sqrt(dot(a, a));
}
template <class T, int N>
inline T distance(vec<T, N> a, vec<T, N> b) {
  return length(a - b);
}
template <class T, int N>
inline T distance_squared(vec<T, N> a, vec<T, N> b) {
  return length_squared(a - b);
}
template <class T, int N>
inline vec<T, N> normalize(vec<T, N> a) {
  return a / length(a);
}
template <class T>
inline vec<T, 3> cross(vec<T, 3> a, vec<T, 3> b) {
  return a.yzx * b.zxy - a.zxy * b.yzx;
}
// A ray `i` at a surface with the normal `n`; `eta` is the ratio of the two indices of refraction.
template <class T, int N>
inline vec<T, N> reflect(vec<T, N> i, vec<T, N> n) {
  return i - n * T(T(2) * dot(n, i));
}
template <class T, int N>
inline vec<T, N> refract(vec<T, N> i, vec<T, N> n, make_scalar_t<vec<T, N>> eta) {
  const T along = dot(n, i);
  const T k = T(T(1) - eta * eta * (T(1) - along * along));
  if (k < T(0)) return vec<T, N>(T(0));  // nothing passes: total reflection
  return i * eta - n * T(eta * along + sqrt(k));
}
}  // namespace metal
