// What the simulated device tells: counters that are always kept, and a callback that is usually absent.

#pragma once

#include <torch/csrc/utils/pybind.h>  // not torch/extension.h, which reads all of the C++ frontend

#include <ATen/core/Tensor.h>

#include <atomic>
#include <sstream>
#include <string>

namespace metalsim {

#define METALSIM_COUNTERS(each)                                                         \
  each(ops) each(copies_to_device) each(bytes_to_device) each(copies_to_host)           \
  each(bytes_to_host) each(fallbacks) each(fallback_copies) each(fallback_bytes)
#define METALSIM_COUNTER(name) std::atomic<int64_t> name{0};
struct Counters {
  METALSIM_COUNTERS(METALSIM_COUNTER)
};

inline Counters counters;

inline std::atomic<bool> listening{false};
inline PyObject* listener = nullptr; // guarded by the GIL
inline thread_local bool inside_listener = false; // what a listener itself computes is not told

// Call the listener. An exception in it is printed and goes no further: the operator that is told of has been executed.
inline void tell(
    const char* kind,
    const std::string& name,
    int64_t bytes,
    const char* direction,
    int64_t copies,
    const std::string& tensors) {
  if (inside_listener || !Py_IsInitialized())
    return;
  py::gil_scoped_acquire gil;
  if (listener == nullptr)
    return;
  inside_listener = true;
  try {
    py::reinterpret_borrow<py::object>(listener)(kind, name, bytes, direction, copies, tensors);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("the on_event callback of metalsim.install");
  }
  inside_listener = false;
}

// A tensor as PyTorch's profiler prints it: MPS:Float[1, 64, 12, 12].
inline std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined())
    return "undefined";
  std::stringstream text;
  text << c10::DeviceTypeName(tensor.device().type()) << ':' << tensor.scalar_type() << tensor.sizes();
  return text.str();
}

inline std::string describe(at::ArrayRef<at::Tensor> tensors) {
  std::string text;
  for (const at::Tensor& tensor : tensors)
    text += (text.empty() ? "" : ":") + describe(tensor);
  return text;
}

// The tensors of a call, made only for a listener, and before the call, which may change their shapes.
inline std::string describe(at::ArrayRef<c10::IValue> arguments) {
  std::string text;
  if (!listening)
    return text;
  for (const c10::IValue& argument : arguments)
    if (argument.isTensor())
      text += (text.empty() ? "" : ":") + describe(argument.toTensor());
  return text;
}

inline void count_op(const char* name, at::ArrayRef<at::Tensor> tensors) {
  ++counters.ops;
  if (listening)
    tell("op", name, 0, "", 0, describe(tensors));
}

inline void count_op(const c10::OperatorHandle& op, const std::string& tensors) {
  ++counters.ops;
  if (listening) // the name is made only for a listener
    tell("op", c10::toString(op.operator_name()), 0, "", 0, tensors);
}

inline void count_copy(const char* name, bool to_device, int64_t bytes, const at::Tensor& from, const at::Tensor& to) {
  ++(to_device ? counters.copies_to_device : counters.copies_to_host);
  (to_device ? counters.bytes_to_device : counters.bytes_to_host) += bytes;
  if (listening)
    tell("copy", name, bytes, to_device ? "to device" : "to host", 1, describe(from) + " --> " + describe(to));
}

inline void count_fallback(const c10::OperatorHandle& op, int64_t copies, int64_t bytes, const std::string& tensors) {
  ++counters.fallbacks;
  counters.fallback_copies += copies;
  counters.fallback_bytes += bytes;
  if (listening)
    tell("fallback", c10::toString(op.operator_name()), bytes, "", copies, tensors);
}

} // namespace metalsim
