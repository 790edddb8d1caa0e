// Runs the threads of a compute kernel on one CPU thread, one threadgroup after the other.
//
// A kernel whose threads never meet runs as a plain loop. Where threads meet (barriers, SIMD-group functions) every GPU
// thread of a group is a fiber, and this file decides who may go on. It is linked into each compiled kernel, needs the
// C library only, and is never itself compiled with a sanitizer: it only tells the address sanitizer about its fibers.
//
// METALSIM_MAIN: a program of its own, for kernel.check(); METALSIM_ASAN: one with the address sanitizer, METALSIM_HOOKS:
// one that watches each access (hooks.h).
#include <metalsim/abi.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#if defined(__x86_64__) && !defined(METALSIM_ASAN)
#define OWN_SWITCH 1  // 12 instructions; swapcontext makes two system calls
#endif

extern "C" {
#ifdef METALSIM_ASAN
void __sanitizer_start_switch_fiber(void**, const void*, size_t);
void __sanitizer_finish_switch_fiber(void*, const void**, size_t*);
#else
#define __sanitizer_start_switch_fiber(...)
#define __sanitizer_finish_switch_fiber(...)
#endif
// what the compiled kernel brings
extern MetalsimKernel metalsim_kernels[];
extern const int metalsim_kernel_count;
extern char __start_metalsim_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_metalsim_shared[] __attribute__((weak, visibility("hidden")));
extern char __ehdr_start[] __attribute__((visibility("hidden"))), _end[] __attribute__((visibility("hidden")));
}

