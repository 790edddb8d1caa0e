// Device memory that is host memory: the allocator, and tensors of both sides over the same bytes.
//
// A device storage owns one CPU storage (its Block). A host view of a device tensor is a tensor over that CPU storage,
// so that CPU kernels see aliasing between views as it is, and a CPU result becomes a device tensor without a copy.
// The data pointer of a device storage is not the address of its bytes but the Block, which is an MTLBuffer (metal.h).

#pragma once

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/native/TensorFactories.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <pthread.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <unordered_set>

#include "metal.h"

namespace metalsim {

constexpr c10::DispatchKeySet kDeviceKeys{c10::DispatchKey::MPS};
constexpr c10::DispatchKeySet kHostKeys{c10::DispatchKey::CPU};
constexpr double kDefaultFraction = 1.7; // PYTORCH_MPS_HIGH_WATERMARK_RATIO
constexpr int64_t kMaxDims = 16;

inline c10::Device device() {
  return {c10::kMPS, 0};
}

// While CPU kernels compute for the device: neither autograd nor the CPU's autocast sees what they call.
struct OnHost {
  c10::impl::ExcludeDispatchKeyGuard guard{
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset};
};

// Bytes held by tensors now and at most, and how many allocations there were.
class Usage {
 public:
  // RuntimeError, as on a Mac, if `bytes` more would pass the limit, or are more than one buffer of Metal may hold.
  void check_room(size_t bytes) {
    using c10::CachingAllocator::format_size;
    TORCH_CHECK(bytes < kMaxBufferBytes, "Invalid buffer size: ", format_size(bytes));
    std::lock_guard<std::mutex> lock(mutex_);
    const auto used = size_t(stats_.allocated_bytes[0].current);
    if (limit_ == 0 || used + bytes <= limit_)
      return;
    ++stats_.num_ooms;
    TORCH_CHECK(
        false,
        "MPS backend out of memory (MPS allocated: ", format_size(used), ", other allocations: 0 bytes, max allowed: ",
        format_size(limit_), "). Tried to allocate ", format_size(bytes),
        " on shared pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations"
        " (may cause system failure).");
  }
  void add(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto* stat : {&stats_.allocated_bytes[0], &stats_.active_bytes[0], &stats_.requested_bytes[0]})
      stat->increase(bytes);
    stats_.allocation[0].increase(1);
    if (stats_.allocated_bytes[0].current > stats_.reserved_bytes[0].current) // the pool grows to the highest use
      stats_.reserved_bytes[0].increase(stats_.allocated_bytes[0].current - stats_.reserved_bytes[0].current);
  }
  void remove(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto* stat : {&stats_.allocated_bytes[0], &stats_.active_bytes[0], &stats_.requested_bytes[0]})
      stat->decrease(bytes);
    stats_.allocation[0].decrease(1);
  }
  void empty_cache() {
    std::lock_guard<std::mutex> lock(mutex_);
    stats_.reserved_bytes[0].decrease(stats_.reserved_bytes[0].current - stats_.allocated_bytes[0].current);
  }
  // 0 means no limit.
  void set_fraction(double fraction) {
    TORCH_CHECK(fraction >= 0 && fraction <= 2, "invalid high watermark ratio ", fraction); // nor NaN
    std::lock_guard<std::mutex> lock(mutex_);
    limit_ = size_t(fraction * double(kRecommendedBytes));
  }
  template <typename Change>
  void change(Change&& change) {
    std::lock_guard<std::mutex> lock(mutex_);
    change(stats_);
  }
  c10::CachingDeviceAllocator::DeviceStats stats() {
    std::lock_guard<std::mutex> lock(mutex_);
    return stats_;
  }

 private:
  std::mutex mutex_;
  c10::CachingDeviceAllocator::DeviceStats stats_;
  size_t limit_ = size_t(kDefaultFraction * double(kRecommendedBytes));
};

