// Conversions and arithmetic, one operation each: what must have the same bits on every processor.
#include <metal_stdlib>
using namespace metal;

#define CONVERT(From, To)                                                                                        \
  kernel void From##_to_##To(device To* out, device const From* x, uint i [[thread_position_in_grid]]) {         \
    out[i] = To(x[i]);                                                                                           \
  }
CONVERT(float, bfloat)
CONVERT(float, half)
CONVERT(bfloat, float)
CONVERT(half, float)
CONVERT(half, bfloat)
CONVERT(bfloat, half)
CONVERT(int, half)
CONVERT(long, bfloat)
CONVERT(ulong, half)
CONVERT(half, long)
CONVERT(float, ulong)

template <typename T>
kernel void arithmetic(device T* out, device const T* x, device const T* y, uint i [[thread_position_in_grid]]) {
  out[4 * i] = x[i] + y[i];
  out[4 * i + 1] = x[i] - y[i];
  out[4 * i + 2] = x[i] * y[i];
  out[4 * i + 3] = x[i] / y[i];
}
template [[host_name("arithmetic_float")]] [[kernel]] decltype(arithmetic<float>) arithmetic<float>;
template [[host_name("arithmetic_half")]] [[kernel]] decltype(arithmetic<half>) arithmetic<half>;
template [[host_name("arithmetic_bfloat")]] [[kernel]] decltype(arithmetic<bfloat>) arithmetic<bfloat>;

kernel void multiply_add(device float* separate, device float* fused, device const float* x, device const float* y,
                         device const float* z, uint i [[thread_position_in_grid]]) {
  separate[i] = x[i] * y[i] + z[i];
  fused[i] = fma(x[i], y[i], z[i]);
}
