// OpenCL C 1.2. Halves are only loaded and stored, which every device can do.
#ifdef ROUNDS_EACH_STEP
#pragma OPENCL FP_CONTRACT OFF
#endif
#define DEVICE static inline
#define GLOBAL __global
#define LOCAL __local
#define LOCAL_POINTER __local
#define TABLE __constant
#define LAUNCH_GROUP_X ((int)get_group_id(0))
#define GROUP_Y ((int)get_group_id(1))
#define GROUP_Z ((int)get_group_id(2))
#define ITEM_X ((int)get_local_id(0))
#define ITEM_Y ((int)get_local_id(1))
// Before loops over arrays that should lie in registers.
#define UNROLLED _Pragma("unroll")
#define LOCAL_BARRIER barrier(CLK_LOCAL_MEM_FENCE)
#define FLOAT_BITS(x) as_uint(x)
#define BITS_FLOAT(x) as_float(x)
#define SIGNED_BYTE(x) ((int)(char)(x))
// The integers nearest to numbers below 2^22, ties to even: the sum has no place for what is behind the point. PoCL
// needs 22 instructions for convert_int_rte or rint. `x` is a variable: drivers may multiply and add in one step.
#define NEAREST(as_ints, x) (as_ints((x) + 0x1.8p23f) - as_int(0x1.8p23f))

// Compilers for x86 may turn a half into a float by hand where the processor has an instruction.
#if defined(__F16C__) && defined(__clang__)
DEVICE float load_f16(GLOBAL const uchar* p) { return __builtin_load_halff((GLOBAL const half*)p); }
#else
DEVICE float load_f16(GLOBAL const uchar* p) { return vload_half(0, (GLOBAL const half*)p); }
#endif
DEVICE void store_f16(GLOBAL uchar* p, float x) { vstore_half_rte(x, 0, (GLOBAL half*)p); }
DEVICE int atomic_next(GLOBAL int* p) { return atomic_inc(p); }
#define BYTES_LESS(a, b) as_uint(as_uchar4((uint)(a)) - as_uchar4((uint)(b)))
#define BITS_SET(x) popcount(x)
#define LOCAL_X ((int)get_local_size(0))
#ifndef MERGED
#define FLAT_INDEX ((uint)get_global_id(0))
#endif

// 16 halves as floats.
#if defined(__AVX512F__) && defined(__clang__)
DEVICE float16 load_halves16(GLOBAL const uchar* p) {
  const short16 halves = vload16(0, (GLOBAL const short*)p);
  return __builtin_ia32_vcvtph2ps512_mask(halves, (float16)0.0f, (ushort)65535, 4);
}
#else
DEVICE float16 load_halves16(GLOBAL const uchar* p) { return vload_half16(0, (GLOBAL const half*)p); }
#endif

// Asks for the cache line of `p`, where the compiler has a word for it.
#if defined(__x86_64__) && defined(__clang__)
#define PREFETCH(p) __builtin_prefetch((const void*)(ulong)(p))
#else
#define PREFETCH(p)
#endif

// What an item takes at once of a row that is its own: processors want long vectors.
#define LANES 16
typedef float16 lanes;
#define LOAD_LANES(p) vload16(0, (p))
#define STORE_LANES(v, p) vstore16((v), 0, (p))
DEVICE lanes load_lanes(GLOBAL const float* p) { return vload16(0, p); }
DEVICE lanes load_lanes_f16(GLOBAL const uchar* p) { return load_halves16(p); }
DEVICE void store_lanes(lanes v, GLOBAL float* p) { vstore16(v, 0, p); }
DEVICE float sum_of_lanes(lanes v) {
  const float8 a = v.lo + v.hi;
  const float4 b = a.lo + a.hi;
  return (b.x + b.y) + (b.z + b.w);
}
DEVICE float largest_of_lanes(lanes v) {
  const float8 a = fmax(v.lo, v.hi);
  const float4 b = fmax(a.lo, a.hi);
  return fmax(fmax(b.x, b.y), fmax(b.z, b.w));
}
