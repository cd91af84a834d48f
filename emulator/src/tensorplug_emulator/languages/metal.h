// Metal Shading Language on a processor: what texts use of its standard library, over runtime.h.
// Address spaces are nothing here; metal_spaces.h is for the compiler that checks them.
#pragma once
#include "runtime.h"
#include "metal_types.h"

#define device
// Of pointers; arrays are SIMT_SHARED by then.
#define threadgroup
#define constant const
#define SIMT_TABLE static

#define SIMT_INLINE static inline __attribute__((unused))

template <class To, class From> SIMT_INLINE To as_type(From from) {
  To to;
  static_assert(sizeof to == sizeof from, "as many bits");
  __builtin_memcpy((void*)&to, (const void*)&from, sizeof to);
  return to;
}

// --- halves, which texts turn into floats ---------------------------------------------------------------

SIMT_INLINE float simt_half_to_float(ushort bits) {
  const uint sign = (bits & 0x8000u) << 16, e = bits >> 10 & 31u, fraction = bits & 1023u;
  if (e == 0u) {
    const float small = (float)fraction * 5.9604644775390625e-8f;
    return sign ? -small : small;
  }
  return as_type<float>(sign | (e == 31u ? 255u : e + 112u) << 23 | fraction << 13);
}
SIMT_INLINE ushort simt_float_to_half(float value) {
  const uint bits = as_type<uint>(value), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) return sign | 0x7e00u;
  if (size >= 0x477ff000u) return sign | 0x7c00u;
  if (size < 0x38800000u) {
    // Added to 0.5, a value has its last bit at 2^-24, to which it is rounded.
    const float sum = as_type<float>(size) + 0.5f;
    return sign | (as_type<uint>(sum) - 0x3f000000u);
  }
  const uint odd = size >> 13 & 1u;
  return sign | (size - 0x38000000u + 0xfffu + odd) >> 13;
}
struct half {
  ushort bits;
  half() = default;
  template <class T> half(T value) : bits(simt_float_to_half((float)value)) {}
  operator float() const { return simt_half_to_float(bits); }
};

// --- vectors ---------------------------------------------------------------------------------------

template <class T, int N> struct simt_vec;
template <class T> struct alignas(2 * sizeof(T)) simt_vec<T, 2> {
  T x, y;
  simt_vec() = default;
  explicit simt_vec(T s) : x(s), y(s) {}
  simt_vec(T a, T b) : x(a), y(b) {}
  template <class U> explicit simt_vec(const simt_vec<U, 2>& v) : x((T)v.x), y((T)v.y) {}
  T& operator[](int i) { return (&x)[i]; }
  const T& operator[](int i) const { return (&x)[i]; }
};
template <class T> struct alignas(4 * sizeof(T)) simt_vec<T, 3> {
  T x, y, z;
  simt_vec() = default;
  explicit simt_vec(T s) : x(s), y(s), z(s) {}
  simt_vec(T a, T b, T c) : x(a), y(b), z(c) {}
  template <class U> explicit simt_vec(const simt_vec<U, 3>& v) : x((T)v.x), y((T)v.y), z((T)v.z) {}
  T& operator[](int i) { return (&x)[i]; }
  const T& operator[](int i) const { return (&x)[i]; }
};
template <class T> struct alignas(4 * sizeof(T)) simt_vec<T, 4> {
  T x, y, z, w;
  simt_vec() = default;
  explicit simt_vec(T s) : x(s), y(s), z(s), w(s) {}
  simt_vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
  template <class U>
  explicit simt_vec(const simt_vec<U, 4>& v) : x((T)v.x), y((T)v.y), z((T)v.z), w((T)v.w) {}
  T& operator[](int i) { return (&x)[i]; }
  const T& operator[](int i) const { return (&x)[i]; }
};
#define SIMT_VECTOR_OP(op) \
  template <class T, int N> SIMT_INLINE simt_vec<T, N> operator op(simt_vec<T, N> a, simt_vec<T, N> b) { \
    for (int i = 0; i < N; i++) a[i] = a[i] op b[i]; \
    return a; \
  } \
  template <class T, int N> SIMT_INLINE simt_vec<T, N> operator op(simt_vec<T, N> a, T b) { \
    return a op simt_vec<T, N>(b); \
  } \
  template <class T, int N> SIMT_INLINE simt_vec<T, N> operator op(T a, simt_vec<T, N> b) { \
    return simt_vec<T, N>(a) op b; \
  } \
  template <class T, int N, class U> SIMT_INLINE simt_vec<T, N>& operator op##=(simt_vec<T, N>& a, U b) { \
    return a = a op b; \
  }
