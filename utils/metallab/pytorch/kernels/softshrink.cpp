// Softshrink and its gradient on the CPU, by vector instructions, shared out among PyTorch's threads.
//
// For float, double, half and bfloat16 in contiguous memory. The outputs are given, as to a Metal kernel, and checking
// is left to the caller. Only PyTorch's stable interface and its header-only vectors are included: that compiles in
// seconds, where torch/extension.h takes most of a minute.
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/Dispatch_v2.h>

#include <cstdint>

namespace {
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t GRAIN = 32768;  // elements below which another thread costs more than it brings

// The rule of softshrink.metal for a vector of float or double; half and bfloat16 come as float.
template <typename Vector>
Vector shrink(Vector v, Vector lambd) {
  const Vector not_above = Vector::blendv(Vector(0) * v, v + lambd, v < lambd.neg());
  return Vector::blendv(not_above, v - lambd, v > lambd);
}

template <typename Vector>
Vector pass(Vector grad, Vector v, Vector lambd) {
  return Vector::blendv(grad, Vector(0), (v >= lambd.neg()) & (v <= lambd));
}

// What is computed with: float for half and bfloat16, which `map` converts on the way.
template <typename T>
using Wide = at::vec::Vectorized<at::vec::vec_scalar_t<T>>;

#define FOR_EACH_DTYPE(tensor, name, ...)                                                      \
  THO_DISPATCH_V2(tensor.scalar_type(), name, AT_WRAP([&] { __VA_ARGS__ }), ScalarType::Float, \
                  ScalarType::Double, ScalarType::Half, ScalarType::BFloat16)

void forward(Tensor out, Tensor x, double lambd) {
  FOR_EACH_DTYPE(x, "softshrink", {
    auto* to = static_cast<scalar_t*>(out.mutable_data_ptr());
    const auto* from = static_cast<const scalar_t*>(x.const_data_ptr());
    const auto l = static_cast<scalar_t>(lambd);  // rounded to the dtype first, as PyTorch does it
    torch::stable::parallel_for(0, x.numel(), GRAIN, [&](int64_t begin, int64_t end) {
      at::vec::map([l](Wide<scalar_t> v) { return shrink(v, {l}); }, to + begin, from + begin, end - begin);
    });
  });
}

void backward(Tensor grad_x, Tensor grad, Tensor x, double lambd) {
  FOR_EACH_DTYPE(x, "softshrink_backward", {
    auto* to = static_cast<scalar_t*>(grad_x.mutable_data_ptr());
    const auto* given = static_cast<const scalar_t*>(grad.const_data_ptr());
    const auto* from = static_cast<const scalar_t*>(x.const_data_ptr());
    const auto l = static_cast<scalar_t>(lambd);
    torch::stable::parallel_for(0, x.numel(), GRAIN, [&](int64_t begin, int64_t end) {
      at::vec::map2([l](Wide<scalar_t> g, Wide<scalar_t> v) { return pass(g, v, {l}); }, to + begin, given + begin,
                    from + begin, end - begin);
    });
  });
}
}  // namespace

STABLE_TORCH_LIBRARY(metallab_cpu, m) {
  m.def("softshrink_forward(Tensor(a!) out, Tensor x, float lambd) -> ()");
  m.def("softshrink_backward(Tensor(a!) grad_x, Tensor grad, Tensor x, float lambd) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(metallab_cpu, CPU, m) {
  m.impl("softshrink_forward", TORCH_BOX(&forward));
  m.impl("softshrink_backward", TORCH_BOX(&backward));
}
