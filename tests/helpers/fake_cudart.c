/* The functions of CUDA's runtime that ONNX Runtime's CUDA provider (CUDA 13) calls and that must do more than return 0:
 * memory is host memory; kernels and graphs are logged to the file FAKE_CUDA_LOG and not run. fake_cuda.py makes the
 * rest. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned x, y, z; } Dim3;
static struct { const void *function; const char *name; } *kernels;
static size_t count, room;
static int capturing;

static void note(const char *what, const char *detail, const void *stream) {
  static FILE *log;
  if (!log) { log = fopen(getenv("FAKE_CUDA_LOG"), "a"); setvbuf(log, NULL, _IOLBF, 0); }
  fprintf(log, "%s\t%s\t%p\t%s\n", what, detail, stream, capturing ? "captured" : "");
}

void **__cudaRegisterFatBinary(void *binary) { static void *handle[4]; return handle; }
void __cudaRegisterFunction(void **h, const char *host, char *d, const char *name, int t, void *a, void *b, void *c, void *e, int *w) {
  if (count == room) { room = room ? 2 * room : 65536; kernels = realloc(kernels, room * sizeof *kernels); }
  kernels[count].function = host;
  kernels[count++].name = name;
}
static __thread struct { Dim3 grid, block; size_t shared; void *stream; } next;
unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared, void *stream) {
  next.grid = grid; next.block = block; next.shared = shared; next.stream = stream;
  return 0;
}
int __cudaPopCallConfiguration(Dim3 *grid, Dim3 *block, size_t *shared, void **stream) {
  *grid = next.grid; *block = next.block; *shared = next.shared; *stream = next.stream;
  return 0;
}
int __cudaGetKernel(const void **kernel, const void *function) { *kernel = function; return 0; }
int cudaLaunchKernel(const void *function, Dim3 grid, Dim3 block, void **arguments, size_t shared, void *stream) {
  const char *name = "?";
  for (size_t i = 0; i < count; i++) if (kernels[i].function == function) { name = kernels[i].name; break; }
  note("kernel", name, stream);
  return 0;
}
int __cudaLaunchKernel(const void *f, Dim3 g, Dim3 b, void **a, size_t s, void *t) { return cudaLaunchKernel(f, g, b, a, s, t); }
int cudaLaunchCooperativeKernel(const void *f, Dim3 g, Dim3 b, void **a, size_t s, void *t) { return cudaLaunchKernel(f, g, b, a, s, t); }
int cudaLaunchKernelExC(const char *config, const void *f, void **a) { /* cudaLaunchConfig_t: its stream is at 32 */
  Dim3 one = {1, 1, 1};
  return cudaLaunchKernel(f, one, one, a, 0, *(void **)(config + 32));
}

static int attribute(int which) { /* cudaDeviceAttr, of an H100 but for the compute capability */
  int compute = atoi(getenv("FAKE_CUDA_COMPUTE"));
  switch (which) {
    case 1: return 1024;
    case 8: return 49152;
    case 10: return 32;
    case 12: return 65536;
    case 16: return 132;
    case 39: return 2048;
    case 75: return compute / 10;
    case 76: return compute % 10;
    case 81: return 233472;
    case 97: return 232448;
    default: return 1;
  }
}
int cudaDeviceGetAttribute(int *value, int which, int device) { *value = attribute(which); return 0; }
int cudaGetDeviceProperties(char *to, int device) { /* cudaDeviceProp of CUDA 13, by the places of its members */
  memset(to, 0, 1008);
  strcpy(to, "A stand-in");
  *(size_t *)(to + 288) = (size_t)80 << 30;
  *(size_t *)(to + 296) = 49152;
  *(int *)(to + 304) = 65536;
  *(int *)(to + 308) = 32;
  *(int *)(to + 320) = *(int *)(to + 324) = *(int *)(to + 328) = 1024;
  *(int *)(to + 332) = 64;
  *(int *)(to + 336) = 2147483647;
  *(int *)(to + 340) = *(int *)(to + 344) = 65535;
  *(int *)(to + 360) = attribute(75);
  *(int *)(to + 364) = attribute(76);
  *(int *)(to + 384) = 132;
  *(int *)(to + 596) = 50 << 20;
  *(int *)(to + 604) = 2048;
  *(size_t *)(to + 624) = 233472;
  *(int *)(to + 632) = 65536;
  *(size_t *)(to + 672) = 232448;
  return 0;
}
int cudaFuncGetAttributes(char *to, const void *function) { /* cudaFuncAttributes */
  memset(to, 0, 144);
  *(int *)(to + 24) = 1024;
  *(int *)(to + 32) = *(int *)(to + 36) = attribute(75) * 10 + attribute(76);
  *(int *)(to + 44) = 49152;
  return 0;
}
int cudaPointerGetAttributes(int *to, const void *pointer) { memset(to, 0, 88); to[0] = 2; return 0; }
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int b, size_t s, unsigned g) { *n = 2; return 0; }
int cudaGetDeviceCount(int *n) { *n = 1; return 0; }
int cudaGetDevice(int *n) { *n = 0; return 0; }
int cudaDriverGetVersion(int *n) { *n = 13000; return 0; }
int cudaRuntimeGetVersion(int *n) { *n = 13000; return 0; }
int cudaMemGetInfo(size_t *left, size_t *all) { *left = (size_t)79 << 30; *all = (size_t)80 << 30; return 0; }
int cudaGetDriverEntryPointByVersion(const char *name, void **f, unsigned v, unsigned long long g, int *found) { *f = 0; return 1; }
const char *cudaGetErrorName(int code) { return "a stand-in's"; }
const char *cudaGetErrorString(int code) { return "a stand-in's"; }

