// What a compiled kernel and the run time tell each other. Included by both, and mirrored in Python: Parameter in
// binding.py, _Described in library.py.
#pragma once

struct alignas(16) MetalsimIndex {
  unsigned x, y, z;
};

// Where one thread stands, in the words of the MSL attributes.
struct MetalsimThread {
  MetalsimIndex thread_position_in_grid;
  MetalsimIndex thread_position_in_threadgroup;
  MetalsimIndex threadgroup_position_in_grid;
  MetalsimIndex threads_per_grid;
  MetalsimIndex threads_per_threadgroup;           // of this group: the last ones may be smaller
  MetalsimIndex dispatch_threads_per_threadgroup;  // as asked for
  MetalsimIndex threadgroups_per_grid;
  unsigned thread_index_in_threadgroup;
  unsigned thread_index_in_simdgroup;
  unsigned simdgroup_index_in_threadgroup;
  void** buffers;
};

struct MetalsimParameter {
  int buffer;        // its index, or -1 for a value that the run time supplies
  int is_reference;  // else a pointer
  int kind;          // 'f' float, 'h' half, 'b' bfloat, 'B' bool, 'i' or 'u' integer, 's' a struct, 'v' void
  int scalar_bytes;  // of one scalar: 4 for float4
  int bytes;         // of what it points to: 16 for float4
  int is_const;
};

struct MetalsimKernel {
  const char* name;
  void (*thread)(MetalsimThread*);                 // one thread
  void (*row)(MetalsimThread*, unsigned threads);  // threads that differ in x only, when they never meet
  const MetalsimParameter* parameters;
  int parameter_count;
  const void* function;                            // the kernel itself, to find its threadgroup variables
};
