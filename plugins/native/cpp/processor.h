// What the processor and its system offer. On x86 the processor itself is asked: the same with every compiler.
#pragma once

#if defined(TP_X86)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstdint>

namespace {

enum Register { EAX, EBX, ECX, EDX };

// One bit of what `cpuid` says.
struct Feature {
    unsigned leaf, sub;
    Register where;
    int bit;
};

constexpr Feature FMA{1, 0, ECX, 12}, SAVES{1, 0, ECX, 27}, F16C{1, 0, ECX, 29}, AVX2_{7, 0, EBX, 5};
constexpr Feature AVX512_F{7, 0, EBX, 16}, AVX512_DQ{7, 0, EBX, 17}, AVX512_BW{7, 0, EBX, 30};
constexpr Feature AVX512_VL{7, 0, EBX, 31}, AVX512_VNNI{7, 0, ECX, 11}, AVX512_BF16_{7, 1, EAX, 5};
constexpr Feature AVX512_VBMI{7, 0, ECX, 1};
constexpr Feature AMX_TILE{7, 0, EDX, 24}, AMX_BF16{7, 0, EDX, 22};

inline bool has(const Feature &feature) {
    unsigned r[4];
    if (!__get_cpuid_count(feature.leaf, feature.sub, r, r + 1, r + 2, r + 3)) return false;
    return r[feature.where] >> feature.bit & 1;
}

// Whether the system keeps these registers when it switches threads.
inline bool keeps(uint32_t registers) {
    if (!has(SAVES)) return false;
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & registers) == registers;
}

constexpr uint32_t VECTORS_OF_256 = 0x06, VECTORS_OF_512 = 0xe6; // the latter with their masks
constexpr uint32_t TILES = 0x60000;

inline bool runs_avx2() { return keeps(VECTORS_OF_256) && has(FMA) && has(F16C) && has(AVX2_); }
#if defined(TP_EMULATED)
inline bool runs_avx512() { return runs_avx2(); }
inline bool runs_avx512_bf16() { return runs_avx2(); }
inline bool runs_amx() { return runs_avx2(); }
#else
inline bool runs_avx512() {
    return runs_avx2() && keeps(VECTORS_OF_512) && has(AVX512_F) && has(AVX512_BW) && has(AVX512_DQ) &&
           has(AVX512_VL) && has(AVX512_VNNI);
}
inline bool runs_avx512_bf16() { return runs_avx512() && has(AVX512_BF16_); }

// Tiles are large, so Linux gives them to a process that asks for them: to all its threads, those of the future too.
inline bool runs_amx() {
#if defined(__linux__)
    constexpr long ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    return runs_avx512_bf16() && keeps(TILES) && has(AVX512_VBMI) && has(AMX_TILE) &&
           has(AMX_BF16) && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return false; // other systems are not asked
#endif
}
#endif

} // namespace
#elif defined(TP_ARM64)
#if defined(__linux__)
#include <sys/auxv.h>
#endif

namespace {

// Dot products of bytes.
inline bool runs_neon_dot() {
#if defined(__linux__)
    constexpr unsigned long DOT_PRODUCTS = 1ul << 20; // HWCAP_ASIMDDP of Linux
    return getauxval(AT_HWCAP) & DOT_PRODUCTS;
#elif defined(__APPLE__)
    return true; // on every Mac with ARM
#else
    return false; // other systems are not asked
#endif
}

} // namespace
#endif