SIMT_VECTOR_OP(+)
SIMT_VECTOR_OP(-)
SIMT_VECTOR_OP(*)
SIMT_VECTOR_OP(/)
#define SIMT_VECTORS(T) \
  typedef simt_vec<T, 2> T##2; \
  typedef simt_vec<T, 3> T##3; \
  typedef simt_vec<T, 4> T##4;
SIMT_OF_VECTORS(SIMT_VECTORS)
typedef simt_vec<char, 4> char4;

namespace metal {

// --- functions -------------------------------------------------------------------------------------

#define SIMT_MATH_1(name) SIMT_INLINE float name(float x) { return __builtin_##name##f(x); }
SIMT_OF_ONE_NUMBER(SIMT_MATH_1)
#define SIMT_MATH_2(name) SIMT_INLINE float name(float x, float y) { return __builtin_##name##f(x, y); }
SIMT_OF_TWO_NUMBERS(SIMT_MATH_2)
SIMT_INLINE float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
template <class T> SIMT_INLINE T min(T a, T b) { return b < a ? b : a; }
template <class T> SIMT_INLINE T max(T a, T b) { return a < b ? b : a; }
SIMT_INLINE float min(float a, float b) { return __builtin_fminf(a, b); }
SIMT_INLINE float max(float a, float b) { return __builtin_fmaxf(a, b); }
SIMT_INLINE uint popcount(uint x) { return __builtin_popcount(x); }
template <class T, int N> SIMT_INLINE T dot(simt_vec<T, N> a, simt_vec<T, N> b) {
  T sum = a[0] * b[0];
  for (int i = 1; i < N; i++) sum = sum + a[i] * b[i];
  return sum;
}

// --- together with others --------------------------------------------------------------------------

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
SIMT_INLINE mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((int)a | (int)b); }
SIMT_INLINE void threadgroup_barrier(mem_flags kinds) {
  simt_group_barrier_of((unsigned)kinds >> 1 & SIMT_ORDERS_LOCAL | (unsigned)kinds << 1 & SIMT_ORDERS_BUFFERS);
}
SIMT_INLINE void simdgroup_barrier(mem_flags) { simt_warp_barrier(~0u); }

// All items of a simdgroup come to these, or none.
template <class T> SIMT_INLINE T simd_shuffle_xor(T mine, ushort other) {
  T theirs;
  simt_exchange(~0u, &mine, &theirs, simt_lane ^ other, sizeof mine);
  return theirs;
}
// A simdgroup may have fewer items, where a group ends.
#define SIMT_REDUCTION(name, become) \
  template <class T> __attribute__((no_sanitize_address)) static T name(T mine) { \
    T all[SIMT_WARP]; \
    const uint here = simt_gather(&mine, all, sizeof mine); \
    mine = all[0]; \
    for (uint lane = 1; lane < SIMT_WARP; lane++) { \
      const T theirs = all[lane]; \
      if (here >> lane & 1u) mine = become; \
    } \
    return mine; \
  }
SIMT_REDUCTION(simd_sum, mine + theirs)
SIMT_REDUCTION(simd_max, max(mine, theirs))
SIMT_INLINE bool simd_any(bool yes) { return simt_ballot(~0u, yes) != 0u; }

