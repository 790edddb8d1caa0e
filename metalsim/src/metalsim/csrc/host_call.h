// One operator of the device, executed by its CPU kernel on the device's own memory; what happens to one without a kernel.

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <algorithm>
#include <shared_mutex>
#include <unordered_map>

#include "events.h"
#include "generator.h"
#include "memory.h"

namespace torch::jit {
TORCH_PYTHON_API py::object toPyObject(c10::IValue value); // of torch/csrc/jit/python/pybind_utils.h, which takes seconds
}

namespace metalsim {

// `limited`: the kernel refuses some calls, or leaves them to the CPU, see `outcome`.
enum class Decision { native, falls_back, missing, limited };

// Set once by install.
inline PyObject* decide = nullptr; // name -> an object with the last fields of OpInfo
inline PyObject* outcome = nullptr; // name, arguments -> None, or an `Outcome` as two strings
inline PyObject* alert = nullptr; // name, arguments -> None, or by which name the kernel says that it is not deterministic
inline PyObject* complain = nullptr; // name, arguments -> what the kernel says of a tensor that was left on the CPU
inline std::string commit_hash; // of the torch that is running, for the message about a missing operator

constexpr const char* kTwoDevices =
    "Expected all tensors to be on the same device, but found at least two devices, mps:0 and cpu!";

// What is known of an operator before its arguments are.
struct OpInfo {
  Decision decision = Decision::native;
  std::vector<bool> draws; // per argument: an optional generator
  std::vector<bool> tensors; // per argument: a list of tensors
  std::vector<bool> indices; // per argument: a list of optional tensors, which may stay on the CPU
  std::vector<bool> written; // per argument
  std::vector<int> returned_argument; // per result: which argument it is, or -1
  bool takes_numbers = true; // of the CPU, which may stand beside device tensors in a kernel for elements
  bool takes_float8 = true;
  std::vector<std::string> widened; // dtypes that Metal computes with and the CPU does not, as its errors call them
  bool names_device_of_generator = false; // whether the words for a generator of the CPU are those of randperm
  bool asks = false; // whether calls may raise under torch.use_deterministic_algorithms
  bool makes_contiguous = false; // whether results are contiguous where the CPU's kernel gives them another layout
  bool is_silent = false; // whether the CPU's kernel may raise there, and Metal's does not
  mutable std::atomic<bool> warned = false;
};

inline bool is_optional(const c10::Type& type, c10::TypeKind inner) {
  const auto* optional = type.castRaw<c10::OptionalType>();
  return optional != nullptr && optional->getElementType()->kind() == inner;
}

// What a list, or an optional one, is a list of; null for another type.
inline const c10::Type* element_of_list(const c10::Type& type) {
  if (const auto* optional = type.castRaw<c10::OptionalType>())
    return element_of_list(*optional->getElementType());
  const auto* list = type.castRaw<c10::ListType>();
  return list != nullptr ? list->getElementType().get() : nullptr;
}

// What the operator's schema says, and what Python knows of it, whose exceptions pass through.
inline std::unique_ptr<OpInfo> look_up(const c10::OperatorHandle& op) {
  auto made = std::make_unique<OpInfo>();
  OpInfo& info = *made;
  const auto& schema = op.schema();
  for (const auto& argument : schema.arguments()) {
    info.draws.push_back(is_optional(*argument.type(), c10::TypeKind::GeneratorType));
    const c10::Type* element = element_of_list(*argument.type());
    info.tensors.push_back(element != nullptr && element->kind() == c10::TypeKind::TensorType);
    info.indices.push_back(element != nullptr && is_optional(*element, c10::TypeKind::TensorType));
    info.written.push_back(argument.alias_info() != nullptr && argument.alias_info()->isWrite());
  }
  // a result that is an argument (in place, `out=`) has the alias of that one
  for (const auto& result : schema.returns()) {
    int found = -1;
    if (result.alias_info() != nullptr && result.alias_info()->isWrite())
      for (size_t i = 0; i < schema.arguments().size(); ++i)
        if (info.written[i] && *schema.arguments()[i].alias_info() == *result.alias_info())
          found = int(i);
    info.returned_argument.push_back(found);
  }
  py::gil_scoped_acquire gil;
  TORCH_CHECK(decide != nullptr, "the simulated Apple GPU was loaded but not installed: call metalsim.install()");
  const py::object known = py::reinterpret_borrow<py::object>(decide)(c10::toString(op.operator_name()));
  info.decision = Decision(py::cast<int>(known.attr("decision")));
  info.widened = py::cast<std::vector<std::string>>(known.attr("widened"));
  info.takes_numbers = py::cast<bool>(known.attr("takes_numbers"));
  info.takes_float8 = py::cast<bool>(known.attr("takes_float8"));
  info.names_device_of_generator = op.schema().name() == "aten::randperm";
  info.asks = py::cast<bool>(known.attr("asks"));
  info.makes_contiguous = py::cast<bool>(known.attr("makes_contiguous"));
  info.is_silent = py::cast<bool>(known.attr("is_silent"));
  return made;
}

inline const OpInfo& info_of(const c10::OperatorHandle& op) {
  static auto* known = new std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<OpInfo>>;
  static auto* mutex = new std::shared_mutex;
  {
    std::shared_lock<std::shared_mutex> lock(*mutex);
    if (auto found = known->find(&op.schema()); found != known->end())
      return *found->second;
  }
  auto info = look_up(op); // unlocked: it may wait for the GIL
  std::unique_lock<std::shared_mutex> lock(*mutex);
  return *known->emplace(&op.schema(), std::move(info)).first->second;
}

// The arguments of a call, for a function of Python's.
inline py::list to_python(at::ArrayRef<c10::IValue> arguments) {
  py::list given;
  for (const c10::IValue& argument : arguments)
    given.append(torch::jit::toPyObject(argument));
  return given;
}

// While the CPU's kernel computes of which PyTorch says that it is not deterministic, and Metal's says nothing.
class WithoutAlerts {
 public:
  WithoutAlerts() {
    context_.setDeterministicAlgorithms(false, false);
  }
  ~WithoutAlerts() {
    context_.setDeterministicAlgorithms(asked_, only_warned_);
  }
  WithoutAlerts(const WithoutAlerts&) = delete;
  WithoutAlerts& operator=(const WithoutAlerts&) = delete;

