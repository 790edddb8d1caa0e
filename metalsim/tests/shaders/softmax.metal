#include <metal_stdlib>
using namespace metal;

// One threadgroup per row, a tree in threadgroup memory.
kernel void softmax_tree(device float* out [[buffer(0)]], device const float* x [[buffer(1)]],
                         constant uint& cols [[buffer(2)]],
                         uint row [[threadgroup_position_in_grid]],
                         uint t [[thread_position_in_threadgroup]],
                         uint nt [[threads_per_threadgroup]]) {
  threadgroup float red[256];
  float m = -INFINITY;
  for (uint c = t; c < cols; c += nt) m = max(m, x[row * cols + c]);
  red[t] = m;
  threadgroup_barrier(mem_flags::mem_threadgroup);  // 1
  for (uint s = nt / 2; s > 0; s >>= 1) {
    if (t < s) red[t] = max(red[t], red[t + s]);
    threadgroup_barrier(mem_flags::mem_threadgroup);  // 2
  }
  m = red[0];
  threadgroup_barrier(mem_flags::mem_threadgroup);  // 3
  float z = 0;
  for (uint c = t; c < cols; c += nt) z += exp(x[row * cols + c] - m);
  red[t] = z;
  threadgroup_barrier(mem_flags::mem_threadgroup);  // 4
  for (uint s = nt / 2; s > 0; s >>= 1) {
    if (t < s) red[t] += red[t + s];
    threadgroup_barrier(mem_flags::mem_threadgroup);  // 5
  }
  z = red[0];
  for (uint c = t; c < cols; c += nt) out[row * cols + c] = exp(x[row * cols + c] - m) / z;
}

// The same with SIMD-group functions: two stages of 32 lanes.
kernel void softmax_simd(device float* out [[buffer(0)]], device const float* x [[buffer(1)]],
                         constant uint& cols [[buffer(2)]],
                         uint row [[threadgroup_position_in_grid]],
                         uint t [[thread_position_in_threadgroup]],
                         uint nt [[threads_per_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]],
                         uint sg [[simdgroup_index_in_threadgroup]],
                         uint nsg [[simdgroups_per_threadgroup]]) {
  threadgroup float part[32];
  float m = -INFINITY;
  for (uint c = t; c < cols; c += nt) m = max(m, x[row * cols + c]);
  m = simd_max(m);
  if (lane == 0) part[sg] = m;
  threadgroup_barrier(mem_flags::mem_threadgroup);  // 1
  m = simd_max(lane < nsg ? part[lane] : -INFINITY);
  threadgroup_barrier(mem_flags::mem_threadgroup);  // 2
  float z = 0;
  for (uint c = t; c < cols; c += nt) z += exp(x[row * cols + c] - m);
  z = simd_sum(z);
  if (lane == 0) part[sg] = z;
  threadgroup_barrier(mem_flags::mem_threadgroup);  // 3
  z = simd_sum(lane < nsg ? part[lane] : 0.0);
  for (uint c = t; c < cols; c += nt) out[row * cols + c] = exp(x[row * cols + c] - m) / z;
}

// Sums of 32 neighbours, by halving distances.
kernel void shuffle_sum(device float* out, device const float* x, uint i [[thread_position_in_grid]],
                        uint lane [[thread_index_in_simdgroup]]) {
  float v = x[i];
  for (ushort d = 16; d > 0; d >>= 1) v += simd_shuffle_down(v, d);
  if (lane == 0) out[i / 32] = v;
}

kernel void histogram(device atomic_uint* counts, device const int* x, uint i [[thread_position_in_grid]]) {
  atomic_fetch_add_explicit(&counts[x[i]], 1u, memory_order_relaxed);
}
