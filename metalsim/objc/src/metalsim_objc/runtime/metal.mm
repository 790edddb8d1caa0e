// Metal on a CPU, as much of it as Metal.h declares: commands are encoded as on a Mac and executed in order, by the
// kernels of metalsim.shader, when their command buffer is committed. And PyTorch's own stream of commands.

#import <Metal/Metal.h>
#import <objc/runtime.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "abi.h"
#include "foundation.h"
#include "metal.h"
#include "refused.h"

using namespace metalsim;

extern "C" void* _Block_copy(const void* block);
extern "C" void _Block_release(const void* block);

// What has a device: everything here.
@interface SimulatedObject : NSObject
@end

// The class of MetalBuffer, a C++ structure: nothing is allocated as an object of it.
@interface SimulatedBuffer : SimulatedObject <MTLBuffer>
@end

namespace {

constexpr NSUInteger kMostBuffers = 31;
constexpr NSUInteger kMostBytes = 4096; // of setBytes
constexpr NSUInteger kMostThreads = 1024; // in a group
constexpr NSUInteger kSimdWidth = 32;

const metalsim::Shaders* shaders = nullptr; // of Python
thread_local char said[metalsim::kSaidBytes]; // what Python says about a failure

bool succeeded(int64_t number, NSError** error) {
  if (number == 0 && error != nullptr)
    *error = metalsim::error(said);
  return number != 0;
}

MetalBuffer* structure(id<MTLBuffer> buffer) {
  return reinterpret_cast<MetalBuffer*>(buffer);
}

id<MTLBuffer> new_buffer(NSUInteger length) {
  if (length == 0 || length > kMaxBufferBytes)
    refuse(
        "-[MTLDevice newBufferWithLength:options:]",
        "a buffer of " + std::to_string(length) + " bytes",
        kLayerOnly);
  void* contents = aligned_alloc(64, (length + 63) / 64 * 64);
  if (contents == nullptr)
    return nil; // as Metal does where there is no memory
  auto* made = new MetalBuffer;
  made->isa = reinterpret_cast<void*>([SimulatedBuffer class]);
  made->contents = contents;
  made->length = length;
  made->destroy = [](MetalBuffer* self) {
    free(self->contents);
    delete self;
  };
  memset(made->contents, 0xff, length); // what nobody wrote is not a number
  return reinterpret_cast<id<MTLBuffer>>(made);
}

// Holds an object: a buffer, a pipeline.
template <typename Object>
std::shared_ptr<Object> held(Object* object) {
  [(id)object retain];
  return {object, [](Object* released) { [(id)released release]; }};
}

} // namespace

@implementation SimulatedObject

METALSIM_PROPERTY(id<MTLDevice>, device, MTLCreateSystemDefaultDevice())

@end

// ---- buffers --------------------------------------------------------------------------------------------------------

@implementation SimulatedBuffer

- (instancetype)retain {
  structure(self)->retain();
  return self;
}

- (oneway void)release {
  structure(self)->release();
}

- (NSUInteger)retainCount {
  return NSUInteger(structure(self)->references.load());
}

METALSIM_PROPERTY(NSUInteger, length, structure(self)->length)

- (void*)contents {
  return structure(self)->contents;
}

METALSIM_PROPERTY(uint64_t, gpuAddress, reinterpret_cast<uint64_t>(structure(self)->contents))
METALSIM_PROPERTY(MTLStorageMode, storageMode, MTLStorageModeShared)

@end

// ---- libraries, functions, pipelines --------------------------------------------------------------------------------

@interface SimulatedLibrary : SimulatedObject <MTLLibrary> {
 @public
  int64_t number;
  std::vector<std::string> names;
}
@end

@interface SimulatedFunction : SimulatedObject <MTLFunction> {
 @public
  int64_t library;
  std::string functionName;
}
@end

@interface SimulatedPipeline : SimulatedObject <MTLComputePipelineState> {
 @public
  int64_t number;
  metalsim::PipelineLimits limits;
}
@end

@implementation SimulatedFunction

METALSIM_PROPERTY(NSString*, name, metalsim::string(functionName))

@end

@implementation SimulatedLibrary

