// The allocator's snapshot as Python and its viewer read it, and the ranges that are its frames.
#include "memory_snapshot.h"

#include "../base/base_testing.h"
#include "range_recorder.h"

#include <gtest/gtest.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme {
namespace {

#ifdef TRIREME_WITH_CUDA
TEST(MemorySnapshot, PythonReadsTheFileWithoutTorch) {
  const TemporaryDirectory folder;
  const std::filesystem::path file = folder.path("profile/rank0.pickle");
  write_memory_snapshot(file);
  const std::string read =
      "import pickle, sys; s = pickle.load(open(sys.argv[1], 'rb')); assert s['segments'] == [] and "
      "s['device_traces'] == [] and 'torch' not in sys.modules";
  EXPECT_EQ(std::system((std::string(TRIREME_TEST_PYTHON) + " -c \"" + read + "\" " + file.string()).c_str()), 0);
}
#endif

/// The names that LibTorch puts into the frames of an allocation made here.
std::vector<std::string> frames() {
  const auto context = open_range_context();
  const auto stacks = torch::symbolize({torch::getCapturedTracebackFromContext(context)});
  std::vector<std::string> names;
  for (const uint64_t frame : stacks.tracebacks.at(0)) names.push_back(stacks.all_frames.at(frame).funcname);
  return names;
}

TEST(RangeRecorder, OpenRangesAreTheFramesWithoutAProfiler) {
  EXPECT_TRUE(frames().empty());
  set_range_sink(&RangeRecorder::instance());
  {
    const ProfileRange outer("forward");
    {
      const ProfileRange inner("layers", int64_t{3});
      EXPECT_EQ(frames(), (std::vector<std::string>{"layers.3", "forward"}));
    }
    EXPECT_EQ(frames(), (std::vector<std::string>{"forward"}));
  }
  set_range_sink(nullptr);
  const ProfileRange none("forward");
  EXPECT_TRUE(frames().empty());
}

}  // namespace
}  // namespace trireme
