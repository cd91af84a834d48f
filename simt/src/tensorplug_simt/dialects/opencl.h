// OpenCL C 1.2. Halves are only loaded and stored, which every device can do.
#define DEVICE static inline
#define GLOBAL __global
#define LOCAL __local
#define TABLE __constant
#define GROUP_X ((int)get_group_id(0))
#define GROUP_Y ((int)get_group_id(1))
#define GROUP_Z ((int)get_group_id(2))
#define ITEM_X ((int)get_local_id(0))
#define ITEM_Y ((int)get_local_id(1))
#define LOCAL_BARRIER barrier(CLK_LOCAL_MEM_FENCE)
#define FLOAT_BITS(x) as_uint(x)
#define BITS_FLOAT(x) as_float(x)
#define SIGNED_BYTE(x) ((int)(char)(x))

DEVICE float load_f16(GLOBAL const uchar* p) { return vload_half(0, (GLOBAL const half*)p); }
DEVICE void store_f16(GLOBAL uchar* p, float x) { vstore_half_rte(x, 0, (GLOBAL half*)p); }
DEVICE int atomic_next(GLOBAL int* p) { return atomic_inc(p); }
#define LOCAL_X ((int)get_local_size(0))
#define FLAT_INDEX ((uint)get_global_id(0))