METALSIM_PROPERTY(NSArray<NSString*>*, functionNames, metalsim::array(names))

- (id<MTLFunction>)newFunctionWithName:(NSString*)name {
  if (name == nil)
    refuse("-[MTLLibrary newFunctionWithName:]", "the name is nil", kLayerOnly);
  if (std::find(names.begin(), names.end(), name.UTF8String) == names.end())
    return nil;
  SimulatedFunction* made = [SimulatedFunction new];
  made->library = number;
  made->functionName = name.UTF8String;
  return made;
}

@end

@implementation SimulatedPipeline

METALSIM_PROPERTY(NSUInteger, maxTotalThreadsPerThreadgroup, limits.most_threads)
METALSIM_PROPERTY(NSUInteger, threadExecutionWidth, kSimdWidth)
METALSIM_PROPERTY(NSUInteger, staticThreadgroupMemoryLength, limits.threadgroup_bytes)

@end

@implementation MTLCompileOptions
@synthesize fastMathEnabled = _fastMathEnabled, mathMode = _mathMode, languageVersion = _languageVersion;
@end

// ---- commands -------------------------------------------------------------------------------------------------------

namespace {

// What is bound to an index: a buffer from an offset on, or bytes of its own.
struct Binding {
  std::shared_ptr<MetalBuffer> buffer;
  NSUInteger offset = 0;
  std::vector<char> bytes;
};

using Bindings = std::map<NSUInteger, Binding>;

struct Dispatch {
  std::shared_ptr<SimulatedPipeline> pipeline;
  Bindings bindings;
  std::array<uint32_t, 3> threads;
  std::array<uint32_t, 3> group_size;

  void run() {
    std::vector<metalsim::Argument> arguments;
    for (auto& [index, bound] : bindings) {
      const auto& buffer = bound.buffer;
      if (buffer == nullptr)
        arguments.push_back({index, bound.bytes.data(), bound.bytes.size()});
      else
        arguments.push_back({index, static_cast<char*>(buffer->contents) + bound.offset, buffer->length - bound.offset});
    }
    if (shaders->launch(pipeline->number, arguments.data(), arguments.size(), threads.data(), group_size.data(), said) == 0)
      throw metalsim::Refused(said);
  }
};

// Runs a block. What it throws a Mac would not live to see; a refusal may say so in its own words.
template <typename Work>
void contained(const char* method, bool passes_refusals, Work&& work) {
  std::string thrown = "of an unknown type";
  try {
    return work();
  } catch (const std::exception& error) {
    if (passes_refusals && dynamic_cast<const metalsim::Refused*>(&error) != nullptr)
      throw;
    thrown = error.what(); // PyTorch's go on with a stack trace
  } catch (...) {
  }
  refuse(method, "a C++ exception left the block: " + thrown.substr(0, thrown.find('\n')), kEndsProcess);
}

constexpr int kHasCommands = 1; // bits of MetalStream::busy
constexpr int kInsideQueue = 2;

metalsim::MetalStream stream;

// The commands of a command buffer, shared with its encoder.
struct Commands {
  explicit Commands(bool of_stream) : of_stream(of_stream) {}

  const bool of_stream; // PyTorch's: goes on after a commit
  MTLCommandBufferStatus status = MTLCommandBufferStatusNotEnqueued;
  bool encoding = false;
  bool encoder_lost = false;
  std::vector<Dispatch> work;
  std::vector<std::shared_ptr<void>> handlers; // blocks

  bool committed() const {
    return status >= MTLCommandBufferStatusCommitted;
  }

  // Something that concerns whatever PyTorch does next.
  void touch() {
    if (of_stream)
      stream.busy.fetch_or(kHasCommands);
  }

  void check_takes_commands() const {
    check_encoders();
    if (committed())
      fail_assertion("-[MTLCommandBuffer setCurrentCommandEncoder:]", "_status < MTLCommandBufferStatusCommitted");
  }

  void check_encoders() const {
    if (encoder_lost)
      fail_assertion("-[MTLCommandEncoder dealloc]", "Command encoder released without endEncoding");
    if (encoding)
      fail_assertion(
          "-[MTLCommandBuffer computeCommandEncoder]",
          "A command encoder is already encoding to this command buffer");
  }