namespace {
constexpr uint32_t simd_width = 32, most_threads = 1024;
constexpr size_t stack_bytes = 256 << 10, guard_bytes = 4096;

enum State { ready, at_barrier, at_simdgroup_barrier, at_exchange, finished };

struct Fiber {
  MetalsimThread thread;
  State state;
  const char *site, *place;  // where in the kernel it waits; for a barrier, which may be there twice, where in the source
  // an exchange of values with the other lanes: what it gives, where it wants everybody's, who took part
  const void* mine;
  uint32_t bytes;
  char* all;
  uint32_t present;
  // machinery
  char* stack;
  void* stack_pointer;
  ucontext_t context;
  void* asan;
  uint32_t barriers_passed, simdgroup_barriers_passed;
};

Fiber* pool[most_threads];
Fiber* current;  // the fiber that runs; null outside of fibers
const MetalsimKernel* kernel_now;
int garbage_now;  // the byte that memory is full of which nobody wrote: 0xff in an ordinary run
char error_text[256];
const char* error_site;

uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

bool fail(const char* site, const char* text) {
  snprintf(error_text, sizeof error_text, "%s", text);
  error_site = site;
  return false;
}

// Without a call into libc, which the sanitizers would watch.
void copy_unwatched(void* to, const void* from, size_t n) {
  volatile char* t = (volatile char*)to;
  const volatile char* f = (const volatile char*)from;
  while (n--) *t++ = *f++;
}
void fill_unwatched(char* begin, char* end, int byte) {
  const uint64_t word = 0x0101010101010101ull * (uint8_t)byte;
  volatile char* p = begin;
  for (; ((uintptr_t)p & 7) && p < end; p++) *p = (char)byte;
  for (; p + 8 <= end; p += 8) *(volatile uint64_t*)p = word;
  for (; p < end; p++) *p = (char)byte;
}

// ---- crashes of the kernel become errors (a sanitized program keeps the sanitizer's handlers) -----------------------
sigjmp_buf escape;
pthread_t owner;
const char* crash_site;
[[maybe_unused]] const int crash_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
enum { unplanned_meeting = 1000, out_of_stack };

// Back to `metalsim_run`, with the signal, or with `out_of_stack` for an access just beside the stack pointer.
[[maybe_unused]] void on_crash(int signal, siginfo_t* info, [[maybe_unused]] void* context) {
  int code = signal;
#if defined(__x86_64__)
  const greg_t* registers = ((ucontext_t*)context)->uc_mcontext.gregs;
  crash_site = (const char*)registers[REG_RIP];
  const greg_t above = (greg_t)info->si_addr - registers[REG_RSP];  // a stack ends where its pointer is
  if (signal == SIGSEGV && above > -(greg_t)guard_bytes && above < (greg_t)guard_bytes) code = out_of_stack;
#endif
  if (pthread_equal(pthread_self(), owner)) siglongjmp(escape, code);
  struct sigaction normal = {};
  normal.sa_handler = SIG_DFL;
  sigaction(signal, &normal, nullptr);  // another thread's own fault: let it happen
}

// Ctrl-C ends a kernel in an ordinary call: at once inside of it, or before the next group.
volatile sig_atomic_t in_kernel, interrupted;

[[maybe_unused]] void on_interrupt(int signal) {
  interrupted = 1;
  if (!pthread_equal(pthread_self(), owner))
    pthread_kill(owner, signal);
  else if (in_kernel)
    siglongjmp(escape, signal);
}

// The kernel's own code begins: what came since `metalsim_watch` and found no kernel to end counts as well.
void enter_kernel() {
  in_kernel = 1;
  if (interrupted) siglongjmp(escape, SIGINT);
}

bool watching;
[[maybe_unused]] struct sigaction unwatched;

// While kernels run their crashes come to `on_crash`, on a stack of its own, since the kernel's may be full.
struct CrashGuard {
#ifndef METALSIM_ASAN
  struct sigaction before[4];
  stack_t stack_before;
  CrashGuard() {
    static char stack[64 << 10];
    stack_t own = {};
    own.ss_sp = stack;
    own.ss_size = sizeof stack;
    sigaltstack(&own, &stack_before);
    struct sigaction action = {};
    action.sa_sigaction = on_crash;
    action.sa_flags = SA_ONSTACK | SA_NODEFER | SA_SIGINFO;
    for (int i = 0; i < 4; i++) sigaction(crash_signals[i], &action, &before[i]);
  }
  ~CrashGuard() {
    for (int i = 0; i < 4; i++) sigaction(crash_signals[i], &before[i], nullptr);
    if (!(stack_before.ss_flags & SS_ONSTACK)) sigaltstack(&stack_before, nullptr);
  }
#endif
};

const char* crash_text(int code) {
  switch (code) {
    case SIGFPE: return "integer division by zero (a GPU gives garbage)";
    case SIGBUS:
    case SIGSEGV:
      return "read or wrote outside of every buffer, or a vector at an address that is not a multiple of its size";
    case SIGINT: return "interrupted";
    case out_of_stack:
      return "ran out of stack: Metal has no recursion, and a thread's variables are meant for registers";
    case unplanned_meeting:
      return "met a barrier or a SIMD-group function that could not be foreseen from the source; "
             "set METALSIM_FIBERS=1 and compile again";
  }
  return "crashed";
}

// ---- switching between the main program and a fiber -----------------------------------------------------------------
#ifdef OWN_SWITCH
void* main_stack_pointer;
extern "C" void metalsim_switch(void** save, void* to) __attribute__((visibility("hidden")));
asm(R"(.text
.hidden metalsim_switch
.globl metalsim_switch
.type metalsim_switch,@function
metalsim_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi); movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
.size metalsim_switch,.-metalsim_switch
)");
void leave_fiber(bool) { metalsim_switch(&current->stack_pointer, main_stack_pointer); }
void enter(Fiber* fiber) {
  current = fiber;
  enter_kernel();
  metalsim_switch(&main_stack_pointer, fiber->stack_pointer);
  in_kernel = 0;
}
#else
ucontext_t main_context;
[[maybe_unused]] void* main_asan;
[[maybe_unused]] const void* main_stack;
[[maybe_unused]] size_t main_stack_bytes;
void leave_fiber([[maybe_unused]] bool for_good) {
  Fiber* me = current;
  __sanitizer_start_switch_fiber(for_good ? nullptr : &me->asan, main_stack, main_stack_bytes);
  swapcontext(&me->context, &main_context);
  __sanitizer_finish_switch_fiber(me->asan, &main_stack, &main_stack_bytes);
}
void enter(Fiber* fiber) {
  current = fiber;
  __sanitizer_start_switch_fiber(&main_asan, fiber->stack, stack_bytes);
  swapcontext(&main_context, &fiber->context);
  __sanitizer_finish_switch_fiber(main_asan, nullptr, nullptr);
}
#endif

