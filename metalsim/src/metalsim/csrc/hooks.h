// The parts of torch that ask for "the MPS device": hooks, events, and the guard that switches devices and streams.

#pragma once

#include <ATen/detail/MPSHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/version.h>

#include <chrono>
#include <map>

#include "generator.h"
#include "memory.h"

namespace metalsim {

inline int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

// Commands in Objective-C; an error where none were ever asked for.
inline MetalStream& connected() {
  auto* stream = metal.load();
  TORCH_CHECK(
      stream != nullptr,
      "the simulated Apple GPU has command buffers for Objective-C++ alone: build an .mm file with "
      "torch.utils.cpp_extension.load first");
  return *stream;
}

// Events of torch.mps. Work is finished when it returns, so that an event completes as it is recorded.
class Events {
 public:
  uint32_t acquire(bool timed) {
    std::lock_guard<std::mutex> lock(mutex_);
    events_[++last_] = {timed, 0};
    return last_;
  }
  void release(uint32_t id) {
    std::lock_guard<std::mutex> lock(mutex_);
    find(id);
    events_.erase(id);
  }
  void record(uint32_t id) {
    settle();
    std::lock_guard<std::mutex> lock(mutex_);
    find(id).time = now_ns();
  }
  bool query(uint32_t id) {
    std::lock_guard<std::mutex> lock(mutex_);
    return find(id).time > 0;
  }
  double elapsed_ms(uint32_t start, uint32_t end) {
    std::lock_guard<std::mutex> lock(mutex_);
    const Event from = find(start), to = find(end);
    TORCH_CHECK(from.timed && from.time > 0 && to.timed && to.time > 0, "Events were not created with argument 'enable_timing=True'");
    TORCH_CHECK(to.time > from.time, "End event ", end, " was not recorded after start event ", start);
    return double(to.time - from.time) * 1e-6;
  }

 private:
  struct Event {
    bool timed;
    int64_t time; // 0 until it is recorded
  };
  Event& find(uint32_t id) {
    TORCH_CHECK(events_.count(id) > 0, "Invalid Event ID: ", id);
    return events_[id];
  }
  std::mutex mutex_;
  std::map<uint32_t, Event> events_;
  uint32_t last_ = 0;
};

inline Events& events = *new Events;

// What torch asks, and the answer.
#define METALSIM_ANSWER(type, question, answer) \
  type question const override {                \
    return answer;                              \
  }

struct Hooks final : at::MPSHooksInterface {
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13 // later releases give a constructor nothing
  explicit Hooks(at::MPSHooksArgs) {}
#endif
  void init() const override {}
  METALSIM_ANSWER(bool, isBuilt(), true)
  METALSIM_ANSWER(bool, isAvailable(), true)
  METALSIM_ANSWER(bool, hasMPS(), true)
  bool isOnMacOSorNewer(unsigned major, unsigned minor) const override { // says macOS 15.0, the oldest for torch 2.15
    return major < 15 || (major == 15 && minor == 0);
  }
  METALSIM_ANSWER(bool, hasPrimaryContext(c10::DeviceIndex), true)
  METALSIM_ANSWER(c10::DeviceIndex, deviceCount(), 1)
  void setCurrentDevice(c10::DeviceIndex) const override {}
  METALSIM_ANSWER(c10::DeviceIndex, getCurrentDevice(), 0)
  METALSIM_ANSWER(c10::DeviceIndex, exchangeDevice(c10::DeviceIndex), 0)
  METALSIM_ANSWER(c10::DeviceIndex, maybeExchangeDevice(c10::DeviceIndex), 0)
  METALSIM_ANSWER(const at::Generator&, getDefaultGenerator(c10::DeviceIndex), default_generator())
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::make_generator<DeviceGenerator>(at::detail::createCPUGenerator());
  }
  METALSIM_ANSWER(c10::Allocator*, getMPSDeviceAllocator(), &device_memory)
  METALSIM_ANSWER(c10::Allocator*, getPinnedMemoryAllocator(), &pinned_memory)
  METALSIM_ANSWER(bool, isPinnedPtr(const void* data), pinned_memory.holds(data))
  METALSIM_ANSWER(c10::Device, getDeviceFromPtr(void*), device())
  void deviceSynchronize() const override {
    if (auto* stream = metal.load())
      stream->synchronize();
  }
  // torch::mps of torch/mps.h, for host code in Objective-C++
  void commitStream() const override {
    if (auto* stream = metal.load())
      stream->commit();
  }
  METALSIM_ANSWER(void*, getCommandBuffer(), connected().command_buffer())
  METALSIM_ANSWER(void*, getDispatchQueue(), connected().dispatch_queue())
  METALSIM_ANSWER(void, emptyCache(), usage.empty_cache())
  METALSIM_ANSWER(size_t, getCurrentAllocatedMemory(), size_t(usage.stats().allocated_bytes[0].current))
  METALSIM_ANSWER(size_t, getDriverAllocatedMemory(), size_t(usage.stats().reserved_bytes[0].current))
  METALSIM_ANSWER(size_t, getRecommendedMaxMemory(), kRecommendedBytes)
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13 // earlier releases do not ask
  METALSIM_ANSWER(size_t, getMaxBufferLength(), kMaxBufferBytes)
#endif
  METALSIM_ANSWER(void, setMemoryFraction(double fraction), usage.set_fraction(fraction))
  void profilerStartTrace(const std::string&, bool) const override {}
  void profilerStopTrace() const override {}
  METALSIM_ANSWER(uint32_t, acquireEvent(bool timed), events.acquire(timed))
  METALSIM_ANSWER(void, releaseEvent(uint32_t id), events.release(id))
  METALSIM_ANSWER(void, recordEvent(uint32_t id), events.record(id))
  METALSIM_ANSWER(void, waitForEvent(uint32_t id), void(events.query(id)))
  METALSIM_ANSWER(void, synchronizeEvent(uint32_t id), void(events.query(id)))
  METALSIM_ANSWER(bool, queryEvent(uint32_t id), events.query(id))
  METALSIM_ANSWER(double, elapsedTimeOfEvents(uint32_t start, uint32_t end), events.elapsed_ms(start, end))
};

struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::kMPS> {
  using Stream = c10::Stream;
  METALSIM_ANSWER(c10::Device, exchangeDevice(c10::Device), device())
  METALSIM_ANSWER(c10::Device, getDevice(), device())
  void setDevice(c10::Device d) const override {
    TORCH_CHECK(d.is_mps(), "Expected a MPS device, but got ", d);
  }
  Stream getStream(c10::Device) const noexcept override {
    return Stream(Stream::DEFAULT, device());
  }
  METALSIM_ANSWER(Stream, getDefaultStream(c10::Device d), getStream(d))
  METALSIM_ANSWER(Stream, getNewStream(c10::Device d, int), getStream(d))
  METALSIM_ANSWER(Stream, getStreamFromGlobalPool(c10::Device d, bool), getStream(d))
  Stream exchangeStream(Stream stream) const noexcept override {
    return stream;
  }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability capability;
    capability.capability_data.supported_scalar_types.has_Double = 0;
    capability.capability_data.supported_scalar_types.has_ComplexDouble = 0;
    return capability;
  }
  // Events of torch.Event hold the id of an event of torch.mps in place of a pointer.
  void record(void** event, const Stream&, const c10::DeviceIndex, const c10::EventFlag flag) const override {
    if (*event == nullptr)
      *event = reinterpret_cast<void*>(uintptr_t(events.acquire(flag == c10::EventFlag::BACKEND_DEFAULT)));
    events.record(id_of(*event));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    if (event != nullptr)
      events.release(id_of(event));
  }
  void block(void*, const Stream&) const override {}
  METALSIM_ANSWER(bool, queryEvent(void* event), event == nullptr || events.query(id_of(event)))
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start && end, "Both events must be recorded before calculating elapsed time.");
    return events.elapsed_ms(id_of(start), id_of(end));
  }
  void synchronizeEvent(void*) const override {}
  METALSIM_ANSWER(void, synchronizeStream(const Stream&), at::detail::getMPSHooks().deviceSynchronize())
  METALSIM_ANSWER(void, synchronizeDevice(const c10::DeviceIndex), at::detail::getMPSHooks().deviceSynchronize())

 private:
  static uint32_t id_of(void* event) {
    return uint32_t(reinterpret_cast<uintptr_t>(event));
  }
};

#undef METALSIM_ANSWER

} // namespace metalsim
