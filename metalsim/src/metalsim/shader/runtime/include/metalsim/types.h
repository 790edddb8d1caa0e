// Scalar types and constants of the Metal Shading Language.
#pragma once
#pragma clang system_header

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef uchar uint8_t;
typedef ushort uint16_t;
typedef uint uint32_t;
typedef ulong uint64_t;
typedef ulong size_t;
typedef long ptrdiff_t;
typedef long intptr_t;
typedef ulong uintptr_t;
typedef _Float16 half;
#define METALSIM_INTEGERS(each) \
  each(char) each(uchar) each(short) each(ushort) each(int) each(uint) each(long) each(ulong)

// bfloat: to float without being asked, from a floating type only when asked (MSL 3.1). Without clang's __bf16, whose
// conversion is a call (__truncsfbf2) that not every run-time library answers, or the instruction of AVX512-BF16, which
// takes subnormal numbers for zero.
struct bfloat {
  template <class I>
  using if_integral = int (*)[__is_integral(I) ? 1 : -1];
  template <class C>
  using if_class = int (*)[__is_class(C) && !__is_same(C, bfloat) && __is_convertible(C, float) ? 1 : -1];

  ushort bits;
  bfloat() = default;
  constexpr explicit bfloat(float x) : bits(rounded(__builtin_bit_cast(uint, x))) {}
  constexpr explicit bfloat(half x) : bfloat(static_cast<float>(x)) {}
  template <class I, if_integral<I> = nullptr>
  constexpr bfloat(I x) : bfloat(static_cast<float>(x)) {}
  template <class C, if_class<C> = nullptr>
  constexpr explicit bfloat(C x) : bfloat(static_cast<float>(x)) {}
  template <class C, if_class<C> = nullptr>
  constexpr bfloat& operator=(C x) { return *this = bfloat(x); }

  constexpr operator float() const { return __builtin_bit_cast(float, static_cast<uint>(bits) << 16); }
  explicit constexpr operator half() const { return static_cast<half>(static_cast<float>(*this)); }
  explicit constexpr operator bool() const { return static_cast<float>(*this) != 0; }
  friend constexpr bfloat operator-(bfloat a) { return bfloat(-static_cast<float>(a)); }

#define METALSIM_OPERATOR(op)                                                       \
  friend constexpr bfloat operator op(bfloat a, bfloat b) {                         \
    return bfloat(static_cast<float>(a) op static_cast<float>(b));                  \
  }                                                                                 \
  template <class I, if_integral<I> = nullptr>                                      \
  friend constexpr bfloat operator op(I a, bfloat b) { return bfloat(a) op b; }     \
  template <class I, if_integral<I> = nullptr>                                      \
  friend constexpr bfloat operator op(bfloat a, I b) { return a op bfloat(b); }     \
  constexpr bfloat& operator op##=(bfloat b) { return *this = *this op b; }
  METALSIM_OPERATOR(+)
  METALSIM_OPERATOR(-)
  METALSIM_OPERATOR(*)
  METALSIM_OPERATOR(/)
#undef METALSIM_OPERATOR

 private:
  // The upper half of a float's bits, rounded to nearest, ties to even. NaN stays NaN, with its sign, and becomes quiet.
  static constexpr ushort rounded(uint x) {
    const bool nan = (x & 0x7fffffff) > 0x7f800000;
    return static_cast<ushort>((nan ? x | 0x400000 : x + 0x7fff + (x >> 16 & 1)) >> 16);
  }
};

constexpr half operator""h(long double v) { return half(v); }
constexpr half operator""H(long double v) { return half(v); }
constexpr bfloat operator""bf(long double v) { return bfloat(float(v)); }
constexpr bfloat operator""BF(long double v) { return bfloat(float(v)); }

#define INFINITY (__builtin_inff())
#define NAN (__builtin_nanf(""))
#define HUGE_VALF (__builtin_inff())
#define MAXFLOAT 3.402823466e+38f
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.1920928955e-07f
#define FLT_DIG 6
#define FLT_MANT_DIG 24
#define FLT_MAX_EXP 128
#define FLT_MIN_EXP (-125)
#define HALF_MAX half(65504.0f)
#define HALF_MIN half(6.103515625e-05f)
#define HALF_EPSILON half(9.765625e-04f)
#define CHAR_BIT 8
#define CHAR_MAX 127
#define CHAR_MIN (-128)
#define UCHAR_MAX 255
#define SHRT_MAX 32767
#define SHRT_MIN (-32768)
#define USHRT_MAX 65535
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u
#define LONG_MAX 9223372036854775807l
#define LONG_MIN (-9223372036854775807l - 1)
#define ULONG_MAX 18446744073709551615ul
#define M_E_F 2.71828182845904523536f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LOG10E_F 0.43429448190325182765f
#define M_LN2_F 0.69314718055994530942f
#define M_LN10_F 2.30258509299404568402f
#define M_PI_F 3.14159265358979323846f
#define M_PI_2_F 1.57079632679489661923f
#define M_PI_4_F 0.78539816339744830962f
#define M_1_PI_F 0.31830988618379067154f
#define M_2_PI_F 0.63661977236758134308f
#define M_2_SQRTPI_F 1.12837916709551257390f
#define M_SQRT2_F 1.41421356237309504880f
#define M_SQRT1_2_F 0.70710678118654752440f
