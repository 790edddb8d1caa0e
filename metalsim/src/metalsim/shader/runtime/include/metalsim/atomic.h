// <metal_atomic>: relaxed atomics, the only ones that Metal's buffers have.
#pragma once
#pragma clang system_header

namespace metal {
enum memory_order { memory_order_relaxed = 0 };
template <class T>
struct _atomic {
  static_assert(is_same_v<T, int> || is_same_v<T, uint> || is_same_v<T, bool> || is_same_v<T, ulong> ||
                    is_same_v<T, float>,
                "Metal's atomics are int, uint, bool, ulong and float");
  T value;
};
template <class T>
using atomic = _atomic<T>;
template <class T>
using metalsim_same_t = typename enable_if<true, T>::type;  // keeps an argument out of the deduction of T

template <class T>
inline T atomic_load_explicit(const volatile _atomic<T>* p, memory_order) {
  T r;
  __atomic_load((T*)&p->value, &r, __ATOMIC_RELAXED);
  return r;
}
template <class T>
inline void atomic_store_explicit(volatile _atomic<T>* p, metalsim_same_t<T> v, memory_order) {
  __atomic_store((T*)&p->value, &v, __ATOMIC_RELAXED);
}
template <class T>
inline T atomic_exchange_explicit(volatile _atomic<T>* p, metalsim_same_t<T> v, memory_order) {
  T r;
  __atomic_exchange((T*)&p->value, &v, &r, __ATOMIC_RELAXED);
  return r;
}
template <class T>
inline bool atomic_compare_exchange_weak_explicit(volatile _atomic<T>* p, T* expected, metalsim_same_t<T> v,
                                                  memory_order, memory_order) {
  return __atomic_compare_exchange((T*)&p->value, expected, &v, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}
#define METALSIM_FETCH(f, expression)                                                                      \
  template <class T>                                                                                       \
  inline T f(volatile _atomic<T>* p, metalsim_same_t<T> b, memory_order order) {                                    \
    T a = atomic_load_explicit(p, order), r;                                                               \
    do r = T(expression);                                                                                  \
    while (!__atomic_compare_exchange((T*)&p->value, &a, &r, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));   \
    return a;                                                                                              \
  }
METALSIM_FETCH(atomic_fetch_add_explicit, a + b)
METALSIM_FETCH(atomic_fetch_sub_explicit, a - b)
METALSIM_FETCH(atomic_fetch_max_explicit, a < b ? b : a)
METALSIM_FETCH(atomic_fetch_min_explicit, b < a ? b : a)
METALSIM_FETCH(atomic_fetch_and_explicit, a& b)
METALSIM_FETCH(atomic_fetch_or_explicit, a | b)
METALSIM_FETCH(atomic_fetch_xor_explicit, a ^ b)
#undef METALSIM_FETCH

typedef _atomic<int> atomic_int;
typedef _atomic<uint> atomic_uint;
typedef _atomic<bool> atomic_bool;
typedef _atomic<float> atomic_float;
typedef _atomic<ulong> atomic_ulong;
}  // namespace metal
