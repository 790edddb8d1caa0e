// How generated code (source.py) turns a run time thread into the arguments of a kernel.
#pragma once
#pragma clang system_header
#include <metalsim/abi.h>

namespace metalsim {
// ---- what a parameter is -------------------------------------------------------------------------------------------
template <class T>
struct scalar_of {
  using type = T;
};
template <class T, int N>
struct scalar_of<metal::vec<T, N>> : scalar_of<T> {};
template <class T, int N>
struct scalar_of<metal::packed_vec<T, N>> : scalar_of<T> {};
template <class T, int C, int R>
struct scalar_of<metal::matrix<T, C, R>> : scalar_of<T> {};
template <class T, size_t N>
struct scalar_of<metal::array<T, N>> : scalar_of<T> {};
template <class T, size_t N>
struct scalar_of<T[N]> : scalar_of<T> {};
template <class T>
struct scalar_of<metal::_atomic<T>> : scalar_of<T> {};
template <class T>
using scalar_of_t = typename scalar_of<metal::remove_cv_t<T>>::type;

template <class T>
constexpr int kind_of() {
  using S = scalar_of_t<T>;
  return metal::is_same_v<S, float>    ? 'f'
         : metal::is_same_v<S, half>   ? 'h'
         : metal::is_same_v<S, bfloat> ? 'b'
         : metal::is_same_v<S, bool>   ? 'B'
         : metal::is_void_v<S>         ? 'v'
         : !metal::is_integral_v<S>    ? 's'
         : metal::is_signed_v<S>       ? 'i'
                                       : 'u';
}
template <class T>
constexpr int size_of = sizeof(metal::conditional_t<metal::is_void_v<T>, char, T>);

template <class T>
struct argument {
  static_assert(sizeof(T) == 0, "a kernel's parameter is a pointer, a reference, or has an attribute such as "
                                "[[thread_position_in_grid]]");
};
template <class T, int is_reference>
struct argument_to {
  static constexpr MetalsimParameter describe(int buffer) {
    return {buffer, is_reference, kind_of<T>(), size_of<scalar_of_t<T>>, size_of<T>, metal::is_const_v<T>};
  }
};
template <class T>
struct argument<T*> : argument_to<T, 0> {
  static T* get(void** buffers, int i) { return (T*)buffers[i]; }
};
template <class T>
struct argument<T&> : argument_to<T, 1> {
  static T& get(void** buffers, int i) { return *(T*)buffers[i]; }
};

// Buffers of parameters that are not there: a null pointer for each.
static void* absent[64] = {};

// A parameter that is threadgroup memory, whose length the host gave.
template <class T>
inline T in_threadgroup(void* memory) {
  return argument<T>::get(&memory, 0);
}

template <class F>
struct signature;
template <class... A>
struct signature<void (*)(A...)> {
  template <int I>
  using at = __type_pack_element<I, A...>;
};

// ---- values that the run time supplies: uint or ushort, one to three of them ----------------------------------------
template <class T>
inline T position(MetalsimIndex v, T*) { return T(v.x); }
template <class T>
inline metal::vec<T, 2> position(MetalsimIndex v, metal::vec<T, 2>*) { return {v.x, v.y}; }
template <class T>
inline metal::vec<T, 3> position(MetalsimIndex v, metal::vec<T, 3>*) { return {v.x, v.y, v.z}; }
template <class T>
inline T supply(MetalsimIndex v) {
  return position(v, static_cast<metal::remove_cv_t<T>*>(nullptr));
}
template <class T>
inline T supply(uint v) {
  return T(v);
}
inline uint simdgroups(MetalsimIndex group) { return (group.x * group.y * group.z + 31) / 32; }
}  // namespace metalsim

// Threadgroup memory is static memory in a section of its own: the run time fills it with garbage before each group.
#define METALSIM_SHARED static __attribute__((section("metalsim_shared"), used))

// os_log: accepted, and says nothing.
namespace metal {
struct os_log {
  template <class... A>
  constexpr os_log(A...) {}
  template <class... A>
  void log(A...) const {}
  template <class... A>
  void log_debug(A...) const {}
  template <class... A>
  void log_info(A...) const {}
  template <class... A>
  void log_error(A...) const {}
};
}  // namespace metal
