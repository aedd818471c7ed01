#pragma once
// The time in a trace: by class of kernels or ranges, exposed communication, idle time.
//
// On a GPU computation is the time of kernels other than NCCL's, communication the time of NCCL's kernels and of copies
// between GPUs (gathers from peer memory), copies the time of other copies; idle is the time in which nothing runs,
// from the first kernel to the last. On a CPU computation is the time inside LibTorch's operations, communication the
// time inside collectives and waits for them. Communication is exposed while no computation runs.

#include "trireme/formats/kineto/trace.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// The class of a kernel or copy, from its name: "attention", "products", "NCCL", … "others".
const char* kernel_class(std::string_view name);

struct Interval {
  double begin = 0, end = 0;  // microseconds
};
/// Sorted, without overlaps.
using Intervals = std::vector<Interval>;
Intervals merged(Intervals intervals);
double total(const Intervals& intervals);
/// The intersection of `a` and `b`, both merged.
Intervals intersection(const Intervals& a, const Intervals& b);

struct TimeParts {  // microseconds
  double window = 0, computation = 0, communication = 0, exposed_communication = 0, copies = 0, idle = 0;
};
struct ClassTime {
  std::string name;
  double us = 0;
  int64_t calls = 0;
  std::string largest;  // the kernel with the most time
  double largest_us = 0;
};
struct TraceSummary {
  std::filesystem::path file;
  int rank = 0, world_size = 1;
  int cycle = 0;  // of the profiler, from 1, from the file's name; 0: unknown
  std::string backend;
  bool gpu = false;
  Interval window;
  TimeParts all;
  struct Step {
    std::string name;  // "ProfilerStep#5"
    Interval window;
    TimeParts parts;
  };
  std::vector<Step> steps;
  std::vector<ClassTime> classes;  // the largest first
  Intervals computation, communication, copies;
  struct Phase {
    std::string name;  // "forward"
    Interval window;
  };
  std::vector<Phase> phases;  // of the host's main thread, inside steps
  struct MemoryPoint {
    double at = 0;
    int64_t allocated = 0;
  };
  std::vector<MemoryPoint> memory;  // of the GPU, or of the CPU if no GPU allocates
};

TraceSummary summarise(const Trace& trace);

/// "rank 0", or "rank 0, cycle 2" if the file's name has the cycle.
std::string trace_label(const TraceSummary& summary);

/// Lines of text: the time by class of one trace.
std::string summary_table(const TraceSummary& summary);
/// One line for each trace: computation, communication, exposed communication, copies, idle.
std::string ranks_table(const std::vector<TraceSummary>& summaries);
/// One HTML page that needs no network, in light and dark colours.
std::string summary_page(const std::string& title, const std::vector<TraceSummary>& summaries);

/// Allocations by range: number, bytes, bytes not freed, and the peak during the range.
std::string memory_table(const Trace& trace);
/// A line for each allocation and free: microseconds from the first, device, bytes, allocated, reserved, range.
std::string memory_timeline(const Trace& trace);

}  // namespace trireme
