// Groups of work items on a processor: an item is a fiber, which runs until it waits or ends.
#include "runtime.h"

#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "switch.h"

simt_size simt_item, simt_group, simt_local_size, simt_groups;
unsigned simt_lane;
int simt_atomic;

namespace {

const size_t STACK = 256 * 1024, GUARD = 64 * 1024;
const unsigned SLOT = 16, GENERATIONS = 4;

enum State { FRESH, READY, AT_BARRIER, AT_WARP, ENDED };

struct Fiber {
  char* low;  // of the stack
  Context context;
};

struct Item {
  State state;
  Fiber* fiber;
};

struct Warp {
  unsigned members, waiting, mask, generation, met;
  unsigned votes[GENERATIONS];
  alignas(SLOT) unsigned char given[SIMT_WARP][SLOT];
  alignas(SLOT) unsigned char taken[GENERATIONS][SIMT_WARP][SLOT];
};

struct Span {
  uintptr_t start, end;
};

// An access to four bytes: the item, and how often its warp had met by then.
struct Access {
  unsigned long epoch;
  unsigned item, met;
};
struct Word {
  Access written, read;
  bool read_by_many, read_by_warps;  // by other items too, by those of other warps
  bool read_by_groups;
};

// Memory that is checked for races. An epoch ends where a barrier orders accesses to it.
struct Watched {
  bool lasts;                  // from group to group
  unsigned long epoch, first;  // of all groups; the first of the group that runs
  std::vector<Word> words;
  // Whether an item of another group made the access: nothing orders the two.
  bool by_others(const Access& access) const { return lasts && access.epoch && access.epoch < first; }
};

std::mutex one_at_a_time;
std::vector<Fiber*> idle;
std::vector<Item> items;
std::vector<Warp> warps;
std::vector<unsigned> order;
std::vector<Span> constants;  // what may be read of the kernel's own library
Watched local_memory = {false, 0, 0, {}}, buffers = {true, 0, 0, {}};
std::vector<Span> areas;      // of buffers, which may lie over each other; their words follow on
Context scheduler;
unsigned running, at_barrier, ended, turn, ordered;
int any_of[2];
bool moved;
char problem[512];
thread_local char answer[sizeof problem];  // while other threads launch
const char* kernel_name;
const simt_request* request;
void (*kernel_body)(void**);
Span shared_memory;
unsigned last_hit;

void stop() { simt_switch(&items[running].fiber->context, &scheduler); }

template <class... A> void fail(const char* format, A... values) {
  if (!problem[0]) snprintf(problem, sizeof problem, format, values...);
  stop();
}

void enter(unsigned index) {
  const simt_size& size = simt_local_size;
  running = index;
  simt_item = {index % size.x, index / size.x % size.y, index / (size.x * size.y)};
  simt_lane = index % SIMT_WARP;
  simt_switch(&scheduler, &items[index].fiber->context);
}

void wait_as(State state) {
  const unsigned me = running;
  items[me].state = state;
  stop();
}

void fiber_main() {
  for (;;) {  // a fiber serves one item after the other
    kernel_body(request->arguments);
    items[running].state = ENDED;
    ended++;
    moved = true;
    stop();
  }
}

Fiber* take_fiber() {
  if (!idle.empty()) {
    Fiber* fiber = idle.back();
    idle.pop_back();
    return fiber;
  }
  void* memory = mmap(nullptr, GUARD + STACK, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) abort();
  mprotect(memory, GUARD, PROT_NONE);
  Fiber* fiber = new Fiber{(char*)memory + GUARD, {}};
  simt_prepare(&fiber->context, fiber->low, STACK, fiber_main);
  return fiber;
}

// Drops items that have not ended, after a failure: their fibers are free for other items.
void drop_items() {
  for (Item& item : items) {
    if (!item.fiber) continue;
    simt_prepare(&item.fiber->context, item.fiber->low, STACK, fiber_main);
    idle.push_back(item.fiber);
    item.fiber = nullptr;
  }
}

void explain_stall() {
  unsigned states[ENDED + 1] = {};
  for (const Item& item : items) states[item.state]++;
  snprintf(problem, sizeof problem,
           "kernel %s: divergent barrier in group (%u, %u, %u): of %u items %u wait at a barrier of the "
           "group, %u at one of a warp, %u have ended",
           kernel_name, simt_group.x, simt_group.y, simt_group.z, (unsigned)items.size(),
           states[AT_BARRIER], states[AT_WARP], states[ENDED]);
}

void run_round() {
  for (unsigned index : order) {
    Item& item = items[index];
    if (item.state == FRESH) item.fiber = take_fiber();
    if (item.state > READY) continue;
    item.state = READY;
    moved = true;
    enter(index);
    if (problem[0]) return;
    if (item.state == ENDED) {
      idle.push_back(item.fiber);
      item.fiber = nullptr;
    }
  }
}

unsigned random_below(unsigned& state, unsigned n) {
  state ^= state << 13;
  state ^= state >> 17;
  state ^= state << 5;
  return state % n;
}

void set_order(unsigned& random) {
  const unsigned n = order.size();
  for (unsigned i = 0; i < n; i++) order[i] = request->order == 1 ? n - 1 - i : i;
  if (request->order != 2) return;
  for (unsigned i = n; i > 1; i--) std::swap(order[i - 1], order[random_below(random, i)]);
}

void run_group(unsigned& random) {
  const unsigned n = items.size();
  if (shared_memory.end > shared_memory.start)
    memset((void*)shared_memory.start, 0xff, shared_memory.end - shared_memory.start);
  for (unsigned i = 0; i < n; i++) items[i] = {FRESH, nullptr};
  for (unsigned w = 0; w < warps.size(); w++) {
    const unsigned left = n - w * SIMT_WARP;
    warps[w].members = left >= SIMT_WARP ? ~0u : (1u << left) - 1u;
    warps[w].waiting = 0;
  }
  local_memory.first = ++local_memory.epoch;
  buffers.first = ++buffers.epoch;
  at_barrier = ended = turn = 0;
  any_of[0] = any_of[1] = 0;
  while (ended < n && !problem[0]) {
    set_order(random);
    moved = false;
    run_round();
    if (!moved && !problem[0]) explain_stall();
  }
}

// --- accesses ----------------------------------------------------------------------------------

int find_constants(dl_phdr_info* info, size_t, void* own) {
  std::vector<Span> found;
  bool mine = false;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr)& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD) continue;
    const Span span = {info->dlpi_addr + part.p_vaddr, info->dlpi_addr + part.p_vaddr + part.p_memsz};
    if ((uintptr_t)own >= span.start && (uintptr_t)own < span.end) mine = true;
    if (!(part.p_flags & PF_W)) found.push_back(span);
  }
  if (mine) constants = found;
  return mine;
}

