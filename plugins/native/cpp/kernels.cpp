// All kernels of one instruction-set level: TP_LEVEL is its name in C++, TP_NAME the one for people.
// The entry of an op is the function of its name in lower case.
//
// op                                      layouts and sizes        inner loops
// MUL_MAT (mul_mat.h)                     bytes, one or few rows   product_bytes_few.h: dots8
//                                         bytes, many rows         product_bytes_many.h: multiply_tile8
//                                         many rows, AMX           product_tiles.h: multiply_tiles
//                                         bytes, panels, one row   product_bytes_panels.h: panel_dots
//                                         bytes, panels, few rows  product_bytes_panels.h: add_block8
//                                         numbers, one row         decode.h: dots; product_halves.h: dots_of_halves
//                                         numbers, few rows        product_floats_few.h: products
//                                         numbers, many rows       product_tile.h: multiply_tile
// MUL_MAT_ID, MATVEC                      by expert; one row       mul_mat_id.h, matvec.h; those of MUL_MAT
// ATTENTION (attention.h)                 few tokens               attention_rows.h: score_keys, add_weighted
//                                         many tokens              attention_blocks.h; product_tile.h: multiply_tile
// MAP JOIN MASK                           elements                 elementwise.h
// NORM SOFT_MAX ROPE ROPE_TABLE           rows                     norm.h, soft_max.h, rope.h
// REDUCE ORDER                            rows                     reduce.h
// COPY REPEAT GET_ROWS SET_ROWS ADD_ROWS  elements, rows           copy.h
// IM2COL COL2IM CONV_DW POOL              pixels                   conv.h
// Panels are sixteen rows of weights side by side, all else are rows (layouts.py chooses). Codes and scales by type:
// blocks.h, superblocks.h, small_blocks.h, grid_blocks.h; as vectors product_bytes_units.h; in panels panel_codes.h;
// unfolded for several rows of x product_bytes_unfolded.h.
#include "attention.h"
#include "check.h"
#include "conv.h"
#include "copy.h"
#include "elementwise.h"
#include "mul_mat_id.h"
#include "norm.h"
#include "reduce.h"
#include "rope.h"
#include "soft_max.h"

namespace {

struct Kernel {
    Op op;
    int sources; // that must be there
    bool (*fits)(const Node &);
    void (*compute)(const Node &, Part &);
};

// In the order of the ops.
constexpr Kernel KERNELS[] = {
    {MAP, 0, fits_map, map},
    {JOIN, 2, fits_join, join},
    {NORM, 1, fits_norm, norm},
    {REDUCE, 1, fits_reduce, reduce},
    {SOFT_MAX, 1, fits_soft_max, soft_max},
    {ROPE_TABLE, 2, fits_rope_table, rope_table},
    {ROPE, 2, fits_rope, rope},
    {GET_ROWS, 2, fits_get_rows, get_rows},
    {SET_ROWS, 2, fits_set_rows, set_rows},
    {ADD_ROWS, 3, fits_add_rows, add_rows},
    {COPY, 1, fits_copy, copy},
    {REPEAT, 1, fits_repeat, repeat},
    {MASK, 1, fits_mask_op, mask},
    {ORDER, 1, fits_order, order},
    {IM2COL, 1, fits_im2col, im2col},
    {COL2IM, 1, fits_col2im, col2im},
    {CONV_DW, 2, fits_conv_dw, conv_dw},
    {POOL, 1, fits_pool, pool},
    {MUL_MAT, 2, fits_mul_mat, mul_mat},
    {MUL_MAT_ID, 3, fits_experts, mul_mat_id},
    {MATVEC, 2, fits_matvec, matvec},
    {ATTENTION, 3, fits_attention, attention},
};

constexpr bool in_order() {
    int op = 0;
    for (const Kernel &kernel : KERNELS) {
        if (kernel.op != op++) return false;
    }
    return op == OPS;
}
static_assert(in_order(), "KERNELS must have one line for each op, in the order of tables.h");

void compute(const Node &node, Part &part) { KERNELS[node.op].compute(node, part); }

bool readable(const Operand &t) { return row_type(t.type) != nullptr; }

// Bytes of scratch; -1 for what the kernels do not know, so that a damaged program is not run.
int64_t scratch(const Node &node, int threads) {
    if (node.op < 0 || node.op >= OPS) return -1;
    const Kernel &kernel = KERNELS[node.op];
    if (!has_operands(node, kernel.sources) || !kernel.fits(node)) return -1;
    switch (node.op) {
    case MUL_MAT: return readable(node.src[0]) ? mul_mat_scratch(node, threads) : -1;
    case ATTENTION: return readable(node.src[1]) && readable(node.src[2]) ? attention_scratch(node, threads) : -1;
    case MUL_MAT_ID: return readable(node.src[0]) ? mul_mat_id_scratch(node, threads) : -1;
    case MATVEC: {
        const bool second = is_absent(node.src[4]) || readable(node.src[4]);
        return readable(node.src[0]) && second ? matvec_scratch(node, threads) : -1;
    }
    case ROPE: {
        // Rows that are not turned where they lie.
        const bool whole = !node.i[1] && is_absent(node.src[3]);
        return writable(node.out.type) && (whole || node.src[0].ne[0] <= TILE) ? 0 : -1;
    }
    case GET_ROWS: {
        const bool known = readable(node.src[0]) || node.out.type == node.src[0].type;
        return known ? threads * PlainRows::size(node.src[0], 1) : -1;
    }
    case SET_ROWS: return writable(node.out.type) ? 0 : -1;
    case COPY: return copy_scratch(node);
    case ORDER: return threads * node.src[0].ne[0] * 4;
    default: return 0;
    }
}

bool encode(int type, const float *values, const float *importance, int64_t columns, int64_t n, char *out) {
    if (!writable(type) || (importance && !encoder(type).weighs)) return false;
    if (!importance) write_values(type, values, n, out);
    for (int64_t i = 0; importance && i < n; i += columns)
        encoder(type).encode(values + i, importance, columns, (byte *)out + bytes_of(type, i));
    return true;
}

} // namespace

extern const Level TP_LEVEL;
const Level TP_LEVEL = {TP_NAME, compute, scratch, encode};
