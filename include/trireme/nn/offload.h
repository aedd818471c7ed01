#pragma once
// What blocks keep for backward, in host memory.
//
//   forward of block i    save(): the values go to the host while block i + 1 computes
//   backward of block i   fetch(): the values are on the device; those of block i - 1 come back while block i computes
//
// On a GPU the host memory is pinned and allocated once. Copies run on a stream of the store's own: it waits for the
// computation that wrote the values, and the computation waits for it before it reads or overwrites them. Nothing waits
// on the host. The device has the values of at most two blocks at a time, those in use and those on their way.
//
// On a CPU the values are in host memory already and stay as they are.

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace trireme {

class OffloadStore {
 public:
  struct Options {
    at::Device device = at::kCPU;
    /// The store takes the values of the first blocks of the model. The last of these stays on the device.
    int64_t blocks = 0;
    /// Host memory is allocated in pieces of so many bytes: LibTorch rounds each up to a power of two.
    int64_t chunk_bytes = int64_t{256} << 20;
    int64_t least_bytes = 65536;  // smaller values stay on the device
    bool copies_on_cpu = false;   // for tests: also on a CPU values go to memory of the store
  };
  /// Outlives everything that it has saved.
  explicit OffloadStore(const Options& options);

  bool takes(int64_t block) const { return block < options_.blocks; }

  /// Allocates host memory for so many bytes of values, so that no step has to. ConfigError if the host has not as
  /// much.
  void reserve(int64_t bytes);
  int64_t host_bytes() const { return static_cast<int64_t>(chunks_.size()) * options_.chunk_bytes; }

  /// The values of one block. Destroyed without fetch() they are dropped.
  class Saved;
  /// Takes the values of `block`, whose forward is queued. Undefined values and values of another device stay as they
  /// are.
  std::shared_ptr<Saved> save(int64_t block, std::vector<at::Tensor> values);
  /// The values in the order of save(), once. Starts the copies of the values that were saved before them.
  std::vector<at::Tensor> fetch(Saved& saved);

 private:
  bool copies() const { return options_.device.is_cuda() || options_.copies_on_cpu; }
  void grow(int64_t bytes);
  /// Runs f on the copies' stream, behind all that the computation has queued. The event: all of f is done.
  template <class F>
  std::optional<c10::Event> behind_computation(const F& f) const;
  /// From now on the computation waits for the event.
  void computation_awaits(const std::optional<c10::Event>& event) const;
  /// Copies the values to the host, or from there to the device.
  void swap_place(Saved& saved);
  /// Frees the values' device memory when they are on the host.
  void release(Saved& saved);
  void forget(Saved& saved);

  Options options_;
  std::optional<c10::Stream> stream_;  // of the copies, on a GPU
  std::vector<at::Tensor> chunks_;     // host memory
  std::vector<Saved*> saved_;          // alive, in the order of save() and of their host memory
  Saved* leaving_ = nullptr;           // on the device, being copied to the host
};

}  // namespace trireme
