// Weights in panels: sixteen rows side by side, so that a vector holds the same four bytes of each of them.
//
// A block of each row makes a block of the panel. Its elements (words of four bytes, and halves or single bytes before
// and behind them) keep their order; where a row has one, the panel has those of all its rows. What lies at byte `o` of
// the block of row r, `width` bytes wide, lies at o * PANEL_ROWS + r * width of the panel's block, and the rows of a
// panel take together as much memory as they did, from where the first of them was.
#pragma once

#include <cstring>

#include "program.h"

namespace {

// Bytes of a block before its words, and how many words there are; the rest lies behind them.
struct PanelForm {
    int type, front, words;

    int64_t size() const { return type_size(type)->size; }
    constexpr int64_t behind() const { return front + 4 * words; }
};

constexpr PanelForm PANEL_FORMS[] = {
    {Q8_0, 2, 8},  {Q4_0, 2, 4},  {Q4_1, 4, 4},  {Q5_0, 2, 5},  {Q5_1, 4, 5},  {IQ4_NL, 2, 4},
    {MXFP4, 1, 4}, {Q2_K, 0, 20}, {Q3_K, 0, 27}, {Q4_K, 4, 35}, {Q5_K, 4, 43}, {Q6_K, 0, 52},
};

constexpr const PanelForm *panel_form(int type) {
    for (const PanelForm &form : PANEL_FORMS) {
        if (form.type == type) return &form;
    }
    return nullptr;
}

inline bool in_panels(const Operand &t) { return t.layout == IN_PANELS; }

// `count` elements of each row of a panel, `step` bytes apart.
template <class T> void weave(const char *rows, int64_t step, int64_t count, char *panel) {
    for (int64_t i = 0; i < count; i++) {
        T column[PANEL_ROWS];
        for (int64_t r = 0; r < PANEL_ROWS; r++) std::memcpy(column + r, rows + r * step + i * sizeof(T), sizeof(T));
        std::memcpy(panel + i * sizeof(column), column, sizeof(column));
    }
}

template <class T> void unweave(const char *panel, int64_t row, int64_t count, char *out) {
    for (int64_t i = 0; i < count; i++)
        std::memcpy(out + i * sizeof(T), panel + (i * PANEL_ROWS + row) * sizeof(T), sizeof(T));
}

// `count` halves; a single byte where the number of bytes is odd.
inline void weave_halves(const char *rows, int64_t step, int64_t bytes, char *panel) {
    bytes % 2 ? weave<uint8_t>(rows, step, bytes, panel) : weave<uint16_t>(rows, step, bytes / 2, panel);
}
inline void unweave_halves(const char *panel, int64_t row, int64_t bytes, char *out) {
    bytes % 2 ? unweave<uint8_t>(panel, row, bytes, out) : unweave<uint16_t>(panel, row, bytes / 2, out);
}

// A panel of rows of `blocks` blocks that lie without gaps.
inline void pack_panel(const PanelForm &form, const char *rows, int64_t blocks, char *panel) {
    const int64_t size = form.size(), step = blocks * size, behind = form.behind();
    for (int64_t b = 0; b < blocks; b++, rows += size, panel += size * PANEL_ROWS) {
        weave_halves(rows, step, form.front, panel);
        weave<uint32_t>(rows + form.front, step, form.words, panel + form.front * PANEL_ROWS);
        weave_halves(rows + behind, step, size - behind, panel + behind * PANEL_ROWS);
    }
}

// One row of a panel as it was.
inline void unpack_row(const PanelForm &form, const char *panel, int64_t row, int64_t blocks, char *out) {
    const int64_t size = form.size(), behind = form.behind();
    for (int64_t b = 0; b < blocks; b++, out += size, panel += size * PANEL_ROWS) {
        unweave_halves(panel, row, form.front, out);
        unweave<uint32_t>(panel + form.front * PANEL_ROWS, row, form.words, out + form.front);
        unweave_halves(panel + behind * PANEL_ROWS, row, size - behind, out + behind);
    }
}

// Rows of weights in their standard layout, for kernels that know no other: where they lie, or copied out of a panel.
class PlainRows {
  public:
    // `room` is that of one thread, for as many rows as it will ask for at once.
    PlainRows(const Operand &w, char *room) : w_(w), room_(room) {}
    static int64_t size(const Operand &w, int64_t rows) { return in_panels(w) ? (rows * w.nb[1] + 63) / 64 * 64 : 0; }

    // `count` rows from `first` on, w.nb[1] bytes apart.
    const char *get(int64_t first, int64_t count, int64_t i2, int64_t i3) const {
        if (!in_panels(w_)) return w_.data + first * w_.nb[1] + i2 * w_.nb[2] + i3 * w_.nb[3];
        const PanelForm &form = *panel_form(w_.type);
        for (int64_t row = first; row < first + count; row++) {
            const char *panel = w_.data + row / PANEL_ROWS * PANEL_ROWS * w_.nb[1];
            unpack_row(form, panel, row % PANEL_ROWS, w_.nb[1] / form.size(), room_ + (row - first) * w_.nb[1]);
        }
        return room_;
    }

  private:
    const Operand &w_;
    char *room_;
};

} // namespace