// A library has its own pages of code and constants; launches of one library often follow each other.
void find_constants_of(uintptr_t kernel) {
  for (const Span& span : constants)
    if (kernel >= span.start && kernel < span.end) return;
  constants.clear();
  dl_iterate_phdr(find_constants, (void*)kernel);
}

bool within(const Span& span, uintptr_t at, size_t bytes) {
  return at >= span.start && at + bytes <= span.end;
}

bool is_own(uintptr_t at, size_t bytes, bool writes) {
  const Fiber* fiber = items[running].fiber;
  if (within({(uintptr_t)fiber->low, (uintptr_t)fiber->low + STACK}, at, bytes)) return true;
  if (within(shared_memory, at, bytes)) return true;
  if (writes) return false;
  for (const Span& span : constants)
    if (within(span, at, bytes)) return true;
  return false;
}

// The memory that `at` is in, else that which is nearest.
const simt_memory* nearest(uintptr_t at) {
  const simt_memory* best = nullptr;
  uintptr_t least = ~(uintptr_t)0;
  for (unsigned i = 0; i < request->memories; i++) {
    const simt_memory& one = request->memory[i];
    const uintptr_t end = one.address + one.size;
    const uintptr_t distance = at < one.address ? one.address - at : at < end ? 0 : at - end + 1;
    if (distance < least) {
      least = distance;
      best = &one;
    }
  }
  return best;
}

