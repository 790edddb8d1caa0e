// What clang asks of a run time for blocks and for exceptions.
//
// Blocks: the layout is the one that clang documents (Block Implementation Specification), as far as a block is called,
// copied and released. Variables marked __block live on the stack and may not outlive it: such a block is not copied.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "refused.h"

// The classes of blocks: clang stores their addresses and nobody sends them messages.
extern "C" {
void* _NSConcreteStackBlock[32];
void* _NSConcreteGlobalBlock[32];
void* _NSConcreteMallocBlock[32];
}

namespace {

struct Descriptor {
  unsigned long reserved;
  unsigned long size;
  void (*copy)(void* to, const void* from); // these two where kHasHelpers
  void (*dispose)(const void* block);
};

struct Layout {
  void* isa;
  int32_t flags;
  int32_t references; // called reserved by clang: ours in a copy
  void (*invoke)(void*, ...);
  Descriptor* descriptor;
};

constexpr int32_t kHasHelpers = 1 << 25;

// What a captured variable is, in _Block_object_assign.
constexpr int kFieldObject = 3;
constexpr int kFieldBlock = 7;
constexpr int kFieldByReference = 8;

using Message = void* (*)(void*, const void*);
extern "C" Message objc_msg_lookup(void* receiver, const void* selector);

void send(void* object, const char* name) {
  const char* const selector[] = {name, nullptr}; // Selector in classes.cpp
  objc_msg_lookup(object, selector)(object, selector);
}

} // namespace

extern "C" void* _Block_copy(const void* block) {
  auto* from = static_cast<Layout*>(const_cast<void*>(block));
  if (from == nullptr || from->isa == _NSConcreteGlobalBlock)
    return from;
  if (from->isa == _NSConcreteMallocBlock) {
    __atomic_add_fetch(&from->references, 1, __ATOMIC_RELAXED);
    return from;
  }
  auto* made = static_cast<Layout*>(malloc(from->descriptor->size));
  memcpy(made, from, from->descriptor->size);
  made->isa = _NSConcreteMallocBlock;
  made->references = 1;
  if (made->flags & kHasHelpers)
    made->descriptor->copy(made, from);
  return made;
}

extern "C" void _Block_release(const void* block) {
  auto* held = static_cast<Layout*>(const_cast<void*>(block));
  if (held == nullptr || held->isa != _NSConcreteMallocBlock)
    return;
  if (__atomic_sub_fetch(&held->references, 1, __ATOMIC_ACQ_REL) > 0)
    return;
  if (held->flags & kHasHelpers)
    held->descriptor->dispose(held);
  free(held);
}

extern "C" void _Block_object_assign(void* to, const void* object, int flags) {
  void* kept = const_cast<void*>(object);
  if (flags == kFieldObject)
    send(kept, "retain");
  else if (flags == kFieldBlock)
    kept = _Block_copy(object);
  else if (flags & kFieldByReference)
    metalsim::refuse("a block", "__block variables of a block that is kept are not simulated", "a Mac takes them");
  *static_cast<void**>(to) = kept;
}

extern "C" void _Block_object_dispose(const void* object, int flags) {
  if (flags == kFieldObject)
    send(const_cast<void*>(object), "release");
  else if (flags == kFieldBlock)
    _Block_release(object);
}

// clang asks for the personality routine of GCC's Objective-C wherever an .mm file has something to clean up, and that one
// knows no C++ exceptions: TORCH_CHECK could not be caught. This one is found first, and is that of C++.
extern "C" int __gxx_personality_v0(int, int, uint64_t, void*, void*);
extern "C" int __gnu_objc_personality_v0(int version, int actions, uint64_t kind, void* exception, void* context) {
  return __gxx_personality_v0(version, actions, kind, exception, context);
}
