// Operators that need more than the CPU's kernel: copies, operators of MPS alone, and functions that are one there only.

#pragma once

#include <ATen/NativeFunctions.h>
#include <ATen/core/functional.h>
#include <ATen/native/Resize.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>

#include "events.h"
#include "generator.h"
#include "host_call.h"
#include "memory.h"

namespace metalsim {

using at::IntArrayRef;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

inline std::vector<Tensor> host_views(at::TensorList tensors) {
  return c10::fmap(tensors, [](const Tensor& tensor) { return host_view(tensor); });
}

// ---- copies ---------------------------------------------------------------------------------------------------------

inline Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  OnHost on_host;
  host_view(to).copy_(host_view(from));
  const bool to_device = to.is_mps();
  if (to_device == from.is_mps())
    count_op("aten::copy_", {from, to});
  else
    count_copy("aten::copy_", to_device, int64_t(to_device ? to.nbytes() : from.nbytes()), from, to);
  return to;
}

inline Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  copy_from(source, self, non_blocking);
  return self;
}

inline Tensor copy_from_and_resize(const Tensor& self, const Tensor& to) {
  if (to.sizes() != self.sizes())
    to.resize_(self.sizes());
  return copy_from(self, to, false);
}

inline at::Scalar local_scalar(const Tensor& self) {
  const Tensor host = host_view(self);
  count_copy("aten::_local_scalar_dense", false, self.element_size(), self, host);
  return host.item();
}

inline Tensor& set_nothing(Tensor& self) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, device_memory.allocate(0), &device_memory, true);
  return self.set_(storage, 0, {0}, {});
}

// torch's own code for these two moves the bytes of a storage that is too small; here it never is.
inline const Tensor& resize_(const Tensor& self, IntArrayRef size, std::optional<at::MemoryFormat> format) {
  settle();
  const size_t before = self.storage().nbytes();
  if (c10::multiply_integers(size) > 0)
    grow_storage(
        self.storage(),
        at::detail::computeStorageNbytesContiguous(size, self.element_size(), size_t(self.storage_offset())));
  at::native::resize_(self, size, format);
  if (fills_new_memory())
    at::native::fill_resize_deterministic_(host_view(self), int64_t(before));
  return self;
}

inline Tensor& set_storage(Tensor& self, c10::Storage source, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  settle();
  at::native::checkSetStorage(self, source, offset, size, stride);
  const size_t width = self.element_size();
  if (c10::multiply_integers(size) > 0)
    grow_storage(
        source,
        stride.data() == nullptr ? at::detail::computeStorageNbytesContiguous(size, width, size_t(offset))
                                 : at::detail::computeStorageNbytes(size, stride, width, size_t(offset)));
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}

inline void record_stream(Tensor&, c10::Stream) {}

inline Tensor efficient_zeros(
    at::SymIntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout,
    std::optional<at::Device>,
    std::optional<bool> pin) {
  return empty(C10_AS_INTARRAYREF_SLOW(size), dtype, layout, device(), pin, std::nullopt).zero_();
}

// ---- matrix products and convolutions -------------------------------------------------------------------------------

inline void check_on_device(const OptionalTensor& tensor, const char* name) {
  TORCH_CHECK(
      !tensor || !tensor->defined() || tensor->is_mps(),
      "Tensor for argument ", name, " is on ", tensor->device(), " but expected on mps");
}

// torch takes this for a convolution whose weights are on the device and whose input is not.
inline void slow_convolution(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  TORCH_CHECK(
      false,
      "slow_conv2d_forward_mps: input(device='", arguments[0].toTensor().device(), "') and weight(device=",
      arguments[1].toTensor().device(), "')  must be on the same device");
}

// On CPUs without fast half precision a convolution in it takes a hundred times as long as in float32.
inline Tensor widened(const Tensor& tensor) {
  const Tensor host = host_view(tensor);
  return host.defined() && host.scalar_type() == at::kHalf ? host.to(at::kFloat) : host;
}

inline Tensor narrowed(const Tensor& result, const Tensor& like) {
  return device_tensor(result.defined() ? result.to(like.scalar_type()) : result);
}

inline Tensor linear(const Tensor& input, const Tensor& weight, const OptionalTensor& bias) {
  check_on_device(input, "input");
  check_on_device(weight, "weight");
  check_on_device(bias, "bias");
  check_arguments("aten::linear", {input, weight, bias});
  OnHost on_host;
  auto result = at::linear(host_view(input), host_view(weight), host_view(bias.value_or(Tensor())));
  count_op("aten::linear", {input, weight, bias.value_or(Tensor())});
  return device_tensor(result);
}