void report(uintptr_t at, size_t bytes, bool writes, const char* what) {
  char where[160];
  const simt_memory* memory = nearest(at);
  const intptr_t into_shared = (intptr_t)(at - shared_memory.start);
  if (shared_memory.end > shared_memory.start && into_shared >= -4096 &&
      at < shared_memory.end + 4096) {
    snprintf(where, sizeof where, "offset %ld of its local memory of %lu bytes", (long)into_shared,
             (unsigned long)(shared_memory.end - shared_memory.start));
  } else if (memory) {
    snprintf(where, sizeof where, "offset %ld of buffer %s of %lu bytes",
             (long)(at - memory->address), memory->name, memory->size);
  } else {
    snprintf(where, sizeof where, "address %lx; it has no buffers", (unsigned long)at);
  }
  fail("kernel %s: %s %lu bytes at %s%s, by item (%u, %u, %u) of group (%u, %u, %u)", kernel_name,
       writes ? "writes" : "reads", (unsigned long)bytes, where, what, simt_item.x, simt_item.y,
       simt_item.z, simt_group.x, simt_group.y, simt_group.z);
}

bool may_access(const simt_memory& one, uintptr_t at, size_t bytes, bool writes) {
  return at >= one.address && at - one.address + bytes <= one.size && (one.writable || !writes);
}

// Whether nothing orders an earlier access before one of the item that runs.
bool clashes(const Watched& memory, const Access& other) {
  if (memory.by_others(other)) return true;
  if (other.epoch != memory.epoch || other.item == running) return false;
  return other.item / SIMT_WARP != running / SIMT_WARP || other.met == warps[running / SIMT_WARP].met;
}

void report_race(uintptr_t at, const Access& other, bool of_groups, const char* what) {
  char where[96];
  if (within(shared_memory, at, 1)) {
    snprintf(where, sizeof where, "its local memory of %lu bytes", (unsigned long)(shared_memory.end - shared_memory.start));
    at -= shared_memory.start;
  } else {
    const simt_memory* memory = nearest(at);
    snprintf(where, sizeof where, "buffer %s of %lu bytes", memory->name, memory->size);
    at -= memory->address;
  }
  if (of_groups)
    fail("kernel %s: item %u of group (%u, %u, %u) and an item of another group %s offset %lu of %s", kernel_name,
         running, simt_group.x, simt_group.y, simt_group.z, what, (unsigned long)at, where);
  fail("kernel %s: items %u and %u of group (%u, %u, %u) %s offset %lu of %s with no barrier between", kernel_name,
       other.item, running, simt_group.x, simt_group.y, simt_group.z, what, (unsigned long)at, where);
}

// Numbers are written by one item, or read by any, from one barrier to the next.
void check_race(Watched& memory, Word& word, uintptr_t at, bool writes) {
  const unsigned warp = running / SIMT_WARP;
  const Access now = {memory.epoch, running, warps[warp].met};
  if (clashes(memory, word.written))
    report_race(at, word.written, memory.by_others(word.written), writes ? "both write" : "write and read");
  if (!writes) {
    const bool same_warp = word.read.item / SIMT_WARP == warp;
    if (memory.by_others(word.read)) word.read_by_groups = true;
    if (word.read.epoch != memory.epoch) {
      word.read_by_many = word.read_by_warps = false;
    } else if (!same_warp) {
      word.read_by_many = word.read_by_warps = true;
    } else if (word.read.item != running) {
      // Items of the warp that read before it met are in order with all that follows.
      word.read_by_many = word.read.met == now.met;
    }
    word.read = now;
    return;
  }
  const bool now_too = word.read_by_many && word.read.met == now.met;
  const bool others = word.read.epoch == memory.epoch && (word.read_by_warps || now_too);
  const bool of_groups = word.read_by_groups || memory.by_others(word.read);
  if (others || of_groups || clashes(memory, word.read)) report_race(at, word.read, of_groups, "read and write");
  word.written = now;
}

void check_local_races(uintptr_t at, size_t bytes, bool writes) {
  for (size_t i = 0; i < bytes; i += 4)
    check_race(local_memory, local_memory.words[(at + i - shared_memory.start) / 4], at + i, writes);
}

