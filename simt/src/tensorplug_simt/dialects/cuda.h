// CUDA C++ 17, without any header: NVRTC needs no files of a toolkit for it.
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
// Texts mean 64 bits by a long, and a sign by a char, on every system.
#define long long long
#define ulong unsigned long
#define char signed char

#define DEVICE static __device__ inline
#define GLOBAL
#define LOCAL __shared__
#define LOCAL_POINTER
// Not constant memory: items read a table at different places, one after the other there.
#define TABLE static __device__

// A grid that exceeds the limits of a launch along y or z is folded into x; see `cuda.grid`.
#ifdef FOLDED
#define FOLDS , const int fold_x, const int fold_y
#define LAUNCH_GROUP_X ((int)(blockIdx.x % (uint)fold_x))
#define GROUP_Y ((int)(blockIdx.x / (uint)fold_x % (uint)fold_y))
#define GROUP_Z ((int)(blockIdx.x / (uint)fold_x / (uint)fold_y))
#else
#define FOLDS
#define LAUNCH_GROUP_X ((int)blockIdx.x)
#define GROUP_Y ((int)blockIdx.y)
#define GROUP_Z ((int)blockIdx.z)
#endif
#define ITEM_X ((int)threadIdx.x)
#define ITEM_Y ((int)threadIdx.y)
#define LOCAL_X ((int)blockDim.x)

// Before loops over arrays that should lie in registers, and before those whose code should be short.
#define UNROLLED _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")
// One of the numbers from `first` on, which lie in order. PARAMETERS lie in memory that any index reads: they have an
// address, while items would write a copy like `p` of a merged launch to memory of their own.
#define NUMBER_OF(first, i) ((&PARAMETERS.first)[i])
#define LOCAL_BARRIER __syncthreads()
#define FLOAT_BITS(x) __float_as_uint(x)
#define BITS_FLOAT(x) __uint_as_float(x)
#define SIGNED_BYTE(x) ((int)(char)(x))

// The emulator has these of its own.
#ifndef TENSORPLUG_EMULATED
static __device__ inline float half_bits_to_float(ushort bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
static __device__ inline ushort float_to_half_bits(float value) {
  ushort bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
// For __byte_perm the compiler clears the fourth bit of each place, which is 0 anyway.
static __device__ inline uint bytes_of_two(uint x, uint y, uint places) {
  uint found;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(found) : "r"(x), "r"(y), "r"(places));
  return found;
}
#define PREFETCH(p) asm volatile("prefetch.global.L2 [%0];" ::"l"(p))
#else
#define PREFETCH(p)
#define bytes_of_two(x, y, places) __byte_perm(x, y, places)
#endif
DEVICE float load_f16(const uchar* p) { return half_bits_to_float(*(const ushort*)p); }
DEVICE void store_f16(uchar* p, float x) { *(ushort*)p = float_to_half_bits(x); }
DEVICE int atomic_next(int* p) { return atomicAdd(p, 1); }
#define BYTES_CHOSEN(x, y, places) bytes_of_two((uint)(x), (uint)(y), places)
#define BYTES_LESS(a, b) __vsub4(a, b)
#define BITS_SET(x) __popc(x)

#define WARP_SIZE 32
#define WHOLE_WARP 0xffffffffu
#define WARP_OTHER(value, distance) __shfl_xor_sync(WHOLE_WARP, value, distance)
DEVICE float warp_sum(float value) {
  for (int distance = WARP_SIZE / 2; distance > 0; distance >>= 1) value += WARP_OTHER(value, distance);
  return value;
}
