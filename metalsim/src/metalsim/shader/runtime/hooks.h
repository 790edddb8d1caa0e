// Which thread reads and writes what: the calls that a compiler puts before each access with -fsanitize=thread, answered
// by us instead of by a sanitizer's run time. Two accesses to a byte are a race if nothing orders them, they are by two
// threads, one writes, and not both are atomic. Part of rt.cpp, for kernel.check().
//
// A threadgroup_barrier orders all of its group, a simdgroup_barrier its SIMD-group, a SIMD-group function nothing, and
// nothing orders two threadgroups. A finding is a line on standard error that program.py gives its source lines.
#pragma once

namespace hooks {
struct Access {
  uint32_t group;   // number of the threadgroup, from 1; 0: none yet
  uint32_t site;    // where in the program
  uint16_t thread;  // in its group
  uint16_t simdgroup_barriers;
  uint32_t barriers : 31, atomic : 1;
};
struct Byte {
  Access write, read[2];  // two readers: whoever writes, one of them is another thread
};
struct Span {
  const char* begin;
  const char* end;
  Byte* bytes;
};
// What kernel.accesses() reads of an access; of a race two follow each other, the earlier one last.
struct Recorded {
  uint32_t group, thread, interval, site, kind, bytes;
  int64_t span, offset;  // bytes from where the span begins; outside, a line for each span
};
enum : uint32_t { read_kind, write_kind, outside_kind, race_kind };
FILE* record;

constexpr int most_spans = 65, most_races = 64;  // one span for the threadgroup memory
Span spans[most_spans];
int span_count;
uint32_t group_now, reported[most_races][2];
int race_count;

// Null if there is no address space for what is known of each byte.
bool watch(const void* begin, size_t bytes) {
  const int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* known = bytes ? mmap(nullptr, bytes * sizeof(Byte), PROT_READ | PROT_WRITE, kind, -1, 0) : nullptr;
  if (known == MAP_FAILED) return false;
  spans[span_count++] = {(const char*)begin, (const char*)begin + bytes, (Byte*)known};
  return true;
}

bool ordered(const Access& a, const Access& b) {
  if (!a.group || (a.group == b.group && (a.thread == b.thread || a.barriers != b.barriers))) return true;
  return a.group == b.group && a.thread / simd_width == b.thread / simd_width &&
         a.simdgroup_barriers != b.simdgroup_barriers;
}

void note(const Access& a, uint32_t kind, int span, const char* place, unsigned bytes) {
  const Recorded line = {a.group - 1, a.thread, a.barriers, a.site, kind, bytes, span, place - spans[span].begin};
  if (record) fwrite(&line, sizeof line, 1, record);
}

void race(const Access& now, const Access& before, int span, const char* place, const char* what, unsigned bytes) {
  const uint32_t low = least(now.site, before.site), high = now.site + before.site - low;
  for (int i = 0; i < race_count; i++)
    if (reported[i][0] == low && reported[i][1] == high) return;
  if (race_count == most_races) return;
  reported[race_count][0] = low, reported[race_count++][1] = high;
  note(now, race_kind, span, place, bytes);
  note(before, race_kind, span, place, bytes);
  fprintf(stderr, "METALSIM 0x%x METALSIM 0x%x race: %s of %u bytes\n", now.site, before.site, what, bytes);
}

// Which of the two readers that are kept a new one replaces: those of other SIMD-groups and threadgroups stay.
Access* place_for(Access* read, const Access& now) {
  for (int i = 0; i < 2; i++)
    if (!read[i].group || (read[i].group == now.group && ordered(read[i], now))) return &read[i];
  if (read[0].group == now.group && read[0].thread / simd_width == read[1].thread / simd_width) return &read[1];
  return nullptr;
}

// A thread is about to touch `bytes` bytes from `place` on, at `caller` in the program: notes it, compares it with what is
// known of each byte, and ends the process with 66 outside of all spans and constants.
void touched(const void* place, unsigned bytes, bool writes, bool atomic, const void* caller) {
  if (!current) return;
  // a thread's own: variables on its stack, what it is told of its position (in `Fiber`), the pointers to the buffers
  const char* begin = (const char*)place;
  const uint32_t site = (uint32_t)((const char*)caller - 1 - __ehdr_start);
  const char* what = writes ? "write" : "read";
  if (begin >= current->stack && begin < current->stack + stack_bytes) return;
  const char *own = (const char*)current, *arguments = (const char*)current->thread.buffers;
  if (begin >= own && begin < own + sizeof(Fiber)) return;
  if (begin >= arguments && begin < arguments + 64 * sizeof(void*)) return;
  const Access now = {group_now, site, (uint16_t)current->thread.thread_index_in_threadgroup,
                      (uint16_t)current->simdgroup_barriers_passed, current->barriers_passed, atomic};
  for (int i = 0; i < span_count; i++) {
    const Span& span = spans[i];
    if (begin < span.begin || begin >= span.end || bytes > (size_t)(span.end - begin)) continue;
    note(now, writes ? write_kind : read_kind, i, begin, bytes);
    for (Byte* b = span.bytes + (begin - span.begin); bytes--; b++) {
      if (!ordered(b->write, now) && !(atomic && b->write.atomic)) race(now, b->write, i, begin, what, bytes + 1);
      for (int r = 0; writes && r < 2; r++)
        if (!ordered(b->read[r], now) && !(atomic && b->read[r].atomic)) race(now, b->read[r], i, begin, what, bytes + 1);
      if (writes)
        b->write = now;
      else if (Access* free = place_for(b->read, now))
        *free = now;
    }
    return;
  }
  if (!writes && begin >= __ehdr_start && begin < _end) return;  // a constant of the program
  for (int i = 0; i < span_count; i++) note(now, outside_kind, i, begin, bytes);
  fprintf(stderr, "METALSIM 0x%x METALSIM 0x0 address: %s of %u bytes outside of every buffer\n", site, what, bytes);
  fflush(record);  // null: all
  _exit(66);
}

template <class T>
T* atomic(T* place, bool writes, const void* caller) {
  touched(place, sizeof(T), writes, true, caller);
  return place;
}

// A group begins: its threadgroup memory is new.
void group_begins(uint64_t number, size_t shared_bytes) {
  group_now = (uint32_t)number + 1;
  if (shared_bytes) madvise(spans[0].bytes, shared_bytes * sizeof(Byte), MADV_DONTNEED);
}
}  // namespace hooks

