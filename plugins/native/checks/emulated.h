// The instructions of AVX-512 and AMX as functions for AVX2, so that every x86 processor runs the kernels of all levels.
// TP_EMULATE of CMakeLists.txt compiles those kernels with this in front. SIMDe has most instructions; those of version
// 0.7.4 that it lacks, or has wrong, follow.
#pragma once

#include <immintrin.h>

#define SIMDE_ENABLE_NATIVE_ALIASES
#define SIMDE_NO_INLINE // as calls they are slower, but compile five times as fast
#include <simde/x86/avx512.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#define __AVX512F__ 1
#define __AVX512BW__ 1
#define __AVX512DQ__ 1
#define __AVX512VL__ 1
#define __AVX512VNNI__ 1
#if defined(TP_BF16)
#define __AVX512BF16__ 1
#endif
#if defined(TP_AMX_BF16)
#define __AMX_BF16__ 1
#endif

namespace {
namespace emulated {

template <class T, class V> std::array<T, sizeof(V) / sizeof(T)> lanes(const V &vector) {
    std::array<T, sizeof(V) / sizeof(T)> result;
    std::memcpy(&result, &vector, sizeof vector);
    return result;
}

// A vector of f(0), f(1) and so on.
template <class V, class T, class F> V vector(F f) {
    std::array<T, sizeof(V) / sizeof(T)> values;
    for (int i = 0; i < (int)values.size(); i++) values[i] = f(i);
    V result;
    std::memcpy(&result, &values, sizeof result);
    return result;
}

template <class V> V half(const __m512 &whole, int which) {
    V result;
    std::memcpy(&result, (const char *)&whole + which * sizeof result, sizeof result);
    return result;
}

// Integers of 32 bits from narrower ones.
template <class T, class V> __m512i widened(const V &vector_) {
    const auto from = lanes<T>(vector_);
    return vector<__m512i, int32_t>([&](int i) { return from[i]; });
}

// Lane i with lane i + 8, then the results likewise: as compilers do it.
template <class F> float reduced(const __m512 &a, F f) {
    auto at = lanes<float>(a);
    for (int n = 8; n > 0; n /= 2) {
        for (int i = 0; i < n; i++) at[i] = f(at[i], at[i + n]);
    }
    return at[0];
}

template <class V, class T> V load(uint64_t mask, const void *from) {
    // Lanes without a bit are not read.
    return vector<V, T>([&](int i) { return mask >> i & 1 ? ((const T *)from)[i] : T(0); });
}
template <class T, class V> void store(void *to, uint64_t mask, const V &a) {
    const auto at = lanes<T>(a);
    for (int i = 0; i < (int)at.size(); i++) {
        if (mask >> i & 1) ((T *)to)[i] = at[i];
    }
}

// To the nearest, ties to even; what is smaller than a normal number becomes zero.
inline uint16_t bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (std::isnan(value)) return (uint16_t)(bits >> 16 | 0x40);
    if ((bits & 0x7f800000) == 0) return (uint16_t)(bits >> 16 & 0x8000);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float reduce_add(__m512 a) {
    return reduced(a, [](float x, float y) { return x + y; });
}
inline float reduce_max(__m512 a) {
    return reduced(a, [](float x, float y) { return x > y ? x : y; });
}
inline __m512 to_floats(__m512i a) {
    const auto at = lanes<int32_t>(a);
    return vector<__m512, float>([&](int i) { return (float)at[i]; });
}
inline __m512 from_halves(__m256i a) {
    const auto at = lanes<uint16_t>(a);
    return vector<__m512, float>([&](int i) { return _cvtsh_ss(at[i]); });
}
inline __m256i to_halves(__m512 a) {
    return _mm256_set_m128i(_mm256_cvtps_ph(half<__m256>(a, 1), 0), _mm256_cvtps_ph(half<__m256>(a, 0), 0));
}
inline __m256i to_bf16(__m512 a) {
    const auto at = lanes<float>(a);
    return vector<__m256i, uint16_t>([&](int i) { return bf16(at[i]); });
}
inline __m512i pair_to_bf16(__m512 high, __m512 low) {
    const auto first = lanes<float>(low), second = lanes<float>(high);
    return vector<__m512i, uint16_t>([&](int i) { return bf16(i < 16 ? first[i] : second[i - 16]); });
}
inline __m512i shifted(__m512i a, int by) {
    const auto at = lanes<int32_t>(a);
    return vector<__m512i, int32_t>([&](int i) { return at[i] >> by; });
}
inline __mmask16 less(__m512i a, __m512i b) {
    const auto x = lanes<int32_t>(a), y = lanes<int32_t>(b);
    unsigned mask = 0;
    for (int i = 0; i < 16; i++) mask |= (unsigned)(x[i] < y[i]) << i;
    return (__mmask16)mask;
}
inline __mmask32 common(__m256i a, __m256i b) {
    const auto x = lanes<uint8_t>(a), y = lanes<uint8_t>(b);
    uint32_t mask = 0;
    for (int i = 0; i < 32; i++) mask |= (uint32_t)((x[i] & y[i]) != 0) << i;
    return mask;
}
inline __m256i set(uint64_t mask, char value) {
    return vector<__m256i, char>([&](int i) { return mask >> i & 1 ? value : char(0); });
}

// Eight matrices of up to 16 rows of 64 bytes.
struct Tile {
    uint8_t at[16][64];
    int rows, bytes;
};
inline thread_local Tile tiles[8];

inline void load_shapes(const void *shapes) {
    for (int t = 0; t < 8; t++) {
        tiles[t] = {};
        uint16_t bytes;
        std::memcpy(&bytes, (const char *)shapes + 16 + 2 * t, 2);
        tiles[t].bytes = bytes, tiles[t].rows = ((const uint8_t *)shapes)[48 + t];
    }
}
inline void release() {
    for (Tile &tile : tiles) tile = {};
}
inline void load_tile(int t, const void *from, int64_t stride) {
    Tile &tile = tiles[t];
    for (int row = 0; row < tile.rows; row++)
        std::memcpy(tile.at[row], (const char *)from + row * stride, (size_t)tile.bytes);
}
inline void store_tile(int t, void *to, int64_t stride) {
    const Tile &tile = tiles[t];
    for (int row = 0; row < tile.rows; row++)
        std::memcpy((char *)to + row * stride, tile.at[row], (size_t)tile.bytes);
}
inline void zero_tile(int t) { std::memset(tiles[t].at, 0, sizeof tiles[t].at); }

// sum += x @ w, whose rows hold pairs of bf16.
inline void multiply_tiles(int sum, int x, int w) {
    for (int row = 0; row < tiles[sum].rows; row++) {
        __m512 of_row = _mm512_loadu_ps(tiles[sum].at[row]);
        for (int pair = 0; pair < tiles[x].bytes / 4; pair++) {
            int both;
            std::memcpy(&both, tiles[x].at[row] + 4 * pair, 4);
            const __m512i factors = _mm512_loadu_si512(tiles[w].at[pair]);
            of_row = _mm512_dpbf16_ps(of_row, (__m512bh)_mm512_set1_epi32(both), (__m512bh)factors);
        }
        _mm512_storeu_ps(tiles[sum].at[row], of_row);
    }
}

} // namespace emulated
} // namespace

