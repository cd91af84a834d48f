// Metal Shading Language 2.3 or later, for Apple's GPUs, whose simdgroups have 32 items.
// Comparisons that find NaN and infinity need safe mathematics; before 3.2 the options of the
// compiler say so, see FAST_MATH in metal.py.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
#if defined(__METAL_VERSION__) && __METAL_VERSION__ >= 320
#pragma METAL fp math_mode(safe)
#endif
#if defined(__METAL_VERSION__) && defined(ROUNDS_EACH_STEP)
#if __METAL_VERSION__ >= 320
#pragma METAL fp contract(off)
#else
#pragma clang fp contract(off)
#endif
#endif
using namespace metal;

#define DEVICE static inline
#define GLOBAL device
#define PRIVATE thread
#define LOCAL_POINTER threadgroup
// The emulator's compiler knows no address spaces: it is told what arrays are shared.
#ifdef TENSORPLUG_EMULATED
#define LOCAL SIMT_SHARED
#define TABLE SIMT_TABLE
#else
#define LOCAL threadgroup
#define TABLE constant
#endif

// What a kernel is told of its place; helpers take of it what they need as arguments.
#define METAL_PLACES uint3 metal_group [[threadgroup_position_in_grid]], uint3 metal_item [[thread_position_in_threadgroup]], uint3 metal_size [[threads_per_threadgroup]]
#define LAUNCH_GROUP_X ((int)metal_group.x)
#define GROUP_Y ((int)metal_group.y)
#define GROUP_Z ((int)metal_group.z)
#define ITEM_X ((int)metal_item.x)
#define ITEM_Y ((int)metal_item.y)
#define LOCAL_X ((int)metal_size.x)

#define LOCAL_BARRIER threadgroup_barrier(mem_flags::mem_threadgroup)
#define FLOAT_BITS(x) as_type<uint>((float)(x))
#define BITS_FLOAT(x) as_type<float>((uint)(x))
#define SIGNED_BYTE(x) ((int)(char)(x))
#define PREFETCH(p)
// Before loops over arrays that should lie in registers.
#define UNROLLED _Pragma("clang loop unroll(full)")

DEVICE float load_f16(GLOBAL const uchar* p) { return (float)*(GLOBAL const half*)p; }
DEVICE void store_f16(GLOBAL uchar* p, float x) { *(GLOBAL half*)p = (half)x; }
DEVICE int atomic_next(GLOBAL int* p) {
  return atomic_fetch_add_explicit((GLOBAL atomic_int*)p, 1, memory_order_relaxed);
}

#define BYTES_LESS(a, b) as_type<uint>(as_type<uchar4>((uint)(a)) - as_type<uchar4>((uint)(b)))
#define BITS_SET(x) popcount(x)

// The language has none. A polynomial of t = 1 / (1 + x / 2) fitted to log(erfc(x) / t) + x * x,
// within 1.1e-6 of the value and 3.5e-7 of 1.
DEVICE float erfc_of(float x) {
  const float size = fabs(x), t = 1.0f / (1.0f + 0.5f * size);
  float g = 1.449302134e-01f;
  g = g * t - 6.808271762e-01f;
  g = g * t + 1.156733753e+00f;
  g = g * t - 6.962518942e-01f;
  g = g * t - 8.028043595e-02f;
  g = g * t + 1.267588298e-03f;
  g = g * t + 3.460279938e-02f;
  g = g * t + 3.866404123e-01f;
  g = g * t + 9.986327833e-01f;
  g = g * t - 1.265447997e+00f;
  const float found = t * exp(g - size * size);
  return x < 0.0f ? 2.0f - found : found;
}
#define erfc(x) erfc_of(x)

// A simdgroup is a warp.
#define WARP_SIZE 32
#define WARP_OTHER(value, distance) simd_shuffle_xor(value, (ushort)(distance))
DEVICE float warp_sum(float value) { return simd_sum(value); }
