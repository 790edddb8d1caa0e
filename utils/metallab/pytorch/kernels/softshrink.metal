// Softshrink and its gradient, elementwise: float, half and bfloat, one element per thread or four.
#include <metal_stdlib>
using namespace metal;

// Metal's compiler may otherwise assume that there is no NaN and that zeros have no sign ("fast math", its default).
#pragma METAL fp math_mode(safe)

// Between -lambd and lambd lies zero, with the sign of v. The product keeps NaN too, which fails both comparisons.
inline float shrink(float v, float lambd) {
  return v > lambd ? v - lambd : (v < -lambd ? v + lambd : 0.0f * v);
}

// The gradient passes wherever the value was not made zero, and so it does where v is NaN.
template <typename T>
inline T pass(T grad, float v, float lambd) {
  return v >= -lambd && v <= lambd ? T(0) : grad;
}

// One element per thread. lambd is rounded to T first, as PyTorch does it.
template <typename T>
kernel void softshrink_forward(device T* out [[buffer(0)]], device const T* x [[buffer(1)]],
                               constant float& lambd [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  out[i] = T(shrink(float(x[i]), float(T(lambd))));
}

template <typename T>
kernel void softshrink_backward(device T* grad_x [[buffer(0)]], device const T* grad [[buffer(1)]],
                                device const T* x [[buffer(2)]], constant float& lambd [[buffer(3)]],
                                uint i [[thread_position_in_grid]]) {
  grad_x[i] = pass(grad[i], float(x[i]), float(T(lambd)));
}

// Four elements per thread, read and written at once: for addresses that are multiples of four elements' size. The last
// thread takes what is left of n one by one. Positions are long: four times a uint is more than a uint holds.
template <typename T>
kernel void softshrink_forward_vec4(device T* out [[buffer(0)]], device const T* x [[buffer(1)]],
                                    constant float& lambd [[buffer(2)]], constant long& n [[buffer(3)]],
                                    uint i [[thread_position_in_grid]]) {
  const float l = float(T(lambd));
  long k = 4 * long(i);
  if (k + 4 <= n) {
    vec<T, 4> v = *(device const vec<T, 4>*)(x + k);
    for (int j = 0; j < 4; j++) v[j] = T(shrink(float(v[j]), l));
    *(device vec<T, 4>*)(out + k) = v;
  } else {
    for (; k < n; k++) out[k] = T(shrink(float(x[k]), l));
  }
}

template <typename T>
kernel void softshrink_backward_vec4(device T* grad_x [[buffer(0)]], device const T* grad [[buffer(1)]],
                                     device const T* x [[buffer(2)]], constant float& lambd [[buffer(3)]],
                                     constant long& n [[buffer(4)]], uint i [[thread_position_in_grid]]) {
  const float l = float(T(lambd));
  long k = 4 * long(i);
  if (k + 4 <= n) {
    vec<T, 4> g = *(device const vec<T, 4>*)(grad + k);
    const vec<T, 4> v = *(device const vec<T, 4>*)(x + k);
    for (int j = 0; j < 4; j++) g[j] = pass(T(g[j]), float(v[j]), l);
    *(device vec<T, 4>*)(grad_x + k) = g;
  } else {
    for (; k < n; k++) grad_x[k] = pass(grad[k], float(x[k]), l);
  }
}

// A template is no kernel until it is told for which types; host_name is what the program on the CPU asks for.
template [[host_name("softshrink_forward_float")]] [[kernel]] decltype(softshrink_forward<float>) softshrink_forward<float>;
template [[host_name("softshrink_forward_half")]] [[kernel]] decltype(softshrink_forward<half>) softshrink_forward<half>;
template [[host_name("softshrink_forward_bfloat")]] [[kernel]] decltype(softshrink_forward<bfloat>) softshrink_forward<bfloat>;
template [[host_name("softshrink_backward_float")]] [[kernel]] decltype(softshrink_backward<float>) softshrink_backward<float>;
template [[host_name("softshrink_backward_half")]] [[kernel]] decltype(softshrink_backward<half>) softshrink_backward<half>;
template [[host_name("softshrink_backward_bfloat")]] [[kernel]] decltype(softshrink_backward<bfloat>) softshrink_backward<bfloat>;
template [[host_name("softshrink_forward_vec4_float")]] [[kernel]] decltype(softshrink_forward_vec4<float>) softshrink_forward_vec4<float>;
template [[host_name("softshrink_forward_vec4_half")]] [[kernel]] decltype(softshrink_forward_vec4<half>) softshrink_forward_vec4<half>;
template [[host_name("softshrink_forward_vec4_bfloat")]] [[kernel]] decltype(softshrink_forward_vec4<bfloat>) softshrink_forward_vec4<bfloat>;
template [[host_name("softshrink_backward_vec4_float")]] [[kernel]] decltype(softshrink_backward_vec4<float>) softshrink_backward_vec4<float>;
template [[host_name("softshrink_backward_vec4_half")]] [[kernel]] decltype(softshrink_backward_vec4<half>) softshrink_backward_vec4<half>;
template [[host_name("softshrink_backward_vec4_bfloat")]] [[kernel]] decltype(softshrink_backward_vec4<bfloat>) softshrink_backward_vec4<bfloat>;
