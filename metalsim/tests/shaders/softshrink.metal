#include <metal_stdlib>
using namespace metal;

// One thread per element; T is float, half or bfloat. `0 * v` keeps NaN and the sign of zero, as PyTorch does.
template <typename T>
kernel void softshrink_forward(device T* out             [[buffer(0)]],
                               device const T* x         [[buffer(1)]],
                               constant float& lambd     [[buffer(2)]],
                               uint i [[thread_position_in_grid]]) {
  float v = float(x[i]);
  out[i] = T(v > lambd ? v - lambd : (v < -lambd ? v + lambd : 0.0 * v));
}

template <typename T>
kernel void softshrink_backward(device T* grad_x         [[buffer(0)]],
                                device const T* grad_out [[buffer(1)]],
                                device const T* x        [[buffer(2)]],
                                constant float& lambd    [[buffer(3)]],
                                uint i [[thread_position_in_grid]]) {
  float v = float(x[i]);
  grad_x[i] = (v >= -lambd && v <= lambd) ? T(0) : grad_out[i];
}

#define INSTANTIATE(T)                                                                                           \
  template [[host_name("softshrink_forward_" #T)]] kernel void softshrink_forward<T>(                            \
      device T*, device const T*, constant float&, uint);                                                        \
  template [[host_name("softshrink_backward_" #T)]] kernel void softshrink_backward<T>(                          \
      device T*, device const T*, device const T*, constant float&, uint);
INSTANTIATE(float)
INSTANTIATE(half)
INSTANTIATE(bfloat)

// Four elements per thread; the last thread takes what is left.
kernel void softshrink_vec4(device float* out [[buffer(0)]],
                            device const float* x [[buffer(1)]],
                            constant float& lambd [[buffer(2)]],
                            constant uint& n [[buffer(3)]],
                            uint t [[thread_position_in_grid]]) {
  uint i = t * 4;
  if (i + 4 <= n) {
    float4 v = *(device const float4*)(x + i);
    *(device float4*)(out + i) = v - clamp(v, -lambd, lambd);
  } else {
    for (; i < n; i++) out[i] = x[i] - clamp(x[i], -lambd, lambd);
  }
}
