// Parts of the language and of its library, one small kernel each.
#include <metal_stdlib>
using namespace metal;

kernel void swizzles(device float4* out, device const float4* x, uint i [[thread_position_in_grid]]) {
  float4 v = x[i];
  v.zw = v.yx;
  v.rg += float2(1);
  v[3] *= 2;
  out[i] = float4(v.wzy, v.xyz.x);
}

kernel void packed(device packed_float3* out, device const packed_float3* x, constant long& n,
                   uint i [[thread_position_in_grid]]) {
  out[i] = x[i] * 2.0f + float3(n) + x[i] * x[i];
}

kernel void positions(device uint* out, uint3 p [[thread_position_in_grid]], uint3 n [[threads_per_grid]],
                      uint3 size [[threads_per_threadgroup]], uint3 asked [[dispatch_threads_per_threadgroup]],
                      ushort lane [[thread_index_in_simdgroup]], uint number [[thread_index_in_threadgroup]]) {
  uint at = ((p.z * n.y + p.y) * n.x + p.x) * 4;
  out[at] = size.x * 100 + size.y * 10 + size.z;
  out[at + 1] = asked.x * 100 + asked.y * 10 + asked.z;
  out[at + 2] = lane;
  out[at + 3] = number;
}

kernel void half_steps(device half* out, device const half* x, uint i [[thread_position_in_grid]]) {
  out[i] = x[i] * half(3.0) + x[i] / 3.0h;  // rounds after each operation
}

kernel void lanes(device float* out, device const float* x, uint i [[thread_position_in_grid]],
                  uint lane [[thread_index_in_simdgroup]]) {
  device float* to = out + i * 8;
  to[0] = simd_sum(x[i]);
  to[1] = simd_prefix_inclusive_sum(x[i]);
  to[2] = simd_shuffle_xor(x[i], 1);
  to[3] = simd_broadcast(x[i], 3);
  to[4] = quad_sum(x[i]);
  to[5] = simd_shuffle_rotate_down(x[i], 1);
  to[6] = ulong(simd_ballot(x[i] > 0)) & 0xffff;
  to[7] = lane < 16 ? simd_max(x[i]) : simd_min(x[i]);  // lanes that part ways
}

// 8 x 8 tiles: c = a b
kernel void tiles(device float* c, device const float* a, device const float* b) {
  simdgroup_float8x8 ta, tb, tc;
  simdgroup_load(ta, a, 8);
  simdgroup_load(tb, b, 8);
  simdgroup_multiply(tc, ta, tb);
  simdgroup_store(tc, c, 8);
}

namespace helpers {
struct Square {
  template <typename T>
  T operator()(T x) const thread { return x * x; }
  template <typename T>
  T operator()(T x) const device { return x * x; }
};
template <typename T>
T first(constant T* p) { return *p; }
template <typename T>
T first(device const T* p) { return *p; }
}  // namespace helpers

template <typename T, typename F>
[[kernel]] void apply(device T* out, constant T* x, uint i [[thread_position_in_grid]]) {
  out[i] = F()(x[i]) + helpers::first(x) - helpers::first((device const T*)x);
}
template [[host_name("square_float")]] [[kernel]] decltype(apply<float, helpers::Square>) apply<float, helpers::Square>;
template [[host_name("square_int")]] [[kernel]] decltype(apply<int, helpers::Square>) apply<int, helpers::Square>;

kernel void literals(device float* out, uint i [[thread_position_in_grid]]) {
  auto third = 1.0 / 3;
  out[0] = sizeof(third);
  out[1] = third;
}

[[max_total_threads_per_threadgroup(64)]] kernel void at_most_64(device int* out, constant int* numbers,
                                                                 constant uchar& small, constant bool& yes,
                                                                 uint i [[thread_position_in_grid]]) {
  out[i] = yes ? numbers[i] + small : 0;
}

kernel void integers(device int4* x) {
  x[0] = clamp(abs(x[0]), 2, 5) + min(x[0], 1);
}