// ---- fibers ---------------------------------------------------------------------------------------------------------
void body_of_fiber() {
  __sanitizer_finish_switch_fiber(nullptr, &main_stack, &main_stack_bytes);
  kernel_now->thread(&current->thread);
  current->state = finished;
  leave_fiber(true);
  abort();
}

void* new_stack() {
  const int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* p = mmap(nullptr, stack_bytes + guard_bytes, PROT_READ | PROT_WRITE, kind, -1, 0);
  if (p == MAP_FAILED) abort();
  mprotect(p, guard_bytes, PROT_NONE);
  return (char*)p + guard_bytes;
}

// Makes a fiber ready to begin its thread; its stack is used again.
void begin(Fiber* f) {
  if (!f->stack) f->stack = (char*)new_stack();
#ifdef OWN_SWITCH
  // what `metalsim_switch` takes off the stack: six registers, and where it returns to; that function has no caller
  uint64_t* top = (uint64_t*)(f->stack + stack_bytes - 64);
  *--top = 0;
  *--top = (uint64_t)body_of_fiber;
  for (int i = 0; i < 6; i++) *--top = 0;
  f->stack_pointer = top;
#else
  getcontext(&f->context);
  f->context.uc_stack.ss_sp = f->stack;
  f->context.uc_stack.ss_size = stack_bytes;
  f->context.uc_link = nullptr;
  makecontext(&f->context, body_of_fiber, 0);
#endif
  f->state = ready;
  f->barriers_passed = f->simdgroup_barriers_passed = 0;
}

// ---- meetings -------------------------------------------------------------------------------------------------------
struct SimdGroup {
  Fiber** first;
  uint32_t lanes;

  // Lanes in `state` at one place of the kernel (the place of the first of them), as a mask.
  uint32_t waiting(State state) const {
    uint32_t mask = 0;
    const char* place = nullptr;
    for (uint32_t i = 0; i < lanes; i++)
      if (first[i]->state == state && (!place || first[i]->place == place)) place = first[i]->place, mask |= 1u << i;
    return mask;
  }
  void release(uint32_t mask) const {
    for (uint32_t i = 0; i < lanes; i++)
      if (mask >> i & 1) first[i]->state = ready;
  }
  // Gives each lane of the mask the values of all of them, which then go on.
  void exchange(uint32_t mask) const {
    for (uint32_t i = 0; i < lanes; i++) {
      if (!(mask >> i & 1)) continue;
      first[i]->present = mask;
      for (uint32_t j = 0; j < lanes; j++)
        if (mask >> j & 1) copy_unwatched(first[i]->all + j * first[i]->bytes, first[j]->mine, first[i]->bytes);
    }
    release(mask);
  }
  // 1: somebody may go on; 0: nobody; -1: an error.
  int meet() const {
    if (uint32_t mask = waiting(at_exchange)) return exchange(mask), 1;
    const uint32_t mask = waiting(at_simdgroup_barrier);
    if (!mask) return 0;
    for (uint32_t i = 0; i < lanes; i++)
      if (first[i]->state != finished && !(mask >> i & 1))
        return fail(first[i]->site, "simdgroup_barrier reached by some threads of a SIMD-group only"), -1;
    return release(mask), 1;
  }
};

// Every thread of the group waits at a threadgroup barrier, or something is wrong.
bool pass_barrier(Fiber** group, uint32_t n) {
  uint32_t arrived = 0;
  const char *site = nullptr, *place = nullptr;
  bool one_site = true;
  for (uint32_t i = 0; i < n; i++) {
    if (group[i]->state != at_barrier) continue;
    arrived++;
    if (!site) site = group[i]->site, place = group[i]->place;
    one_site = one_site && place == group[i]->place;
  }
  if (arrived != n) {
    char text[160];
    snprintf(text, sizeof text,
             "threadgroup_barrier reached by %u of %u threads, the others have returned: undefined in Metal",
             arrived, n);
    return fail(site, text);
  }
  if (!one_site) return fail(site, "threads of one threadgroup wait at different barriers: undefined in Metal");
  for (uint32_t i = 0; i < n; i++) group[i]->state = ready;
  return true;
}

