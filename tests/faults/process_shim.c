// Preloaded by the fault tests: a wall clock that is set while the process runs, and memory that runs out.
//   SHIM_CLOCK_SECONDS shift of the wall clock (negative: backwards) from when the file SHIM_CLOCK_FILE is there; the
// steady clock does not change
//   SHIM_MEMORY_NTH the nth aligned allocation of at least SHIM_MEMORY_LEAST bytes (default 4096) fails, and the
// SHIM_MEMORY_TIMES - 1 after it
//   SHIM_RANK           only in this rank of mpirun's
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

void* __libc_memalign(size_t alignment, size_t size);

static int here, clock_moved;
static const char* clock_file;
static long clock_seconds, memory_nth, memory_times, memory_least, allocations;

static long number(const char* name, long otherwise) {
  const char* text = getenv(name);
  return text != NULL && *text != 0 ? atol(text) : otherwise;
}

__attribute__((constructor)) static void read_environment(void) {
  const char* rank = getenv("OMPI_COMM_WORLD_RANK");
  const char* only = getenv("SHIM_RANK");
  here = only == NULL || (rank != NULL && strcmp(only, rank) == 0);
  clock_seconds = number("SHIM_CLOCK_SECONDS", 0);
  clock_file = getenv("SHIM_CLOCK_FILE");
  memory_nth = number("SHIM_MEMORY_NTH", 0);
  memory_times = number("SHIM_MEMORY_TIMES", 1);
  memory_least = number("SHIM_MEMORY_LEAST", 4096);
}

static long moved(void) {
  if (!here || clock_seconds == 0 || clock_file == NULL) return 0;
  if (!clock_moved) {
    const int before = errno;
    clock_moved = syscall(SYS_faccessat, AT_FDCWD, clock_file, F_OK) == 0;
    errno = before;
  }
  return clock_moved ? clock_seconds : 0;
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  const int result = (int)syscall(SYS_clock_gettime, clock, now);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += moved();
  return result;
}

time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != NULL) *out = now.tv_sec;
  return now.tv_sec;
}

int gettimeofday(struct timeval* restrict now, void* restrict zone) {
  struct timespec precise;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &precise);
  now->tv_sec = precise.tv_sec;
  now->tv_usec = precise.tv_nsec / 1000;
  return 0;
}

int posix_memalign(void** out, size_t alignment, size_t size) {
  if (here && memory_nth > 0 && (long)size >= memory_least) {
    const long n = __atomic_add_fetch(&allocations, 1, __ATOMIC_SEQ_CST);
    if (n >= memory_nth && n < memory_nth + memory_times) return ENOMEM;
  }
  void* memory = __libc_memalign(alignment, size);
  if (memory == NULL) return ENOMEM;
  *out = memory;
  return 0;
}
