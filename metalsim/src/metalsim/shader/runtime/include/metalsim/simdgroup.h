// Barriers and SIMD-group functions. Each is a meeting point of threads, kept by the run time (rt.cpp).
#pragma once
#pragma clang system_header

extern "C" {
void metalsim_barrier(int of_simdgroup, uint place) __attribute__((noduplicate, nomerge));
uint metalsim_exchange(const void* mine, uint bytes, void* all) __attribute__((noduplicate));  // returns who took part
uint metalsim_lane(void);
void metalsim_absent_lane(void* place, uint bytes, int of_filling);
}

namespace metal {
enum class mem_flags {
  mem_none = 0,
  mem_device = 1,
  mem_threadgroup = 2,
  mem_texture = 4,
  mem_threadgroup_imageblock = 8,
  mem_object_data = 16
};
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
enum thread_scope { thread_scope_thread, thread_scope_simdgroup, thread_scope_threadgroup, thread_scope_device };

#define METALSIM_PLACE uint place = __builtin_LINE() * 1024 + __builtin_COLUMN()  // where it was written
#define METALSIM_INLINE __attribute__((always_inline, nomerge)) inline
METALSIM_INLINE void threadgroup_barrier(mem_flags, METALSIM_PLACE) { metalsim_barrier(0, place); }
METALSIM_INLINE void threadgroup_barrier(mem_flags, thread_scope, METALSIM_PLACE) { metalsim_barrier(0, place); }
METALSIM_INLINE void simdgroup_barrier(mem_flags, METALSIM_PLACE) { metalsim_barrier(1, place); }

// What Metal accepts: no bool, no bfloat, no 64-bit integers. (PyTorch's headers write their own for those.)
template <class T>
struct __is_valid_simdgroup_type
    : bool_constant<is_arithmetic_v<T> && !is_same_v<T, bfloat> && !(is_integral_v<T> && sizeof(T) == 8) &&
                    !is_same_v<T, bool>> {};
template <class T, int N>
struct __is_valid_simdgroup_type<vec<T, N>> : __is_valid_simdgroup_type<T> {};
template <class T>
using metalsim_if_simd = enable_if_t<__is_valid_simdgroup_type<T>::value, int>;

// The values of all 32 lanes, and which lanes are there.
template <class T>
struct metalsim_lanes {
  T value[32];
  uint present;
  bool has(uint lane) const { return lane < 32 && (present >> lane & 1); }
  uint first() const { return uint(__builtin_ctz(present)); }
  // A lane that is not there gives garbage, as on a GPU. To shuffles that fill, PyTorch's headers note, it gives 0 on
  // Apple's GPUs in practice, though that is undefined, and Inductor's reductions of 64-bit integers live on it: 0 in an
  // ordinary run, garbage in check().
  T from(uint lane, bool filling = false) const {
    if (has(lane)) return value[lane];
    T t;
    metalsim_absent_lane(&t, sizeof(T), filling);
    return t;
  }
};
template <class T>
METALSIM_INLINE metalsim_lanes<T> metalsim_all(T x) {
  metalsim_lanes<T> all;
  all.present = metalsim_exchange(&x, sizeof(T), all.value);
  return all;
}

#define METALSIM_SHUFFLE(f, source)             \
  template <class T, metalsim_if_simd<T> = 0>            \
  METALSIM_INLINE T f(T x, ushort k) {          \
    metalsim_lanes<T> all = metalsim_all(x);                 \
    const uint lane = metalsim_lane();          \
    return all.from(source);                    \
  }
METALSIM_SHUFFLE(simd_shuffle, k)
METALSIM_SHUFFLE(simd_broadcast, k)
METALSIM_SHUFFLE(simd_shuffle_xor, lane ^ k)
METALSIM_SHUFFLE(simd_shuffle_down, lane + k)
METALSIM_SHUFFLE(simd_shuffle_up, lane - k)
METALSIM_SHUFFLE(simd_shuffle_rotate_down, (lane + k) & 31)
METALSIM_SHUFFLE(simd_shuffle_rotate_up, (lane - k) & 31)
METALSIM_SHUFFLE(quad_shuffle, k < 4 ? (lane & ~3u) + k : 32)
METALSIM_SHUFFLE(quad_broadcast, k < 4 ? (lane & ~3u) + k : 32)
METALSIM_SHUFFLE(quad_shuffle_xor, k < 4 ? lane ^ k : 32)
METALSIM_SHUFFLE(quad_shuffle_down, (lane & 3u) + k < 4 ? lane + k : 32)
METALSIM_SHUFFLE(quad_shuffle_up, (lane & 3u) >= k ? lane - k : 32)
#undef METALSIM_SHUFFLE
template <class T, metalsim_if_simd<T> = 0>
METALSIM_INLINE T simd_broadcast_first(T x) {
  metalsim_lanes<T> all = metalsim_all(x);
  return all.value[all.first()];
}
// In groups of `modulo` lanes, each filled from its own.
template <class T, metalsim_if_simd<T> = 0>
METALSIM_INLINE T simd_shuffle_and_fill_down(T x, T filling, ushort k, ushort modulo = 32) {
  metalsim_lanes<T> all = metalsim_all(x), fill = metalsim_all(filling);
  const uint lane = metalsim_lane(), end = lane - lane % modulo + modulo, source = lane + k;
  return source < end ? all.from(source, true) : fill.from(source - modulo, true);
}
template <class T, metalsim_if_simd<T> = 0>
METALSIM_INLINE T simd_shuffle_and_fill_up(T x, T filling, ushort k, ushort modulo = 32) {
  metalsim_lanes<T> all = metalsim_all(x), fill = metalsim_all(filling);
  const uint lane = metalsim_lane();
  return lane % modulo >= k ? all.from(lane - k, true) : fill.from(lane + modulo - k, true);
}

// Of the lanes from `begin` to `end` that are there; the caller's own is one of them.
template <class T, class F>
METALSIM_INLINE T metalsim_reduced(T x, uint begin, uint end, F combined) {
  metalsim_lanes<T> all = metalsim_all(x);
  bool begun = false;
  for (uint i = begin; i < end; i++) {
    if (!all.has(i)) continue;
    x = begun ? combined(x, all.value[i]) : all.value[i];
    begun = true;
  }
  return x;
}
#define METALSIM_REDUCTION(f, expression)                                                            \
  template <class T, metalsim_if_simd<T> = 0>                                                        \
  METALSIM_INLINE T simd_##f(T x) {                                                                  \
    return metalsim_reduced(x, 0, 32, [](T a, T b) { return T(expression); });                       \
  }                                                                                                  \
  template <class T, metalsim_if_simd<T> = 0>                                                        \
  METALSIM_INLINE T quad_##f(T x) {                                                                  \
    const uint quad = metalsim_lane() & ~3u;                                                         \
    return metalsim_reduced(x, quad, quad + 4, [](T a, T b) { return T(expression); });              \
  }