// The products that autograd takes on the CPU, so that both sides agree to the last bit.
inline std::tuple<Tensor, Tensor, Tensor> linear_backward(
    const Tensor& self,
    const Tensor& grad_output,
    const Tensor& weight,
    std::array<bool, 3> mask) {
  OnHost on_host;
  const Tensor input = host_view(self);
  const bool one_output = weight.dim() == 1;
  const Tensor matrix = one_output ? host_view(weight).unsqueeze(0) : host_view(weight);
  const int64_t rows = c10::multiply_integers(input.sizes().begin(), input.sizes().end() - 1);
  const Tensor grad = host_view(grad_output).reshape({rows, matrix.size(0)});
  Tensor grad_input, grad_weight, grad_bias;
  if (mask[0])
    grad_input = grad.mm(matrix.conj()).reshape(input.sizes());
  if (mask[1])
    grad_weight = grad.t().mm(input.reshape({rows, matrix.size(1)}).conj()).reshape(weight.sizes());
  if (mask[2])
    grad_bias = one_output ? grad.sum() : grad.sum(0);
  count_op("aten::linear_backward", {self, grad_output, weight});
  return {device_tensor(grad_input), device_tensor(grad_weight), device_tensor(grad_bias)};
}

inline void check_same_type(const Tensor& input, const Tensor& other, const char* name) {
  TORCH_CHECK(
      !other.defined() || input.options().type_equal(other.options()),
      "Input type (", input.toString(), ") and ", name, " type (", other.toString(), ") should be the same");
}

// Convolutions, with stride, padding, dilation, transposed, output_padding and groups for options.
template <typename... Options>
struct Convolution {
  static bool transposed(Options... options) {
    return std::get<3>(std::make_tuple(options...));
  }

  static Tensor forward(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, Options... options) {
    check_same_type(input, weight, "weight");
    check_same_type(input, bias.value_or(Tensor()), "bias");
    check_arguments("aten::convolution_overrideable", {input, weight, bias, options...});
    OnHost on_host;
    auto result = at::convolution(widened(input), widened(weight), widened(bias.value_or(Tensor())), options...);
    count_op(
        transposed(options...) ? "aten::_mps_convolution_transpose" : "aten::_mps_convolution",
        {input, weight, bias.value_or(Tensor())});
    return narrowed(result, input);
  }

  static std::tuple<Tensor, Tensor, Tensor> backward(
      const Tensor& grad_output,
      const Tensor& input,
      const Tensor& weight,
      Options... options,
      std::array<bool, 3> mask) {
    OnHost on_host;
    const int64_t groups = std::get<5>(std::make_tuple(options...));
    const std::vector<int64_t> bias_size{transposed(options...) ? weight.size(1) * groups : weight.size(0)};
    auto [grad_input, grad_weight, grad_bias] = at::convolution_backward(
        widened(grad_output), widened(input), widened(weight), IntArrayRef(bias_size), options..., mask);
    count_op(
        transposed(options...) ? "aten::mps_convolution_transpose_backward" : "aten::mps_convolution_backward",
        {grad_output, input, weight});
    return {narrowed(grad_input, input), narrowed(grad_weight, weight), narrowed(grad_bias, weight)};
  }
};

using Convolutions = Convolution<IntArrayRef, IntArrayRef, IntArrayRef, bool, IntArrayRef, int64_t>;

// ---- attention, dropout, LSTM ---------------------------------------------------------------------------------------

// Computed by the operator that other devices have for it, which takes the same arguments.
inline void attention(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static const auto on_host =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::_scaled_dot_product_attention_math", "");
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  for (const c10::IValue& argument : arguments.slice(0, 4))
    TORCH_CHECK(
        !argument.isTensor() || !argument.toTensor().defined() || argument.toTensor().is_mps(), kTwoDevices);
  check_arguments("aten::_scaled_dot_product_attention_math_for_mps", arguments);
  if (op.schema().arguments().size() < on_host.schema().arguments().size())
    torch::jit::push(*stack, false); // before PyTorch 2.12: whether heads are grouped
  const auto tensors = describe(arguments);
  HostCall(on_host, stack).run();
  count_op(op, tensors);
}