  void check_commit() const {
    if (encoding && !encoder_lost)
      fail_assertion("-[MTLCommandBuffer commit]", "commit command buffer with uncommitted encoder");
    check_encoders();
    if (committed())
      fail_assertion("-[MTLCommandBuffer commit]", "commit an already committed command buffer");
  }

  void tell(id<MTLCommandBuffer> buffer) {
    const auto now = std::exchange(handlers, {});
    contained("-[MTLCommandBuffer addCompletedHandler:]", false, [&] {
      for (const auto& handler : now)
        ((MTLCommandBufferHandler)handler.get())(buffer);
    });
  }

  void execute() {
    for (auto& dispatch : std::exchange(work, {}))
      dispatch.run();
  }
};

// Refuses a call of an encoder's method, which has its selector in _cmd.
[[noreturn]] void refuse_call(SEL selector, const std::string& what, const char* on_a_mac = kLayerOnly) {
  refuse("-[MTLComputeCommandEncoder " + std::string(sel_getName(selector)) + "]", what, on_a_mac);
}

void check_alive(BOOL ended, SEL method) {
  if (ended)
    refuse_call(method, "encoding has ended");
}

void check_index(SEL method, NSUInteger index) {
  if (index >= kMostBuffers)
    refuse_call(method, "index(" + std::to_string(index) + ") must be < 31");
}

void check_offset(SEL method, NSUInteger offset, NSUInteger length) {
  if (offset >= length)
    refuse_call(
        method, "offset(" + std::to_string(offset) + ") must be < the buffer's length, " + std::to_string(length));
}

std::string in_words(const char* name, MTLSize size) {
  const std::string parts[] = {
      std::to_string(size.width), std::to_string(size.height), std::to_string(size.depth)};
  return std::string(name) + "(" + parts[0] + ", " + parts[1] + ", " + parts[2] + ")";
}

// The most that there is where the true number is larger.
NSUInteger product(NSUInteger a, NSUInteger b) {
  NSUInteger made = 0;
  return __builtin_mul_overflow(a, b, &made) ? NSUIntegerMax : made;
}

NSUInteger product(MTLSize size) {
  return product(product(size.width, size.height), size.depth);
}

// How many threads, in words: of a product that is too large for a number only that.
std::string threads_in_words(MTLSize size) {
  const NSUInteger threads = product(size);
  return (threads == NSUIntegerMax ? "more than " : "") + std::to_string(threads) + " threads";
}

std::array<uint32_t, 3> numbers(MTLSize size) {
  return {uint32_t(size.width), uint32_t(size.height), uint32_t(size.depth)};
}

} // namespace

@interface SimulatedCommandBuffer : SimulatedObject <MTLCommandBuffer> {
 @public
  std::shared_ptr<Commands> commands;
}
@end

@interface SimulatedEncoder : SimulatedObject <MTLComputeCommandEncoder> {
 @public
  std::shared_ptr<Commands> commands;
  Bindings bindings;
  std::shared_ptr<SimulatedPipeline> pipeline;
  BOOL ended;
}
@end

@implementation SimulatedCommandBuffer

- (instancetype)initForStream:(BOOL)ofStream {
  commands = std::make_shared<Commands>(ofStream);
  return self;
}

METALSIM_PROPERTY(MTLCommandBufferStatus, status, commands->status)
METALSIM_PROPERTY(NSError*, error, nil) // what fails raises

- (id<MTLComputeCommandEncoder>)computeCommandEncoder {
  commands->check_takes_commands();
  commands->encoding = true;
  commands->touch();
  SimulatedEncoder* made = [SimulatedEncoder new];
  made->commands = commands;
  return [made autorelease];
}

- (id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)dispatchType {
  return [self computeCommandEncoder];
}

- (void)addCompletedHandler:(MTLCommandBufferHandler)handler {
  if (handler == nil)
    refuse("-[MTLCommandBuffer addCompletedHandler:]", "the block is nil", kCrashes);
  if (commands->committed())
    fail_assertion("-[MTLCommandBuffer addCompletedHandler:]", "Completed handler provided after commit call");
  commands->handlers.emplace_back(_Block_copy((const void*)handler), &_Block_release);
}

