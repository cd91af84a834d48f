// All kernels of one instruction-set level: TP_LEVEL is its name in C++, TP_NAME the one for people.
#include "attention.h"
#include "copy.h"
#include "conv.h"
#include "elementwise.h"
#include "experts.h"
#include "norm.h"
#include "rope.h"

namespace {

struct Kernel {
    Op op;
    void (*compute)(const Node &, Part &);
};

// In the order of the ops.
constexpr Kernel KERNELS[] = {
    {MAP, map},
    {JOIN, join},
    {NORM, norm},
    {REDUCE, reduce},
    {SOFT_MAX, soft_max},
    {ROPE_TABLE, rope_table},
    {ROPE, rope},
    {GET_ROWS, get_rows},
    {SET_ROWS, set_rows},
    {ADD_ROWS, add_rows},
    {COPY, copy},
    {REPEAT, repeat},
    {MASK, mask},
    {ORDER, order},
    {IM2COL, im2col},
    {COL2IM, col2im},
    {CONV_DW, conv_dw},
    {POOL, pool},
    {MUL_MAT, product},
    {MUL_MAT_ID, experts},
    {ATTENTION, attention},
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
    switch (node.op) {
    case MUL_MAT: return readable(node.src[0]) && is_plain(node.src[1].type) ? product_scratch(node, threads) : -1;
    case ATTENTION: return readable(node.src[1]) && readable(node.src[2]) ? attention_scratch(node, threads) : -1;
    case MUL_MAT_ID:
        return readable(node.src[0]) && is_plain(node.src[1].type) ? experts_scratch(node, threads) : -1;
    case MAP: return elementwise_scratch(node, MAPS);
    case JOIN: return elementwise_scratch(node, JOINS);
    case MASK: return elementwise_scratch(node, 1 << 30);
    case GET_ROWS: return readable(node.src[0]) || node.src[0].type == I32 ? 0 : -1;
    case SET_ROWS: return writable(node.out.type) ? 0 : -1;
    case COPY: return copy_scratch(node);
    case REPEAT: return type_size(node.out.type) != nullptr ? 0 : -1;
    case IM2COL: return is_plain(node.src[0].type) && is_plain(node.out.type) ? 0 : -1;
    case CONV_DW: return is_plain(node.src[0].type) ? 0 : -1;
    case ORDER: return threads * node.src[0].ne[0] * 4;
    default: return 0;
    }
}

} // namespace

extern const Level TP_LEVEL;
const Level TP_LEVEL = {TP_NAME, compute, scratch};
