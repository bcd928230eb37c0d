/* The functions of libcuda that isorun calls, in host memory, with checks of contexts and flags. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *const CONTEXT = (void *)0x7fff0000dead0010;
static char STREAMS[64];  /* a stream is a place in it */
static int streams;
static _Thread_local int depth;
#define NEEDS_CONTEXT if (!depth) return 201
static int is_stream(const char *stream) { return stream >= STREAMS && stream < STREAMS + streams; }

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return index ? 101 : 0; }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, "A stand-in", size); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)1 << 35; return 0; }
int cuDeviceGetAttribute(int *value, int which, int device) { *value = which == 75 ? 9 : 0; return 0; }
int cuGetErrorString(int code, const char **text) { *text = "refused"; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = CONTEXT; return 0; }
int cuCtxPushCurrent_v2(void *context) { depth++; return context == CONTEXT ? 0 : 201; }
int cuCtxPopCurrent_v2(void **context) { depth--; *context = CONTEXT; return 0; }
int cuStreamCreate(void **stream, unsigned flags) { NEEDS_CONTEXT; *stream = STREAMS + streams++ % 64; return flags == 1 ? 0 : 1; }
int cuStreamDestroy_v2(void *stream) { NEEDS_CONTEXT; fputs("destroyed\n", stderr); return is_stream(stream) ? 0 : 400; }
int cuStreamSynchronize(void *stream) { NEEDS_CONTEXT; return is_stream(stream) || stream == (void *)1 ? 0 : 400; }
int cuEventCreate(void **event, unsigned flags) { NEEDS_CONTEXT; *event = calloc(1, 8); return flags; }
int cuEventRecord(char *event, void *stream) { NEEDS_CONTEXT; *event = 1; return is_stream(stream) ? 0 : 400; }
int cuEventSynchronize(char *event) { NEEDS_CONTEXT; return *event ? 0 : 400; }
int cuEventElapsedTime(float *ms, char *start, char *end) { *ms = 1.5f; return *start && *end && start != end ? 0 : 400; }
int cuEventDestroy_v2(void *event) { free(event); return 0; }
int cuMemHostAlloc(void **memory, size_t bytes, unsigned flags) { NEEDS_CONTEXT; *memory = malloc(bytes); return flags > 1; }
int cuMemAlloc_v2(unsigned long long *memory, size_t bytes) { NEEDS_CONTEXT; *memory = (size_t)aligned_alloc(256, (bytes + 255) / 256 * 256); return 0; }
int cuMemFree_v2(unsigned long long memory) { NEEDS_CONTEXT; free((void *)memory); return 0; }
int cuMemFreeHost(void *memory) { NEEDS_CONTEXT; free(memory); return 0; }
int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t bytes, void *stream) { NEEDS_CONTEXT; memcpy(to, (void *)from, bytes); return is_stream(stream) ? 0 : 400; }
int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t bytes, void *stream) { NEEDS_CONTEXT; memcpy((void *)to, (void *)from, bytes); return is_stream(stream) ? 0 : 400; }
int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t bytes) { NEEDS_CONTEXT; memcpy(to, (void *)from, bytes); return 0; }
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t bytes, void *stream) { NEEDS_CONTEXT; memcpy((void *)to, from, bytes); return is_stream(stream) ? 0 : 400; }
