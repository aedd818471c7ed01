// Preloaded by the fault tests: the nth call below a directory named "checkpoints" fails.
//   SHIM_CALL  pwrite | fsync | fdatasync (of any file) | rename | list (open of that directory) | readdir | open (of a file) |
//              metrics (open of metrics.jsonl, anywhere)
//                SHIM_NTH  first call that fails (from 1)      SHIM_TIMES  how many fail (default 1)
//   SHIM_MODE  ENOSPC | EIO | EROFS | ESTALE | EACCES | short (pwrite only: every call writes at most 1,000 bytes)
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int calls;

static int below_checkpoints(int fd) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0) return 0;
  path[length] = 0;
  return strstr(path, "/checkpoints") != NULL;
}

static int goes_wrong(const char* call) {
  const char* which = getenv("SHIM_CALL");
  const char* mode = getenv("SHIM_MODE");
  if (which == NULL || mode == NULL || strcmp(which, call) != 0) return 0;
  int n = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST), first = getenv("SHIM_NTH") ? atoi(getenv("SHIM_NTH")) : 1;
  int times = getenv("SHIM_TIMES") ? atoi(getenv("SHIM_TIMES")) : 1;
  if (n < first || n >= first + times) return 0;
  errno = strcmp(mode, "ENOSPC") == 0 ? ENOSPC : strcmp(mode, "EROFS") == 0 ? EROFS : strcmp(mode, "ESTALE") == 0 ? ESTALE : strcmp(mode, "EACCES") == 0 ? EACCES : EIO;
  return 1;
}

ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  static ssize_t (*real)(int, const void*, size_t, off_t);
  if (!real) real = (ssize_t(*)(int, const void*, size_t, off_t))dlsym(RTLD_NEXT, "pwrite");
  if (below_checkpoints(fd)) {
    const char* mode = getenv("SHIM_MODE");
    if (mode && strcmp(mode, "short") == 0) return real(fd, data, size > 1000 ? 1000 : size, offset);
    if (goes_wrong("pwrite")) return -1;
  }
  return real(fd, data, size, offset);
}

ssize_t pwrite64(int fd, const void* data, size_t size, off_t offset) { return pwrite(fd, data, size, offset); }

int fsync(int fd) {
  static int (*real)(int);
  if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
  if (below_checkpoints(fd) && goes_wrong("fsync")) return -1;
  return real(fd);
}

int fdatasync(int fd) {
  static int (*real)(int);
  if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
  return goes_wrong("fdatasync") ? -1 : real(fd);
}

int rename(const char* from, const char* to) {
  static int (*real)(const char*, const char*);
  if (!real) real = (int (*)(const char*, const char*))dlsym(RTLD_NEXT, "rename");
  if (strstr(to, "/checkpoints/") != NULL && goes_wrong("rename")) return -1;
  return real(from, to);
}

static int open_goes_wrong(const char* path, int flags) {
  const char* below = strstr(path, "/checkpoints");
  if (strstr(path, "/metrics.jsonl") != NULL && (flags & O_ACCMODE) == O_RDONLY) return goes_wrong("metrics");
  if (below == NULL || (flags & O_ACCMODE) != O_RDONLY) return 0;
  if (flags & O_DIRECTORY) return strcmp(below, "/checkpoints") == 0 && goes_wrong("list");
  return goes_wrong("open");
}

int open(const char* path, int flags, ...) {
  static int (*real)(const char*, int, ...);
  if (!real) real = (int (*)(const char*, int, ...))dlsym(RTLD_NEXT, "open");
  va_list more;
  va_start(more, flags);
  mode_t mode = va_arg(more, mode_t);
  va_end(more);
  return open_goes_wrong(path, flags) ? -1 : real(path, flags, mode);
}

int openat(int directory, const char* path, int flags, ...) {
  static int (*real)(int, const char*, int, ...);
  if (!real) real = (int (*)(int, const char*, int, ...))dlsym(RTLD_NEXT, "openat");
  va_list more;
  va_start(more, flags);
  mode_t mode = va_arg(more, mode_t);
  va_end(more);
  return open_goes_wrong(path, flags) ? -1 : real(directory, path, flags, mode);
}

DIR* opendir(const char* path) {
  static DIR* (*real)(const char*);
  if (!real) real = (DIR * (*)(const char*)) dlsym(RTLD_NEXT, "opendir");
  return open_goes_wrong(path, O_DIRECTORY) ? NULL : real(path);
}

struct dirent* readdir(DIR* directory) {
  static struct dirent* (*real)(DIR*);
  if (!real) real = (struct dirent * (*)(DIR*)) dlsym(RTLD_NEXT, "readdir");
  return below_checkpoints(dirfd(directory)) && goes_wrong("readdir") ? NULL : real(directory);
}
