// Traces of LibTorch's profiler, plain and packed, and everything that a summary makes of them.
#include "fuzz_target.h"
#include "trireme/formats/kineto/trace_summary.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  const fuzz::MemoryFile memory(fuzz::as_text(data, size));
  fuzz::expect_only({ExitCode::kData}, [&] {
    const Trace trace = read_trace(memory.path());
    const TraceSummary summary = summarise(trace);
    fuzz::require(summary.all.exposed_communication <= summary.all.communication + 1e-3,
                  "no more exposed communication than communication");
    fuzz::require(summary_page("fuzz", {summary}).size() < (size_t{1} << 22) + 64 * size, "a page of bounded size");
    (void)summary_table(summary);
    (void)ranks_table({summary});
    (void)memory_table(trace);
    (void)memory_timeline(trace);
  });
  return 0;
}
