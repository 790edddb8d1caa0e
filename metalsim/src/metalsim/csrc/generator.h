// The device's random numbers: a generator of its own, which draws what a CPU generator draws.

#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>

#include <mutex>

#include "memory.h"

namespace metalsim {

struct DeviceGenerator final : c10::GeneratorImpl {
  explicit DeviceGenerator(at::Generator generator)
      : GeneratorImpl(metalsim::device(), kDeviceKeys), host(std::move(generator)) {}
  void set_current_seed(uint64_t seed) override {
    host.set_current_seed(seed);
  }
  // A Mac's generator counts what it has drawn; the CPU's, which draws here, does not. Pickling and copying ask.
  void set_offset(uint64_t offset) override {
    TORCH_CHECK(
        offset == 0, "the simulated Apple GPU cannot set the offset of a generator to ", offset, ": use set_state");
  }
  uint64_t get_offset() const override {
    return 0;
  }
  uint64_t current_seed() const override {
    return host.current_seed();
  }
  uint64_t seed() override {
    return host.seed();
  }
  void set_state(const c10::TensorImpl& state) override {
    host.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return host.unsafeGetGeneratorImpl()->get_state();
  }

  at::Generator host;

 private:
  DeviceGenerator* clone_impl() const override {
    return new DeviceGenerator(host.clone());
  }
};

inline const at::Generator& default_generator() {
  static auto* generator = new at::Generator(
      at::make_generator<DeviceGenerator>(at::detail::createCPUGenerator(c10::detail::getNonDeterministicRandom())));
  return *generator;
}

// The CPU generator that draws for a device generator.
inline at::Generator host_generator(const at::Generator& generator) {
  TORCH_CHECK(
      generator.device().is_mps(),
      "Expected a 'mps' device type for generator but found '", generator.device().type(), "'");
  return static_cast<DeviceGenerator*>(generator.unsafeGetGeneratorImpl())->host;
}

// For CPU kernels that can draw from the process's default generator only (an LSTM with dropout between its layers):
// lend them the device's state, and keep the CPU's. Another thread that draws on the CPU meanwhile sees the lent state.
// What draws again from a state that it had stays without effect on the device's.
class DrawFromDevice {
 public:
  explicit DrawFromDevice(at::Tensor again = {}) : again_(std::move(again)), saved_(cpu_.get_state()) {
    cpu_.set_state(again_.defined() ? again_ : device_.get_state());
  }
  ~DrawFromDevice() {
    if (!again_.defined())
      device_.set_state(cpu_.get_state());
    cpu_.set_state(saved_);
  }
  DrawFromDevice(const DrawFromDevice&) = delete;
  DrawFromDevice& operator=(const DrawFromDevice&) = delete;

 private:
  static inline std::recursive_mutex& mutex_ = *new std::recursive_mutex;
  const std::lock_guard<std::recursive_mutex> one_at_a_time_{mutex_};
  at::Generator cpu_ = at::detail::getDefaultCPUGenerator();
  at::Generator device_ = host_generator(default_generator());
  const at::Tensor again_, saved_;
};

} // namespace metalsim
