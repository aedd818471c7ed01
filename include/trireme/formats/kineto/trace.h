#pragma once
// Traces of LibTorch's profiler (Kineto): a JSON object in the format of Chrome's tracing, plain or packed with gzip.
// Only events that a summary needs are kept.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme {

struct Trace {
  enum class Kind : uint8_t {
    kKernel,     // on a GPU
    kCopy,       // on a GPU: copies and fills
    kGpuRange,   // on a GPU: from the first to the last kernel that was launched inside a range
    kOperation,  // on the host: LibTorch's operations and collectives
    kRange,      // on the host: ProfileRange
  };
  struct Event {
    uint32_t name = 0;  // index into `names`
    Kind kind = Kind::kOperation;
    uint32_t thread = 0;        // number of the host thread or GPU stream, from 0 in order of appearance
    double begin = 0, end = 0;  // microseconds
  };
  struct Allocation {
    double at = 0;  // microseconds
    uint32_t thread = 0;
    bool gpu = false;
    int64_t bytes = 0;                    // < 0: freed
    int64_t allocated = 0, reserved = 0;  // by the process after this event
  };
  std::filesystem::path file;
  int rank = 0, world_size = 1;
  std::string backend;  // empty: not known
  std::vector<std::string> names;
  std::vector<Event> events;
  std::vector<Allocation> allocations;  // profile.memory
};

/// DataError naming the file and, for a problem inside it, the offset in the unpacked text.
Trace read_trace(const std::filesystem::path& file);

}  // namespace trireme
