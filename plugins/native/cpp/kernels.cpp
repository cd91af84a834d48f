// All kernels of one instruction-set level: TP_LEVEL is its name in C++, TP_NAME the one for people.
#include "attention.h"
#include "copy.h"
#include "elementwise.h"
#include "int8.h"
#include "norm.h"
#include "rope.h"

namespace {

void (*const KERNELS[OPS])(const Node &, Part &) = {
    arithmetic<Add>, arithmetic<Sub>, arithmetic<Mul>, arithmetic<Div>, scale, rms_norm, soft_max, rope_table,
    rope, glu, get_rows, set_rows, copy, product, attention,
};

void compute(const Node &node, Part &part) { KERNELS[node.op](node, part); }

bool readable(const Operand &t) { return row_type(t.type) != nullptr; }

// Bytes of scratch; -1 for what the kernels do not know, so that a damaged program is not run.
int64_t scratch(const Node &node, int threads) {
    if (node.op < 0 || node.op >= OPS) return -1;
    switch (node.op) {
    case MUL_MAT: return readable(node.src[0]) && is_plain(node.src[1].type) ? product_scratch(node, threads) : -1;
    case ATTENTION: return readable(node.src[1]) && readable(node.src[2]) ? attention_scratch(node, threads) : -1;
    case GET_ROWS: return readable(node.src[0]) ? 0 : -1;
    case SET_ROWS: return is_plain(node.out.type) ? 0 : -1;
    case COPY: return is_plain(node.src[0].type) && is_plain(node.out.type) ? 0 : -1;
    default: return 0;
    }
}

} // namespace

extern const Level TP_LEVEL;
const Level TP_LEVEL = {TP_NAME, compute, scratch};
