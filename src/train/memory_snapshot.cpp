#include "memory_snapshot.h"

#include "memory_snapshot_backend.h"
#include "range_recorder.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

namespace trireme {

namespace {

using c10::CachingDeviceAllocator::BlockInfo;
using c10::CachingDeviceAllocator::SegmentInfo;
using c10::CachingDeviceAllocator::TraceEntry;

/// Writes pickle opcodes (protocol 2, as Lib/pickletools.py of Python describes them).
class PickleWriter {
 public:
  PickleWriter() : bytes_("\x80\x02") {}

  void text(std::string_view value) {
    if (const auto found = texts_.find(value); found != texts_.end()) return recall(found->second);
    bytes_ += 'X';  // BINUNICODE
    number(value.size(), 4);
    bytes_ += value;
    texts_.emplace(value, memorise());
  }
  void integer(int64_t value) {
    bytes_ += "\x8a\x08";  // LONG1 of eight bytes
    number(static_cast<uint64_t>(value), 8);
  }
  void boolean(bool value) { bytes_ += value ? '\x88' : '\x89'; }

  /// Calls `item(i)` for each i, which writes one value. In parts: readers put the items of a part on their stack.
  template <class Item>
  void list(size_t size, const Item& item) {
    constexpr size_t kPart = 1000;
    bytes_ += ']';
    for (size_t begin = 0; begin < size; begin += kPart) {
      bytes_ += '(';
      for (size_t i = begin; i < std::min(size, begin + kPart); ++i) item(i);
      bytes_ += 'e';
    }
  }
  /// `items()` writes keys and values in turn.
  template <class Items>
  void dictionary(const Items& items) {
    bytes_ += "}(";
    items();
    bytes_ += 'u';
  }
  void pair(int64_t first, int64_t second) {
    integer(first);
    integer(second);
    bytes_ += '\x86';  // TUPLE2
  }
  void field(std::string_view key, int64_t value) {
    text(key);
    integer(value);
  }
  void field(std::string_view key, std::string_view value) {
    text(key);
    text(value);
  }

  /// Keeps the value that was written last, to be written again by recall().
  uint32_t memorise() {
    bytes_ += 'r';  // LONG_BINPUT
    number(memorised_, 4);
    return memorised_++;
  }
  void recall(uint32_t which) {
    bytes_ += 'j';  // LONG_BINGET
    number(which, 4);
  }

  std::string finish() {
    bytes_ += '.';
    return std::move(bytes_);
  }

 private:
  void number(uint64_t value, int size) {
    for (int i = 0; i < size; ++i) bytes_ += static_cast<char>(value >> (8 * i) & 0xff);
  }

  std::string bytes_;
  uint32_t memorised_ = 0;
  std::map<std::string, uint32_t, std::less<>> texts_;
};

class SnapshotWriter {
 public:
  std::string write(const std::vector<SegmentInfo>& segments, const std::vector<std::vector<TraceEntry>>& traces) {
    out_.dictionary([&] {
      out_.text("segments");
      out_.list(segments.size(), [&](size_t i) { segment(segments[i]); });
      out_.text("device_traces");
      out_.list(traces.size(), [&](size_t d) { out_.list(traces[d].size(), [&](size_t i) { trace(traces[d][i]); }); });
    });
    return out_.finish();
  }

 private:
  /// Ranges take the place of Python's stack frames.
  void frames(const std::shared_ptr<c10::GatheredContext>& context) {
    out_.text("frames");
    const auto* ranges = dynamic_cast<const RangeContext*>(context.get());
    if (const auto found = contexts_.find(ranges); found != contexts_.end()) return out_.recall(found->second);
    out_.list(ranges == nullptr ? 0 : ranges->ranges.size(), [&](size_t i) {
      out_.dictionary([&] {
        out_.field("name", ranges->ranges[i]);
        out_.field("filename", "trireme");
        out_.field("line", 0);
      });
    });
    contexts_.emplace(ranges, out_.memorise());
  }