// Runs the n fibers of a group, in an order, until all have returned; false after an error. Who is ready runs until it
// waits or returns. Then each SIMD-group goes on that can, and the whole group only where none could.
bool run_fibers(Fiber** group, uint32_t n, const uint32_t* order) {
  uint32_t alive = n;
  while (true) {
    for (uint32_t k = 0; k < n; k++) {
      Fiber* f = group[order[k]];
      if (f->state != ready) continue;
      enter(f);
      alive -= f->state == finished;
    }
    current = nullptr;
    if (!alive) return true;
    bool progress = false;
    for (uint32_t first = 0; first < n; first += simd_width) {
      const int met = SimdGroup{group + first, least(simd_width, n - first)}.meet();
      if (met < 0) return false;
      progress = progress || met;
    }
    if (!progress && !pass_barrier(group, n)) return false;
  }
}

}  // namespace
#ifdef METALSIM_HOOKS
#include "hooks.h"
#endif
namespace {

// ---- a dispatch -----------------------------------------------------------------------------------------------------
struct Random {  // xorshift: the same orders everywhere
  uint64_t state;
  uint64_t next() {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
  }
};

// order 0 as numbered, 1 backwards, others shuffled
void arrange(uint32_t* order, uint32_t n, int mode, Random& random) {
  for (uint32_t i = 0; i < n; i++) order[i] = mode == 1 ? n - 1 - i : i;
  if (mode < 2) return;
  for (uint32_t i = n; i > 1; i--) {
    const uint32_t j = random.next() % i, swapped = order[i - 1];
    order[i - 1] = order[j];
    order[j] = swapped;
  }
}

void place(MetalsimThread* t, uint32_t x, uint32_t y, uint32_t z) {
  const MetalsimIndex full = t->dispatch_threads_per_threadgroup, size = t->threads_per_threadgroup;
  const MetalsimIndex group = t->threadgroup_position_in_grid;
  t->thread_position_in_threadgroup = {x, y, z};
  t->thread_position_in_grid = {group.x * full.x + x, group.y * full.y + y, group.z * full.z + z};
  t->thread_index_in_threadgroup = (z * size.y + y) * size.x + x;
  t->thread_index_in_simdgroup = t->thread_index_in_threadgroup % simd_width;
  t->simdgroup_index_in_threadgroup = t->thread_index_in_threadgroup / simd_width;
}

void run_rows(MetalsimThread t) {
  const MetalsimIndex size = t.threads_per_threadgroup;
  enter_kernel();
  for (uint32_t z = 0; z < size.z; z++)
    for (uint32_t y = 0; y < size.y; y++) place(&t, 0, y, z), kernel_now->row(&t, size.x);
  in_kernel = 0;
}

bool run_group(const MetalsimThread& common, const uint32_t* order) {
  const MetalsimIndex size = common.threads_per_threadgroup;
  const uint32_t n = size.x * size.y * size.z;
  for (uint32_t i = 0; i < n; i++) {
    if (!pool[i]) pool[i] = (Fiber*)calloc(1, sizeof(Fiber));
    pool[i]->thread = common;
    place(&pool[i]->thread, i % size.x, i / size.x % size.y, i / size.x / size.y);
    begin(pool[i]);
  }
  return run_fibers(pool, n, order);
}

struct Dispatch {
  uint32_t grid[3], group[3];
  int fibers, order, garbage;
};

// The group with number `number` begins: which part of the grid it is.
MetalsimThread common_of_group(const Dispatch& d, void** buffers, const uint32_t groups[3], uint64_t number) {
  MetalsimThread t = {};
  t.buffers = buffers;
  t.threads_per_grid = {d.grid[0], d.grid[1], d.grid[2]};
  t.dispatch_threads_per_threadgroup = {d.group[0], d.group[1], d.group[2]};
  t.threadgroups_per_grid = {groups[0], groups[1], groups[2]};
  const uint32_t x = number % groups[0], y = number / groups[0] % groups[1], z = number / groups[0] / groups[1];
  t.threadgroup_position_in_grid = {x, y, z};
  t.threads_per_threadgroup = {least(d.group[0], d.grid[0] - x * d.group[0]),
                               least(d.group[1], d.grid[1] - y * d.group[1]),
                               least(d.group[2], d.grid[2] - z * d.group[2])};
  return t;
}

// Runs one group after the other; false after an error. In another order than 0 the groups are arranged as well, where
// there is memory for a list of them.
bool run(const Dispatch& d, void** buffers) {
  uint32_t groups[3], order[most_threads];
  for (int i = 0; i < 3; i++) groups[i] = d.grid[i] / d.group[i] + (d.grid[i] % d.group[i] != 0);
  const uint64_t count = (uint64_t)groups[0] * groups[1] * groups[2];
  const bool shared = __start_metalsim_shared && __stop_metalsim_shared > __start_metalsim_shared;
  Random random{0x9e3779b97f4a7c15ull + (uint64_t)d.order};
  uint32_t* group_order = d.order && count < UINT32_MAX ? (uint32_t*)malloc(count * sizeof(uint32_t)) : nullptr;
  if (group_order) arrange(group_order, (uint32_t)count, d.order, random);
  bool good = true;
  for (uint64_t i = 0; good && i < count; i++) {
    if (interrupted) {
      good = fail(nullptr, crash_text(SIGINT));
      break;
    }
    const MetalsimThread common = common_of_group(d, buffers, groups, group_order ? group_order[i] : i);
    if (shared) fill_unwatched(__start_metalsim_shared, __stop_metalsim_shared, d.garbage);
#ifdef METALSIM_HOOKS
    hooks::group_begins(i, shared ? __stop_metalsim_shared - __start_metalsim_shared : 0);
#endif
    if (!d.fibers && !d.order) {
      run_rows(common);
      continue;
    }
    const MetalsimIndex size = common.threads_per_threadgroup;
    arrange(order, size.x * size.y * size.z, d.order, random);
    good = run_group(common, order);
  }
  free(group_order);
  return good;
}
}  // namespace