// Never destroyed, as what follows like this: tensors may outlive static objects.
inline Usage& usage = *new Usage;

// Commands in Objective-C, once its run time is connected.
inline std::atomic<MetalStream*> metal{nullptr};

// The child of a fork inherits tensors and no GPU. A worker of a DataLoader gets none even if its parent used none yet:
// tensors of mps do not pass to another process, and the parent would wait for them for ever.
enum class Process { unused, in_use, forked, refused };
inline std::atomic<Process> process{Process::unused};

inline void watch_forks() {
  pthread_atfork(nullptr, nullptr, [] {
    process = process == Process::unused || process == Process::forked ? Process::forked : Process::refused;
  });
}

inline bool is_worker() {
  py::gil_scoped_acquire gil;
  return !py::module_::import("torch.utils.data").attr("get_worker_info")().is_none();
}

inline void check_process() {
  if (process == Process::in_use)
    return;
  TORCH_CHECK(
      process != Process::refused && !(process == Process::forked && is_worker()),
      "a forked process cannot use the GPU of its parent, nor a DataLoader's worker pass mps tensors on: make tensors on "
      "the CPU there, and move them to mps in the parent");
  process = Process::in_use;
}

// Before the device does anything: what was encoded and not committed runs first, as on a Mac, where PyTorch encodes its
// own operators behind it. Costs a load where there is no Objective-C.
inline void settle() {
  check_process();
  MetalStream* stream = metal.load(std::memory_order_acquire);
  if (stream != nullptr && stream->busy.load(std::memory_order_acquire) != 0)
    stream->settle();
}

// All blocks there are: those that are older than the run time of Objective-C take their class from it later, and a
// pointer that somebody hands in is one of them or no buffer at all.
class Blocks {
 public:
  void add(MetalBuffer* block) {
    std::lock_guard<std::mutex> lock(mutex_);
    block->isa = class_;
    all_.insert(block);
  }
  void remove(MetalBuffer* block) {
    std::lock_guard<std::mutex> lock(mutex_);
    all_.erase(block);
  }
  void give_class(void* isa) {
    std::lock_guard<std::mutex> lock(mutex_);
    class_ = isa;
    for (MetalBuffer* block : all_)
      block->isa = isa;
  }
  // The block that a data pointer is, held for who asked; null if it is none.
  MetalBuffer* hold(const void* pointer) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = all_.find(static_cast<MetalBuffer*>(const_cast<void*>(pointer)));
    if (found == all_.end())
      return nullptr;
    (*found)->retain();
    return *found;
  }

 private:
  std::mutex mutex_;
  void* class_ = nullptr;
  std::unordered_set<MetalBuffer*> all_;
};

inline Blocks& blocks = *new Blocks;

// What a device storage owns: the CPU storage with its bytes.
struct Block : MetalBuffer {
  explicit Block(c10::Storage storage) : host(std::move(storage)), counted(host.nbytes()) {
    check_process();
    destroy = [](MetalBuffer* self) { delete static_cast<Block*>(self); };
    follow();
    usage.add(counted);
    blocks.add(this);
  }
  ~Block() {
    blocks.remove(this);
    usage.remove(counted);
  }
  // The CPU storage may have moved.
  void follow() {
    if (contents != host.data())
      contents = host.mutable_data();
    if (length != host.nbytes())
      length = host.nbytes();
  }
  c10::Storage host;
  size_t counted = 0; // bytes, in usage
};

inline void release_block(void* block) {
  static_cast<Block*>(block)->release();
}

// A storage's pointer to a block; it takes a reference over. A storage without bytes has nil for a buffer, as on a Mac.
inline c10::DataPtr pointer_to(Block* block) {
  return {block->length ? static_cast<MetalBuffer*>(block) : nullptr, block, &release_block, device()};
}

