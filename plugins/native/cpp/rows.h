// What the kernels that go row by row share.
#pragma once

#include "decode.h"
#include "functions.h"
#include "level.h"

namespace {

inline Span share(int64_t total, const Part &part, int64_t step = 1) {
    return share_of(total, part.thread, part.threads, step);
}

// Portions of `total` things that threads take as they come: each from its own contiguous range, so that the memory
// sees few long streams, then what is left of the others' ranges, so that none waits for one that came late.
class Turns {
  public:
    Turns(int64_t total, int64_t step, int64_t portion, const Part &part)
        : total_(total), step_(step), portion_(portion > step ? (portion + step - 1) / step * step : step),
          part_(part) {}

    // False where nothing is left.
    bool next(Span &span) {
        for (; tried_ < part_.threads; tried_++) {
            const int owner = (part_.thread + tried_) % part_.threads;
            const Span all = share_of(total_, owner, part_.threads, step_);
            const int64_t turn = part_.taken[owner * part_.taken_step].fetch_add(1, std::memory_order_relaxed);
            const int64_t first = all.first + turn * portion_;
            if (first >= all.last) continue;
            span = {first, first + portion_ < all.last ? first + portion_ : all.last};
            return true;
        }
        return false;
    }

  private:
    const int64_t total_, step_, portion_;
    const Part &part_;
    int tried_ = 0;
};

struct Place {
    int64_t i1, i2, i3;
};

inline Place place(const Operand &t, int64_t row) {
    const int64_t rest = row / t.ne[1];
    return {row % t.ne[1], rest % t.ne[2], rest / t.ne[2]};
}

inline char *at(const Operand &t, int64_t i1, int64_t i2, int64_t i3) {
    return t.data + i1 * t.nb[1] + i2 * t.nb[2] + i3 * t.nb[3];
}
inline char *at(const Operand &t, const Place &p) { return at(t, p.i1, p.i2, p.i3); }
// Of a tensor that repeats.
inline char *at_repeated(const Operand &t, const Place &p) {
    return at(t, p.i1 % t.ne[1], p.i2 % t.ne[2], p.i3 % t.ne[3]);
}

constexpr int64_t ROWS_BETWEEN_LOOKS = 64; // before a thread looks whether the run is to stop

inline bool give_up(Part &part, int64_t row) { return row % ROWS_BETWEEN_LOOKS == 0 && part.stopped(); }

inline bool is_dense_f32(const Operand &t) { return t.type == F32 && t.nb[0] == 4; }

inline float number_at(int type, const char *p) {
    return type == F32 ? *(const float *)p : type == F16 ? half_to_float(*(const uint16_t *)p)
                                                         : bf16_to_float(*(const uint16_t *)p);
}

// `n` elements of a row of f32, f16 or bf16, from `first` on: where they lie, or as f32 in `room`.
inline const float *some_of_row(const Operand &t, const char *row, int64_t first, int64_t n, float *room) {
    if (is_dense_f32(t)) return (const float *)row + first;
    if (t.nb[0] == type_size(t.type)->size) {
        row_type(t.type)->decode(row, first, n, room);
        return room;
    }
    for (int64_t i = 0; i < n; i++) room[i] = number_at(t.type, row + (first + i) * t.nb[0]);
    return room;
}

// Writes f32 as f32, f16 or bf16, `step` bytes apart.
inline void store_row(int type, const float *values, int64_t n, char *out, int64_t step) {
    const bool dense = step == (type == F32 ? 4 : 2);
    if (type == F32) {
        for (int64_t i = 0; i < n; i++) *(float *)(out + i * step) = values[i];
        return;
    }
    if (type == BF16) {
        for (int64_t i = 0; i < n; i++) *(uint16_t *)(out + i * step) = float_to_bf16(values[i]);
        return;
    }
    int64_t i = 0;
    for (; dense && i + W <= n; i += W) vstore16((uint16_t *)out + i, vload(values + i));
    for (; i < n; i++) *(uint16_t *)(out + i * step) = float_to_half(values[i]);
}

} // namespace