extern "C" {
EXPORT uint32_t metalsim_lane() { return current ? current->thread.thread_index_in_simdgroup : 0; }
EXPORT void metalsim_absent_lane(void* place, uint32_t bytes, int of_filling) {
  memset(place, of_filling && garbage_now == 0xff ? 0 : garbage_now, bytes);
}

EXPORT __attribute__((noinline)) void metalsim_barrier(int of_simdgroup, uint32_t place) {
  if (!current) siglongjmp(escape, unplanned_meeting);
  current->state = of_simdgroup ? at_simdgroup_barrier : at_barrier;
  current->site = (const char*)__builtin_return_address(0) - 1, current->place = (const char*)(uintptr_t)place;
  leave_fiber(false);
  ++*(of_simdgroup ? &current->simdgroup_barriers_passed : &current->barriers_passed);
}

EXPORT __attribute__((noinline)) uint32_t metalsim_exchange(const void* mine, uint32_t bytes, void* all) {
  if (!current) siglongjmp(escape, unplanned_meeting);
  Fiber* me = current;
  me->state = at_exchange;
  me->site = me->place = (const char*)__builtin_return_address(0) - 1;
  me->mine = mine;
  me->bytes = bytes;
  me->all = (char*)all;
  leave_fiber(false);
  return me->present;
}

EXPORT const char* metalsim_error() { return error_text; }
EXPORT const MetalsimKernel* metalsim_kernel(int i) {
  return i < metalsim_kernel_count ? &metalsim_kernels[i] : nullptr;
}

// From here to `metalsim_unwatch` Ctrl-C is for the kernel: a call of its own before `metalsim_run`, so that one that came
// earlier has been heard by Python when the kernel begins, and none falls between the two.
EXPORT void metalsim_watch() {
  owner = pthread_self();
  interrupted = in_kernel = 0;
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_ONSTACK | SA_NODEFER;
  sigaction(SIGINT, nullptr, &unwatched);
  watching = unwatched.sa_handler != SIG_IGN;
  if (watching) sigaction(SIGINT, &action, nullptr);
}

EXPORT void metalsim_unwatch() {
  if (!watching) return;
  watching = false;
  sigaction(SIGINT, &unwatched, nullptr);
  if (interrupted) raise(SIGINT);  // for whose it is
}

// 0, or 1 with a text in metalsim_error(). Grid and group count threads in x, y, z; one call at a time in a process.
EXPORT int metalsim_run(int kernel, void** buffers, const uint32_t* grid, const uint32_t* group, int fibers, int order,
                        int garbage) {
  kernel_now = &metalsim_kernels[kernel];
  garbage_now = garbage;
  error_text[0] = 0;
  error_site = crash_site = nullptr;
  owner = pthread_self();
  in_kernel = 0;
  const Dispatch d = {{grid[0], grid[1], grid[2]}, {group[0], group[1], group[2]}, fibers, order, garbage};
  [[maybe_unused]] CrashGuard guard;
  const int crash = sigsetjmp(escape, 1);
  const bool good = crash ? fail(crash_site, crash_text(crash)) : run(d, buffers);
  current = nullptr;
  return good ? 0 : 1;
}
}

