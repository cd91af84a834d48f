/* Devices for ggml's scheduler that compute nothing, each with memory of its own: the peers of the
 * fake devices of planning.py. They need ggml-backend-impl.h, which ggml installs nowhere. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ggml-backend-impl.h"

#define MOST 8

static struct ggml_backend streams[MOST];
static struct ggml_backend_device devices[MOST];
static struct ggml_backend_buffer_type memories[MOST];
static uint8_t mark[16] = {7};

static int number_of(ggml_backend_dev_t device) { return (int)(device - devices); }

/* --- memory ---------------------------------------------------------------------------------- */

static const char *memory_name(ggml_backend_buffer_type_t memory) { (void)memory; return "fake"; }
static size_t alignment(ggml_backend_buffer_type_t memory) { (void)memory; return 64; }
static void give_back(ggml_backend_buffer_t buffer) { free(buffer->context); }
static void *base(ggml_backend_buffer_t buffer) { return buffer->context; }

static void clear(ggml_backend_buffer_t buffer, uint8_t value) {
    memset(buffer->context, value, buffer->size);
}

static ggml_backend_buffer_t allocate(ggml_backend_buffer_type_t memory, size_t size) {
    struct ggml_backend_buffer_i calls = {0};
    calls.free_buffer = give_back;
    calls.get_base = base;
    calls.clear = clear;
    return ggml_backend_buffer_init(memory, calls, aligned_alloc(64, (size + 64) / 64 * 64), size);
}

/* --- devices --------------------------------------------------------------------------------- */

static const char *device_name(ggml_backend_dev_t device) { (void)device; return "fake"; }
static const char *stream_name(ggml_backend_t stream) { (void)stream; return "fake"; }
static void close_stream(ggml_backend_t stream) { (void)stream; }

static enum ggml_backend_dev_type kind(ggml_backend_dev_t device) {
    (void)device;
    return GGML_BACKEND_DEVICE_TYPE_GPU;
}

static ggml_backend_buffer_type_t memory_of(ggml_backend_dev_t device) {
    return &memories[number_of(device)];
}

static bool does(ggml_backend_dev_t device, const struct ggml_tensor *node) {
    (void)device, (void)node;
    return true;
}

static bool reads(ggml_backend_dev_t device, ggml_backend_buffer_type_t memory) {
    return memory == memory_of(device);
}

static enum ggml_status compute(ggml_backend_t stream, struct ggml_cgraph *graph) {
    (void)stream, (void)graph;
    return GGML_STATUS_SUCCESS;
}

/* A stream of fake device `i`, 0 to 7; the same one each time. */
ggml_backend_t fake_stream(int i) {
    memories[i].iface.get_name = memory_name;
    memories[i].iface.alloc_buffer = allocate;
    memories[i].iface.get_alignment = alignment;
    memories[i].device = &devices[i];
    devices[i].iface.get_name = device_name;
    devices[i].iface.get_description = device_name;
    devices[i].iface.get_type = kind;
    devices[i].iface.get_buffer_type = memory_of;
    devices[i].iface.supports_op = does;
    devices[i].iface.supports_buft = reads;
    streams[i].guid = &mark;
    streams[i].iface.get_name = stream_name;
    streams[i].iface.free = close_stream;
    streams[i].iface.graph_compute = compute;
    streams[i].device = &devices[i];
    return &streams[i];
}
