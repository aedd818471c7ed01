#include "trireme/comm/peer_memory.h"

#include "trireme/base/error.h"
#include "trireme/base/process.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <vector>

namespace trireme {

namespace {

/// Copies from several peers run at the same time; more streams than this gain nothing (a GPU's copy engines are busy).
constexpr int kStreams = 3;

void check(cudaError_t status, const char* call) {
  TRIREME_CHECK(status == cudaSuccess, call, ": ", cudaGetErrorString(status));
}

/// Equal for processes that can map each other's memory: ranks of one host that also share an IPC namespace.
std::string sharing_identity() {
  char ipc[64] = {};
  if (readlink("/proc/self/ns/ipc", ipc, sizeof(ipc) - 1) < 0) ipc[0] = '\0';
  return host_identity() + ' ' + ipc;
}

std::string to_hex(const cudaIpcMemHandle_t& handle) {
  std::string text;
  for (const char byte : handle.reserved) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

cudaIpcMemHandle_t from_hex(const std::string& text) {
  cudaIpcMemHandle_t handle{};
  TRIREME_CHECK(text.size() == 2 * sizeof(handle.reserved), "an IPC handle of ", text.size(), " digits");
  for (size_t i = 0; i < sizeof(handle.reserved); ++i)
    handle.reserved[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return handle;
}

class PullWork final : public Work {
 public:
  PullWork(std::vector<cudaEvent_t> done, std::vector<cudaEvent_t>& spare, at::Device device)
      : done_(std::move(done)), spare_(spare), device_(device) {}
  ~PullWork() override {
    wait();
    spare_.insert(spare_.end(), done_.begin(), done_.end());
  }
  void wait() override {
    if (waited_) return;
    waited_ = true;
    const c10::cuda::CUDAGuard guard(device_);  // the default stream's handle means the current device's
    const auto stream = c10::cuda::getCurrentCUDAStream(device_.index());
    for (cudaEvent_t event : done_) (void)cudaStreamWaitEvent(stream, event, 0);
  }

 private:
  std::vector<cudaEvent_t> done_;
  std::vector<cudaEvent_t>& spare_;
  at::Device device_;
  bool waited_ = false;
};

/// Whether all ranks closed what they map of each other.
bool all_came(Communicator& group) {
  try {
    return group.barrier_within(peer_close_seconds());
  } catch (const std::exception&) {
    return false;
  }
}

class IpcPeerMemory final : public PeerMemory {
 public:
  IpcPeerMemory(Communicator& group, int64_t bytes, at::Device device) : group_(group), device_(device), bytes_(bytes) {
    blocks_.assign(static_cast<size_t>(group.size()), nullptr);
  }

  /// CUDA does not allow an exported block to be freed while another process maps it. Each rank closes what it maps,
  /// waits at a barrier and frees its own block. A rank that unwinds after an error skips the barrier, because its
  /// peers may never come here; the barrier has a time limit, because a peer may be dead. In both cases the block stays
  /// until the process ends.
  ~IpcPeerMemory() override {
    const c10::cuda::CUDAGuard guard(device_);
    (void)cudaDeviceSynchronize();
    for (int rank = 0; rank < group_.size(); ++rank)
      if (rank != group_.rank() && blocks_[static_cast<size_t>(rank)] != nullptr)
        (void)cudaIpcCloseMemHandle(blocks_[static_cast<size_t>(rank)]);
    const bool all_closed = std::uncaught_exceptions() == 0 && all_came(group_);
    if (all_closed && own_block() != nullptr) (void)cudaFree(own_block());
    for (cudaEvent_t event : spare_) (void)cudaEventDestroy(event);
    for (cudaStream_t stream : streams_) (void)cudaStreamDestroy(stream);
  }

  /// Collective; empty when every rank maps every other.
  std::string map_peers() {
    const c10::cuda::CUDAGuard guard(device_);
    cudaIpcMemHandle_t handle{};
    std::string mine, problem;
    void* memory = nullptr;
    cudaError_t status = cudaMalloc(&memory, static_cast<size_t>(std::max<int64_t>(bytes_, 1)));
    if (status == cudaSuccess) {
      blocks_[static_cast<size_t>(group_.rank())] = static_cast<char*>(memory);
      status = cudaIpcGetMemHandle(&handle, memory);
    }
    if (status == cudaSuccess)
      mine = to_hex(handle) + ' ' + sharing_identity();
    else
      problem =
          fmt::format("rank {} of the group cannot share its memory: {}", group_.rank(), cudaGetErrorString(status));
    (void)cudaGetLastError();
    const std::vector<std::string> all = group_.all_gather_host(mine);
    const bool complete = std::none_of(all.begin(), all.end(), [](const std::string& text) { return text.empty(); });
    for (int step = 1; complete && step < group_.size() && problem.empty(); ++step) {
      const int rank = (group_.rank() + step) % group_.size();
      const std::string& theirs = all[static_cast<size_t>(rank)];
      const size_t space = theirs.find(' ');
      if (theirs.substr(space + 1) != sharing_identity()) {
        problem = "the ranks are on several hosts, or in containers with IPC namespaces of their own";
        break;
      }
      status = cudaIpcOpenMemHandle(&memory, from_hex(theirs.substr(0, space)), cudaIpcMemLazyEnablePeerAccess);
      if (status == cudaSuccess) {
        blocks_[static_cast<size_t>(rank)] = static_cast<char*>(memory);
      } else {
        problem = fmt::format("rank {} of the group cannot map the memory of rank {}: {}", group_.rank(), rank,
                              cudaGetErrorString(status));
        (void)cudaGetLastError();
      }
    }
    for (const std::string& text : group_.all_gather_host(problem))
      if (!text.empty()) return text;
    for (int i = 0; i < std::min(kStreams, group_.size()); ++i) {
      cudaStream_t stream = nullptr;
      check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
      streams_.push_back(stream);
    }
    return "";
  }

  at::Tensor block() override {
    return at::from_blob(own_block(), {bytes_}, at::TensorOptions(device_).dtype(at::kByte));
  }

  void publish() override {
    const c10::cuda::CUDAGuard guard(device_);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    group_.barrier();
  }

  WorkPtr gather(at::Tensor out, int64_t offset) override {
    const int64_t slice = out.numel() / group_.size();
    TRIREME_CHECK(out.scalar_type() == at::kByte && out.is_contiguous() && slice * group_.size() == out.numel() &&
                      offset >= 0 && offset + slice <= bytes_,
                  "gather of ", out.numel(), " bytes at ", offset, " of blocks of ", bytes_);
    const c10::cuda::CUDAGuard guard(device_);
    cudaEvent_t ready = take_event();
    check(cudaEventRecord(ready, c10::cuda::getCurrentCUDAStream(device_.index())), "cudaEventRecord");
    for (cudaStream_t stream : streams_) check(cudaStreamWaitEvent(stream, ready, 0), "cudaStreamWaitEvent");
    char* to = static_cast<char*>(out.mutable_data_ptr());
    // Each rank begins with the next rank's block, so that the ranks do not all read one block at a time.
    for (int step = 1; step <= group_.size(); ++step) {
      const int rank = (group_.rank() + step) % group_.size();
      cudaStream_t stream = streams_[static_cast<size_t>(step - 1) % streams_.size()];
      check(cudaMemcpyAsync(to + rank * slice, blocks_[static_cast<size_t>(rank)] + offset, static_cast<size_t>(slice),
                            cudaMemcpyDeviceToDevice, stream),
            "cudaMemcpyAsync");
    }
    std::vector<cudaEvent_t> done = {ready};
    for (cudaStream_t stream : streams_) {
      done.push_back(take_event());
      check(cudaEventRecord(done.back(), stream), "cudaEventRecord");
    }
    return std::make_unique<PullWork>(std::move(done), spare_, device_);
  }

 private:
  char* own_block() const { return blocks_[static_cast<size_t>(group_.rank())]; }

  cudaEvent_t take_event() {
    if (!spare_.empty()) {
      cudaEvent_t event = spare_.back();
      spare_.pop_back();
      return event;
    }
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    return event;
  }

  Communicator& group_;
  at::Device device_;
  int64_t bytes_;
  std::vector<char*> blocks_;  // per rank of the group, mapped here
  std::vector<cudaStream_t> streams_;
  std::vector<cudaEvent_t> spare_;
};

}  // namespace

std::unique_ptr<PeerMemory> PeerMemory::create(Communicator& group, int64_t bytes, at::Device device,
                                               std::string& why_not) {
  if (!device.is_cuda()) {
    why_not = "the ranks are not on GPUs";
    return nullptr;
  }
  const char* wish = std::getenv("TRIREME_PEER_MEMORY");
  if (wish != nullptr && std::strcmp(wish, "0") == 0) {
    why_not = "TRIREME_PEER_MEMORY=0";
    return nullptr;
  }
  auto memory = std::make_unique<IpcPeerMemory>(group, bytes, device);
  why_not = memory->map_peers();
  if (!why_not.empty()) return nullptr;
  return memory;
}

}  // namespace trireme