// What PyTorch asks of these arguments on every device.
inline void check_attention(
    const Tensor& query,
    const Tensor& key,
    const Tensor& value,
    const OptionalTensor& mask,
    bool causal) {
  const auto alike = [&](auto property) { return property(query) == property(key) && property(query) == property(value); };
  TORCH_CHECK(
      alike([](const Tensor& tensor) { return tensor.scalar_type(); }),
      "Expected query, key, and value to have the same dtype, but got query.dtype: ", query.dtype(), " key.dtype: ",
      key.dtype(), " and value.dtype: ", value.dtype(), " instead.");
  TORCH_CHECK(
      alike([](const Tensor& tensor) { return tensor.device(); }),
      "Expected query, key, and value to have the same device type, but got query.device: ", query.device(),
      " key.device: ", key.device(), " and value.device: ", value.device(), " instead.");
  TORCH_CHECK(
      query.dim() >= 2 && key.dim() >= 2 && value.dim() >= 2,
      "Expected query, key, and value to all be  at least 2 dimensional, but got query.dim: ", query.dim(),
      " key.dim: ", key.dim(), " and value.dim: ", value.dim(), " instead.");
  if (!mask || !mask->defined())
    return;
  const auto dtype = mask->scalar_type();
  TORCH_CHECK(
      dtype == at::kBool || dtype == at::kFloat || dtype == query.scalar_type(),
      "Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: ",
      mask->dtype(), " and  query.dtype: ", query.dtype(), " instead.");
  TORCH_CHECK(
      !causal, "scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True");
}

// Calls an operator for attention. That of MPS takes grouped heads since PyTorch 2.12; before, they are repeated for it.
template <typename Operator>
Tensor attend(
    Operator* computed,
    const Tensor& query,
    const Tensor& key,
    const Tensor& value,
    const OptionalTensor& mask,
    double dropout,
    bool causal,
    std::optional<double> scale,
    bool grouped) {
  const OptionalTensor no_dropout_mask;
  if constexpr (std::is_invocable_v<
                    Operator*, const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&, double, bool,
                    const OptionalTensor&, std::optional<double>, bool>) {
    return std::get<0>(computed(query, key, value, mask, dropout, causal, no_dropout_mask, scale, grouped));
  } else {
    const auto repeated = [&](const Tensor& given) {
      return grouped ? given.repeat_interleave(query.size(-3) / given.size(-3), -3) : given;
    };
    return std::get<0>(
        computed(query, repeated(key), repeated(value), mask, dropout, causal, no_dropout_mask, scale));
  }
}

// As on a Mac: one operator where nothing needs a gradient, else its pieces. That operator refuses to drop anything.
inline Tensor choose_attention(
    const Tensor& query,
    const Tensor& key,
    const Tensor& value,
    const OptionalTensor& mask,
    double dropout,
    bool causal,
    std::optional<double> scale,
    bool grouped) {
  check_attention(query, key, value, mask, causal);
  OptionalTensor added = mask;
  if (mask && mask->defined() && mask->scalar_type() == at::kBool)
    added = at::zeros_like(*mask, mask->options().dtype(query.scalar_type())) // where the mask is, also on the CPU
                .masked_fill_(mask->logical_not(), -INFINITY);
  const bool needs_grad =
      at::GradMode::is_enabled() && (query.requires_grad() || key.requires_grad() || value.requires_grad());
  if (needs_grad)
    return attend(&at::_scaled_dot_product_attention_math, query, key, value, added, dropout, causal, scale, grouped);
  return attend(
      &at::_scaled_dot_product_attention_math_for_mps, query, key, value, added, dropout, causal, scale, grouped);
}

// Under a transformation. torch's own function, which was there, asks a table in which a build for Linux has no mps.
template <typename... Options>
Tensor transformed_attention(const Tensor& query, Options... options) {
  const auto function = query.device().is_mps() ? &choose_attention : &at::native::scaled_dot_product_attention;
  return function(query, options...);
}

inline std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  check_arguments("aten::native_dropout", {input, p, train});
  OnHost on_host;
  const Tensor x = host_view(input);
  Tensor mask = at::ones_like(x, x.options().dtype(at::kBool)); // its strides, which decide the order of the draws
  Tensor result = x.clone();
  if (train.value_or(true) && x.numel() > 0) { // as on the CPU, with numbers of the device's own generator
    const double kept = 1 - p;
    mask.bernoulli_(kept, host_generator(default_generator()));
    result = x.mul(mask).mul_(kept == 0 ? 0 : 1 / kept);
  }
  count_op("aten::native_dropout", {input});
  return {device_tensor(result), device_tensor(mask)};
}