struct DeviceMemory final : c10::DeviceAllocator {
  // Filled with 0xff, which reads as NaN: what nobody wrote shows in the result.
  c10::DataPtr allocate(size_t bytes) override {
    usage.check_room(bytes);
    auto* allocator = c10::GetAllocator(c10::kCPU);
    c10::Storage host(c10::Storage::use_byte_size_t(), bytes, allocator->allocate(bytes), allocator, true);
    if (bytes)
      std::memset(host.mutable_data(), 0xff, bytes);
    return pointer_to(new Block(std::move(host)));
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(static_cast<MetalBuffer*>(to)->contents, static_cast<const MetalBuffer*>(from)->contents, bytes);
  }
  bool initialized() override {
    return true;
  }
  void emptyCache(c10::MempoolId_t) override {
    usage.empty_cache();
  }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    return usage.stats();
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {
    usage.change([](auto& stats) {
      for (auto* stat : {&stats.allocation[0], &stats.allocated_bytes[0], &stats.reserved_bytes[0]})
        stat->reset_accumulated();
    });
  }
  void resetPeakStats(c10::DeviceIndex) override {
    usage.change([](auto& stats) {
      for (auto* stat : {&stats.allocation[0], &stats.allocated_bytes[0], &stats.reserved_bytes[0],
                         &stats.active_bytes[0], &stats.requested_bytes[0]})
        stat->reset_peak();
    });
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override {
    const auto used = size_t(usage.stats().allocated_bytes[0].current);
    return {kRecommendedBytes - std::min(used, kRecommendedBytes), kRecommendedBytes};
  }
};

// Memory of the CPU that the GPU can use as well, as `pin_memory` asks for: which addresses those are.
struct PinnedMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    auto memory = std::make_shared<c10::DataPtr>(c10::GetAllocator(c10::kCPU)->allocate(bytes));
    std::lock_guard<std::mutex> lock(mutex_);
    all_.insert(memory->get());
    const auto forget = [this, memory](void* pointer) {
      std::lock_guard<std::mutex> lock(mutex_);
      all_.erase(pointer);
    };
    return c10::InefficientStdFunctionContext::makeDataPtr(memory->get(), forget, c10::kCPU);
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  bool holds(const void* pointer) {
    std::lock_guard<std::mutex> lock(mutex_);
    return all_.count(pointer) > 0;
  }

 private:
  std::mutex mutex_;
  std::unordered_set<const void*> all_;
};

inline PinnedMemory& pinned_memory = *new PinnedMemory;

inline DeviceMemory& device_memory = *new DeviceMemory;

// The block that a storage of somebody else's making points to: torch wraps the data pointer of one storage in another
// one for DLPack, for old files and for parts of a storage.
inline Block* wrapped_block(const c10::Storage& storage) {
  auto* block = static_cast<Block*>(blocks.hold(storage.data()));
  TORCH_CHECK(
      block != nullptr,
      "a storage on ", storage.device(), " has a data pointer that is no MTLBuffer, so that its memory is not the "
      "device's (a Mac crashes). The pointer of a view is none either: take untyped_storage().data_ptr(), and the "
      "offset apart");
  if (storage.nbytes() <= block->length)
    return block;
  const size_t length = block->length;
  block->release();
  TORCH_CHECK(
      false,
      "a storage of ", storage.nbytes(), " bytes on ", storage.device(), " was made of an MTLBuffer of ", length,
      " bytes");
}

// The block under a device storage. A storage that was emptied by torch has none; it gets one.
inline Block& block_of(const c10::Storage& storage) {
  if (storage.data_ptr().get_deleter() != &release_block)
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(
        storage.data() == nullptr ? device_memory.allocate(storage.nbytes()) : pointer_to(wrapped_block(storage)));
  return *static_cast<Block*>(storage.data_ptr().get_context());
}

