// A Metal program without PyTorch: buffers, a queue and command buffers of its own. Each function tells how it ended.
#import <Foundation/Foundation.h>
#import <Metal/Metal.h>

#include <exception>
#include <functional>
#include <string>

static const char* SOURCE = R"METAL(
#include <metal_stdlib>
using namespace metal;
kernel void twice(device float* x [[buffer(0)]], constant uint& n [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  if (i < n) x[i] *= 2;
}
[[max_total_threads_per_threadgroup(64)]]
kernel void narrow(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = 0; }
)METAL";

static const char* told(const std::function<std::string()>& work) {
  static std::string said;
  try {
    @autoreleasepool {
      said = work();
    }
  } catch (const std::exception& error) {
    said = error.what();
  }
  return said.c_str();
}

static id<MTLComputePipelineState> pipeline(NSString* name) {
  id<MTLDevice> device = MTLCreateSystemDefaultDevice();
  static id<MTLLibrary> library = [device newLibraryWithSource:[NSString stringWithUTF8String:SOURCE]
                                                       options:nil
                                                         error:nil];
  id<MTLFunction> function = [library newFunctionWithName:name];
  if (function == nil || ![function.name isEqualToString:name]) return nil;
  id<MTLComputePipelineState> made = [device newComputePipelineStateWithFunction:function error:nil];
  [function release];
  return [made autorelease];
}

static id<MTLCommandBuffer> new_commands() {
  id<MTLCommandQueue> queue = [[MTLCreateSystemDefaultDevice() newCommandQueue] autorelease];
  return [queue commandBuffer];
}

// Doubles the numbers of a buffer from the second one on.
static void encode(id<MTLCommandBuffer> commands, id<MTLBuffer> numbers, uint32_t count) {
  id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
  [encoder setComputePipelineState:pipeline(@"twice")];
  [encoder setBuffer:numbers offset:0 atIndex:0];
  [encoder setBufferOffset:sizeof(float) atIndex:0];
  [encoder setBytes:&count length:sizeof count atIndex:1];
  [encoder dispatchThreadgroups:MTLSizeMake((count + 31) / 32, 1, 1) threadsPerThreadgroup:MTLSizeMake(32, 1, 1)];
  [encoder endEncoding];
}

extern "C" const char* doubles() {
  return told([]() -> std::string {
    const float given[] = {1, 2, 3, 4};
    id<MTLDevice> device = MTLCreateSystemDefaultDevice();
    id<MTLBuffer> numbers = [device newBufferWithBytes:given length:sizeof given options:MTLResourceStorageModeShared];
    auto* values = static_cast<float*>(numbers.contents);
    bool completed = false;
    @autoreleasepool {
      id<MTLCommandBuffer> commands = new_commands();
      encode(commands, numbers, 3);
      bool* tell = &completed;
      [commands addCompletedHandler:^(id<MTLCommandBuffer> buffer) {
        *tell = buffer == commands && numbers.length == sizeof given;
      }];
      if (values[1] != 2) return "executed before commit";
      [commands commit];
      [commands waitUntilCompleted];
      if (commands.status != MTLCommandBufferStatusCompleted) return "not completed";
    }
    const bool right = values[0] == 1 && values[1] == 4 && values[2] == 6 && values[3] == 8;
    const NSUInteger holders = numbers.retainCount;
    [numbers release];
    if (!completed) return "the handler was not called";
    if (holders != 1) return "somebody still holds the buffer";
    return right ? "well" : "wrong values";
  });
}

extern "C" const char* says_what_is_there() {
  return told([]() -> std::string {
    id<MTLDevice> device = MTLCreateSystemDefaultDevice();
    NSError* error = nil;
    MTLCompileOptions* options = [[MTLCompileOptions new] autorelease];
    options.mathMode = MTLMathModeSafe;
    id<MTLLibrary> library = [device newLibraryWithSource:[NSString stringWithUTF8String:SOURCE]
                                                  options:options
                                                    error:&error];
    NSArray<NSString*>* names = library.functionNames;
    NSString* text = [NSString stringWithFormat:@"%s,%s,%lu", [names objectAtIndex:0].UTF8String,
                                                [names objectAtIndex:1].UTF8String, names.count];
    text = [NSString stringWithFormat:@"%s %lu %lu", text.UTF8String, pipeline(@"narrow").maxTotalThreadsPerThreadgroup,
                     pipeline(@"twice").threadExecutionWidth];
    if (pipeline(@"thrice") != nil) return "a kernel that is not there";
    if ([device newLibraryWithSource:@"kernel void f( {" options:nil error:&error] != nil) return "compiled";
    return std::string(text.UTF8String) + " " + error.localizedDescription.UTF8String;
  });
}

extern "C" const char* waits_for_nothing() {
  return told([]() -> std::string {
    [new_commands() waitUntilCompleted];
    return "went on";
  });
}

extern "C" const char* commits_twice() {
  return told([]() -> std::string {
    id<MTLCommandBuffer> commands = new_commands();
    [commands commit];
    [commands commit];
    return "went on";
  });
}

extern "C" const char* binds_too_much() {
  return told([]() -> std::string {
    const char bytes[5000] = {};
    id<MTLComputeCommandEncoder> encoder = [new_commands() computeCommandEncoder];
    [encoder setBytes:bytes length:sizeof bytes atIndex:0];
    return "went on";
  });
}

