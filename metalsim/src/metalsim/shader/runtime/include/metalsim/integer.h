// <metal_integer>, and the integer half of <metal_common>.
#pragma once
#pragma clang system_header

namespace metal {
// Wide enough for a product or a sum of two T.
template <class T>
using metalsim_wide_t = conditional_t<__is_signed(T), __int128, unsigned __int128>;

#define METALSIM_INTEGER(T)                                                                                          \
  inline T abs(T a) { return a < T(0) ? T(-a) : a; }                                                                 \
  inline T max(T a, T b) { return a < b ? b : a; }                                                                   \
  inline T min(T a, T b) { return b < a ? b : a; }                                                                   \
  inline T max3(T a, T b, T c) { return max(max(a, b), c); }                                                         \
  inline T min3(T a, T b, T c) { return min(min(a, b), c); }                                                         \
  inline T clamp(T x, T low, T high) { return min(max(x, low), high); }                                              \
  inline T absdiff(T a, T b) { return a < b ? T(b - a) : T(a - b); }                                                 \
  inline T popcount(T a) { return T(__builtin_popcountll(ulong(make_unsigned_t<T>(a)))); }                           \
  inline T clz(T a) {                                                                                                \
    const int bits = sizeof(T) * 8;                                                                                  \
    return a == 0 ? T(bits) : T(__builtin_clzll(make_unsigned_t<T>(a)) - 64 + bits);                                 \
  }                                                                                                                  \
  inline T ctz(T a) { return a == 0 ? T(sizeof(T) * 8) : T(__builtin_ctzll(ulong(a))); }                             \
  inline T hadd(T a, T b) { return T((metalsim_wide_t<T>(a) + b) >> 1); }                                            \
  inline T rhadd(T a, T b) { return T((metalsim_wide_t<T>(a) + b + 1) >> 1); }                                       \
  inline T mulhi(T a, T b) { return T((metalsim_wide_t<T>(a) * b) >> (sizeof(T) * 8)); }                             \
  inline T madhi(T a, T b, T c) { return T(mulhi(a, b) + c); }                                                       \
  inline T reverse_bits(T a) {                                                                                       \
    make_unsigned_t<T> r = 0, u = a;                                                                                 \
    for (uint i = 0; i < sizeof(T) * 8; i++) r = make_unsigned_t<T>((r << 1) | ((u >> i) & 1));                      \
    return T(r);                                                                                                     \
  }                                                                                                                  \
  inline T rotate(T a, T n) {                                                                                        \
    using U = make_unsigned_t<T>;                                                                                    \
    const uint bits = sizeof(T) * 8, k = uint(n) & (bits - 1);                                                       \
    return k ? T(U(U(a) << k) | U(U(a) >> (bits - k))) : a;                                                          \
  }                                                                                                                  \
  inline T extract_bits(T a, uint offset, uint n) {                                                                  \
    const uint bits = sizeof(T) * 8;                                                                                 \
    return n == 0 ? T(0) : T(T(make_unsigned_t<T>(a) << (bits - offset - n)) >> (bits - n));                         \
  }                                                                                                                  \
  inline T addsat(T a, T b) {                                                                                        \
    T r;                                                                                                             \
    if (!__builtin_add_overflow(a, b, &r)) return r;                                                                 \
    return b < T(0) ? numeric_limits<T>::lowest() : numeric_limits<T>::max();                                        \
  }                                                                                                                  \
  inline T subsat(T a, T b) {                                                                                        \
    T r;                                                                                                             \
    if (!__builtin_sub_overflow(a, b, &r)) return r;                                                                 \
    return b > T(0) ? numeric_limits<T>::lowest() : numeric_limits<T>::max();                                        \
  }
METALSIM_INTEGER(int8_t)
METALSIM_INTEGERS(METALSIM_INTEGER)
#undef METALSIM_INTEGER
inline int mul24(int a, int b) { return a * b; }
inline uint mul24(uint a, uint b) { return a * b; }
inline int mad24(int a, int b, int c) { return a * b + c; }
inline uint mad24(uint a, uint b, uint c) { return a * b + c; }

METALSIM_MAP(popcount)
METALSIM_MAP(clz)
METALSIM_MAP(ctz)
METALSIM_MAP(reverse_bits)
METALSIM_MAP(mulhi)
METALSIM_MAP(rotate)
METALSIM_MAP(addsat)
METALSIM_MAP(subsat)
METALSIM_MAP(absdiff)
METALSIM_MAP(hadd)
METALSIM_MAP(rhadd)
METALSIM_MAP(madhi)
METALSIM_MAP(mul24)
METALSIM_MAP(mad24)
METALSIM_MAP(extract_bits)
}  // namespace metal