#undef _mm512_madd_epi16 // stands for the version with a mask
#define _mm512_madd_epi16(a, b) simde_mm512_madd_epi16(a, b)
#undef _mm512_roundscale_ps // shifts the last part of an expression only
#define _mm512_roundscale_ps(a, how) simde_mm512_roundscale_ps(a, (how))

#define _mm512_cvtepi8_epi32 emulated::widened<int8_t>
#define _mm512_cvtepu8_epi32 emulated::widened<uint8_t>
#define _mm512_cvtepu16_epi32 emulated::widened<uint16_t>
#define _mm512_cvtepi32_ps emulated::to_floats
#define _mm512_cvtph_ps emulated::from_halves
#define _mm512_cvtps_ph(a, rounding) emulated::to_halves(a)
#define _mm512_cvtneps_pbh emulated::to_bf16
#define _mm512_cvtne2ps_pbh emulated::pair_to_bf16
#define _mm512_extractf32x8_ps emulated::half<__m256>
#define _mm512_srai_epi32 emulated::shifted
#define _mm512_reduce_add_ps emulated::reduce_add
#define _mm512_reduce_max_ps emulated::reduce_max
#define _mm512_cmplt_epi32_mask emulated::less
#define _mm256_test_epi8_mask emulated::common
#define _mm256_maskz_set1_epi8 emulated::set
#define _mm512_maskz_loadu_ps emulated::load<__m512, float>
#define _mm512_maskz_loadu_epi16 emulated::load<__m512i, int16_t>
#define _mm512_mask_storeu_ps emulated::store<float>
#define _mm256_mask_storeu_epi16 emulated::store<int16_t>

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig emulated::load_shapes
#define _tile_release emulated::release
#define _tile_loadd emulated::load_tile
#define _tile_stored emulated::store_tile
#define _tile_zero emulated::zero_tile
#define _tile_dpbf16ps emulated::multiply_tiles
