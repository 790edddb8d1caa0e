// Softmax of each row: out = exp(x - max) / sum(exp(x - max)). One threadgroup takes one row, and its threads meet twice:
// for the row's largest value, and for the sum.
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)

// Threads meet in threadgroup memory, in a tree: each step halves those that still add. For groups of 2, 4, 8 ... 1024.
kernel void softmax_tree(device float* out [[buffer(0)]], device const float* x [[buffer(1)]],
                         constant long& columns [[buffer(2)]], uint row [[threadgroup_position_in_grid]],
                         uint t [[thread_position_in_threadgroup]], uint threads [[threads_per_threadgroup]]) {
  threadgroup float shared[1024];
  device const float* from = x + long(row) * columns;
  device float* to = out + long(row) * columns;

  float most = -INFINITY;
  for (long c = t; c < columns; c += threads) most = max(most, from[c]);
  shared[t] = most;
  threadgroup_barrier(mem_flags::mem_threadgroup);  // all have written
  for (uint half_way = threads / 2; half_way > 0; half_way /= 2) {
    if (t < half_way) shared[t] = max(shared[t], shared[t + half_way]);
    threadgroup_barrier(mem_flags::mem_threadgroup);  // this step is done
  }
  most = shared[0];
  threadgroup_barrier(mem_flags::mem_threadgroup);  // all have read the maximum, its place may be written again

  float sum = 0;
  for (long c = t; c < columns; c += threads) sum += exp(from[c] - most);
  shared[t] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint half_way = threads / 2; half_way > 0; half_way /= 2) {
    if (t < half_way) shared[t] += shared[t + half_way];
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  sum = shared[0];
  for (long c = t; c < columns; c += threads) to[c] = exp(from[c] - most) / sum;
}

// The same with SIMD-group functions: 32 threads add without memory and without a barrier, and only their results meet
// in threadgroup memory. For groups of a multiple of 32.
kernel void softmax_simd(device float* out [[buffer(0)]], device const float* x [[buffer(1)]],
                         constant long& columns [[buffer(2)]], uint row [[threadgroup_position_in_grid]],
                         uint t [[thread_position_in_threadgroup]], uint threads [[threads_per_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
                         uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float shared[32];
  device const float* from = x + long(row) * columns;
  device float* to = out + long(row) * columns;

  float most = -INFINITY;
  for (long c = t; c < columns; c += threads) most = max(most, from[c]);
  most = simd_max(most);
  if (lane == 0) shared[simdgroup] = most;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  most = simd_max(lane < simdgroups ? shared[lane] : -INFINITY);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  float sum = 0;
  for (long c = t; c < columns; c += threads) sum += exp(from[c] - most);
  sum = simd_sum(sum);
  if (lane == 0) shared[simdgroup] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  sum = simd_sum(lane < simdgroups ? shared[lane] : 0.0f);
  for (long c = t; c < columns; c += threads) to[c] = exp(from[c] - most) / sum;
}
