// A simulated "mps" device for torch, on the CPU: what is registered with torch, and what Python sees of it.
//
// memory.h     device storages that own CPU storages; what is allocated
// metal.h      what the run time of Objective-C, of the package metalsim_objc, is to the device
// generator.h  random numbers of its own
// host_call.h  an operator executed by its CPU kernel; fallbacks, missing operators and refused arguments
// kernels.h    operators that exist on MPS alone
// hooks.h      what torch asks its MPS device
// events.h     what is told about all this

#include <ATen/NativeFunctions.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include "hooks.h"
#include "kernels.h"

namespace metalsim {
namespace {

REGISTER_ALLOCATOR(c10::kMPS, &device_memory);
C10_REGISTER_GUARD_IMPL(MPS, Guard)

TORCH_LIBRARY_IMPL(_, MPS, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_any>());
}

TORCH_LIBRARY_IMPL(aten, MPS, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  // views and storages: torch's own code, which is the same for every device with plain memory
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", static_cast<Tensor (*)(const Tensor&, IntArrayRef)>(&at::native::view));
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("resize_", &resize_);
  m.impl("is_set_to", &at::native::is_set_to);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("set_.source_Storage", static_cast<Tensor& (*)(Tensor&, c10::Storage)>(&at::native::set_));
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_", &set_nothing);
  m.impl("record_stream", &record_stream);
  m.impl("_efficientzerotensor", &efficient_zeros);
  // copies
  m.impl("copy_", &copy_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  // computing
  m.impl("linear", &linear);
  m.impl("linear_backward", &linear_backward);
  m.impl("convolution_overrideable", &Convolutions::forward);
  m.impl("convolution_backward_overrideable", &Convolutions::backward);
  m.impl("_slow_conv2d_forward", torch::CppFunction::makeFromBoxedFunction<&slow_convolution>());
  m.impl("_scaled_dot_product_attention_math_for_mps", torch::CppFunction::makeFromBoxedFunction<&attention>());
  m.impl("native_dropout", &native_dropout);
  m.impl("_lstm_mps", &LstmOperators::forward);
  m.impl("lstm_mps_backward", &LstmOperators::backward);
  m.impl("lstm.input", &LstmOperators::choose);
  m.impl("scaled_dot_product_attention", &choose_attention);
}

// Functions that choose operators: what they call is recorded for the backward pass, not they.
TORCH_LIBRARY_IMPL(aten, AutogradMPS, m) {
  m.impl("lstm.input", &LstmOperators::choose);
  m.impl("scaled_dot_product_attention", &choose_attention);
}

// What PyTorch would print of a kernel that takes another's place: up to 2.14 it warns of each first one.
struct Quiet final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

} // namespace

// Under vmap, and up to PyTorch 2.13 under torch.func.grad, whose tensors do not say that they are of MPS, attention is
// chosen as on the device. PyTorch has a kernel in these places already, which this one replaces.
void register_transformed_attention() {
  Quiet quiet;
  c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  std::vector<c10::DispatchKey> places{c10::DispatchKey::FuncTorchVmapMode};
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 14
  places.push_back(c10::DispatchKey::CompositeImplicitAutograd);
#endif
  for (const auto place : places) {
    auto* library = new torch::Library(torch::Library::IMPL, "aten", place, "metalsim", uint32_t(__LINE__)); // kept
    library->impl("scaled_dot_product_attention", static_cast<decltype(&choose_attention)>(&transformed_attention));
  }
}

// Put `run_any` under the device's key for these operators, as a Mac's PyTorch has a kernel there. Without it the
// dispatcher would take a composite of other operators first.
void register_native(const std::vector<std::string>& names) {
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::MPS, "metalsim", uint32_t(__LINE__));
  for (const auto& name : names)
    library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_any>());
}

void install(
    py::object decide_by_name,
    py::object outcome_of_call,
    py::object alert_of_call,
    py::object words_of_call,
    std::string commit) {
  decide = decide_by_name.release().ptr();
  outcome = outcome_of_call.release().ptr();
  alert = alert_of_call.release().ptr();
  complain = words_of_call.release().ptr();
  commit_hash = std::move(commit);
  watch_forks();
  register_transformed_attention();
}

void listen(py::object callback) {
  listening = false;
  Py_XDECREF(listener);
  listener = callback.is_none() ? nullptr : callback.release().ptr();
  listening = listener != nullptr;
}

py::dict read_counters() {
  py::dict values;
#define METALSIM_READ(name) values[#name] = counters.name.load();
  METALSIM_COUNTERS(METALSIM_READ)
  return values;
}

// From now on there are commands in Objective-C, and storages are objects of its class for buffers. `stream` is the
// address of a MetalStream that is never freed.
void connect(uintptr_t stream) {
  auto* connected = reinterpret_cast<MetalStream*>(stream);
  blocks.give_class(connected->buffer_class);
  metal.store(connected, std::memory_order_release);
}

} // namespace metalsim

namespace at {
// torch looks for this name
C10_REGISTER_CLASS(MPSHooksRegistry, MPSHooks, metalsim::Hooks)
} // namespace at

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("install", &metalsim::install);
  m.def("register_native", &metalsim::register_native);
  m.def("listen", &metalsim::listen);
  m.def("counters", &metalsim::read_counters);
  m.def("connect", &metalsim::connect);
  m.def("host_view", [](const at::Tensor& tensor) { return metalsim::host_view(tensor); });
}
