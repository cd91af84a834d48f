// What the processor gives at most: reading memory, multiply-adds in registers, and a word's way between two cores.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { THREADS = 256, LINE = 64 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct Task {
    void (*work)(struct Task *);
    const char *from;
    int64_t count;
    atomic_int *go;
    double begin, end;
    volatile int64_t out;
} Task;

static void *run(void *p) {
    Task *task = p;
    while (!atomic_load(task->go)) {}
    task->begin = now();
    task->work(task);
    task->end = now();
    return 0;
}

// Seconds from the first start to the last end; below 0 where no thread could be made.
static double together(Task *tasks, int threads) {
    pthread_t handles[THREADS];
    atomic_int go = 0;
    int made = 0;
    for (; made < threads; made++) {
        tasks[made].go = &go;
        if (pthread_create(&handles[made], 0, run, &tasks[made])) break;
    }
    const struct timespec moment = {0, 2000000}; // until all look at `go`
    nanosleep(&moment, 0);
    atomic_store(&go, 1);
    double begin = 1e300, end = 0;
    for (int i = 0; i < made; i++) {
        pthread_join(handles[i], 0);
        begin = tasks[i].begin < begin ? tasks[i].begin : begin;
        end = tasks[i].end > end ? tasks[i].end : end;
    }
    return made == threads ? end - begin : -1;
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static void read_512(Task *task) {
    __m512i s[8];
    for (int i = 0; i < 8; i++) s[i] = _mm512_setzero_si512();
    for (const char *p = task->from, *end = p + task->count; p < end; p += 8 * LINE) {
        for (int i = 0; i < 8; i++) {
            s[i] = _mm512_xor_si512(s[i], _mm512_loadu_si512(p + LINE * i));
            __builtin_prefetch(p + 4096 + LINE * i);
        }
    }
    for (int i = 1; i < 8; i++) s[0] = _mm512_xor_si512(s[0], s[i]);
    task->out = _mm512_reduce_add_epi64(s[0]);
}

__attribute__((target("avx2"))) static void read_256(Task *task) {
    __m256i s[8];
    for (int i = 0; i < 8; i++) s[i] = _mm256_setzero_si256();
    for (const char *p = task->from, *end = p + task->count; p < end; p += 4 * LINE) {
        for (int i = 0; i < 8; i++) s[i] = _mm256_xor_si256(s[i], _mm256_loadu_si256((const __m256i *)p + i));
    }
    for (int i = 1; i < 8; i++) s[0] = _mm256_xor_si256(s[0], s[i]);
    task->out = _mm256_extract_epi64(s[0], 0) ^ _mm256_extract_epi64(s[0], 1);
}

// A loop over CHAINS sums that need not wait for each other; `step` adds to s[i].
#define PEAK(name, needs, CHAINS, type, zero, constant, step, get)                                                      \
    __attribute__((target(needs))) static void name(Task *task) {                                                       \
        type s[CHAINS];                                                                                                 \
        _Pragma("GCC unroll 16") for (int i = 0; i < CHAINS; i++) s[i] = zero;                                          \
        const __typeof__(constant) ones = constant;                                                                     \
        for (int64_t n = 0; n < task->count; n++) {                                                                     \
            _Pragma("GCC unroll 16") for (int i = 0; i < CHAINS; i++) {                                                 \
                s[i] = step;                                                                                            \
                /* Equal chains would be computed once. */                                                              \
                __asm__ volatile("" : "+v"(s[i]));                                                                      \
            }                                                                                                           \
        }                                                                                                               \
        _Pragma("GCC unroll 16") for (int i = 1; i < CHAINS; i++) s[0] = s[0] + s[i];                                   \
        task->out = (int64_t)get;                                                                                       \
    }
#define ONES_512 _mm512_set1_epi8(1)
#define ONES_256 _mm256_set1_epi8(1)
PEAK(peak_f32, "avx512f", 16, __m512, _mm512_setzero_ps(), ONES_512, _mm512_fmadd_ps(_mm512_castsi512_ps(ones), s[i], s[i]), s[0][0])
PEAK(peak_int8, "avx512f,avx512vnni", 16, __m512i, _mm512_setzero_si512(), ONES_512, _mm512_dpbusd_epi32(s[i], ones, ones), s[0][0])
PEAK(peak_bf16, "avx512f,avx512bf16", 16, __m512, _mm512_setzero_ps(), ONES_512, _mm512_dpbf16_ps(s[i], (__m512bh)ones, (__m512bh)ones), s[0][0])
PEAK(peak_f32_256, "avx2,fma", 12, __m256, _mm256_setzero_ps(), ONES_256, _mm256_fmadd_ps(_mm256_castsi256_ps(ones), s[i], s[i]), s[0][0])
PEAK(peak_int8_256, "avx2", 12, __m256i, _mm256_setzero_si256(), ONES_256, _mm256_add_epi16(s[i], _mm256_maddubs_epi16(ones, s[i])), s[0][0])
#endif

static void read_words(Task *task) {
    int64_t sum = 0;
    for (const int64_t *p = (const int64_t *)task->from, *end = p + task->count / 8; p < end; p++) sum ^= *p;
    task->out = sum;
}

// Seconds in which `threads` read `bytes` from `from`.
double read_seconds(const char *from, int64_t bytes, int threads) {
    Task tasks[THREADS];
    if (threads < 1 || threads > THREADS) return -1;
    const int64_t each = bytes / threads / (8 * LINE) * (8 * LINE);
    void (*read)(Task *) = read_words;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) read = read_256;
    if (__builtin_cpu_supports("avx512f")) read = read_512;
#endif
    for (int i = 0; i < threads; i++) tasks[i] = (Task){.work = read, .from = from + i * each, .count = each};
    return together(tasks, threads);
}

