// Vectors of two to four elements, with swizzles; packed vectors; small matrices.
#pragma once
#pragma clang system_header

namespace metal {
template <class T, int N>
struct vec;
template <class T, int N>
struct packed_vec;

// How many elements a constructor argument brings: 1 for a scalar, N for a vector, 0 for anything else.
template <class T>
struct metalsim_elements : integral_constant<int, is_arithmetic_v<T>> {};
template <class T, int N>
struct metalsim_elements<vec<T, N>> : integral_constant<int, N> {};
template <class T, int N>
struct metalsim_elements<packed_vec<T, N>> : integral_constant<int, N> {};
template <class...>
struct metalsim_count : integral_constant<int, 0> {};
template <class A, class... B>
struct metalsim_count<A, B...>
    : integral_constant<int, (metalsim_elements<decay_t<A>>::value ? metalsim_elements<decay_t<A>>::value : 1000) +
                                 metalsim_count<B...>::value> {};

// The elements of a vector at some positions.
template <int... At>
struct metalsim_elements_at {
  template <class V>
  static constexpr auto read(const V& v) -> vec<decay_t<decltype(v.at(0))>, sizeof...(At)> {
    return {v.at(At)...};
  }
  template <class V, class W>
  static constexpr void write(V& v, const W& given) {
    static_assert(__builtin_popcount((... | (1 << At))) == sizeof...(At),
                  "a swizzle with a repeated element is not assignable");
    int i = 0;
    ((v.at(At) = given.at(i++)), ...);
  }
};

// A swizzle is a property: reading `v.yx` calls a getter, writing it a setter. Writing one with a repeated element does
// not compile, as in Metal.
#define METALSIM_SWIZZLE1(name, a)                        \
  constexpr T get_##name() const { return at(a); }        \
  constexpr void put_##name(T v) { at(a) = v; }           \
  __declspec(property(get = get_##name, put = put_##name)) T name;
#define METALSIM_SWIZZLE(name, n, ...)                                                                       \
  constexpr vec<T, n> get_##name() const { return metalsim_elements_at<__VA_ARGS__>::read(*this); }          \
  constexpr void put_##name(vec<T, n> v) { metalsim_elements_at<__VA_ARGS__>::write(*this, v); }             \
  __declspec(property(get = get_##name, put = put_##name)) vec<T, n> name;
#include <metalsim/swizzles.h>

#define METALSIM_N 2
#include <metalsim/vector_n.h>
#undef METALSIM_N
#define METALSIM_N 3
#include <metalsim/vector_n.h>
#undef METALSIM_N
#define METALSIM_N 4
#include <metalsim/vector_n.h>
#undef METALSIM_N

// The same elements without alignment: 12 bytes for packed_float3.
template <class T, int N>
struct packed_vec {
  T elements[N];
  packed_vec() = default;
  constexpr packed_vec(vec<T, N> v) : elements{} {
    for (int i = 0; i < N; i++) elements[i] = v.at(i);
  }
  template <class A, class B, class... C>
  constexpr packed_vec(A a, B b, C... c) : packed_vec(vec<T, N>(a, b, c...)) {}
  constexpr T& operator[](size_t i) { return elements[i]; }
  constexpr const T& operator[](size_t i) const { return elements[i]; }
  constexpr T& at(int i) { return elements[i]; }
  constexpr const T& at(int i) const { return elements[i]; }
  METALSIM_SWIZZLE1(x, 0) METALSIM_SWIZZLE1(y, 1) METALSIM_SWIZZLE1(z, 2) METALSIM_SWIZZLE1(w, 3)
  // both packed, or one and a scalar: with one vec, the operators of vec are meant
  template <class A, class B>
  static constexpr bool are_mine = is_same_v<A, packed_vec> ? is_same_v<B, packed_vec> || is_arithmetic_v<B>
                                                            : is_arithmetic_v<A> && is_same_v<B, packed_vec>;
#define METALSIM_OPERATOR(op)                                                                              \
  template <class A, class B, enable_if_t<are_mine<A, B>, int> = 0>                                        \
  friend constexpr vec<T, N> operator op(A a, B b) {                                                       \
    return vec<T, N>(a) op vec<T, N>(b);                                                                   \
  }                                                                                                        \
  constexpr packed_vec& operator op##=(vec<T, N> b) { return *this = packed_vec(vec<T, N>(*this) op b); }
  METALSIM_OPERATOR(+) METALSIM_OPERATOR(-) METALSIM_OPERATOR(*) METALSIM_OPERATOR(/)
#undef METALSIM_OPERATOR
};

template <class T, int Columns, int Rows>
struct matrix {
  vec<T, Rows> columns[Columns];
  matrix() = default;
  constexpr explicit matrix(T diagonal) : columns{} {
    for (int i = 0; i < Columns; i++) {
      columns[i] = vec<T, Rows>(T(0));
      if (i < Rows) columns[i].at(i) = diagonal;
    }
  }
  template <class... A, enable_if_t<sizeof...(A) == Columns, int> = 0>
  constexpr matrix(A... a) : columns{a...} {}
  constexpr vec<T, Rows>& operator[](size_t i) { return columns[i]; }
  constexpr const vec<T, Rows>& operator[](size_t i) const { return columns[i]; }
  friend constexpr vec<T, Rows> operator*(const matrix& m, vec<T, Columns> v) {
    vec<T, Rows> r(T(0));
    for (int i = 0; i < Columns; i++) r += m.columns[i] * v.at(i);
    return r;
  }
  friend constexpr vec<T, Columns> operator*(vec<T, Rows> v, const matrix& m) {
    vec<T, Columns> r(T(0));
    for (int i = 0; i < Columns; i++)
      for (int j = 0; j < Rows; j++) r.at(i) = T(r.at(i) + v.at(j) * m.columns[i].at(j));
    return r;
  }
};

// Names that Apple's own headers expose and public kernels use.
template <class T>
struct make_scalar {
  using type = T;
};
template <class T, int N>
struct make_scalar<vec<T, N>> {
  using type = T;
};
template <class T>
using make_scalar_t = typename make_scalar<T>::type;
template <class T>
struct vec_elements : integral_constant<short, metalsim_elements<T>::value> {};
template <class T>
constexpr bool is_vector_v = (metalsim_elements<T>::value > 1);
template <class T>
struct is_vector : bool_constant<is_vector_v<T>> {};

// The type of the vectors among arguments, where all others are scalars; none where there are two types, or no vector.
template <class...>
struct metalsim_vector_of {};
template <class A, class... B>
struct metalsim_vector_of<A, B...>
    : conditional_t<is_arithmetic_v<A>, metalsim_vector_of<B...>, metalsim_vector_of<>> {};
template <class T, int N, class... A>
struct metalsim_vector_of<vec<T, N>, A...>
    : enable_if<conjunction<bool_constant<is_arithmetic_v<A> || is_same_v<A, vec<T, N>>>...>::value, vec<T, N>> {};

// A function of scalars, element by element. The result's type is that of the scalar function.
#define METALSIM_MAP(f)                                                           \
  template <class... A, class V = typename metalsim_vector_of<A...>::type>        \
  inline auto f(A... a)->vec<decltype(f(V(a).at(0)...)), V::N> {                  \
    vec<decltype(f(V(a).at(0)...)), V::N> r;                                      \
    for (int i = 0; i < V::N; i++) r.at(i) = f(V(a).at(i)...);                    \
    return r;                                                                     \
  }
}  // namespace metal

#define METALSIM_VECTOR_NAMES(t)                                                                            \
  typedef metal::vec<t, 2> t##2; typedef metal::vec<t, 3> t##3; typedef metal::vec<t, 4> t##4;              \
  typedef metal::packed_vec<t, 2> packed_##t##2; typedef metal::packed_vec<t, 3> packed_##t##3;             \
  typedef metal::packed_vec<t, 4> packed_##t##4;
METALSIM_VECTOR_NAMES(bool)
METALSIM_INTEGERS(METALSIM_VECTOR_NAMES)
METALSIM_VECTOR_NAMES(half)
METALSIM_VECTOR_NAMES(bfloat)
METALSIM_VECTOR_NAMES(float)
#undef METALSIM_VECTOR_NAMES
#define METALSIM_MATRIX_NAMES(t)                                                                                  \
  typedef metal::matrix<t, 2, 2> t##2x2; typedef metal::matrix<t, 2, 3> t##2x3; typedef metal::matrix<t, 2, 4> t##2x4; \
  typedef metal::matrix<t, 3, 2> t##3x2; typedef metal::matrix<t, 3, 3> t##3x3; typedef metal::matrix<t, 3, 4> t##3x4; \
  typedef metal::matrix<t, 4, 2> t##4x2; typedef metal::matrix<t, 4, 3> t##4x3; typedef metal::matrix<t, 4, 4> t##4x4;
METALSIM_MATRIX_NAMES(half)
METALSIM_MATRIX_NAMES(float)
#undef METALSIM_MATRIX_NAMES
