// What Metal's compiler knows by itself and the kernels of this folder use, in CUDA.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef __nv_bfloat16 bfloat;

namespace metal {
template <class T, int N>
struct alignas(sizeof(T) * N) vec {  // for N = 2 and 4: read and written at once
  T elements[N];
  T& operator[](int i) { return elements[i]; }
  const T& operator[](int i) const { return elements[i]; }
};
}  // namespace metal

// The begin of every kernel: which thread this is, and nothing to do for one beyond the grid, whose sides come as the last two
// parameters. CUDA launches whole groups; Metal makes those at the edge smaller.
#define METAL_THREAD                                                                                 \
  const uint metal_index = blockIdx.x * blockDim.x + threadIdx.x, metal_row = blockIdx.y * blockDim.y + threadIdx.y; \
  if (metal_index >= metal_threads || metal_row >= metal_rows) return;

#define INFINITY __int_as_float(0x7f800000)
#define threadgroup __shared__
#define threadgroup_barrier(of) __syncthreads()
#define device
#define constant const
#define thread