- (void)enqueue {
  if (commands->status == MTLCommandBufferStatusNotEnqueued)
    commands->status = MTLCommandBufferStatusEnqueued;
}

// Executes the commands, and tells who wants to know: also of commands that failed, whose error is raised behind it.
- (void)execute {
  const std::shared_ptr<Commands> held = commands; // a handler may release what it is told of
  held->check_commit();
  held->status = MTLCommandBufferStatusCommitted;
  std::exception_ptr failed;
  try {
    held->execute();
    held->status = MTLCommandBufferStatusCompleted;
  } catch (const metalsim::Refused&) {
    failed = std::current_exception();
    held->status = MTLCommandBufferStatusError;
  }
  held->tell(self);
  if (failed)
    std::rethrow_exception(failed);
}

- (void)commit {
  commands->touch(); // PyTorch will find its command buffer committed
  [self execute];
}

- (void)waitUntilCompleted {
  if (!commands->committed())
    refuse("-[MTLCommandBuffer waitUntilCompleted]", "it was not committed", "a Mac waits for ever");
}

@end

@implementation SimulatedEncoder

- (void)setComputePipelineState:(id<MTLComputePipelineState>)state {
  check_alive(ended, _cmd);
  if (state == nil)
    refuse_call(_cmd, "computePipelineState must not be nil.");
  pipeline = held((SimulatedPipeline*)state);
}

- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index {
  check_alive(ended, _cmd);
  check_index(_cmd, index);
  if (buffer == nil) {
    bindings.erase(index);
    return;
  }
  if (object_getClass(buffer) != [SimulatedBuffer class])
    refuse_call(_cmd, "that is no MTLBuffer; is it the storage of a CPU tensor?", kCrashes);
  check_offset(_cmd, offset, buffer.length);
  bindings[index] = {held(structure(buffer)), offset, {}};
}

- (void)setBufferOffset:(NSUInteger)offset atIndex:(NSUInteger)index {
  check_alive(ended, _cmd);
  auto found = bindings.find(index);
  if (found == bindings.end() || found->second.buffer == nullptr)
    refuse_call(_cmd, "no buffer at index(" + std::to_string(index) + ")");
  check_offset(_cmd, offset, found->second.buffer->length);
  found->second.offset = offset;
}

- (void)setBytes:(const void*)bytes length:(NSUInteger)length atIndex:(NSUInteger)index {
  check_alive(ended, _cmd);
  check_index(_cmd, index);
  if (length == 0 || length > kMostBytes)
    refuse_call(_cmd, "length(" + std::to_string(length) + ") must be 1 to 4096");
  if (bytes == nullptr)
    refuse_call(_cmd, "bytes must not be NULL");
  auto* from = static_cast<const char*>(bytes);
  bindings[index] = {nullptr, 0, std::vector<char>(from, from + length)};
}

- (void)dispatchThreads:(MTLSize)grid threadsPerThreadgroup:(MTLSize)group {
  check_alive(ended, _cmd);
  if (pipeline == nullptr)
    refuse_call(_cmd, "no compute pipeline state was set");
  for (NSUInteger extent : {grid.width, grid.height, grid.depth, group.width, group.height, group.depth})
    if (extent == 0 || extent > UINT32_MAX)
      refuse_call(
          _cmd,
          in_words("threadsPerGrid", grid) + ", " + in_words("threadsPerThreadgroup", group) +
              (extent == 0 ? " must not have a 0" : " must not have more than 2^32 - 1 of anything"));
  if (product(group) > pipeline->limits.most_threads)
    refuse_call(
        _cmd,
        in_words("threadsPerThreadgroup", group) + ", " + threads_in_words(group) + ", must be <= " +
            std::to_string(pipeline->limits.most_threads),
        kDoesNotRun);
  commands->work.push_back({pipeline, bindings, numbers(grid), numbers(group)});
}

- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)group {
  const MTLSize grid = MTLSizeMake(
      product(groups.width, group.width), product(groups.height, group.height), product(groups.depth, group.depth));
  [self dispatchThreads:grid threadsPerThreadgroup:group];
}

