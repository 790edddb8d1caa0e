// PyTorch's own Metal headers at work: special functions, and reductions over a threadgroup.
#include <metal_stdlib>
#include <c10/metal/special_math.h>
#include <c10/metal/expm1f.h>
#include <c10/metal/reduction_utils.h>
#include <c10/metal/error.h>
using namespace metal;

#define SPECIAL(f)                                                                                          \
  kernel void special_##f(device float* out, device const float* x, uint i [[thread_position_in_grid]]) { \
    out[i] = c10::metal::f(x[i]);                                                                           \
  }
SPECIAL(digamma) SPECIAL(log_gamma) SPECIAL(i0) SPECIAL(i0e) SPECIAL(i1) SPECIAL(i1e) SPECIAL(erf) SPECIAL(erfc)
SPECIAL(erfinv) SPECIAL(sinc) SPECIAL(entr) SPECIAL(log1p) SPECIAL(trigamma) SPECIAL(bessel_j0_forward)
SPECIAL(modified_bessel_k0_forward) SPECIAL(expm1f)

#define REDUCTION(f)                                                                                           \
  kernel void reduce_##f(device float* out, device const float* x, uint t [[thread_position_in_threadgroup]],  \
                         uint n [[threads_per_threadgroup]], uint g [[threadgroup_position_in_grid]],          \
                         uint i [[thread_position_in_grid]]) {                                                 \
    threadgroup float shared[32];                                                                              \
    float r = c10::metal::threadgroup_##f(shared, x[i], t, n);                                                 \
    if (t == 0) out[g] = r;                                                                                    \
  }
REDUCTION(sum) REDUCTION(prod) REDUCTION(max) REDUCTION(min)

kernel void complain(device float* x, device c10::metal::ErrorMessages* errors, uint i [[thread_position_in_grid]]) {
  if (x[i] < 0) TORCH_REPORT_ERROR(errors, "value ", i, " is negative");
}
