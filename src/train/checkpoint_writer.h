#pragma once
// Private to train/: one rank's part of a save: a copy of the state in host memory and the thread that writes it to a
// file.

#include "trireme/formats/checkpoint/training_checkpoint.h"
#include "trireme/nn/trained_shard.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace trireme {

/// A run of elements to save: what it is, and where it lies now (contiguous, on any device).
struct PieceSource {
  CheckpointPiece piece;
  at::Tensor tensor;
};

/// What this rank writes of the state: its share of the elements that it holds together with others; of scalars rank 0
/// all.
std::vector<PieceSource> pieces_to_save(const std::vector<StateTensor>& state, int rank);

class CheckpointWriter {
 public:
  /// `in_place`: shards are not copied but read while the file is written, and must not change until it is.
  explicit CheckpointWriter(bool in_place = false) : in_place_(in_place) {}
  ~CheckpointWriter();
  bool in_place() const { return in_place_; }
  /// Allocates the host memory for copies of GPU tensors on a thread of its own: pinning tens of gibibytes takes
  /// seconds, for which the first snapshot would otherwise wait.
  void prepare(const std::vector<PieceSource>& pieces);
  /// Copies the pieces into host memory that is kept from save to save: pinned for GPU tensors (where possible), whose
  /// copies are only queued on the current stream.
  void snapshot(const std::vector<PieceSource>& pieces);
  /// Starts writing the snapshot to `path`; nothing is written when there are no pieces.
  void start(const std::filesystem::path& path, int rank, int64_t step);
  bool finished() const { return finished_; }
  void wait() const { finished_.wait(false); }
  /// Once finished: joins. The file as the manifest describes it (no name: nothing to write); `error` is set when it
  /// failed.
  CheckpointFile take(std::string& error);
  /// Steady seconds at which the copy of GPU tensors had arrived, 0 for CPU tensors: their copy ends with snapshot().
  double copied_at() const { return copied_at_; }
  /// From the end of the copy to the last fsync of the file taken.
  double write_seconds() const { return write_seconds_; }

 private:
  void write(const std::filesystem::path& path);
  void allocate_copy(size_t i, const at::Tensor& source);
  std::vector<CheckpointPiece> pieces_;
  bool in_place_;
  std::vector<at::Tensor> host_;        // of a piece; in place: where it is
  bool pinned_ = true;                  // false after the first failure to allocate pinned memory
  std::unique_ptr<c10::Event> copied_;  // null on CPUs
  c10::Device device_ = c10::kCPU;      // of the pieces in the snapshot
  std::thread thread_, preparing_;
  std::atomic<bool> finished_ = true;
  CheckpointFile file_;
  std::string error_;
  double copied_at_ = 0, write_seconds_ = 0;
};

/// Bytes of a save beside its tensors, per piece: file header and manifest; an upper bound.
inline constexpr int64_t kBytesPerPiece = 512;

/// A described file and the seconds that writing it took as one line of text for the other ranks, and back.
std::string file_to_text(const CheckpointFile& file, double seconds);
CheckpointFile file_from_text(const std::string& text, double& seconds);

}  // namespace trireme