 private:
  at::Context& context_ = at::globalContext();
  const bool asked_ = context_.deterministicAlgorithms();
  const bool only_warned_ = context_.deterministicAlgorithmsWarnOnly();
};

// One call, whose arguments and results are on the stack. Tensors of the device are replaced by tensors of the CPU over
// the same bytes, the CPU's kernel is called, and what it returns becomes tensors of the device.
class HostCall {
 public:
  HostCall(const c10::OperatorHandle& op, torch::jit::Stack* stack) : op_(op), info_(info_of(op)), stack_(stack) {}

  void run() {
    arguments_to_host();
    call();
    results_to_device();
  }

  // Copies, and their bytes, that a fallback makes: device tensors to the CPU, and what was written or made back.
  int64_t copies = 0;
  int64_t bytes = 0;

 private:
  struct Pair {
    at::Tensor device;
    at::Tensor host;
  };

  void arguments_to_host() {
    const size_t count = info_.written.size();
    const size_t first = stack_->size() - count;
    arguments_.assign(stack_->begin() + int64_t(first), stack_->end());
    for (size_t i = 0; i < count; ++i)
      (*stack_)[first + i] = to_host(arguments_[i], i);
    if (!pairs_.empty() && on_cpu_)
      throw_left_on_cpu();
    // the device's generator brings the call of a CPU tensor here; a Mac's kernels refuse it, each in words of its own
    TORCH_CHECK(!generator_ || !on_cpu_, "Passed CPU tensor to MPS op");
  }