// Of the options of an LSTM: whether there is dropout between its layers.
inline bool lstm_draws(bool, int64_t layers, double dropout, bool train, bool, bool) {
  return train && dropout > 0 && layers > 1;
}

// The operators of an LSTM. Options: has_biases, layers, dropout, train, bidirectional, batch_first.
template <typename... Options>
struct Lstm {
  // The fourth result is the state of the generator before the call: the backward pass repeats the forward pass, and
  // its dropout with it. What the fifth and sixth hold on a Mac is not needed here.
  static std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> forward(
      const Tensor& input,
      at::TensorList hx,
      at::TensorList params,
      Options... options) {
    OnHost on_host;
    const Tensor state = host_generator(default_generator()).get_state();
    std::optional<DrawFromDevice> draw;
    if (lstm_draws(options...))
      draw.emplace();
    auto [output, h, c] = at::lstm(host_view(input), host_views(hx), host_views(params), options...);
    count_op("aten::_lstm_mps", {input});
    const Tensor unused = at::empty({0}, input.options());
    return {device_tensor(output), device_tensor(h), device_tensor(c), device_tensor(state), unused, unused};
  }

  static std::tuple<Tensor, std::vector<Tensor>, std::vector<Tensor>> backward(
      const OptionalTensor& grad_y,
      const OptionalTensor& grad_hy,
      const OptionalTensor& grad_cy,
      const Tensor& z_state,
      const Tensor&,
      const Tensor& input,
      const Tensor&,
      at::TensorList hx,
      at::TensorList params,
      Options... options) {
    // below autograd nothing is recorded: let this repetition be
    const auto keys = c10::impl::tls_local_dispatch_key_set();
    c10::impl::ForceDispatchKeyGuard record(
        keys.included_, (keys.excluded_ | c10::autocast_dispatch_keyset) - c10::autograd_dispatch_keyset_with_ADInplaceOrView);
    at::AutoGradMode grad_mode(true);
    std::vector<Tensor> wanted{input};
    wanted.insert(wanted.end(), hx.begin(), hx.end());
    wanted.insert(wanted.end(), params.begin(), params.end());
    for (Tensor& leaf : wanted)
      leaf = host_view(leaf).detach().requires_grad_();
    std::vector<Tensor> results, grads;
    {
      std::optional<DrawFromDevice> draw;
      if (lstm_draws(options...))
        draw.emplace(host_view(z_state));
      const at::TensorList all = wanted;
      auto [y, h, c] = at::lstm(all[0], all.slice(1, hx.size()), all.slice(1 + hx.size()), options...);
      const Tensor outputs[] = {y, h, c};
      const OptionalTensor* given[] = {&grad_y, &grad_hy, &grad_cy};
      for (int i = 0; i < 3; ++i)
        if (*given[i] && (*given[i])->defined()) {
          results.push_back(outputs[i]);
          grads.push_back(host_view(**given[i]));
        }
    }
    auto found = torch::autograd::grad(results, wanted, grads, false, false, true);
    // no result that has a gradient depends on these
    for (size_t i = 0; i < found.size(); ++i)
      if (!found[i].defined())
        found[i] = at::zeros_like(wanted[i]);
    count_op("aten::lstm_mps_backward", {input});
    auto made = c10::fmap(found, [](const Tensor& grad) { return device_tensor(grad); });
    const auto states = made.begin() + 1;
    const auto weights = states + int64_t(hx.size());
    return {made[0], std::vector<Tensor>(states, weights), std::vector<Tensor>(weights, made.end())};
  }

  // What PyTorch's lstm does on a Mac: one operator, with one for the backward pass.
  static std::tuple<Tensor, Tensor, Tensor> choose(
      const Tensor& input, at::TensorList hx, at::TensorList params, Options... options) {
    TORCH_CHECK(hx.size() == 2, "lstm expects two hidden states");
    const auto check = [&](const char* name, const Tensor& tensor) {
      TORCH_CHECK(
          tensor.device() == input.device(),
          "Input and ", name, " tensors are not at the same device, found input tensor at ", input.device(), " and ",
          name, " tensor at ", tensor.device());
    };
    for (const auto& tensor : hx)
      check("hidden", tensor);
    for (const auto& tensor : params)
      check("parameter", tensor);
    check_arguments("aten::_lstm_mps", {input, hx.vec(), params.vec()});
    auto [output, h, c, state, cells, layers_outputs] = at::_lstm_mps(input, hx, params, options...);
    return {output, h, c};
  }
};

using LstmOperators = Lstm<bool, int64_t, double, bool, bool, bool>;

} // namespace metalsim