int cudaMalloc(void **to, size_t bytes) { *to = calloc(1, bytes + 512); return 0; }
int cudaMallocHost(void **to, size_t bytes) { *to = calloc(1, bytes + 512); return 0; }
int cudaHostAlloc(void **to, size_t bytes, unsigned flags) { return cudaMallocHost(to, bytes); }
int cudaMallocFromPoolAsync(void **to, size_t bytes, void *pool, void *stream) { return cudaMalloc(to, bytes); }
int cudaFree(void *p) { free(p); return 0; }
int cudaFreeAsync(void *p, void *stream) { free(p); return 0; }
int cudaFreeHost(void *p) { free(p); return 0; }
int cudaMemset(void *p, int value, size_t bytes) { memset(p, value, bytes); return 0; }
int cudaMemsetAsync(void *p, int value, size_t bytes, void *stream) { memset(p, value, bytes); return 0; }
static const char *const WAYS[] = {"HtoH", "HtoD", "DtoH", "DtoD", "any"};
int cudaMemcpy(void *to, const void *from, size_t bytes, int way) {
  note("copy", WAYS[way], NULL);
  memcpy(to, from, bytes);
  return 0;
}
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int way, void *stream) {
  note("copy", WAYS[way], stream);
  memcpy(to, from, bytes);
  return 0;
}

int cudaEventCreateWithFlags(void **event, unsigned flags) { *event = malloc(8); return 0; }
int cudaEventCreate(void **event) { return cudaEventCreateWithFlags(event, 0); }
int cudaEventDestroy(void *event) { free(event); return 0; }
int cudaStreamCreateWithFlags(void **stream, unsigned flags) { static intptr_t last = 0x1000; *stream = (void *)(last += 16); return 0; }
int cudaStreamCreate(void **stream) { return cudaStreamCreateWithFlags(stream, 0); }
int cudaStreamSynchronize(void *stream) { note("wait", "stream", stream); return 0; }
int cudaDeviceSynchronize(void) { note("wait", "device", NULL); return 0; }
int cudaStreamIsCapturing(void *stream, int *status) { *status = capturing; return 0; }
int cudaStreamBeginCapture(void *stream, int mode) { capturing = 1; return 0; }
int cudaStreamEndCapture(void *stream, void **graph) { capturing = 0; *graph = (void *)1; note("graph", "recorded", stream); return 0; }
int cudaGraphInstantiate(void **made, void *graph, unsigned long long flags) { *made = (void *)1; return 0; }
int cudaGraphLaunch(void *made, void *stream) { note("graph", "started", stream); return 0; }
int cudaLaunchHostFunc(void *stream, void (*work)(void *), void *data) { work(data); return 0; }
int cudaMemPoolCreate(void **pool, void *how) { *pool = (void *)1; return 0; }
int cudaMemPoolGetAttribute(void *pool, int which, uint64_t *value) { *value = 0; return 0; }
int cudaLibraryLoadData(void **made, const void *code, void *a, void *b, unsigned c, void *d, void *e, unsigned f) { *made = (void *)1; return 0; }
int cudaLibraryGetKernel(const void **kernel, void *library, const char *name) { *kernel = name; return 0; }
