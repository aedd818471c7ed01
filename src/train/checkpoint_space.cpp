#include "checkpoint_space.h"

#include "checkpoint_writer.h"
#include "trireme/base/fault.h"
#include "trireme/base/text.h"
#include "trireme/config/batch_sizes.h"
#include "trireme/formats/checkpoint/training_checkpoint.h"
#include "trireme/fsdp/layout.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>

namespace trireme {

namespace {

constexpr uint64_t kVectors = 3, kElement = 4;  // masters and two moments in fp32

std::string text_of(uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

/// The checkpoints that a run of this length writes, with that of a stop. By time their number is not known: a
/// keep_last beyond the number of steps, which stands for all of them, then counts as the least.
int64_t most_saves(const Config& config) {
  const OutputSection& output = config.output;
  if (output.save_every_minutes) return config.train.max_steps < output.keep_last ? 3 : output.keep_last + 1;
  return BatchSizes(config.batch).before(config.train.max_steps) / *output.save_every_samples + 1;
}

}  // namespace

uint64_t checkpoint_bytes(const std::vector<UnitSpec>& units, int world_size) {
  uint64_t bytes = 1 << 16;
  for (const UnitSpec& unit : units) {
    if (!unit.trained) continue;
    bytes += kVectors * (static_cast<uint64_t>(make_layout(unit, 1).numel) * kElement +
                         static_cast<uint64_t>(kBytesPerPiece) * static_cast<uint64_t>(world_size));
  }
  return bytes;
}

std::string check_checkpoint_space(const Config& config, const std::filesystem::path& directory,
                                   const std::string& run_id, uint64_t bytes_of_one) {
  const bool periodic = config.output.save_every_samples || config.output.save_every_minutes;
  if (!periodic && !config.output.save_on_stop) return "";
  // While one is written, keep_last older ones are still on the disk.
  const auto wanted = static_cast<uint64_t>(periodic ? std::min(config.output.keep_last + 1, most_saves(config)) : 1);
  uint64_t kept = 0, present = 0;
  int64_t newest = 0;
  for (const auto& [step, path] : list_checkpoints(directory)) {
    try {
      const CheckpointManifest manifest = read_manifest(path);
      if (manifest.run_id != run_id) continue;
      newest = std::max(newest, step);
      if (kept >= wanted - 1) continue;
      ++kept;
      present += manifest.total_bytes();
    } catch (const Error&) {
      continue;  // not whole: resume() names it
    }
  }
  std::filesystem::path there = directory;
  while (!std::filesystem::exists(there) && there.has_parent_path() && there != there.parent_path())
    there = there.parent_path();
  struct statvfs disk{};
  if (statvfs(there.c_str(), &disk) != 0) return "";  // not known: the first save fails where there is no room
  const auto forced = fault_value("disk-free");
  const uint64_t available =
      forced ? static_cast<uint64_t>(*forced) : static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize;
  const uint64_t needed = bytes_of_one * wanted - std::min(present, bytes_of_one * wanted);
  if (needed <= available) return "";
  if (!periodic)
    return fmt::format(
        "the checkpoint that a stop by a signal saves does not fit: {} has {} free and it needs {}; a stop would lose "
        "everything since {}. Free {} there, choose another output.dir, or set output.save_on_stop: false for a run "
        "that wants none",
        directory.string(), text_of(available), text_of(needed),
        newest > 0 ? fmt::format("step {}", newest) : "the beginning", text_of(needed - available));
  throw WriteError(
      fmt::format("the checkpoints of this run do not fit: {} has {} free; {} of {} each need {}{}. Free "
                  "{} there, choose another output.dir{}",
                  directory.string(), text_of(available), wanted, text_of(bytes_of_one), text_of(needed),
                  present > 0 ? " beside those already there" : "", text_of(needed - available),
                  config.output.keep_last > 2 ? ", or lower output.keep_last" : ""));
}

}  // namespace trireme
