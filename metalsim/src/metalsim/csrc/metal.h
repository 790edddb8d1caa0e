// Where the device meets Objective-C: what an MTLBuffer is, and what the one side asks of the other. Both compilers read
// this file, so there is no torch in it and no Objective-C.
//
// On a Mac the data pointer of a storage is an MTLBuffer object, and host code written in Objective-C++ casts it to one.
// So it is here: the pointer leads to a MetalBuffer, whose first word is its class. The class comes with the run time
// of the package metalsim_objc, which is loaded when the first .mm file is; without it the device works as well.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace metalsim {

constexpr size_t kRecommendedBytes = (size_t(16) << 30) / 3 * 2; // of an entry-level Mac's 16 GiB, on macOS 15
constexpr size_t kMaxBufferBytes = kRecommendedBytes / 4 * 3; // Metal's maxBufferLength: 36 of 48 GiB in gfx-rs/wgpu#2502

struct MetalBuffer {
  void* isa = nullptr;
  std::atomic<int64_t> references{1};
  void* contents = nullptr;
  size_t length = 0; // bytes
  void (*destroy)(MetalBuffer*) = nullptr;

  void retain() {
    references.fetch_add(1, std::memory_order_relaxed);
  }
  void release() {
    if (references.fetch_sub(1, std::memory_order_acq_rel) == 1)
      destroy(this);
  }
};

// PyTorch's stream of commands, as Objective-C has it. Errors are C++ exceptions.
struct MetalStream {
  // Not 0 while `settle` has to be called before the device does anything: commands were encoded and not executed, or a
  // thread is inside dispatch_sync.
  std::atomic<int> busy{0};
  void* buffer_class = nullptr; // what MetalBuffer::isa shall be
  void* (*command_buffer)() = nullptr; // id<MTLCommandBuffer>
  void* (*dispatch_queue)() = nullptr; // dispatch_queue_t
  void (*commit)() = nullptr;
  void (*synchronize)() = nullptr;
  void (*settle)() = nullptr;
};

} // namespace metalsim