void check_buffer_races(uintptr_t at, size_t bytes, bool writes) {
  size_t before = 0;
  for (const Span& area : areas) {
    if (within(area, at, bytes)) {
      for (size_t i = 0; i < bytes; i += 4)
        check_race(buffers, buffers.words[(before + at + i - area.start) / 4], at + i, writes);
      return;
    }
    before += area.end - area.start;
  }
}

// Where buffers are, without what they have in common.
void find_areas() {
  areas.clear();
  buffers.words.clear();
  if (!request->watched) return;
  std::vector<Span> all;
  for (unsigned i = 0; i < request->memories; i++) {
    const simt_memory& one = request->memory[i];
    if (one.size) all.push_back({one.address / 4 * 4, (one.address + one.size + 3) / 4 * 4});
  }
  std::sort(all.begin(), all.end(), [](const Span& a, const Span& b) { return a.start < b.start; });
  size_t bytes = 0;
  for (const Span& one : all) {
    if (!areas.empty() && one.start < areas.back().end) {
      areas.back().end = std::max(areas.back().end, one.end);
    } else {
      areas.push_back(one);
    }
  }
  for (const Span& area : areas) bytes += area.end - area.start;
  buffers.words.resize(bytes / 4);
}

void check(uintptr_t at, size_t bytes, bool writes, bool whole) {
  if (whole && at % bytes != 0) {
    report(at, bytes, writes, ", which is not aligned to its size");
    return;
  }
  // Smaller numbers share their four bytes with neighbours.
  const bool watched = bytes % 4 == 0 && !simt_atomic;
  if (last_hit < request->memories && may_access(request->memory[last_hit], at, bytes, writes)) {
    if (watched) check_buffer_races(at, bytes, writes);
    return;
  }
  if (is_own(at, bytes, writes)) {
    if (watched && within(shared_memory, at, bytes)) check_local_races(at, bytes, writes);
    return;
  }
  bool inside = false;
  for (unsigned i = 0; i < request->memories; i++) {
    if (may_access(request->memory[i], at, bytes, writes)) {
      last_hit = i;
      if (watched) check_buffer_races(at, bytes, writes);
      return;
    }
    inside = inside || may_access(request->memory[i], at, bytes, false);
  }
  report(at, bytes, writes, inside ? ", which it may only read" : ", which is outside");
}

}  // namespace

// The compiler calls these before each access of a kernel.
#define EXPORTED extern "C" __attribute__((visibility("default")))
#define CHECKS(bytes) \
  EXPORTED void __asan_load##bytes##_noabort(uintptr_t at) { check(at, bytes, false, true); } \
  EXPORTED void __asan_store##bytes##_noabort(uintptr_t at) { check(at, bytes, true, true); }
CHECKS(1)
CHECKS(2)
CHECKS(4)
CHECKS(8)
CHECKS(16)
EXPORTED void __asan_loadN_noabort(uintptr_t at, size_t bytes) { check(at, bytes, false, false); }
EXPORTED void __asan_storeN_noabort(uintptr_t at, size_t bytes) { check(at, bytes, true, false); }
EXPORTED void __asan_handle_no_return() {}

void simt_group_barrier() { simt_group_any(0); }

int simt_group_any(int yes) {
  const unsigned mine = turn;
  any_of[mine] |= yes;
  simt_group_barrier_of(SIMT_ORDERS_LOCAL | SIMT_ORDERS_BUFFERS);
  return any_of[mine] != 0;
}

void simt_group_barrier_of(unsigned kinds) {
  if (!at_barrier) ordered = ~0u;
  ordered &= kinds;
  moved = true;
  if (++at_barrier < items.size()) {
    wait_as(AT_BARRIER);
    return;
  }
  at_barrier = 0;
  if (ordered & SIMT_ORDERS_LOCAL) local_memory.epoch++;
  if (ordered & SIMT_ORDERS_BUFFERS) buffers.epoch++;
  // All items have read the other flag before they come here.
  turn ^= 1;
  any_of[turn] = 0;
  for (Item& item : items)
    if (item.state == AT_BARRIER) item.state = READY;
  // The item that comes last does not go on first: it waits for its turn.
  wait_as(READY);
}

