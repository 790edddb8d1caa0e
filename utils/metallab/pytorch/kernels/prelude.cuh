// What Metal's compiler knows by itself and the kernels of this folder use, in CUDA.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)

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

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
inline void threadgroup_barrier(mem_flags) { __syncthreads(); }

// A SIMD-group is a warp: 32 threads on Apple's GPUs as on NVIDIA's.
template <class T>
T simd_sum(T x) {
  for (int far = 16; far; far /= 2) x += __shfl_xor_sync(~0u, x, far);
  return x;
}
template <class T>
T simd_max(T x) {
  for (int far = 16; far; far /= 2) x = max(x, __shfl_xor_sync(~0u, x, far));
  return x;
}

inline float clamp(float x, float low, float high) { return min(max(x, low), high); }

// A position or an extent as the kernel declares it: with one, two or three dimensions.
template <class T>
inline T extent(uint3 v) { return T(v.x); }
template <>
inline uint2 extent<uint2>(uint3 v) { return make_uint2(v.x, v.y); }
template <>
inline uint3 extent<uint3>(uint3 v) { return v; }
}  // namespace metal

// The begin of every kernel: where this thread is, and nothing to do for one beyond the grid, whose size comes as the
// last three parameters. CUDA launches whole groups; Metal makes those at the edge smaller.
#define METAL_THREAD                                                                                       \
  const uint3 metal_grid = make_uint3(metal_x, metal_y, metal_z);                                          \
  const uint3 metal_position =                                                                             \
      make_uint3(blockIdx.x * blockDim.x + threadIdx.x, blockIdx.y * blockDim.y + threadIdx.y,             \
                 blockIdx.z * blockDim.z + threadIdx.z);                                                   \
  const uint metal_index = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;            \
  if (metal_position.x >= metal_x || metal_position.y >= metal_y || metal_position.z >= metal_z) return;

#define device
#define constant const
#define thread
#define threadgroup