#ifdef METALSIM_MAIN
// One run of one kernel, told in a file: "kernel fibers order garbage", grid, group; the number of regions, then for
// each "bytes path"; then for each buffer "index region offset". Each region is read from its file, and written back to
// it if the kernel came to its end.
//
// It ends with 0; 3 after an error of the kernel, which is told on standard error; 9 if it could not run; 66 as hooks.h
// says.
namespace {
struct Region {
  char* memory;
  size_t bytes;
  char path[4096];
};

bool move(Region& r, bool reading) {
  FILE* file = fopen(r.path, reading ? "rb" : "wb");
  if (!file) return false;
  const size_t moved = reading ? fread(r.memory, 1, r.bytes, file) : fwrite(r.memory, 1, r.bytes, file);
  return fclose(file) == 0 && moved == r.bytes;
}

bool read_regions(FILE* job, void** buffers, Region*& regions, int& count) {
  if (fscanf(job, "%d", &count) != 1) return false;
  regions = (Region*)calloc(count ? count : 1, sizeof(Region));
  for (int i = 0; i < count; i++) {
    Region& r = regions[i];
    if (fscanf(job, "%zu %4095[^\n]", &r.bytes, r.path) != 2) return false;
    void* memory = nullptr;  // of its exact size: what follows is for the address sanitizer
    if (posix_memalign(&memory, 64, r.bytes ? r.bytes : 1)) return false;
    r.memory = (char*)memory;
    if (!move(r, true)) return false;
  }
  int index, region;
  size_t offset;
  while (fscanf(job, "%d %d %zu", &index, &region, &offset) == 3) buffers[index] = regions[region].memory + offset;
  return true;
}

#ifdef METALSIM_HOOKS
// A region begins with its first buffer: what lies before it is there for alignment.
bool watch_memory(void* const* buffers, const Region* regions, int count) {
  if (__start_metalsim_shared) hooks::watch(__start_metalsim_shared, __stop_metalsim_shared - __start_metalsim_shared);
  for (int i = 0; i < count; i++) {
    const char* const end = regions[i].memory + regions[i].bytes;
    const char* begin = end;
    for (int b = 0; b < 64; b++)
      if (buffers[b] >= regions[i].memory && buffers[b] < begin) begin = (const char*)buffers[b];
    if (!hooks::watch(begin, end - begin)) return false;
  }
  return true;
}
#endif
}  // namespace

int main(int, char** arguments) {
  FILE* job = fopen(arguments[1], "r");
  int kernel, fibers, order, garbage, count = 0;
  uint32_t grid[3], group[3];
  void* buffers[64] = {};
  Region* regions;
  if (!job || fscanf(job, "%d %d %d %d", &kernel, &fibers, &order, &garbage) != 4 ||
      fscanf(job, "%u %u %u %u %u %u", grid, grid + 1, grid + 2, group, group + 1, group + 2) != 6 ||
      !read_regions(job, buffers, regions, count)) {
    fprintf(stderr, "METALSIM bad job file\n");
    return 9;
  }
#ifdef METALSIM_HOOKS
  if (arguments[2]) hooks::record = fopen(arguments[2], "wb");
  if (!watch_memory(buffers, regions, count)) {
    fprintf(stderr, "METALSIM 0x0 no memory to watch these buffers: pass smaller ones\n");
    return 9;
  }
#endif
  if (metalsim_run(kernel, buffers, grid, group, fibers, order, garbage)) {
    fprintf(stderr, "METALSIM 0x%zx %s\n", error_site ? (size_t)(error_site - __ehdr_start) : 0, error_text);
    return 3;
  }
  for (int i = 0; i < count; i++)
    if (!move(regions[i], false)) return 9;
  return 0;
}
#endif