  void throw_left_on_cpu() const {
    std::string words;
    {
      py::gil_scoped_acquire gil;
      words = py::cast<std::string>(py::reinterpret_borrow<py::object>(complain)(
          c10::toString(op_.operator_name()), to_python(arguments_)));
    }
    TORCH_CHECK(false, words);
  }

  // An argument as the CPU's kernel takes it. For a generator that nobody named it is given the device's own.
  c10::IValue to_host(const c10::IValue& value, size_t argument) {
    if (value.isNone())
      return info_.draws[argument] ? c10::IValue(host_generator(default_generator())) : value;
    if (value.isTensor())
      return to_host(value.toTensor(), argument);
    generator_ |= value.isGenerator();
    if (value.isGenerator()) {
      const at::Generator given = value.toGenerator();
      TORCH_CHECK(
          !info_.names_device_of_generator || given.device().is_mps(),
          "Expected a '", device(), "' generator device but found '", given.device(), "'");
      return host_generator(given); // raises for a generator of the CPU
    }
    if (value.isDevice())
      return value.toDevice().is_mps() ? c10::IValue(c10::Device(c10::kCPU)) : value;
    // what TorchScript passes may say of its elements more than the schema, a list of masks that it is one of tensors
    if (!info_.indices[argument] && !info_.tensors[argument])
      return value;
    const auto type = info_.tensors[argument] ? c10::TypePtr(c10::TensorType::get()) : c10::OptionalType::ofTensor();
    c10::impl::GenericList list(type);
    for (const c10::IValue& item : value.toListRef())
      list.push_back(item.isNone() ? item : c10::IValue(to_host(item.toTensor(), argument)));
    return list;
  }

  // Notes a tensor that was left on the CPU: not indices, nor a number where the kernel takes one.
  at::Tensor to_host(const at::Tensor& tensor, size_t argument) {
    if (!tensor.defined())
      return tensor;
    if (!tensor.is_mps()) {
      const bool number = tensor.dim() == 0 && info_.takes_numbers && !info_.written[argument];
      on_cpu_ |= tensor.is_cpu() && !info_.indices[argument] && !number;
      return tensor;
    }
    TORCH_CHECK_TYPE(
        info_.takes_float8 || tensor.scalar_type() != at::kFloat8_e4m3fn,
        "Trying to convert Float8_e4m3fn to the MPS backend but it does not have support for that dtype.");
    note_copy(tensor, info_.written[argument] ? 2 : 1); // there and back
    pairs_.push_back({tensor, host_view(tensor)});
    return pairs_.back().host;
  }

  void note_copy(const at::Tensor& tensor, int64_t times = 1) {
    copies += times;
    bytes += times * int64_t(tensor.nbytes());
  }

  // Calls the CPU's kernel. The stack is kept for a second try only where one may be needed.
  void call() {
    if (info_.widened.empty() && !has_reduced())
      return call_kernel();
    const torch::jit::Stack before(*stack_);
    try {
      call_kernel();
    } catch (const c10::Error& error) {
      call_again(error.what_without_backtrace(), before);
    } catch (const std::runtime_error& error) { // torchvision's
      call_again(error.what(), before);
    }
  }

  // After an error, whose words these are: once more in float32 if that helps, else the error stays.
  void call_again(const std::string& text, const torch::jit::Stack& before) {
    const auto narrow = what_to_widen(text);
    if (narrow.empty())
      throw;
    *stack_ = before;
    call_in_float(narrow);
  }

  bool has_reduced() const {
    return std::any_of(pairs_.begin(), pairs_.end(), [](const Pair& pair) {
      return at::isReducedFloatingType(pair.host.scalar_type());
    });
  }

  // Of an error of the CPU's kernel: the dtypes to compute in float32 instead; none if it is another error.
  std::vector<at::ScalarType> what_to_widen(const std::string& text) const {
    const auto says = [&](const std::string& name) {
      return text.find("not implemented for '" + name + "'") != std::string::npos;
    };
    if (says("Half") || says("BFloat16"))
      return {at::kHalf, at::kBFloat16};
    for (const auto& name : info_.widened)
      for (const auto& pair : pairs_)
        if (name == c10::toString(pair.host.scalar_type()) && says(name))
          return {pair.host.scalar_type()};
    return {};
  }