namespace {

// Gives `mine` and a vote to the warp; the generation in which they lie when all of `mask` came.
unsigned meet(unsigned mask, const void* mine, unsigned bytes, int vote) {
  Warp& warp = warps[running / SIMT_WARP];
  const unsigned me = running, bit = 1u << simt_lane;
  // Lanes that a short last warp does not have never come.
  mask &= warp.members;
  if (!(mask & bit)) fail("kernel %s: lane %u is not in the mask %08x", kernel_name, simt_lane, mask);
  if (warp.waiting && warp.mask != mask)
    fail("kernel %s: lanes of a warp wait with masks %08x and %08x", kernel_name, warp.mask, mask);
  if (!warp.waiting) {
    warp.mask = mask;
    warp.votes[(warp.generation + 1) % GENERATIONS] = 0;
  }
  moved = true;
  const unsigned next = (warp.generation + 1) % GENERATIONS;
  memcpy(warp.taken[next][simt_lane], mine, bytes);
  if (vote) warp.votes[next] |= bit;
  warp.waiting |= bit;
  if (warp.waiting != mask) {
    wait_as(AT_WARP);
    return next;
  }
  warp.generation = next;
  warp.met++;
  warp.waiting = 0;
  const unsigned first = me / SIMT_WARP * SIMT_WARP;
  for (unsigned lane = 0; lane < SIMT_WARP && first + lane < items.size(); lane++)
    if (mask >> lane & 1 && first + lane != me) items[first + lane].state = READY;
  wait_as(READY);
  return next;
}

}  // namespace

void simt_warp_barrier(unsigned mask) { meet(mask, nullptr, 0, 0); }

void simt_exchange(unsigned mask, const void* mine, void* out, unsigned source, unsigned bytes) {
  const unsigned place = meet(mask, mine, bytes, 0);
  const Warp& warp = warps[running / SIMT_WARP];
  if (!(mask >> source & 1)) fail("kernel %s: lane %u reads lane %u, which is not in the mask %08x",
                                  kernel_name, simt_lane, source, mask);
  memcpy(out, warp.taken[place][source], bytes);
}

unsigned simt_ballot(unsigned mask, int yes) {
  const unsigned place = meet(mask, nullptr, 0, yes);
  return warps[running / SIMT_WARP].votes[place];
}

unsigned simt_gather(const void* mine, void* out, unsigned bytes) {
  const unsigned place = meet(~0u, mine, bytes, 0);
  const Warp& warp = warps[running / SIMT_WARP];
  for (unsigned lane = 0; lane < SIMT_WARP; lane++)
    memcpy((char*)out + lane * bytes, warp.taken[place][lane], bytes);
  return warp.members;
}

void simt_fail(const char* what) {
  fail("kernel %s: %s, by item (%u, %u, %u) of group (%u, %u, %u)", kernel_name, what, simt_item.x, simt_item.y,
       simt_item.z, simt_group.x, simt_group.y, simt_group.z);
}

const char* simt_launch(const char* kernel, void (*body)(void**), const simt_request* wanted,
                        void* shared, void* shared_end) {
  const std::lock_guard<std::mutex> lock(one_at_a_time);
  find_constants_of((uintptr_t)body);
  problem[0] = 0;
  kernel_name = kernel;
  kernel_body = body;
  request = wanted;
  shared_memory = {(uintptr_t)shared, (uintptr_t)shared_end};
  simt_groups = wanted->groups;
  simt_local_size = wanted->local;
  last_hit = 0;
  const unsigned n = simt_local_size.x * simt_local_size.y * simt_local_size.z;
  items.assign(n, {FRESH, nullptr});
  order.resize(n);
  warps.assign((n + SIMT_WARP - 1) / SIMT_WARP, Warp());
  // Local memory is new for each launch, as for each group.
  local_memory.words.assign((shared_memory.end - shared_memory.start + 3) / 4, Word());
  find_areas();
  simt_atomic = 0;
  unsigned random = wanted->seed * 2654435761u | 1u;
  for (unsigned z = 0; z < simt_groups.z; z++)
    for (unsigned y = 0; y < simt_groups.y; y++)
      for (unsigned x = 0; x < simt_groups.x; x++) {
        simt_group = {x, y, z};
        run_group(random);
        if (problem[0]) {
          drop_items();
          memcpy(answer, problem, sizeof answer);
          return answer;
        }
      }
  return nullptr;
}
