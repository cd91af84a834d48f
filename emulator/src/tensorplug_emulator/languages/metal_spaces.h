// Metal Shading Language for clang, which only checks it: address spaces are types of their own, as
// they are for Apple's compiler. Functions are declared and never called.
#pragma once
#include "metal_types.h"

#define device __attribute__((address_space(1)))
#define constant const __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#define SIMT_TABLE static constant
#define SIMT_SHARED static threadgroup

typedef _Float16 half;

#define SIMT_VECTORS(T) \
  typedef T T##2 __attribute__((ext_vector_type(2))); \
  typedef T T##3 __attribute__((ext_vector_type(3))); \
  typedef T T##4 __attribute__((ext_vector_type(4)));
SIMT_OF_VECTORS(SIMT_VECTORS)
typedef char char2 __attribute__((ext_vector_type(2)));
typedef char char4 __attribute__((ext_vector_type(4)));
// Clang has no constructors of vectors; these stand for float4(a, b, c, d) and float4(other).
template <class V, class... A> V simt_vector(A... values);
#define float2(...) simt_vector<float2>(__VA_ARGS__)
#define float4(...) simt_vector<float4>(__VA_ARGS__)
#define half2(...) simt_vector<half2>(__VA_ARGS__)
#define half4(...) simt_vector<half4>(__VA_ARGS__)
#define int4(...) simt_vector<int4>(__VA_ARGS__)
#define uint2(...) simt_vector<uint2>(__VA_ARGS__)
#define uint4(...) simt_vector<uint4>(__VA_ARGS__)
#define ulong2(...) simt_vector<ulong2>(__VA_ARGS__)

template <class To, class From> To as_type(From from);

namespace metal {

#define SIMT_MATH_1(name) float name(float x);
SIMT_OF_ONE_NUMBER(SIMT_MATH_1)
SIMT_MATH_1(rsqrt)
#define SIMT_MATH_2(name) float name(float x, float y);
SIMT_OF_TWO_NUMBERS(SIMT_MATH_2)
float fma(float x, float y, float z);
bool isnan(float x);
bool isinf(float x);
template <class T> T min(T a, T b);
template <class T> T max(T a, T b);
template <class T> T clamp(T x, T low, T high);
template <class T> T select(T a, T b, bool second);
uint popcount(uint x);
uint clz(uint x);
uint ctz(uint x);
float dot(float2 a, float2 b);
float dot(float4 a, float4 b);

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
mem_flags operator|(mem_flags a, mem_flags b);
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);
#define SIMT_ONE(name) template <class T> T name(T mine);
#define SIMT_TWO(name) template <class T> T name(T mine, ushort lane);
SIMT_ONE(simd_broadcast_first)
SIMT_ONE(simd_sum)
SIMT_ONE(simd_product)
SIMT_ONE(simd_max)
SIMT_ONE(simd_min)
SIMT_ONE(simd_or)
SIMT_ONE(simd_and)
SIMT_ONE(simd_xor)
SIMT_TWO(simd_shuffle)
SIMT_TWO(simd_broadcast)
SIMT_TWO(simd_shuffle_xor)
SIMT_TWO(simd_shuffle_down)
SIMT_TWO(simd_shuffle_up)
bool simd_any(bool yes);
bool simd_all(bool yes);

enum memory_order { memory_order_relaxed };
template <class T> struct atomic {
  T value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
#define SIMT_ATOMIC(name) \
  template <class T> T name(device atomic<T>* p, T given, memory_order); \
  template <class T> T name(threadgroup atomic<T>* p, T given, memory_order);
SIMT_ATOMIC(atomic_fetch_add_explicit)
SIMT_ATOMIC(atomic_fetch_sub_explicit)
SIMT_ATOMIC(atomic_fetch_max_explicit)
SIMT_ATOMIC(atomic_fetch_min_explicit)
SIMT_ATOMIC(atomic_fetch_or_explicit)
SIMT_ATOMIC(atomic_exchange_explicit)
template <class T> T atomic_load_explicit(const device atomic<T>* p, memory_order);
template <class T> T atomic_load_explicit(const threadgroup atomic<T>* p, memory_order);
template <class T> void atomic_store_explicit(device atomic<T>* p, T given, memory_order);
template <class T> void atomic_store_explicit(threadgroup atomic<T>* p, T given, memory_order);

template <class T, int Columns, int Rows> struct simdgroup_matrix {
  T own_[2];
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T diagonal);
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
template <class T, int Columns, int Rows> simdgroup_matrix<T, Columns, Rows> make_filled_simdgroup_matrix(T value);
#define SIMT_MATRIX(space) \
  template <class T> \
  void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, const space T* p, ulong stride = 8, ulong2 from = 0, bool transposed = false); \
  template <class T> \
  void simdgroup_store(simdgroup_matrix<T, 8, 8> m, space T* p, ulong stride = 8, ulong2 from = 0, bool transposed = false);
SIMT_MATRIX(device)
SIMT_MATRIX(threadgroup)
template <class D, class A, class B>
void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b,
                                   simdgroup_matrix<D, 8, 8> c);
template <class T>
void simdgroup_multiply(simdgroup_matrix<T, 8, 8>& d, simdgroup_matrix<T, 8, 8> a, simdgroup_matrix<T, 8, 8> b);

}  // namespace metal
