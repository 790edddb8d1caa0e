// Softshrink's Metal kernels, launched from Objective-C++ on PyTorch's own command buffer.
//
//   module = torch.utils.cpp_extension.load("softshrink_mm", ["softshrink.mm"])
//   module.compile(source)             # the text of softshrink.metal
//   y = module.forward(x, 0.5)
//
// Memory is managed by hand: torch.utils.cpp_extension does not ask for ARC (-fobjc-arc). What a method named new...
// returns is ours until we release it; anything else belongs to the autorelease pool around it.
// What is used of torch/extension.h, which reads all of PyTorch's C++ frontend and takes three times as long to compile.
#include <ATen/ops/empty_like.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/mps.h>

#import <Foundation/Foundation.h>
#import <Metal/Metal.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

id<MTLLibrary> library = nil;
std::unordered_map<std::string, id<MTLComputePipelineState>> pipelines;  // by name: compiled once, not at every call

std::string reason(NSError* error) {
  return error == nil ? "no reason given" : error.localizedDescription.UTF8String;
}

// Compiles the kernels' source, in place of any that was compiled before.
void compile(const std::string& source) {
  @autoreleasepool {
    static id<MTLDevice> device = MTLCreateSystemDefaultDevice();
    TORCH_CHECK(device, "there is no Metal device");
    NSError* error = nil;
    id<MTLLibrary> made = [device newLibraryWithSource:[NSString stringWithUTF8String:source.c_str()]
                                               options:nil
                                                 error:&error];
    TORCH_CHECK(made, "the Metal source does not compile: ", reason(error));
    for (auto& [name, pipeline] : pipelines) [pipeline release];
    pipelines.clear();
    [library release];
    library = made;
  }
}

id<MTLComputePipelineState> pipeline(const std::string& name) {
  if (auto found = pipelines.find(name); found != pipelines.end()) return found->second;
  TORCH_CHECK(library, "compile(source) has to come first");
  id<MTLFunction> function = [library newFunctionWithName:[NSString stringWithUTF8String:name.c_str()]];
  TORCH_CHECK(function, "the Metal source has no kernel ", name);
  NSError* error = nil;
  id<MTLComputePipelineState> made = [library.device newComputePipelineStateWithFunction:function error:&error];
  [function release];
  TORCH_CHECK(made, "there is no pipeline for ", name, ": ", reason(error));
  pipelines[name] = made;
  return made;
}

// The storage of an MPS tensor is a Metal buffer.
id<MTLBuffer> buffer(const at::Tensor& tensor) {
  return __builtin_bit_cast(id<MTLBuffer>, tensor.storage().data());
}

// Runs a kernel with one thread per element: tensors[0] is its output, lambd comes last.
void launch(const std::string& name, const std::vector<at::Tensor>& tensors, float lambd) {
  @autoreleasepool {
    id<MTLComputePipelineState> state = pipeline(name);
    // Everything that may raise has been done: an exception must not leave the block below.
    dispatch_sync(torch::mps::get_dispatch_queue(), ^{
      id<MTLCommandBuffer> commands = torch::mps::get_command_buffer();
      id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
      [encoder setComputePipelineState:state];
      NSUInteger index = 0;
      for (const at::Tensor& tensor : tensors) {
        // in bytes, and not always 0: a view begins somewhere in the buffer of its base
        const NSUInteger offset = tensor.storage_offset() * tensor.element_size();
        [encoder setBuffer:buffer(tensor) offset:offset atIndex:index++];
      }
      [encoder setBytes:&lambd length:sizeof(lambd) atIndex:index];
      const NSUInteger threads = tensors[0].numel();
      const NSUInteger group = std::min(threads, state.maxTotalThreadsPerThreadgroup);
      [encoder dispatchThreads:MTLSizeMake(threads, 1, 1) threadsPerThreadgroup:MTLSizeMake(group, 1, 1)];
      [encoder endEncoding];
      torch::mps::commit();  // the GPU may begin. torch::mps::synchronize() would also wait for its end
    });
  }
}

std::string kernel(const std::string& stem, const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat: return stem + "_float";
    case at::kHalf: return stem + "_half";
    case at::kBFloat16: return stem + "_bfloat";
    default: TORCH_CHECK(false, "there are kernels for float32, float16 and bfloat16, not for ", x.scalar_type());
  }
}

void check_on_mps(const at::Tensor& tensor, const char* name) {
  TORCH_CHECK(tensor.is_mps(), name, " is on ", tensor.device(), "; move it to mps");
}

// A kernel sees memory: neither strides nor a minus sign that PyTorch has put off.
at::Tensor in_memory(const at::Tensor& tensor) {
  return tensor.resolve_neg().contiguous();
}

at::Tensor forward(const at::Tensor& x, double lambd) {
  check_on_mps(x, "x");
  const std::string name = kernel("softshrink_forward", x);
  const at::Tensor in = in_memory(x);
  const at::Tensor out = at::empty_like(in);
  if (in.numel() > 0) launch(name, {out, in}, static_cast<float>(lambd));
  return out;
}

at::Tensor backward(const at::Tensor& grad, const at::Tensor& x, double lambd) {
  check_on_mps(grad, "grad");
  check_on_mps(x, "x");
  TORCH_CHECK(grad.sizes() == x.sizes(), "grad is ", grad.sizes(), " and x is ", x.sizes());
  TORCH_CHECK(grad.scalar_type() == x.scalar_type(), "grad is ", grad.scalar_type(), " and x is ", x.scalar_type());
  const std::string name = kernel("softshrink_backward", x);
  const at::Tensor given = in_memory(grad), in = in_memory(x);
  const at::Tensor out = at::empty_like(in);
  if (in.numel() > 0) launch(name, {out, given, in}, static_cast<float>(lambd));
  return out;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("compile", &compile, "Compile the kernels' Metal source", py::arg("source"));
  m.def("forward", &forward, "Softshrink of an MPS tensor", py::arg("x"), py::arg("lambd"));
  m.def("backward", &backward, "The gradient with respect to x", py::arg("grad"), py::arg("x"), py::arg("lambd"));
}
