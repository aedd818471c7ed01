#pragma once
// Master weights and moments of trained units in host memory, and their way through the device.
//
//   pass()   piece i + 2 on its way to the device; piece i computed on; piece i - 1 on its way back
//
// On a GPU the host memory is pinned and allocated once. Copies in each direction have a stream of their own, so that
// both directions of the bus are busy; nothing waits on the host. A pass takes device memory of three pieces, which
// belongs to the pass. After a pass the computation's stream is behind all of its copies: what is queued there reads
// the new values. Code that reads the host memory itself calls settle() before.
//
// On a CPU the state is in host memory already, and a pass computes in place.

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace trireme {

/// ConfigError: the host gives `has` of the `needs` bytes of pinned memory in which `what`. It has the first line of
/// `reason`, the limit of lockable memory if there is one, and `remedy`.
[[noreturn]] void throw_no_pinned_memory(int64_t has, int64_t needs, const char* what, const std::string& reason,
                                         const char* remedy);

class HostState {
 public:
  struct Options {
    at::Device device = at::kCPU;
    int64_t bytes = 0;  // of all vectors, as the plan counts them: for the message of zeros()
    /// Elements of a piece; a multiple of 128. Larger ones gain nothing: copies of 64 MiB reach the bus's rate.
    int64_t piece_elements = kPieceElements;
    bool copies_on_cpu = false;  // for tests: also on a CPU a pass computes on copies
  };
  static constexpr int64_t kPieceElements = int64_t{1} << 25;
  static constexpr int kPieces = 3;  // on the device at a time
  explicit HostState(const Options& options);

  /// Zeros [count] in the host memory, exactly as many bytes: LibTorch's allocator would round pinned memory up to a
  /// power of two. ConfigError if the host has not as much.
  at::Tensor zeros(int64_t count, at::ScalarType type);
  int64_t piece_elements() const { return options_.piece_elements; }
  at::Device device() const { return options_.device; }

  /// Vectors of the host that go through the device together.
  using Piece = std::vector<at::Tensor>;
  /// Calls f(i, values of piece i on the device) for each piece in order; `writes` brings what f leaves in them back.
  /// `f` computes on the current stream.
  void pass(const std::vector<Piece>& pieces, const std::function<void(size_t, const Piece&)>& f, bool writes = true);
  /// Waits until host memory has the results of all passes.
  void settle() const;

 private:
  bool copies() const { return options_.device.is_cuda() || options_.copies_on_cpu; }
  void pass_with_streams(const std::vector<Piece>& pieces, const std::function<void(size_t, const Piece&)>& f,
                         bool writes);

  Options options_;
  int64_t allocated_ = 0;
  std::optional<c10::Stream> arriving_, leaving_;  // of the copies, on a GPU
};

}  // namespace trireme
