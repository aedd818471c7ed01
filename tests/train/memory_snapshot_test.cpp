// The allocator's snapshot as Python and its viewer read it.
#include "memory_snapshot.h"
#include "range_recorder.h"

#include "trireme/base/file.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

namespace trireme {
namespace {

using c10::CachingDeviceAllocator::SegmentInfo;
using c10::CachingDeviceAllocator::TraceEntry;

/// Loads the file without LibTorch, then gives it to the functions of torch/cuda/_memory_viz.py, a file by itself.
constexpr const char* kReader = R"(
import importlib.util, os, pickle, pickletools, sys
data = open(sys.argv[1], "rb").read()
# Opcodes that torch/utils/viz/MemoryViz.js reads; none of them names a class.
known = {"PROTO", "EMPTY_DICT", "EMPTY_LIST", "MARK", "SETITEMS", "APPENDS", "BINUNICODE", "LONG1", "NEWTRUE", "NEWFALSE", "TUPLE2", "LONG_BINPUT", "LONG_BINGET", "STOP"}
used = {op.name for op, _, _ in pickletools.genops(data)}
assert used <= known, used - known
snapshot = pickle.loads(data)
[segment] = snapshot["segments"]
assert segment["address"] == 0x7f0000000000 and segment["total_size"] == 4096 and segment["segment_type"] == "large" and segment["is_expandable"] is True
assert segment["segment_pool_id"] == (0, 3) and segment["stream"] == 0 and segment["device"] == 1
states = [(b["address"] - segment["address"], b["size"], b["requested_size"], b["state"]) for b in segment["blocks"]]
assert states == [(0, 1024, 1000, "active_allocated"), (1024, 1024, 1024, "active_pending_free"), (2048, 2048, 0, "inactive")], states
assert [f["name"] for f in segment["blocks"][0]["frames"]] == ["mlp", "forward"] and segment["blocks"][2]["frames"] == []
first, second = snapshot["device_traces"]
assert first == [] and len(second) == 2503
assert second[0] == {"action": "alloc", "addr": 0x7f0000000000, "size": 1024, "stream": 0, "time_us": 5, "frames": segment["blocks"][0]["frames"]}, second[0]
assert second[-2]["action"] == "oom" and second[-2]["device_free"] == 77 and "addr" not in second[-2]
assert second[-1]["action"] == "segment_unmap"
folder = importlib.util.find_spec("torch").submodule_search_locations[0]
spec = importlib.util.spec_from_file_location("viz", os.path.join(folder, "cuda", "_memory_viz.py"))
viz = importlib.util.module_from_spec(spec)
spec.loader.exec_module(viz)
assert "mlp" in viz.trace(snapshot)
assert "MemoryViz.js" in viz.trace_plot(snapshot) and viz.segsum(snapshot)
)";

TEST(MemorySnapshot, PythonAndTheViewerReadIt) {
  char name[] = "/tmp/snapshot_XXXXXX";
  const std::filesystem::path folder = mkdtemp(name);
  const auto context = std::make_shared<RangeContext>();
  context->ranges = {"mlp", "forward"};
  SegmentInfo segment;
  segment.device = 1;
  segment.address = 0x7f0000000000;
  segment.total_size = 4096;
  segment.is_large = segment.is_expandable = true;
  segment.owner_private_pool_id = {0, 3};
  segment.blocks.resize(3);
  segment.blocks[0] = {1024, 1000, 0, true, true, context};
  segment.blocks[1] = {1024, 1024, 0, false, true, nullptr};
  segment.blocks[2] = {2048, 0, 0, false, false, nullptr};
  std::vector<std::vector<TraceEntry>> traces(2);
  const auto add = [&](TraceEntry::Action action, size_t address) {
    traces[1].emplace_back(action, 1, address, 1024, nullptr, c10::MempoolId_t{0, 0}, 0, context);
    traces[1].back().time_.t_ = 5;
  };
  // More than a pickle's part of a list, of which the viewer would overflow its stack.
  for (int i = 0; i < 2501; ++i) add(i % 2 == 0 ? TraceEntry::ALLOC : TraceEntry::FREE_COMPLETED, segment.address);
  add(TraceEntry::OOM, 77);
  add(TraceEntry::SEGMENT_UNMAP, segment.address);
  write_file_atomic(folder / "rank0.pickle", pickle_memory_snapshot({segment}, traces));
  write_file_atomic(folder / "read.py", kReader);
  const std::string command =
      std::string(TRIREME_TEST_PYTHON) + " " + (folder / "read.py").string() + " " + (folder / "rank0.pickle").string();
  EXPECT_EQ(std::system(command.c_str()), 0);
  std::filesystem::remove_all(folder);
}

std::vector<std::string> open_names() { return dynamic_cast<const RangeContext&>(*open_range_context()).ranges; }

TEST(RangeRecorder, KnowsTheOpenRangesWithoutAProfiler) {
  EXPECT_TRUE(open_names().empty());
  set_range_sink(&RangeRecorder::instance());
  {
    const ProfileRange outer("forward");
    const auto shared = open_range_context();
    EXPECT_EQ(open_range_context(), shared) << "contexts are made once a change";
    {
      const ProfileRange inner("layers", int64_t{3});
      EXPECT_EQ(open_names(), (std::vector<std::string>{"layers.3", "forward"}));
    }
    EXPECT_EQ(open_names(), (std::vector<std::string>{"forward"}));
  }
  set_range_sink(nullptr);
  const ProfileRange none("forward");
  EXPECT_TRUE(open_names().empty());
}

}  // namespace
}  // namespace trireme