extern "C" const char* binds_beyond_the_end() {
  return told([]() -> std::string {
    id<MTLBuffer> small = [[MTLCreateSystemDefaultDevice() newBufferWithLength:16 options:0] autorelease];
    id<MTLComputeCommandEncoder> encoder = [new_commands() computeCommandEncoder];
    [encoder setBuffer:small offset:16 atIndex:0];
    return "went on";
  });
}

extern "C" const char* asks_for_too_long_a_buffer() {
  return told([]() -> std::string {
    id<MTLDevice> device = MTLCreateSystemDefaultDevice();
    [device newBufferWithLength:device.maxBufferLength + 1 options:0];
    return "went on";
  });
}

extern "C" const char* has_no_threads() {
  return told([]() -> std::string {
    id<MTLComputeCommandEncoder> encoder = [new_commands() computeCommandEncoder];
    [encoder setComputePipelineState:pipeline(@"twice")];
    [encoder dispatchThreads:MTLSizeMake(0, 1, 1) threadsPerThreadgroup:MTLSizeMake(1, 1, 1)];
    return "went on";
  });
}

static id<MTLComputeCommandEncoder> encoder_with(NSString* name) {
  id<MTLComputeCommandEncoder> encoder = [new_commands() computeCommandEncoder];
  [encoder setComputePipelineState:pipeline(name)];
  return encoder;
}

// The status of a command buffer on its way, as digits: new, enqueued, and what its two handlers see.
static std::string statuses(bool fails) {
  id<MTLCommandBuffer> commands = new_commands();
  std::string seen = std::to_string(commands.status);
  [commands enqueue];
  seen += std::to_string(commands.status);
  id<MTLBuffer> numbers = [[MTLCreateSystemDefaultDevice() newBufferWithLength:16 options:0] autorelease];
  if (fails) {
    id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
    [encoder setComputePipelineState:pipeline(@"narrow")]; // its buffer is not bound
    [encoder dispatchThreads:MTLSizeMake(1, 1, 1) threadsPerThreadgroup:MTLSizeMake(1, 1, 1)];
    [encoder endEncoding];
  } else {
    encode(commands, numbers, 3);
  }
  std::string* tell = &seen;
  for (int i = 0; i < 2; ++i)
    [commands addCompletedHandler:^(id<MTLCommandBuffer> buffer) {
      *tell += std::to_string(buffer.status);
    }];
  try {
    [commands commit];
  } catch (const std::exception& error) {
    seen += "!";
  }
  return seen + std::to_string(commands.status);
}

extern "C" const char* statuses_of_a_good_one() {
  return told([] { return statuses(false); });
}

extern "C" const char* statuses_of_a_bad_one() {
  return told([] { return statuses(true); });
}

extern "C" const char* commits_in_a_handler() {
  return told([]() -> std::string {
    id<MTLCommandBuffer> commands = new_commands();
    [commands addCompletedHandler:^(id<MTLCommandBuffer> buffer) {
      [buffer commit];
    }];
    [commands commit];
    return "went on";
  });
}

extern "C" const char* has_too_many_threads() {
  return told([]() -> std::string {
    [encoder_with(@"narrow") dispatchThreads:MTLSizeMake(1, 1, 1) threadsPerThreadgroup:MTLSizeMake(13, 5, 1)];
    return "went on";
  });
}

static int initialized = 0;
static bool loaded = false;

// Classes of the program's own; the class in front of its superclass.
@interface Base : NSObject {
  NSString* _title;
  MTLSize _size;
}
@property(retain) NSString* title;
@property MTLSize size;
- (int)number;
@end
@interface Derived : Base
@end
@implementation Derived
- (int)number {
  return [super number] + 1;
}
@end
@implementation Base
@synthesize title = _title, size = _size;
+ (void)load {
  loaded = true;
}
+ (void)initialize {
  ++initialized;
}
+ (int)count {
  return initialized;
}
- (int)number {
  return 1;
}
- (void)dealloc {
  [_title release];
  [super dealloc];
}
@end
@interface NSString (Halved)
- (NSUInteger)half;
+ (NSString*)named;
@end
@implementation NSString (Halved)
- (NSUInteger)half {
  return self.length / 2;
}
+ (NSString*)named {
  return @"named";
}
@end

extern "C" const char* has_classes() {
  return told([]() -> std::string {
    Derived* made = [[Derived new] autorelease];
    NSString* title = [[NSString alloc] initWithUTF8String:"six..."];
    made.title = title;
    const NSUInteger held = title.retainCount;
    [title release];
    const bool knows = [made respondsToSelector:@selector(number)] && ![made respondsToSelector:@selector(half)];
    NSString* text = [NSString stringWithFormat:@"%d %d %d %lu %lu %s", made.number, initialized, knows, held, made.title.half,
                                                [NSString named].UTF8String];
    Derived* nothing = nil;
    made.size = MTLSizeMake(1, 2, 3);
    if (!loaded || made.size.depth != 3 || nothing.size.depth != 0) return "a structure was lost";
    if (nothing.number != 0 || ![made isKindOfClass:[Base class]] || [Base new].class != [Base class]) return "wrong";
    if (std::string([made description].UTF8String).find("<Derived: 0x") != 0) return made.description.UTF8String;
    try {
      [(id)made commit];
    } catch (const std::exception& error) {
      return text.UTF8String + (" " + std::string(error.what()));
    }
    return "went on";
  });
}
