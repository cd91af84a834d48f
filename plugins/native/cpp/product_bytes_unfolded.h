// Types whose codes take long to find: with several rows of x, a unit of w is unfolded to bytes first, by a function
// that is chosen at run time. What follows is compiled for a few kinds of unfolded units, not for each of the types.
#pragma once

#include "product_bytes_units.h"

namespace {

#if defined(TP_INT8)

// Kinds stand where others have types: by the largest magnitude of a code, and by whether each 16 codes have a scale.
constexpr int UNFOLDED = 1024, LIMITS[] = {16, 31, 128};
constexpr bool is_unfolded(int type) { return type >= UNFOLDED; }

template <int KIND> struct UnfoldedBlock {
    static constexpr int CODES = GROUPS8 * GROUP, MOST = LIMITS[(KIND - UNFOLDED) / 2];
    static constexpr int SIZE = CODES + 64, GROUPS = GROUPS8, ZERO = MOST;
    static constexpr bool MIN = false, HALVES = KIND % 2;
    static void scales(const byte *b, float *d, float *) { std::memcpy(d, b + CODES, HALVES ? 64 : 32); }
    static Codes raw(const byte *b, int g) { return load32(b + GROUP * g); }
    static Codes codes(const byte *b, int g) { return load32(b + GROUP * g); }
};
#define UNFOLDED_BLOCKS(LIMIT)                                                                                         \
    template <> struct Block<UNFOLDED + 2 * LIMIT> : UnfoldedBlock<UNFOLDED + 2 * LIMIT> {};                           \
    template <> struct Block<UNFOLDED + 2 * LIMIT + 1> : UnfoldedBlock<UNFOLDED + 2 * LIMIT + 1> {};
UNFOLDED_BLOCKS(0)
UNFOLDED_BLOCKS(1)
UNFOLDED_BLOCKS(2)
#undef UNFOLDED_BLOCKS

template <int TYPE> constexpr int kind_of() {
    int limit = 0;
    while (Block<TYPE>::MOST > LIMITS[limit]) limit++;
    return UNFOLDED + 2 * limit + Block<TYPE>::HALVES;
}

// The first `groups` of a unit, and scales for all.
template <int TYPE> void unfold(const byte *unit, int groups, byte *out) {
    constexpr int EXCESS8 = EXCESS<kind_of<TYPE>()>;
    Eight d[2], m[1];
    d[1] = eight_zeros();
    unit_scales<TYPE>(unit, d, m, groups);
    for (int e = 0; e < 2; e++) store_eight((float *)(out + GROUPS8 * GROUP) + 8 * e, d[e]);
    const Found<TYPE> source(unit);
#pragma GCC unroll 8
    for (int g = 0; g < GROUPS8; g++) {
        if (g >= groups) break;
        const Codes codes = minus(source.codes(g), (char)-EXCESS8);
        std::memcpy(out + GROUP * g, &codes, GROUP);
    }
}

struct Unfolding {
    int type;
    int64_t size; // of a unit
    void (*unfold)(const byte *unit, int groups, byte *out);
};
template <int TYPE> constexpr Unfolding unfolding() { return {TYPE, UNIT_SIZE<TYPE>, unfold<TYPE>}; }

constexpr Unfolding UNFOLDINGS[] = {
#define UNFOLDING(TYPE) unfolding<TYPE>(),
    TYPES_IN_ROWS(UNFOLDING)
#undef UNFOLDING
};

// Null for types that are not unfolded.
inline const Unfolding *unfolding_of(int type) {
    for (const Unfolding &known : UNFOLDINGS) {
        if (known.type == type) return &known;
    }
    return nullptr;
}

#endif

} // namespace
