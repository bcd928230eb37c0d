/* The functions of libcuda that describe GPUs. FAKE_CUDA_FAILS names one that returns an error. */
#include <stdlib.h>
#include <string.h>

static int code(const char *name) {
  const char *fails = getenv("FAKE_CUDA_FAILS");
  return fails && !strcmp(fails, name) ? 999 : 0;
}
int cuInit(unsigned flags) { return code(__func__); }
int cuDriverGetVersion(int *version) { *version = 13000; return code(__func__); }
int cuDeviceGetCount(int *count) { *count = 1; return code(__func__); }
int cuDeviceGet(int *device, int index) { *device = index; return code(__func__); }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, "A fake", size); return code(__func__); }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)1 << 35; return code(__func__); }
int cuDeviceGetAttribute(int *value, int which, int device) { *value = which == 75 ? 9 : 0; return code(__func__); }
int cuGetErrorString(int code, const char **text) { *text = "refused"; return 0; }