- (void)endEncoding {
  check_alive(ended, _cmd);
  ended = YES;
  commands->encoding = false;
}

- (void)dealloc {
  if (!ended) {
    commands->encoder_lost = true; // told at the next occasion: nothing may be thrown in here
    commands->touch();
  }
  [super dealloc];
}

@end

// ---- queues ---------------------------------------------------------------------------------------------------------

@interface SimulatedCommandQueue : SimulatedObject <MTLCommandQueue>
@end

@implementation SimulatedCommandQueue

- (id<MTLCommandBuffer>)commandBuffer {
  return [[[SimulatedCommandBuffer alloc] initForStream:NO] autorelease];
}

@end

// ---- PyTorch's stream -----------------------------------------------------------------------------------------------

extern "C" int PyGILState_Check(void);
extern "C" void* PyEval_SaveThread(void);
extern "C" void PyEval_RestoreThread(void*);

namespace {

using Finally = std::shared_ptr<void>; // of nothing: its deleter is called at the end of a block

// PyTorch's serial queue: one thread at a time.
class SerialQueue {
 public:
  bool is_mine() const {
    return owner_.load() == std::this_thread::get_id();
  }

  // Runs something when no other thread is inside; a thread that is inside already just goes on.
  template <typename Work>
  void exclusively(Work&& work) {
    if (is_mine())
      return work();
    // kernels are launched through Python: who waits must not hold what they need
    void* python = nullptr;
    if (!mutex_.try_lock()) {
      python = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
      mutex_.lock();
      if (python != nullptr)
        PyEval_RestoreThread(python);
    }
    const std::lock_guard<std::mutex> lock(mutex_, std::adopt_lock);
    owner_ = std::this_thread::get_id();
    const Finally leave(nullptr, [this](void*) { owner_ = std::thread::id(); });
    work();
  }

 private:
  std::mutex mutex_;
  std::atomic<std::thread::id> owner_;
};

SerialQueue queue;

const char* const kOwnQueue = "BUG IN CLIENT OF LIBDISPATCH: dispatch_sync called on queue already owned by current thread";

SimulatedCommandBuffer* current = nil;
SimulatedCommandBuffer* retired = nil; // the one before: who still uses it is told, and does not crash

void retire(MTLCommandBufferStatus status) {
  current->commands->status = status;
  [retired release];
  retired = current;
  current = nil;
}

// After an error: PyTorch begins a new command buffer.
void abandon() {
  if (current != nil)
    retire(MTLCommandBufferStatusError);
  stream.busy.fetch_and(~kHasCommands);
}

// Does something with the current command buffer, if there is one; nothing is left to do then.
template <typename Work>
void with_current(Work&& work) {
  queue.exclusively([&] {
    try {
      if (current != nil)
        work();
    } catch (...) {
      abandon();
      throw;
    }
    stream.busy.fetch_and(~kHasCommands);
  });
}

// PyTorch 2.15 asserts this where 2.14 did not.
void check_inside(const char* function) {
  if (!queue.is_mine())
    refuse(function, "BUG IN CLIENT OF LIBDISPATCH: Assertion failed: Block was expected to execute on PyTorch's queue "
           "(call it within dispatch_sync(torch::mps::get_dispatch_queue(), ^{ ... }))", kEndsProcess);
}

void* command_buffer() {
  check_inside("torch::mps::get_command_buffer");
  if (current == nil)
    current = [[SimulatedCommandBuffer alloc] initForStream:YES];
  return current;
}

void* dispatch_queue() {
  static NSObject* made = [NSObject new];
  return made;
}

// As MPSCommandBuffer's commitAndContinue: what was encoded runs, and the command buffer takes more.
void commit() {
  check_inside("torch::mps::commit");
  with_current([] {
    [current execute];
    current->commands->status = MTLCommandBufferStatusNotEnqueued;
  });
}

void synchronize() {
  with_current([] {
    [current execute];
    retire(MTLCommandBufferStatusCompleted);
  });
}

void settle() {
  if (queue.is_mine())
    refuse("dispatch_sync", "an operator of PyTorch inside the block: " + std::string(kOwnQueue), kEndsProcess);
  with_current([] {
    current->commands->check_takes_commands();
    current->commands->execute();
  });
}

} // namespace