  void segment(const SegmentInfo& info) {
    out_.dictionary([&] {
      out_.field("device", info.device);
      out_.field("address", static_cast<int64_t>(info.address));
      out_.field("total_size", static_cast<int64_t>(info.total_size));
      out_.field("allocated_size", static_cast<int64_t>(info.allocated_size));
      out_.field("active_size", static_cast<int64_t>(info.active_size));
      out_.field("requested_size", static_cast<int64_t>(info.requested_size));
      out_.field("stream", static_cast<int64_t>(reinterpret_cast<intptr_t>(info.stream)));
      out_.field("segment_type", info.is_large ? "large" : "small");
      out_.text("segment_pool_id");
      out_.pair(static_cast<int64_t>(info.owner_private_pool_id.first),
                static_cast<int64_t>(info.owner_private_pool_id.second));
      out_.text("is_expandable");
      out_.boolean(info.is_expandable);
      frames(info.context_when_allocated);
      out_.text("blocks");
      auto address = static_cast<int64_t>(info.address);
      out_.list(info.blocks.size(), [&](size_t i) {
        block(info.blocks[i], address);
        address += static_cast<int64_t>(info.blocks[i].size);
      });
    });
  }

  void block(const BlockInfo& info, int64_t address) {
    out_.dictionary([&] {
      out_.field("address", address);
      out_.field("size", static_cast<int64_t>(info.size));
      out_.field("requested_size", static_cast<int64_t>(info.requested_size));
      out_.field("state", info.allocated ? "active_allocated" : info.active ? "active_pending_free" : "inactive");
      frames(info.context_when_allocated);
    });
  }

  void trace(const TraceEntry& entry) {
    static constexpr const char* kActions[] = {"alloc",         "free_requested", "free_completed",
                                               "segment_alloc", "segment_free",   "segment_map",
                                               "segment_unmap", "snapshot",       "oom"};
    out_.dictionary([&] {
      out_.field("action", kActions[entry.action_]);
      // Of an allocation that failed the allocator says here what the device had free.
      out_.field(entry.action_ == TraceEntry::OOM ? "device_free" : "addr", static_cast<int64_t>(entry.addr_));
      out_.field("size", static_cast<int64_t>(entry.size_));
      out_.field("stream", static_cast<int64_t>(reinterpret_cast<intptr_t>(entry.stream_)));
      out_.field("time_us", entry.time_.t_);
      frames(entry.context_);
    });
  }

  PickleWriter out_;
  std::map<const RangeContext*, uint32_t> contexts_;
};

/// What watch_out_of_memory() has written, for the error message.
struct WrittenSnapshot {
  std::mutex mutex;
  std::filesystem::path file;
};
WrittenSnapshot& written_snapshot() {
  static auto* written = new WrittenSnapshot;
  return *written;
}

}  // namespace

std::string pickle_memory_snapshot(const std::vector<SegmentInfo>& segments,
                                   const std::vector<std::vector<TraceEntry>>& traces) {
  return SnapshotWriter().write(segments, traces);
}

void record_memory_history() {
#ifdef TRIREME_WITH_CUDA
  gpu::record_memory_history(&open_range_context, kMemoryHistory);
#endif
}

void write_memory_snapshot([[maybe_unused]] const std::filesystem::path& file) {
#ifdef TRIREME_WITH_CUDA
  make_directories(file.parent_path());
  write_file_atomic(file, gpu::memory_snapshot());
#endif
}

void watch_out_of_memory(at::Device device, [[maybe_unused]] const std::filesystem::path& folder,
                         [[maybe_unused]] int rank) {
  if (!device.is_cuda()) return;
#ifdef TRIREME_WITH_CUDA
  gpu::on_out_of_memory([file = folder / fmt::format("rank{}.oom.memory.pickle", rank)] {
    // An exception must not leave the allocator's observer; a library that catches the first failure and asks for
    // less may fail again.
    const std::lock_guard lock(written_snapshot().mutex);
    if (!written_snapshot().file.empty()) return;
    try {
      write_memory_snapshot(file);
      written_snapshot().file = file;
    } catch (const std::exception& error) {
      log_warn(fmt::format("the allocator's snapshot was not written: {}", error.what()));
    }
  });
#endif
}

std::filesystem::path out_of_memory_snapshot() {
  const std::lock_guard lock(written_snapshot().mutex);
  return written_snapshot().file;
}

}  // namespace trireme