METALSIM_REDUCTION(sum, a + b)
METALSIM_REDUCTION(product, a* b)
METALSIM_REDUCTION(max, max(a, b))
METALSIM_REDUCTION(min, min(a, b))
METALSIM_REDUCTION(and, a& b)
METALSIM_REDUCTION(or, a | b)
METALSIM_REDUCTION(xor, a ^ b)
#undef METALSIM_REDUCTION

#define METALSIM_PREFIX(f, start, op, last)                                  \
  template <class T, metalsim_if_simd<T> = 0>                                         \
  METALSIM_INLINE T f(T x) {                                                 \
    metalsim_lanes<T> all = metalsim_all(x);                                              \
    T a = T(start);                                                          \
    const uint lane = metalsim_lane();                                       \
    for (uint i = 0; i < last; i++)                                          \
      if (all.has(i)) a = T(a op all.value[i]);                              \
    return a;                                                                \
  }
METALSIM_PREFIX(simd_prefix_inclusive_sum, 0, +, lane + 1)
METALSIM_PREFIX(simd_prefix_exclusive_sum, 0, +, lane)
METALSIM_PREFIX(simd_prefix_inclusive_product, 1, *, lane + 1)
METALSIM_PREFIX(simd_prefix_exclusive_product, 1, *, lane)
#undef METALSIM_PREFIX

struct simd_vote {
  using vote_t = ulong;
  ulong votes;
  constexpr explicit simd_vote(ulong v = 0) : votes(v) {}
  constexpr explicit operator ulong() const { return votes; }
  bool all() const { return votes == 0xffffffffu; }
  bool any() const { return votes != 0; }
};
METALSIM_INLINE simd_vote simd_ballot(bool yes) {
  metalsim_lanes<uchar> all = metalsim_all(uchar(yes));
  ulong votes = 0;
  for (uint i = 0; i < 32; i++)
    if (all.has(i) && all.value[i]) votes |= 1ul << i;
  return simd_vote(votes);
}
METALSIM_INLINE bool simd_any(bool yes) { return simd_ballot(yes).any(); }
METALSIM_INLINE bool simd_all(bool yes) { return !simd_ballot(!yes).any(); }
METALSIM_INLINE simd_vote simd_active_threads_mask() { return simd_vote(metalsim_all(uchar(0)).present); }
METALSIM_INLINE bool simd_is_first() { return metalsim_all(uchar(0)).first() == metalsim_lane(); }
}  // namespace metal