extern "C" void dispatch_sync(dispatch_queue_t given, dispatch_block_t block) {
  if (given == nil || block == nil)
    refuse("dispatch_sync", given == nil ? "the queue is NULL" : "the block is NULL", kCrashes);
  if (queue.is_mine())
    refuse("dispatch_sync", kOwnQueue, kEndsProcess);
  queue.exclusively([&] {
    stream.busy.fetch_or(kInsideQueue);
    const Finally leave(nullptr, [](void*) { stream.busy.fetch_and(~kInsideQueue); });
    try {
      contained("dispatch_sync", true, block);
    } catch (...) {
      abandon();
      throw;
    }
  });
}

// Python calls this once; what it returns is for the device.
extern "C" metalsim::MetalStream* metalsim_connect(const metalsim::Shaders* of_python) {
  shaders = of_python;
  stream.buffer_class = reinterpret_cast<void*>([SimulatedBuffer class]);
  stream.command_buffer = &command_buffer;
  stream.dispatch_queue = &dispatch_queue;
  stream.commit = &commit;
  stream.synchronize = &synchronize;
  stream.settle = &settle;
  return &stream;
}

// ---- the device -----------------------------------------------------------------------------------------------------

@interface SimulatedDevice : NSObject <MTLDevice>
@end

@implementation SimulatedDevice

METALSIM_PROPERTY(NSString*, name, @"Simulated Apple GPU")
METALSIM_PROPERTY(BOOL, hasUnifiedMemory, YES)
METALSIM_PROPERTY(MTLSize, maxThreadsPerThreadgroup, MTLSizeMake(kMostThreads, kMostThreads, kMostThreads))
METALSIM_PROPERTY(NSUInteger, maxThreadgroupMemoryLength, 32768)
METALSIM_PROPERTY(NSUInteger, maxBufferLength, kMaxBufferBytes)

- (id<MTLCommandQueue>)newCommandQueue {
  return [SimulatedCommandQueue new];
}

- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options {
  return new_buffer(length);
}

- (id<MTLBuffer>)newBufferWithBytes:(const void*)bytes length:(NSUInteger)length options:(MTLResourceOptions)options {
  if (bytes == nullptr)
    refuse("-[MTLDevice newBufferWithBytes:length:options:]", "pointer must not be NULL", kLayerOnly);
  id<MTLBuffer> made = new_buffer(length);
  if (made != nil)
    memcpy(made.contents, bytes, length);
  return made;
}

- (id<MTLLibrary>)newLibraryWithSource:(NSString*)source options:(MTLCompileOptions*)options error:(NSError**)error {
  if (source == nil)
    refuse("-[MTLDevice newLibraryWithSource:options:error:]", "the source is nil", kLayerOnly);
  const int64_t number = shaders->library(source.UTF8String, said);
  if (!succeeded(number, error))
    return nil;
  SimulatedLibrary* made = [SimulatedLibrary new];
  made->number = number;
  // Python has written the names of its kernels there, one a line
  char* rest = nullptr;
  for (const char* name = strtok_r(said, "\n", &rest); name != nullptr; name = strtok_r(nullptr, "\n", &rest))
    made->names.push_back(name);
  return made;
}

- (id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)function error:(NSError**)error {
  if (function == nil)
    fail_assertion("-[MTLDevice newComputePipelineStateWithFunction:error:]", "computeFunction must not be nil.");
  metalsim::PipelineLimits limits = {};
  const int64_t number =
      shaders->pipeline(((SimulatedFunction*)function)->library, function.name.UTF8String, &limits, said);
  if (!succeeded(number, error))
    return nil;
  SimulatedPipeline* made = [SimulatedPipeline new];
  made->number = number;
  made->limits = limits;
  return made;
}

@end

extern "C" id<MTLDevice> MTLCreateSystemDefaultDevice(void) {
  static SimulatedDevice* device = [SimulatedDevice new];
  return shaders == nullptr ? nil : device; // nil where Python did not connect
}
