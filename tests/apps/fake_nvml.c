/* NVML with two GPUs, for `trireme doctor` on machines without any. FAKE_NVML: "poor" has a lowered power limit, ECC
   and persistence off, no peer access; "broken" does not start. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  unsigned long long total, free, used;
} Memory;

static int is(const char* word) {
  const char* mode = getenv("FAKE_NVML");
  return mode != NULL && strcmp(mode, word) == 0;
}
static int put(char* text, unsigned size, const char* value) {
  return snprintf(text, size, "%s", value) < (int)size ? 0 : 7;
}

int nvmlInit_v2(void) { return is("broken") ? 9 : 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned size) { return put(text, size, "580.95.05"); }
int nvmlSystemGetCudaDriverVersion_v2(int* version) { return *version = 13000, 0; }
int nvmlDeviceGetCount_v2(unsigned* count) { return *count = 2, 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) { return *device = (void*)(size_t)(index + 1), 0; }
int nvmlDeviceGetName(void* device, char* text, unsigned size) { return (void)device, put(text, size, "NVIDIA H200"); }
int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  (void)device;
  memory->total = 143771ULL << 20;
  memory->used = is("poor") ? 9ULL << 30 : 1ULL << 29;
  memory->free = memory->total - memory->used;
  return 0;
}
int nvmlDeviceGetMaxClockInfo(void* device, int kind, unsigned* clock) {
  return (void)device, *clock = kind == 1 ? 1980 : 0, 0;
}
int nvmlDeviceGetClockInfo(void* device, int kind, unsigned* clock) {
  return (void)device, (void)kind, *clock = 345, 0;
}
int nvmlDeviceGetPowerManagementLimit(void* device, unsigned* limit) {
  return (void)device, *limit = is("poor") ? 500000 : 700000, 0;
}
int nvmlDeviceGetPowerManagementDefaultLimit(void* device, unsigned* limit) { return (void)device, *limit = 700000, 0; }
int nvmlDeviceGetCudaComputeCapability(void* device, int* major, int* minor) {
  return (void)device, *major = 9, *minor = 0, 0;
}
int nvmlDeviceGetEccMode(void* device, int* now, int* next) { return (void)device, *now = *next = !is("poor"), 0; }
int nvmlDeviceGetPersistenceMode(void* device, int* on) { return (void)device, *on = !is("poor"), 0; }
int nvmlDeviceGetP2PStatus(void* a, void* b, int kind, int* status) {
  return (void)a, (void)b, (void)kind, *status = is("poor"), 0;
}
