// Block types: 32 codes at a time, and the scale (and minimum) that goes with them.
//
// Each type says how long a block is, how many groups of 32 codes it has, the largest magnitude of a code (MOST),
// whether each 16 codes have a scale of their own (HALVES), whether a minimum is added (MIN), and reads
//   scales(block, d, m)  d and, with MIN, m: one for each group, two with HALVES
//   raw(block, group)      32 codes as bytes, ZERO more than they are
//   codes(block, group)    the same as signed numbers
//   floats(block, group, out)  and as floats
// so that an element is d * code + m.
#pragma once

#include "codes.h"

namespace {

template <int TYPE> struct Block;

template <> struct Block<Q8_0> {
    static constexpr int SIZE = 34, GROUPS = 1, MOST = 128;
    static constexpr bool MIN = false, HALVES = false;
    static void scales(const byte *b, float *d, float *) { d[0] = half_at(b); }
    static constexpr int ZERO = 128;
    static Codes raw(const byte *b, int) { return minus(load32(b + 2), -128); }
    static Codes codes(const byte *b, int) { return load32(b + 2); }
    static void floats(const byte *b, int g, vf *out) { to_floats(codes(b, g), out); }
};

template <> struct Block<Q4_0> {
    static constexpr int SIZE = 18, GROUPS = 1, MOST = 8;
    static constexpr bool MIN = false, HALVES = false;
    static void scales(const byte *b, float *d, float *) { d[0] = half_at(b); }
    static constexpr int ZERO = 8;
    static Codes raw(const byte *b, int) { return nibbles16(b + 2); }
    static Codes codes(const byte *b, int g) { return minus(raw(b, g), ZERO); }
    FLOATS(nibble_floats16(b + 2, -8, out))
};

template <> struct Block<Q4_1> {
    static constexpr int SIZE = 20, GROUPS = 1, MOST = 15;
    static constexpr bool MIN = true, HALVES = false;
    static void scales(const byte *b, float *d, float *m) { d[0] = half_at(b), m[0] = half_at(b + 2); }
    static constexpr int ZERO = 0;
    static Codes raw(const byte *b, int) { return nibbles16(b + 4); }
    static Codes codes(const byte *b, int g) { return raw(b, g); }
    FLOATS(nibble_floats16(b + 4, 0, out))
};

template <> struct Block<Q5_0> {
    static constexpr int SIZE = 22, GROUPS = 1, MOST = 16;
    static constexpr bool MIN = false, HALVES = false;
    static void scales(const byte *b, float *d, float *) { d[0] = half_at(b); }
    static constexpr int ZERO = 16;
    static Codes raw(const byte *b, int) { return merge(nibbles16(b + 6), spread(word_at(b + 2), 16)); }
    static Codes codes(const byte *b, int g) { return minus(raw(b, g), ZERO); }
    FLOATS(nibble_floats16(b + 6, -16, word_at(b + 2), out))
};

template <> struct Block<Q5_1> {
    static constexpr int SIZE = 24, GROUPS = 1, MOST = 31;
    static constexpr bool MIN = true, HALVES = false;
    static void scales(const byte *b, float *d, float *m) { d[0] = half_at(b), m[0] = half_at(b + 2); }
    static constexpr int ZERO = 0;
    static Codes raw(const byte *b, int) { return merge(nibbles16(b + 8), spread(word_at(b + 4), 16)); }
    static Codes codes(const byte *b, int g) { return raw(b, g); }
    FLOATS(nibble_floats16(b + 8, 0, word_at(b + 4), out))
};

// Four bits name one of sixteen values.
constexpr int8_t IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
// Twice the values of E2M1 (OCP Microscaling Formats 1.0).
constexpr int8_t E2M1_VALUES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

template <> struct Block<IQ4_NL> {
    static constexpr int SIZE = 18, GROUPS = 1, MOST = 127;
    static constexpr bool MIN = false, HALVES = false;
    static void scales(const byte *b, float *d, float *) { d[0] = half_at(b); }
    static constexpr int ZERO = 128;
    static Codes raw(const byte *b, int g) { return minus(codes(b, g), -128); }
    static Codes codes(const byte *b, int) { return looked_up(nibbles16(b + 2), IQ4_VALUES); }
    FLOATS(table_floats16(b + 2, IQ4_VALUES, out))
};

// Half of two to the power of e - 127, so that codes may be whole numbers.
inline float half_of_power(byte e) {
    const uint32_t bits = e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

template <> struct Block<MXFP4> {
    static constexpr int SIZE = 17, GROUPS = 1, MOST = 12;
    static constexpr bool MIN = false, HALVES = false;
    static void scales(const byte *b, float *d, float *) { d[0] = half_of_power(b[0]); }
    static constexpr int ZERO = 12;
    static Codes raw(const byte *b, int g) { return minus(codes(b, g), -ZERO); }
    static Codes codes(const byte *b, int) { return looked_up(nibbles16(b + 1), E2M1_VALUES); }
    FLOATS(table_floats16(b + 1, E2M1_VALUES, out))
};

} // namespace
