#include "trireme/nn/host_state.h"

#include "trireme/base/error.h"
#include "trireme/base/fault.h"
#include "trireme/base/rounding.h"
#include "trireme/base/text.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <string>

#ifdef TRIREME_WITH_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#endif

namespace trireme {

namespace {

constexpr int64_t kValueAlignment = 512;

/// Pinned memory [bytes] of the host of `device`, not initialised. c10::Error where it cannot be allocated.
at::Tensor pinned_memory(int64_t bytes, at::Device device) {
#ifdef TRIREME_WITH_CUDA
  const c10::cuda::CUDAGuard guard(device);
  void* memory = nullptr;
  if (const cudaError_t status = cudaHostAlloc(&memory, static_cast<size_t>(bytes), cudaHostAllocDefault);
      status != cudaSuccess) {
    (void)cudaGetLastError();
    TORCH_CHECK(false, cudaGetErrorString(status));
  }
  return at::from_blob(memory, {bytes}, [](void* p) { (void)cudaFreeHost(p); }, at::TensorOptions(at::kByte));
#else
  throw InternalError(fmt::format("pinned memory of {} for {} in a program without CUDA", bytes, device.str()));
#endif
}

/// The memory of a piece on the device as tensors like those of the host.
HostState::Piece like(const HostState::Piece& host, const at::Tensor& memory) {
  HostState::Piece here;
  int64_t begin = 0;
  for (const at::Tensor& value : host) {
    const auto bytes = static_cast<int64_t>(value.nbytes());
    here.push_back(memory.narrow(0, begin, bytes).view(value.scalar_type()));
    begin += round_up(bytes, kValueAlignment);
  }
  return here;
}

int64_t piece_bytes(const HostState::Piece& piece) {
  int64_t bytes = 0;
  for (const at::Tensor& value : piece) bytes += round_up(static_cast<int64_t>(value.nbytes()), kValueAlignment);
  return bytes;
}

}  // namespace

void throw_no_pinned_memory(int64_t has, int64_t needs, const char* what, const std::string& reason,
                            const char* remedy) {
  rlimit limit{};
  const bool limited = getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  throw ConfigError(fmt::format("the host gives {} of the {} of pinned memory in which {} ({}{}): {}",
                                format_bytes(has), format_bytes(needs), what, reason.substr(0, reason.find('\n')),
                                limited ? fmt::format("; ulimit -l is {}", format_bytes(limit.rlim_cur)) : "", remedy));
}

HostState::HostState(const Options& options) : options_(options) {
  if (!options_.device.is_cuda()) return;
  const c10::impl::VirtualGuardImpl guard(options_.device.type());
  arriving_ = guard.getStreamFromGlobalPool(options_.device);
  leaving_ = guard.getStreamFromGlobalPool(options_.device);
}

at::Tensor HostState::zeros(int64_t count, at::ScalarType type) {
  const int64_t bytes = count * static_cast<int64_t>(c10::elementSize(type));
  try {
    fault_point("pinned-memory");
    const at::Tensor zeros =
        options_.device.is_cuda() ? pinned_memory(bytes, options_.device).view(type).zero_() : at::zeros({count}, type);
    allocated_ += bytes;
    return zeros;
  } catch (const std::exception& error) {
    throw_no_pinned_memory(allocated_, std::max(options_.bytes, allocated_ + bytes),
                           "master weights and moments wait for the optimizer", error.what(),
                           "start fewer ranks on it, or set parallel.offload: none");
  }
}

void HostState::pass(const std::vector<Piece>& pieces, const std::function<void(size_t, const Piece&)>& f,
                     bool writes) {
  at::NoGradGuard no_grad;
  if (arriving_) return pass_with_streams(pieces, f, writes);
  for (size_t i = 0; i < pieces.size(); ++i) {
    Piece here = pieces[i];
    if (copies())
      for (at::Tensor& value : here) value = value.clone();
    f(i, here);
    if (copies() && writes)
      for (size_t v = 0; v < here.size(); ++v) pieces[i][v].copy_(here[v]);
  }
}

void HostState::pass_with_streams(const std::vector<Piece>& pieces, const std::function<void(size_t, const Piece&)>& f,
                                  bool writes) {
  if (pieces.empty()) return;
  const auto type = options_.device.type();
  const c10::Stream computing = c10::impl::VirtualGuardImpl(type).getStream(options_.device);
  int64_t bytes = 0;
  for (const Piece& piece : pieces) bytes = std::max(bytes, piece_bytes(piece));
  // Freed by the computation's stream, which is behind all copies at the end.
  std::array<at::Tensor, kPieces> memory;
  for (at::Tensor& one : memory) one = at::empty({bytes}, at::TensorOptions(at::kByte).device(options_.device));
  std::vector<Piece> here(pieces.size());
  std::vector<c10::Event> arrived, computed, left;
  for (int i = 0; i < kPieces; ++i) arrived.emplace_back(type), computed.emplace_back(type), left.emplace_back(type);
  // The memory may still be read by what the computation has queued.
  c10::Event queued(type);
  queued.record(computing);
  queued.block(*arriving_);
  const auto fetch = [&](size_t i) {
    const size_t slot = i % kPieces;
    if (i >= kPieces) (writes ? left : computed)[slot].block(*arriving_);
    const c10::StreamGuard guard(*arriving_);
    here[i] = like(pieces[i], memory[slot]);
    for (size_t v = 0; v < here[i].size(); ++v) here[i][v].copy_(pieces[i][v], /*non_blocking=*/true);
    arrived[slot].record(*arriving_);
  };
  for (size_t i = 0; i < std::min<size_t>(kPieces - 1, pieces.size()); ++i) fetch(i);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const size_t slot = i % kPieces;
    if (i + kPieces - 1 < pieces.size()) fetch(i + kPieces - 1);
    arrived[slot].block(computing);
    f(i, here[i]);
    computed[slot].record(computing);
    if (writes) {
      computed[slot].block(*leaving_);
      const c10::StreamGuard guard(*leaving_);
      for (size_t v = 0; v < here[i].size(); ++v) pieces[i][v].copy_(here[i][v], /*non_blocking=*/true);
      left[slot].record(*leaving_);
    }
    here[i].clear();
  }
  c10::Event done(type);
  done.record(*leaving_);
  done.block(computing);
}

void HostState::settle() const {
  if (leaving_) leaving_->synchronize();
}

}  // namespace trireme
