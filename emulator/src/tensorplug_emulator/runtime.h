// What a language's header is written with: where an item is, barriers, exchanges within a warp.
// One launch at a time; items are fibers of one thread of the processor.
#pragma once

struct simt_size {
  unsigned x, y, z;
};

// Memory that a kernel was given. `name` is for messages.
struct simt_memory {
  const char* name;
  unsigned long address, size;
  int writable;
};

struct simt_request {
  void** arguments;  // one address for each argument
  simt_size groups, local;
  const simt_memory* memory;
  unsigned memories;
  int order;  // of items: 0 forward, 1 reverse, 2 shuffled by `seed`
  unsigned seed;
  int watched;  // whether items that reach one number of `memory` with nothing between are an error
};

// The runtime is one shared object for all kernels of a process, which find its names when they are loaded.
#pragma GCC visibility push(default)
extern "C" {
// The item that runs.
extern simt_size simt_item, simt_group, simt_local_size, simt_groups;
extern unsigned simt_lane;

// Set while an item does what is one step for all others.
extern int simt_atomic;

// All items of the group come here, or none. The second orders what they do in some kinds of memory.
void simt_group_barrier();
void simt_group_barrier_of(unsigned kinds);
// As above; whether any of them came with `yes`.
int simt_group_any(int yes);
// All items of the warp that are in `mask` come here with the same mask.
void simt_warp_barrier(unsigned mask);
// As above; `mine` goes to the others, and what lane `source` gave comes back in `out`.
void simt_exchange(unsigned mask, const void* mine, void* out, unsigned source, unsigned bytes);
// Bit i is whether lane i of `mask` came with `yes`.
unsigned simt_ballot(unsigned mask, int yes);
// All items of the warp come here; what each lane gave lies in `out`, and bit i is whether lane i is there.
unsigned simt_gather(const void* mine, void* out, unsigned bytes);
// Ends the launch: `what` is the reason.
void simt_fail(const char* what);

// Runs a kernel; what went wrong, or null. The text stays until this thread's next launch.
const char* simt_launch(const char* kernel, void (*body)(void**), const simt_request* request,
                        void* shared, void* shared_end);
}
#pragma GCC visibility pop

const unsigned SIMT_WARP = 32, SIMT_ORDERS_LOCAL = 1, SIMT_ORDERS_BUFFERS = 2;

struct simt_one_step {
  simt_one_step() { simt_atomic = 1; }
  ~simt_one_step() { simt_atomic = 0; }
};

// Calls a kernel with arguments of its own types.
template <int... I> struct simt_indices {};
template <int N, int... I> struct simt_count : simt_count<N - 1, N - 1, I...> {};
template <int... I> struct simt_count<0, I...> { typedef simt_indices<I...> all; };
template <class... A, int... I>
__attribute__((no_sanitize_address)) void simt_apply(void (*kernel)(A...), void** p, simt_indices<I...>) {
  kernel(*(A*)p[I]...);
}
template <class... A> void simt_call(void (*kernel)(A...), void** p) {
  simt_apply(kernel, p, typename simt_count<sizeof...(A)>::all());
}

// Local memory of a kernel has a section of its own, so that its bounds are known and it can be
// filled for each group.
#define SIMT_STRING_(x) #x
#define SIMT_STRING(x) SIMT_STRING_(x)
#define SIMT_SHARED static __attribute__((section(SIMT_STRING(SIMT_SECTION))))
// Texts may have macros for short and long names of types, so these are not used here.
#define SIMT_EXPORT_(kernel, section, call) \
  extern "C" unsigned __start_##section[] __attribute__((weak, visibility("hidden"))); \
  extern "C" unsigned __stop_##section[] __attribute__((weak, visibility("hidden"))); \
  extern "C" __attribute__((visibility("default"))) const void* emulated_##kernel(const simt_request* r) { \
    return simt_launch(#kernel, [](void** p) { call; }, r, __start_##section, __stop_##section); \
  }
// A kernel that takes its arguments in order, and one that `call` gives them to, out of `p`.
#define SIMT_EXPORT(kernel, section) SIMT_EXPORT_(kernel, section, simt_call(kernel, p))
#define SIMT_EXPORT_AS(kernel, section, call) SIMT_EXPORT_(kernel, section, call)
