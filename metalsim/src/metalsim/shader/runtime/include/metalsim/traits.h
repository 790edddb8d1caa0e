// <metal_type_traits> and <metal_utility>: what kernels ask about types.
#pragma once
#pragma clang system_header

namespace metal {
template <class T, T V>
struct integral_constant {
  static constexpr T value = V;
  using value_type = T;
  using type = integral_constant;
  constexpr operator T() const { return V; }
};
template <bool B>
using bool_constant = integral_constant<bool, B>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;

template <bool, class T = void>
struct enable_if {};
template <class T>
struct enable_if<true, T> {
  using type = T;
};
template <bool B, class T = void>
using enable_if_t = typename enable_if<B, T>::type;
template <bool, class T, class F>
struct conditional {
  using type = T;
};
template <class T, class F>
struct conditional<false, T, F> {
  using type = F;
};
template <bool B, class T, class F>
using conditional_t = typename conditional<B, T, F>::type;

// A trait that clang computes: the struct and its _t.
#define METALSIM_TRANSFORM(name, builtin) \
  template <class T>                      \
  using name##_t = builtin(T);            \
  template <class T>                      \
  struct name {                           \
    using type = builtin(T);              \
  };
METALSIM_TRANSFORM(remove_reference, __remove_reference_t)
METALSIM_TRANSFORM(remove_cv, __remove_cv)
METALSIM_TRANSFORM(remove_const, __remove_const)
METALSIM_TRANSFORM(remove_volatile, __remove_volatile)
METALSIM_TRANSFORM(remove_pointer, __remove_pointer)
METALSIM_TRANSFORM(decay, __decay)
METALSIM_TRANSFORM(make_unsigned, __make_unsigned)
METALSIM_TRANSFORM(make_signed, __make_signed)
METALSIM_TRANSFORM(underlying_type, __underlying_type)
#undef METALSIM_TRANSFORM
template <class T>
using remove_addrspace_t = T;  // address spaces are words without effect here

// A question about types: the struct and its _v.
#define METALSIM_QUESTION(name, ...)                \
  template <class T>                                \
  constexpr bool name##_v = __VA_ARGS__;            \
  template <class T>                                \
  struct name : bool_constant<__VA_ARGS__> {};
#define METALSIM_IS(T, type) __is_same(__remove_cv(T), type)
METALSIM_QUESTION(is_floating_point, METALSIM_IS(T, float) || METALSIM_IS(T, half) || METALSIM_IS(T, bfloat))
METALSIM_QUESTION(is_integral, __is_integral(T))
METALSIM_QUESTION(is_arithmetic, __is_integral(T) || is_floating_point_v<T>)
METALSIM_QUESTION(is_signed, __is_signed(T) || is_floating_point_v<T>)
METALSIM_QUESTION(is_unsigned, __is_unsigned(T))
METALSIM_QUESTION(is_enum, __is_enum(T))
METALSIM_QUESTION(is_pointer, __is_pointer(T))
METALSIM_QUESTION(is_scalar, is_arithmetic_v<T> || __is_enum(T) || __is_pointer(T))
METALSIM_QUESTION(is_const, __is_const(T))
METALSIM_QUESTION(is_void, __is_void(T))
METALSIM_QUESTION(is_class, __is_class(T))
METALSIM_QUESTION(is_trivially_copyable, __is_trivially_copyable(T))
#undef METALSIM_QUESTION
#define METALSIM_QUESTION2(name, builtin)   \
  template <class A, class B>               \
  constexpr bool name##_v = builtin(A, B);  \
  template <class A, class B>               \
  struct name : bool_constant<builtin(A, B)> {};
METALSIM_QUESTION2(is_same, __is_same)
METALSIM_QUESTION2(is_convertible, __is_convertible)
METALSIM_QUESTION2(is_base_of, __is_base_of)
#undef METALSIM_QUESTION2

template <class...>
struct disjunction : false_type {};
template <class A, class... B>
struct disjunction<A, B...> : conditional_t<A::value, A, disjunction<B...>> {};
template <class...>
struct conjunction : true_type {};
template <class A, class... B>
struct conjunction<A, B...> : conditional_t<A::value, conjunction<B...>, A> {};
template <class... T>
using _disjunction = disjunction<T...>;  // Apple's own spelling, which public kernels use

template <class T>
T&& declval() noexcept;
template <class>
struct result_of;
template <class F, class... A>
struct result_of<F(A...)> {
  using type = decltype(declval<F>()(declval<A>()...));
};
template <class F>
using result_of_t = typename result_of<F>::type;
template <class T>
constexpr remove_reference_t<T>&& move(T&& t) {
  return static_cast<remove_reference_t<T>&&>(t);
}
template <class T>
void swap(T& a, T& b) {
  T c = a;
  a = b;
  b = c;
}
template <class T>
struct uniform {  // a value that is the same in every thread
  T value;
  constexpr uniform(T x) : value(x) {}
  constexpr operator T() const { return value; }
};
template <class T>
constexpr T make_uniform(T x) {
  return x;
}
template <class T, size_t N>
struct array {
  T __elements[N];
  static constexpr size_t size() { return N; }
  constexpr T& operator[](size_t i) { return __elements[i]; }
  constexpr const T& operator[](size_t i) const { return __elements[i]; }
  T* data() { return __elements; }
  const T* data() const { return __elements; }
};
}  // namespace metal

template <class To, class From>
inline To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type: the two types differ in size");
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}