// Items run one at a time, so this needs no more.
enum memory_order { memory_order_relaxed };
template <class T> struct atomic {
  T value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
template <class T> SIMT_INLINE T atomic_fetch_add_explicit(atomic<T>* p, T given, memory_order) {
  const simt_one_step step;
  const T old = p->value;
  p->value = old + given;
  return old;
}

// --- matrices of a simdgroup -------------------------------------------------------------------------

// Item i has two elements of a matrix of 8 * 8: of row i / 4, from column 2 * (i % 4) on. Which elements
// an item has on a GPU is not specified, so kernels cannot reach them.
template <class T, int Columns, int Rows> struct simdgroup_matrix {
  static_assert(Columns == 8 && Rows == 8, "simdgroup matrices have 8 * 8 elements");
  T own_[2];
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T diagonal) {
    for (int i = 0; i < 2; i++) own_[i] = simt_lane / 4 == simt_lane % 4 * 2 + i ? diagonal : T(0.0f);
  }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
template <class T, int Columns, int Rows>
SIMT_INLINE simdgroup_matrix<T, Columns, Rows> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, Columns, Rows> made;
  made.own_[0] = made.own_[1] = value;
  return made;
}
// All items of the simdgroup name the same place.
SIMT_INLINE void simt_same(const void* p, ulong stride) {
  struct {
    const void* p;
    ulong stride;
  } mine = {p, stride}, first;
  simt_exchange(~0u, &mine, &first, 0, sizeof mine);
  if (first.p != p || first.stride != stride) simt_fail("items of a simdgroup name different places of a matrix");
}
template <class T> SIMT_INLINE T* simt_element(T* p, ulong stride, ulong2 from, bool transposed, int i) {
  const ulong row = simt_lane / 4, column = simt_lane % 4 * 2 + i;
  return transposed ? p + (from.y + column) * stride + from.x + row : p + (from.y + row) * stride + from.x + column;
}
template <class T>
SIMT_INLINE void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, const T* p, ulong stride = 8, ulong2 from = ulong2(0, 0),
                                bool transposed = false) {
  simt_same(p, stride);
  for (int i = 0; i < 2; i++) m.own_[i] = *simt_element(p, stride, from, transposed, i);
}
template <class T>
SIMT_INLINE void simdgroup_store(simdgroup_matrix<T, 8, 8> m, T* p, ulong stride = 8, ulong2 from = ulong2(0, 0),
                                 bool transposed = false) {
  simt_same(p, stride);
  for (int i = 0; i < 2; i++) *simt_element(p, stride, from, transposed, i) = m.own_[i];
}
// d = a * b + c
template <class D, class A, class B>
__attribute__((no_sanitize_address)) static void simdgroup_multiply_accumulate(
    simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<D, 8, 8> c) {
  const float mine[4] = {(float)a.own_[0], (float)a.own_[1], (float)b.own_[0], (float)b.own_[1]};
  float all[SIMT_WARP][4];
  simt_gather(mine, all, sizeof mine);
  const uint row = simt_lane / 4;
  for (uint i = 0; i < 2; i++) {
    const uint column = simt_lane % 4 * 2 + i;
    float sum = (float)c.own_[i];
    for (uint k = 0; k < 8; k++) sum += all[row * 4 + k / 2][k % 2] * all[k * 4 + column / 2][2 + column % 2];
    d.own_[i] = (D)sum;
  }
}
template <class T>
SIMT_INLINE void simdgroup_multiply(simdgroup_matrix<T, 8, 8>& d, simdgroup_matrix<T, 8, 8> a, simdgroup_matrix<T, 8, 8> b) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<T, 8, 8>(T(0.0f)));
}

}  // namespace metal

// --- what a kernel is told ---------------------------------------------------------------------------

struct simt_place {
  uint x, y, z;
  operator uint() const { return x; }
  operator ushort() const { return x; }
  operator uint2() const { return uint2(x, y); }
  operator uint3() const { return uint3(x, y, z); }
};
SIMT_INLINE simt_place simt_of(simt_size s) { return {s.x, s.y, s.z}; }
SIMT_INLINE uint simt_index() { return (simt_item.z * simt_local_size.y + simt_item.y) * simt_local_size.x + simt_item.x; }
SIMT_INLINE simt_place simt_threadgroup_position_in_grid() { return simt_of(simt_group); }
SIMT_INLINE simt_place simt_thread_position_in_threadgroup() { return simt_of(simt_item); }
SIMT_INLINE simt_place simt_threads_per_threadgroup() { return simt_of(simt_local_size); }
SIMT_INLINE simt_place simt_thread_position_in_grid() {
  return {simt_group.x * simt_local_size.x + simt_item.x, simt_group.y * simt_local_size.y + simt_item.y,
          simt_group.z * simt_local_size.z + simt_item.z};
}
SIMT_INLINE simt_place simt_thread_index_in_threadgroup() { return {simt_index(), 0, 0}; }
SIMT_INLINE simt_place simt_thread_index_in_simdgroup() { return {simt_lane, 0, 0}; }
SIMT_INLINE simt_place simt_simdgroup_index_in_threadgroup() { return {simt_index() / SIMT_WARP, 0, 0}; }

// A buffer is an address. The array of addresses does not belong to the kernel, so it is not checked.
template <class T> __attribute__((no_sanitize_address)) T* simt_buffer(void** p, int place) { return *(T**)p[place]; }