  void call_kernel() {
    OnHost on_host;
    std::optional<WithoutAlerts> without_alerts;
    if (info_.is_silent)
      without_alerts.emplace();
    op_.redispatchBoxed(kHostKeys, stack_);
  }

  // The CPU lacks a kernel here and there where Metal has one: compute in float32 and round.
  // What is written gets its numbers, and its shape, from the float32 tensor that stood for it.
  void call_in_float(const std::vector<at::ScalarType>& narrow) {
    const size_t first = stack_->size() - arguments_.size();
    std::vector<std::pair<at::Tensor, at::Tensor>> written;
    at::ScalarType rounded = narrow.front();
    for (size_t i = 0; i < arguments_.size(); ++i) {
      auto& value = (*stack_)[first + i];
      if (!value.isTensor() || !value.toTensor().defined())
        continue;
      const at::Tensor given = value.toTensor();
      if (std::find(narrow.begin(), narrow.end(), given.scalar_type()) == narrow.end())
        continue;
      const at::Tensor full = given.to(at::kFloat);
      rounded = given.scalar_type();
      if (info_.written[i])
        written.emplace_back(given, full);
      value = full;
    }
    call_kernel();
    for (auto& [given, full] : written) {
      if (given.sizes() != full.sizes())
        given.resize_(full.sizes());
      given.copy_(full);
    }
    for (size_t i = stack_->size() - info_.returned_argument.size(); i < stack_->size(); ++i) {
      auto& value = (*stack_)[i];
      if (value.isTensor() && value.toTensor().defined() && value.toTensor().scalar_type() == at::kFloat)
        value = value.toTensor().to(rounded);
    }
  }

  void results_to_device() {
    // a kernel may have given an argument another shape (`out=`) or more memory
    for (const auto& [device, host] : pairs_) {
      follow_host_storage(device.storage());
      if (host.sizes() != device.sizes() || host.strides() != device.strides())
        device.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    }
    const size_t count = info_.returned_argument.size();
    const size_t first = stack_->size() - count;
    for (size_t i = 0; i < count; ++i) {
      const int argument = info_.returned_argument[i];
      auto& value = (*stack_)[first + i];
      value = argument >= 0 ? arguments_[size_t(argument)] : to_device(value);
    }
  }

  c10::IValue to_device(const c10::IValue& value) {
    if (value.isTensor())
      return to_device(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector())
        list.push_back(to_device(tensor));
      return list;
    }
    return value;
  }

  at::Tensor to_device(const at::Tensor& result) {
    if (!result.defined() || !result.is_cpu())
      return result;
    TORCH_CHECK(
        result.layout() == at::kStrided,
        "the simulated Apple GPU has dense tensors only, and ", op_.operator_name(), " made a sparse one");
    check_dtype(result.scalar_type());
    note_copy(result);
    // a view of an argument stays a view of it
    for (const auto& pair : pairs_)
      if (pair.host.storage().unsafeGetStorageImpl() == result.storage().unsafeGetStorageImpl())
        return tensor_over(pair.device.storage(), kDeviceKeys, result);
    const at::Tensor made = laid_out(result);
    pairs_.push_back({device_tensor(made), made}); // the next result may be a view of this one
    return pairs_.back().device;
  }

  at::Tensor laid_out(const at::Tensor& result) const {
    if (!info_.makes_contiguous)
      return result;
    OnHost on_host;
    return result.contiguous();
  }

  const c10::OperatorHandle& op_;
  const OpInfo& info_;
  torch::jit::Stack* stack_;
  std::vector<c10::IValue> arguments_;
  c10::SmallVector<Pair, 8> pairs_;
  bool on_cpu_ = false;
  bool generator_ = false;
};

