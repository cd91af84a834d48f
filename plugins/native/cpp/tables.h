// Written by tensorplug_native/headers.py from core's types and program.py; change those.
#pragma once

#include <cstdint>

constexpr int ABI = 1315566903;
constexpr int SOURCES = 6;
constexpr int64_t PANEL_ROWS = 16;
constexpr int64_t FEW_TILED = 24;
constexpr int64_t FEW_TILED_PANELS = 12;

// Type numbers of GGUF.
enum Type : int32_t {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q8_1 = 9,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    Q8_K = 15,
    IQ2_XXS = 16,
    IQ2_XS = 17,
    IQ3_XXS = 18,
    IQ1_S = 19,
    IQ4_NL = 20,
    IQ3_S = 21,
    IQ2_S = 22,
    IQ4_XS = 23,
    I8 = 24,
    I16 = 25,
    I32 = 26,
    I64 = 27,
    F64 = 28,
    IQ1_M = 29,
    BF16 = 30,
    TQ1_0 = 34,
    TQ2_0 = 35,
    MXFP4 = 39,
    NVFP4 = 40,
    Q1_0 = 41,
    Q2_0 = 42,
    NO_TYPE = -1,
};

// Elements and bytes of a block, by type number.
struct TypeSize {
    int32_t block, size;
};
constexpr TypeSize TYPE_SIZES[] = {
    {1, 4}, // f32
    {1, 2}, // f16
    {32, 18}, // q4_0
    {32, 20}, // q4_1
    {0, 0},
    {0, 0},
    {32, 22}, // q5_0
    {32, 24}, // q5_1
    {32, 34}, // q8_0
    {32, 36}, // q8_1
    {256, 84}, // q2_K
    {256, 110}, // q3_K
    {256, 144}, // q4_K
    {256, 176}, // q5_K
    {256, 210}, // q6_K
    {256, 292}, // q8_K
    {256, 66}, // iq2_xxs
    {256, 74}, // iq2_xs
    {256, 98}, // iq3_xxs
    {256, 50}, // iq1_s
    {32, 18}, // iq4_nl
    {256, 110}, // iq3_s
    {256, 82}, // iq2_s
    {256, 136}, // iq4_xs
    {1, 1}, // i8
    {1, 2}, // i16
    {1, 4}, // i32
    {1, 8}, // i64
    {1, 8}, // f64
    {256, 56}, // iq1_m
    {1, 2}, // bf16
    {0, 0},
    {0, 0},
    {0, 0},
    {256, 54}, // tq1_0
    {256, 66}, // tq2_0
    {0, 0},
    {0, 0},
    {0, 0},
    {32, 17}, // mxfp4
    {64, 36}, // nvfp4
    {128, 18}, // q1_0
    {64, 18}, // q2_0
};

enum Op : int32_t {
    MAP = 0,
    JOIN = 1,
    NORM = 2,
    REDUCE = 3,
    SOFT_MAX = 4,
    ROPE_TABLE = 5,
    ROPE = 6,
    GET_ROWS = 7,
    SET_ROWS = 8,
    ADD_ROWS = 9,
    COPY = 10,
    REPEAT = 11,
    MASK = 12,
    ORDER = 13,
    IM2COL = 14,
    COL2IM = 15,
    CONV_DW = 16,
    POOL = 17,
    MUL_MAT = 18,
    MUL_MAT_ID = 19,
    MATVEC = 20,
    ATTENTION = 21,
    OPS = 22,
};

enum MapFunction : int32_t {
    SQR = 0,
    SQRT = 1,
    LOG = 2,
    SIN = 3,
    COS = 4,
    ABS = 5,
    SGN = 6,
    NEG = 7,
    STEP = 8,
    TANH = 9,
    ELU = 10,
    RELU = 11,
    SIGMOID = 12,
    GELU = 13,
    GELU_QUICK = 14,
    GELU_ERF = 15,
    SILU = 16,
    HARDSWISH = 17,
    HARDSIGMOID = 18,
    EXP = 19,
    EXPM1 = 20,
    SOFTPLUS = 21,
    FLOOR = 22,
    CEIL = 23,
    ROUND = 24,
    TRUNC = 25,
    XIELU = 26,
    SCALE = 27,
    CLAMP = 28,
    LEAKY_RELU = 29,
    FILL = 30,
    MAPS = 31,
};

enum JoinFunction : int32_t {
    ADD = 0,
    SUB = 1,
    MUL = 2,
    DIV = 3,
    REGLU = 4,
    GEGLU = 5,
    SWIGLU = 6,
    GEGLU_ERF = 7,
    GEGLU_QUICK = 8,
    SWIGLU_OAI = 9,
    JOINS = 10,
};

enum NormKind : int32_t {
    RMS = 0,
    CENTRED = 1,
    LENGTH = 2,
    NORMS = 3,
};

enum Reduction : int32_t {
    SUM = 0,
    MEAN = 1,
    ARGMAX = 2,
    RUNNING_SUM = 3,
    REDUCTIONS = 4,
};

enum Ending : int32_t {
    DONE = 0,
    ABORTED = 1,
    BAD_ROW = 2,
};

enum Layout : int32_t {
    IN_ROWS = 0,
    IN_PANELS = 1,
};

struct Operand {
    char *data;
    int64_t ne[4];
    int64_t nb[4];
    int32_t type;
    int32_t layout;
};

struct Node {
    int32_t op;
    int32_t flags;
    float f[8];
    int32_t i[16];
    Operand out;
    Operand also;
    Operand src[6];
};

static_assert(sizeof(Operand) == 80);
static_assert(sizeof(Node) == 744);
