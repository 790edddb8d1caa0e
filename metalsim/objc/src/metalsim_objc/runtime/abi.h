// What the run time asks of Python: shaders are compiled and run there (bridge.py has the same structures).

#pragma once

#include <cstddef>
#include <cstdint>

namespace metalsim {

constexpr size_t kSaidBytes = 1 << 16;

struct Argument {
  uint64_t index;
  void* address;
  uint64_t bytes;
};

struct PipelineLimits {
  uint64_t most_threads; // in a group
  uint64_t threadgroup_bytes;
};

// Libraries and pipelines are numbers from 1; 0 says that it failed, and `said`, of kSaidBytes, holds the reason.
struct Shaders {
  int64_t (*library)(const char* source, char* said); // on success, `said` holds the kernels' names, one a line
  int64_t (*pipeline)(int64_t library, const char* name, PipelineLimits* limits, char* said);
  int64_t (*launch)(
      int64_t pipeline,
      const Argument* arguments,
      uint64_t count,
      const uint32_t* threads,
      const uint32_t* group_size,
      char* said);
};

} // namespace metalsim
