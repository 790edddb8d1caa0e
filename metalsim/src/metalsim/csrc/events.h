// What the simulated device tells: counters that are always kept, and a callback that is usually absent.

#pragma once

#include <torch/csrc/utils/pybind.h>  // not torch/extension.h, which reads all of the C++ frontend

#include <atomic>
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
inline void tell(const char* kind, const std::string& name, int64_t bytes, const char* direction, int64_t copies) {
  if (inside_listener || !Py_IsInitialized())
    return;
  py::gil_scoped_acquire gil;
  if (listener == nullptr)
    return;
  inside_listener = true;
  try {
    py::reinterpret_borrow<py::object>(listener)(kind, name, bytes, direction, copies);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("the on_event callback of metalsim.install");
  }
  inside_listener = false;
}

inline void count_op(const char* name) {
  ++counters.ops;
  if (listening)
    tell("op", name, 0, "", 0);
}

inline void count_op(const c10::OperatorHandle& op) {
  ++counters.ops;
  if (listening) // the name is made only for a listener
    tell("op", c10::toString(op.operator_name()), 0, "", 0);
}

inline void count_copy(const char* name, bool to_device, int64_t bytes) {
  ++(to_device ? counters.copies_to_device : counters.copies_to_host);
  (to_device ? counters.bytes_to_device : counters.bytes_to_host) += bytes;
  if (listening)
    tell("copy", name, bytes, to_device ? "to device" : "to host", 1);
}

inline void count_fallback(const c10::OperatorHandle& op, int64_t copies, int64_t bytes) {
  ++counters.fallbacks;
  counters.fallback_copies += copies;
  counters.fallback_bytes += bytes;
  if (listening)
    tell("fallback", c10::toString(op.operator_name()), bytes, "", copies);
}

} // namespace metalsim