// Under torch.use_deterministic_algorithms: PyTorch's exception, or its warning, for a kernel that is none.
inline void ask_whether_deterministic(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (!info_of(op).asks || !at::globalContext().deterministicAlgorithms())
    return;
  std::optional<std::string> name;
  {
    py::gil_scoped_acquire gil;
    const auto arguments = to_python(torch::jit::last(stack, op.schema().arguments().size()));
    name = py::cast<std::optional<std::string>>(
        py::reinterpret_borrow<py::object>(alert)(c10::toString(op.operator_name()), arguments));
  }
  if (name)
    at::globalContext().alertNotDeterministic(*name);
}

inline void run_native(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  ask_whether_deterministic(op, *stack);
  const auto tensors = describe(torch::jit::last(*stack, op.schema().arguments().size()));
  HostCall(op, stack).run();
  count_op(op, tensors);
}

// PyTorch copies the tensors to the CPU, computes there, and copies the results back. Here only the count is copied.
inline void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto tensors = describe(torch::jit::last(*stack, op.schema().arguments().size()));
  HostCall call(op, stack);
  call.run();
  count_fallback(op, call.copies, call.bytes, tensors);
}

inline void run_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  TORCH_WARN_ONCE(
      "The operator '", op.schema().operator_name(),
      "' is not currently supported on the MPS backend and will fall back to run on the CPU."
      " This may have performance implications.");
  run_on_cpu(op, stack);
}

// What becomes of a call that does not simply run: it raises, or goes to the CPU.
struct Outcome {
  std::string error; // the type of the exception in Python; empty if the call goes to the CPU
  std::string words; // its message, or what PyTorch warns of, which may be nothing
};

inline std::optional<Outcome> ask(const std::string& name, at::ArrayRef<c10::IValue> arguments) {
  py::gil_scoped_acquire gil;
  const py::object found = py::reinterpret_borrow<py::object>(outcome)(name, to_python(arguments));
  if (found.is_none())
    return std::nullopt;
  const auto [error, words] = py::cast<std::pair<std::string, std::string>>(found);
  return Outcome{error, words};
}

inline void throw_refusal(const Outcome& refusal) {
  TORCH_CHECK_NOT_IMPLEMENTED(refusal.error != "NotImplementedError", refusal.words);
  TORCH_CHECK_TYPE(refusal.error != "TypeError", refusal.words);
  TORCH_CHECK(false, refusal.words);
}

// For the operators of kernels.h, which are not called through `run_any`.
inline void check_arguments(const char* name, at::ArrayRef<c10::IValue> arguments) {
  if (const auto found = ask(name, arguments))
    throw_refusal(*found);
}

// The kernel looks at its arguments first.
inline void run_limited(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  const auto found = ask(c10::toString(op.operator_name()), arguments);
  if (!found)
    return run_native(op, stack);
  if (!found->error.empty())
    throw_refusal(*found);
  if (!found->words.empty() && (c10::WarningUtils::get_warnAlways() || !info_of(op).warned.exchange(true)))
    TORCH_WARN(found->words);
  run_on_cpu(op, stack);
}

inline void refuse(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false,
      "The operator '", op.schema().operator_name(),
      "' is not currently implemented for the MPS device. If you want this op to be considered for addition please "
      "comment on https://github.com/pytorch/pytorch/issues/141287 and mention use-case, that resulted in missing op "
      "as well as commit hash ", commit_hash,
      ". As a temporary fix, you can set the environment variable `PYTORCH_ENABLE_MPS_FALLBACK=1` to use the CPU as a "
      "fallback for this op. WARNING: this will be slower than running natively on MPS.");
}

// For every operator without a kernel of its own in this extension.
inline void run_any(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  constexpr decltype(&run_native) by_decision[] = {&run_native, &run_fallback, &refuse, &run_limited};
  by_decision[int(info_of(op).decision)](op, stack);
}

} // namespace metalsim
