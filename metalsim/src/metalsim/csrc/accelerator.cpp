// The answer to "which accelerator does this process have?", loaded before torch so that torch finds this one first.
//
// libtorch exports at::accelerator::getAccelerator, and the dynamic linker binds every use of a name to the first
// library that brings it. Built without torch's headers: the declarations below repeat what the call looks like.

#include <cstdint>
#include <optional>

namespace c10 {
enum class DeviceType : int8_t { MPS = 13 };
}

namespace {
bool device_is_there = false;
}

// Called when the device itself is installed; until then the process has no accelerator.
extern "C" void metalsim_set_accelerator(int is_there) {
  device_is_there = is_there != 0;
}

namespace at::accelerator {
// `checked` asks for a value in any case, as torch's own function does.
std::optional<c10::DeviceType> getAccelerator(bool checked) {
  if (device_is_there || checked)
    return c10::DeviceType::MPS;
  return std::nullopt;
}
} // namespace at::accelerator