// A CPU kernel may have resized the CPU storage: let the device storage follow.
inline void follow_host_storage(const c10::Storage& storage) {
  Block& block = block_of(storage);
  const size_t bytes = block.host.nbytes();
  block.follow(); // first: what comes may raise
  if (bytes == block.counted) // also where the storage is a part of the block
    return;
  if (bytes > block.counted)
    usage.check_room(bytes - block.counted);
  usage.remove(block.counted);
  block.counted = bytes;
  usage.add(bytes);
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  block.retain();
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(pointer_to(&block));
  storage.unsafeGetStorageImpl()->set_nbytes(bytes);
}

// Make room for so many bytes, new ones like all memory that nobody wrote.
inline void grow_storage(const c10::Storage& storage, size_t bytes) {
  const size_t before = storage.nbytes();
  if (bytes <= before)
    return;
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  usage.check_room(bytes - before);
  const c10::Storage& host = block_of(storage).host;
  at::native::resize_bytes_cpu(host.unsafeGetStorageImpl(), bytes);
  std::memset(static_cast<char*>(host.mutable_data()) + before, 0xff, bytes - before);
  follow_host_storage(storage);
}

inline at::Tensor tensor_over(const c10::Storage& storage, c10::DispatchKeySet keys, const at::Tensor& like) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), keys, like.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  impl->_set_conj(like.is_conj());
  impl->_set_neg(like.is_neg());
  return made;
}

// A CPU tensor over the bytes of a device tensor; any other tensor as it is.
inline at::Tensor host_view(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_mps())
    return tensor;
  settle();
  return tensor_over(block_of(tensor.storage()).host, kHostKeys, tensor);
}

inline bool fills_new_memory() {
  const auto& context = at::globalContext();
  return context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory();
}

inline at::ScalarType check_dtype(at::ScalarType dtype) {
  TORCH_CHECK_TYPE(
      dtype != at::kDouble,
      "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. "
      "Please use float32 instead.");
  const bool narrow = c10::isFloat8Type(dtype) || dtype == at::kFloat4_e2m1fn_x2;
  TORCH_CHECK_TYPE(
      dtype != at::kComplexDouble && (!narrow || dtype == at::kFloat8_e4m3fn),
      "Trying to convert ", dtype, " to the MPS backend but it does not have support for that dtype.");
  return dtype;
}

// A device tensor over the bytes of a CPU tensor that nobody else holds, without a copy.
inline at::Tensor device_tensor(const at::Tensor& result) {
  if (!result.defined())
    return result;
  check_dtype(result.scalar_type());
  const size_t bytes = result.storage().nbytes();
  usage.check_room(bytes);
  const c10::Storage storage(
      c10::Storage::use_byte_size_t(), bytes, pointer_to(new Block(result.storage())), &device_memory, true);
  return tensor_over(storage, kDeviceKeys, result);
}

// Under torch.use_deterministic_algorithms: elements of a new tensor get the values that they get on the CPU.
inline at::Tensor filled(at::Tensor made) {
  if (fills_new_memory()) {
    at::Tensor host = host_view(made);
    at::native::fill_empty_deterministic_(host);
  }
  return made;
}

inline at::Tensor empty(
    at::IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout,
    std::optional<at::Device>,
    std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      layout.value_or(at::kStrided) == at::kStrided, "only strided tensors are supported on MPS");
  TORCH_CHECK(
      int64_t(size.size()) <= kMaxDims, "MPS supports tensors with dimensions <= 16, but got ", size.size(), ".");
  const auto scalar_type = check_dtype(at::dtype_or_default(dtype));
  return filled(at::detail::empty_generic(size, &device_memory, kDeviceKeys, scalar_type, format));
}

inline at::Tensor empty_strided(
    at::IntArrayRef size,
    at::IntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device>,
    std::optional<bool>) {
  const auto scalar_type = check_dtype(at::dtype_or_default(dtype));
  return filled(at::detail::empty_strided_generic(size, stride, &device_memory, kDeviceKeys, scalar_type));
}

} // namespace metalsim
