// All kernels of one instruction-set level: TP_LEVEL is its name in C++, TP_NAME the one for people.
#include "attention.h"
#include "check.h"
#include "copy.h"
#include "conv.h"
#include "elementwise.h"
#include "experts.h"
#include "norm.h"
#include "rope.h"

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
    {MUL_MAT, 2, fits_mul_mat, product},
    {MUL_MAT_ID, 3, fits_experts, experts},
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
    case MUL_MAT: return readable(node.src[0]) ? product_scratch(node, threads) : -1;
    case ATTENTION: return readable(node.src[1]) && readable(node.src[2]) ? attention_scratch(node, threads) : -1;
    case MUL_MAT_ID: return readable(node.src[0]) ? experts_scratch(node, threads) : -1;
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

bool encode(int type, const float *values, int64_t n, char *out) {
    if (!writable(type)) return false;
    write_values(type, values, n, out);
    return true;
}

} // namespace

extern const Level TP_LEVEL;
const Level TP_LEVEL = {TP_NAME, compute, scratch, encode};
