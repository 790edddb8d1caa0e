// vec<T, N> for N = METALSIM_N; vector.h includes this file three times.
#pragma clang system_header
template <class T>
struct alignas(sizeof(T) * (METALSIM_N == 3 ? 4 : METALSIM_N)) vec<T, METALSIM_N> {
  static constexpr int N = METALSIM_N;
#if METALSIM_N == 2
  T x, y;
#define METALSIM_ZERO x(), y()
  constexpr T& at(int i) { return i == 0 ? x : y; }
  constexpr const T& at(int i) const { return i == 0 ? x : y; }
  METALSIM_SWIZZLES_2
#elif METALSIM_N == 3
  T x, y, z;
#define METALSIM_ZERO x(), y(), z()
  constexpr T& at(int i) { return i == 0 ? x : i == 1 ? y : z; }
  constexpr const T& at(int i) const { return i == 0 ? x : i == 1 ? y : z; }
  METALSIM_SWIZZLES_3
#else
  T x, y, z, w;
#define METALSIM_ZERO x(), y(), z(), w()
  constexpr T& at(int i) { return i == 0 ? x : i == 1 ? y : i == 2 ? z : w; }
  constexpr const T& at(int i) const { return i == 0 ? x : i == 1 ? y : i == 2 ? z : w; }
  METALSIM_SWIZZLES_4
#endif

  vec() = default;
  template <class U, enable_if_t<is_arithmetic_v<U>, int> = 0>
  constexpr vec(U s) : METALSIM_ZERO {
    for (int i = 0; i < N; i++) at(i) = T(s);
  }
  template <class U, enable_if_t<!is_same_v<U, T>, int> = 0>
  constexpr explicit vec(vec<U, METALSIM_N> o) : METALSIM_ZERO {
    for (int i = 0; i < N; i++) at(i) = T(o.at(i));
  }
  constexpr vec(packed_vec<T, METALSIM_N> o) : METALSIM_ZERO {
    for (int i = 0; i < N; i++) at(i) = o.at(i);
  }
  // fewer in braces leave the rest 0; Metal takes fewer there only, here parentheses do as well
  template <class A, class B, class... C, enable_if_t<(metalsim_count<A, B, C...>::value <= METALSIM_N), int> = 0>
  constexpr vec(A a, B b, C... c) : METALSIM_ZERO {
    int i = 0;
    put(i, a), put(i, b), (..., put(i, c));
  }
#undef METALSIM_ZERO
  constexpr T& operator[](size_t i) { return __builtin_is_constant_evaluated() ? at(int(i)) : (&x)[i]; }
  constexpr const T& operator[](size_t i) const { return __builtin_is_constant_evaluated() ? at(int(i)) : (&x)[i]; }

#define METALSIM_OPERATOR(op)                                     \
  friend constexpr vec operator op(vec a, vec b) {                \
    for (int i = 0; i < N; i++) a.at(i) = T(a.at(i) op b.at(i));  \
    return a;                                                     \
  }                                                               \
  constexpr vec& operator op##=(vec b) { return *this = *this op b; }
  METALSIM_OPERATOR(+) METALSIM_OPERATOR(-) METALSIM_OPERATOR(*) METALSIM_OPERATOR(/) METALSIM_OPERATOR(%)
  METALSIM_OPERATOR(&) METALSIM_OPERATOR(|) METALSIM_OPERATOR(^) METALSIM_OPERATOR(<<) METALSIM_OPERATOR(>>)
#undef METALSIM_OPERATOR
#define METALSIM_OPERATOR(op)                                          \
  friend constexpr vec<bool, METALSIM_N> operator op(vec a, vec b) {   \
    vec<bool, METALSIM_N> r(false);                                    \
    for (int i = 0; i < N; i++) r.at(i) = a.at(i) op b.at(i);          \
    return r;                                                          \
  }
  METALSIM_OPERATOR(<) METALSIM_OPERATOR(>) METALSIM_OPERATOR(<=) METALSIM_OPERATOR(>=) METALSIM_OPERATOR(==)
  METALSIM_OPERATOR(!=) METALSIM_OPERATOR(&&) METALSIM_OPERATOR(||)
#undef METALSIM_OPERATOR
#define METALSIM_OPERATOR(op)                                   \
  friend constexpr vec operator op(vec a) {                     \
    for (int i = 0; i < N; i++) a.at(i) = T(op a.at(i));        \
    return a;                                                   \
  }
  METALSIM_OPERATOR(-) METALSIM_OPERATOR(~)
#undef METALSIM_OPERATOR
  friend constexpr vec operator+(vec a) { return a; }
  friend constexpr vec<bool, METALSIM_N> operator!(vec a) {
    return a == vec(T(0));
  }
  constexpr vec& operator++() { return *this += T(1); }
  constexpr vec& operator--() { return *this -= T(1); }

 private:
  template <class A, enable_if_t<is_arithmetic_v<A>, int> = 0>
  constexpr void put(int& i, A a) {
    at(i++) = T(a);
  }
  template <class A, enable_if_t<!is_arithmetic_v<A>, int> = 0>
  constexpr void put(int& i, A a) {
    for (int k = 0; k < metalsim_elements<A>::value; k++) at(i++) = T(a.at(k));
  }
};