#if defined(__x86_64__)
// A loop of `chains` instructions, each of which multiplies and adds `products` pairs.
typedef struct {
    void (*work)(Task *);
    int products, chains, has;
} Peak;
#endif

// Operations per second of `threads` (a multiply and an add are two): kind 0 f32, 1 eight-bit, 2 bf16; 0 where the
// processor has no such instruction. With AVX2 eight-bit products are summed in 16 bits.
double operations(int kind, int threads) {
#if defined(__x86_64__)
    const int avx2 = __builtin_cpu_supports("avx2"), avx512 = __builtin_cpu_supports("avx512f");
    const Peak f32 = avx512 ? (Peak){peak_f32, 16, 16, 1} : (Peak){peak_f32_256, 8, 12, avx2 && __builtin_cpu_supports("fma")};
    const Peak int8 = __builtin_cpu_supports("avx512vnni") ? (Peak){peak_int8, 64, 16, 1} : (Peak){peak_int8_256, 32, 12, avx2};
    const Peak bf16 = {peak_bf16, 32, 16, __builtin_cpu_supports("avx512bf16")};
    if (kind < 0 || kind > 2 || threads < 1 || threads > THREADS) return 0;
    const Peak peak = kind == 0 ? f32 : kind == 1 ? int8 : bf16;
    if (!peak.has) return 0;
    const int64_t rounds = 1000000;
    Task tasks[THREADS];
    for (int i = 0; i < threads; i++) tasks[i] = (Task){.work = peak.work, .count = rounds};
    const double seconds = together(tasks, threads);
    return seconds > 0 ? 2.0 * peak.products * peak.chains * (double)rounds * threads / seconds : 0;
#else
    (void)kind, (void)threads;
    return 0;
#endif
}

static _Alignas(LINE) atomic_llong ball;

static void bounce(Task *task) {
    // Even numbers are one thread's, odd ones the other's.
    const int64_t mine = (int64_t)(intptr_t)task->from;
    for (int64_t i = mine; i < 2 * task->count; i += 2) {
        while (atomic_load(&ball) != i) {}
        atomic_store(&ball, i + 1);
    }
}

// Seconds of one way between two threads.
double hop_seconds(void) {
    const int64_t trips = 20000;
    atomic_store(&ball, 0);
    Task tasks[2] = {{.work = bounce, .from = (const char *)0, .count = trips},
                     {.work = bounce, .from = (const char *)1, .count = trips}};
    return together(tasks, 2) / (2.0 * (double)trips);
}