#define HOOK(name) extern "C" EXPORT __attribute__((noinline)) void __tsan_##name
#define CALLER __builtin_return_address(0)
HOOK(init)() {}
HOOK(func_entry)(void*) {}
HOOK(func_exit)() {}
#define PLAIN(n)                                                                \
  HOOK(read##n)(void* p) { hooks::touched(p, n, false, false, CALLER); }        \
  HOOK(write##n)(void* p) { hooks::touched(p, n, true, false, CALLER); }        \
  HOOK(unaligned_read##n)(void* p) { hooks::touched(p, n, false, false, CALLER); } \
  HOOK(unaligned_write##n)(void* p) { hooks::touched(p, n, true, false, CALLER); }
PLAIN(1) PLAIN(2) PLAIN(4) PLAIN(8) PLAIN(16)

// Fibers take turns on one thread of the CPU, so that a plain access is atomic.
#define ATOMIC(n, T)                                                                                           \
  extern "C" EXPORT T __tsan_atomic##n##_load(T* p, int) { return *hooks::atomic(p, false, CALLER); }          \
  extern "C" EXPORT void __tsan_atomic##n##_store(T* p, T v, int) { *hooks::atomic(p, true, CALLER) = v; }     \
  extern "C" EXPORT T __tsan_atomic##n##_exchange(T* p, T v, int) {                                            \
    return __atomic_exchange_n(hooks::atomic(p, true, CALLER), v, __ATOMIC_RELAXED);                           \
  }                                                                                                            \
  extern "C" EXPORT T __tsan_atomic##n##_compare_exchange_val(T* p, T expected, T v, int, int) {               \
    hooks::atomic(p, true, CALLER);                                                                            \
    __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);                   \
    return expected;                                                                                           \
  }
ATOMIC(8, uint8_t) ATOMIC(16, uint16_t) ATOMIC(32, uint32_t) ATOMIC(64, uint64_t)

extern "C" EXPORT void* __tsan_memset(void* to, int byte, size_t n) {
  hooks::touched(to, n, true, false, CALLER);
  return memset(to, byte, n);
}
#define COPY(name)                                                                    \
  extern "C" EXPORT void* __tsan_##name(void* to, const void* from, size_t n) {       \
    hooks::touched(from, n, false, false, CALLER);                                    \
    hooks::touched(to, n, true, false, CALLER);                                       \
    return name(to, from, n);                                                         \
  }
COPY(memcpy)
COPY(memmove)
