#include "world_backend.h"

#include "collectives.h"
#include "queued_collectives.h"
#include "trireme/base/error.h"
#include "trireme/base/time.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nccl.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

namespace trireme {

namespace {

void check_cuda(cudaError_t status, const char* call) {
  TRIREME_CHECK(status == cudaSuccess, call, ": ", cudaGetErrorString(status));
}

void check_nccl(ncclResult_t status, const char* call) {
  TRIREME_CHECK(status == ncclSuccess || status == ncclInProgress, call, ": ", ncclGetErrorString(status), "; ",
                ncclGetLastError(nullptr));
}

cudaEvent_t cuda_event(const DeviceEvent& event) { return static_cast<cudaEvent_t>(event.handle); }

ncclDataType_t nccl_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return ncclFloat32;
    case at::kDouble: return ncclFloat64;
    case at::kHalf: return ncclFloat16;
    case at::kBFloat16: return ncclBfloat16;
    case at::kInt: return ncclInt32;
    case at::kLong: return ncclInt64;
    case at::kByte: return ncclUint8;
    default: TRIREME_CHECK(false, "NCCL moves no ", c10::toString(type)); return ncclUint8;
  }
}

/// State shared by all NCCL communicators of the process.
class Registry {
 public:
  static Registry& instance() {
    static auto* registry = new Registry;  // never destroyed: other statics may still hold a Work
    return *registry;
  }
  QueuedCollectives& queue() { return queue_; }
  /// Requires: the current device is `device`.
  DeviceEvent take_event(int device) {
    if (const auto spare = queue_.take_spare(device, steady_seconds())) return *spare;
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    return {event, device};
  }
  void add_communicator(ncclComm_t handle, at::Device device) {
    const std::lock_guard lock(mutex_);
    communicators_.push_back({handle, device});
  }
  void remove_communicator(ncclComm_t handle) {
    const std::lock_guard lock(mutex_);
    std::erase_if(communicators_, [&](const auto& entry) { return entry.first == handle; });
  }
  /// The device of one of the communicators; empty if there is none.
  std::optional<at::Device> device() {
    const std::lock_guard lock(mutex_);
    return communicators_.empty() ? std::nullopt : std::optional(communicators_.front().second);
  }
  std::string error() {
    const std::lock_guard lock(mutex_);
    for (const auto& [handle, device] : communicators_) {
      ncclResult_t state = ncclSuccess;
      if (ncclCommGetAsyncError(handle, &state) != ncclSuccess || state == ncclSuccess || state == ncclInProgress)
        continue;
      return fmt::format("NCCL: {}; {}", ncclGetErrorString(state), ncclGetLastError(handle));
    }
    return "";
  }

 private:
  QueuedCollectives queue_{{
      .passed = [](const DeviceEvent& event) { return cudaEventQuery(cuda_event(event)) != cudaErrorNotReady; },
      .ended = [](uint64_t sequence) { collective_observer().end(sequence); },
  }};
  std::mutex mutex_;
  std::vector<std::pair<ncclComm_t, at::Device>> communicators_;
};

class NcclWork final : public Work {
 public:
  NcclWork(DeviceEvent done, at::Device device, std::vector<at::Tensor> alive, uint64_t sequence)
      : done_(done),
        device_(device),
        alive_(std::move(alive)),
        entry_(Registry::instance().queue().add(done, sequence, steady_seconds())) {}
  ~NcclWork() override {
    wait();
    Registry::instance().queue().release(entry_);
  }
  void wait() override {
    if (waited_) return;
    waited_ = true;
    // The default stream's handle means the current device's default stream.
    const c10::cuda::CUDAGuard guard(device_);
    // Ordered after the collective, the current stream may reuse the memory of tensors that were allocated on it.
    (void)cudaStreamWaitEvent(c10::cuda::getCurrentCUDAStream(device_.index()), cuda_event(done_), 0);
    alive_.clear();
  }

 private:
  DeviceEvent done_;
  at::Device device_;
  std::vector<at::Tensor> alive_;
  QueuedCollectives::Entry entry_;
  bool waited_ = false;
};

/// A stream of the highest priority, so that collectives are not queued behind the blocks of a long GEMM.
cudaStream_t make_stream() {
  int lowest = 0, highest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange");
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest), "cudaStreamCreateWithPriority");
  return stream;
}

class NcclCommunicator final : public GroupCommunicator {
 public:
  /// Takes over `handle`; the current device is `device`. `job_ranks`: the group's ranks, evenly spaced among the ranks
  /// of the job.
  NcclCommunicator(std::unique_ptr<HostExchange> exchange, at::Device device, const char* name, ncclComm_t handle,
                   const std::vector<int>& job_ranks)
      : GroupCommunicator(exchange->rank(), exchange->size(), name),
        exchange_(std::move(exchange)),
        device_(device),
        handle_(handle),
        stream_(make_stream()) {
    first_rank_ = job_ranks.front();
    rank_stride_ = job_ranks.size() > 1 ? job_ranks[1] - job_ranks[0] : 1;
    Registry::instance().add_communicator(handle_, device_);
  }
  ~NcclCommunicator() override {
    const c10::cuda::CUDAGuard guard(device_);
    const auto destroy = [this] {
      (void)cudaStreamSynchronize(stream_);
      // Notes the ends of this group's collectives: the watchdog asks no more when the last group is removed.
      (void)Registry::instance().queue().stuck_for(steady_seconds());
      Registry::instance().remove_communicator(handle_);
      ncclCommDestroy(handle_);
    };
    // ncclCommDestroy waits for the peers. While an error unwinds it does not count as a collective: the other ranks
    // may issue another one.
    if (std::uncaught_exceptions() > 0)
      destroy();
    else
      block_in_collective("ncclCommDestroy", 0, name_, destroy);
    (void)cudaStreamDestroy(stream_);
  }
  const char* backend() const override { return "nccl"; }

  WorkPtr all_gather(at::Tensor out, const at::Tensor& in) override {
    check_sizes("all_gather", in, out, /*whole=*/out, in);
    return run("all_gather", {out, in}, in.numel(), out.numel(), [&] {
      return ncclAllGather(in.const_data_ptr(), out.data_ptr(), static_cast<size_t>(in.numel()),
                           nccl_type(in.scalar_type()), handle_, stream_);
    });
  }
  WorkPtr reduce_scatter(at::Tensor out, const at::Tensor& in, ReduceOp op) override {
    check_sizes("reduce_scatter", in, out, /*whole=*/in, out);
    return run("reduce_scatter", {out, in}, in.numel(), out.numel(), [&] {
      return ncclReduceScatter(in.const_data_ptr(), out.data_ptr(), static_cast<size_t>(out.numel()),
                               nccl_type(in.scalar_type()), operation(op), handle_, stream_);
    });
  }
  WorkPtr all_to_all(at::Tensor out, const at::Tensor& in) override {
    check_parts(in, out);
    return run("all_to_all", {out, in}, in.numel(), out.numel(), [&] {
      const size_t bytes = in.nbytes() / static_cast<size_t>(size_);
      const auto* from = static_cast<const char*>(in.const_data_ptr());
      auto* to = static_cast<char*>(out.data_ptr());
      ncclResult_t status = ncclGroupStart();
      for (int peer = 0; peer < size_ && status == ncclSuccess; ++peer) {
        const size_t at = static_cast<size_t>(peer) * bytes;
        status = ncclSend(from + at, bytes, ncclUint8, peer, handle_, stream_);
        if (status == ncclSuccess) status = ncclRecv(to + at, bytes, ncclUint8, peer, handle_, stream_);
      }
      const ncclResult_t ended = ncclGroupEnd();
      return status == ncclSuccess ? ended : status;
    });
  }
  WorkPtr all_reduce(at::Tensor tensor, ReduceOp op) override {
    return run("all_reduce", {tensor}, tensor.numel(), tensor.numel(), [&] {
      return ncclAllReduce(tensor.data_ptr(), tensor.data_ptr(), static_cast<size_t>(tensor.numel()),
                           nccl_type(tensor.scalar_type()), operation(op), handle_, stream_);
    });
  }
  WorkPtr broadcast(at::Tensor tensor, int root) override {
    check_root(root);
    return run("broadcast", {tensor}, tensor.numel(), tensor.numel(), [&] {
      return ncclBroadcast(tensor.data_ptr(), tensor.data_ptr(), static_cast<size_t>(tensor.numel()),
                           nccl_type(tensor.scalar_type()), root, handle_, stream_);
    });
  }
  void barrier() override {
    block_in_collective("barrier", 0, name_, [&] {
      const CollectiveRecord record(facts("barrier"));
      exchange_->barrier();
    });
  }
  bool barrier_within(double seconds) override {
    bool all_came = false;
    block_in_collective("barrier", 0, name_, [&] { all_came = exchange_->barrier_within(seconds); });
    return all_came;
  }

  std::vector<double> all_reduce_host(std::vector<double> values, ReduceOp op) override {
    const auto count = static_cast<int64_t>(values.size());
    block_in_collective("all_reduce_host", count, name_, [&] {
      const CollectiveRecord record(facts("all_reduce_host", 0, count, count, at::kDouble));
      values = exchange_->all_reduce(values, op);
    });
    return values;
  }
  std::vector<std::string> all_gather_host(const std::string& value) override {
    std::vector<std::string> result;
    const auto bytes = static_cast<int64_t>(value.size());
    block_in_collective("all_gather_host", bytes, name_, [&] {
      const CollectiveRecord record(facts("all_gather_host", 0, bytes, bytes * size_));
      result = exchange_->all_gather(value);
    });
    return result;
  }
  std::vector<std::string> gather_host(const std::string& mine) override {
    std::vector<std::string> result;
    const auto bytes = static_cast<int64_t>(mine.size());
    block_in_collective("gather_host", bytes, name_, [&] {
      const CollectiveRecord record(facts("gather_host", 0, bytes, rank_ == 0 ? bytes * size_ : 0));
      result = exchange_->gather(mine);
    });
    return result;
  }
  std::unique_ptr<Communicator> split(int colour, int multiprocessors) override {
    // NCCL takes colours from 0 up and makes no communicator for others.
    TRIREME_CHECK(colour >= 0, "split with colour ", colour);
    const c10::cuda::CUDAGuard guard(device_);
    std::unique_ptr<HostExchange> part;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    if (multiprocessors > 0) {
      config.minCTAs = 1;
      config.maxCTAs = multiprocessors;
    }
    ncclComm_t handle = nullptr;
    std::vector<int> job_ranks;
    block_in_collective("ncclCommSplit", 0, name_, [&] {
      part = exchange_->split(colour);
      for (const std::string& rank : part->all_gather(std::to_string(first_rank_ + rank_ * rank_stride_)))
        job_ranks.push_back(std::stoi(rank));
      check_nccl(ncclCommSplit(handle_, colour, rank_, &handle, &config), "ncclCommSplit");
    });
    return std::make_unique<NcclCommunicator>(std::move(part), device_, "part", handle, job_ranks);
  }

 private:
  static ncclRedOp_t operation(ReduceOp op) { return op == ReduceOp::kSum ? ncclSum : ncclMax; }

  template <class Call>
  WorkPtr run(const char* kind, std::vector<at::Tensor> tensors, int64_t elements, int64_t out_elements,
              const Call& call) {
    for (const at::Tensor& tensor : tensors) {
      TRIREME_CHECK(tensor.device() == device_, kind, " of a tensor on ", tensor.device().str(), " in a group on ",
                    device_.str());
      TRIREME_CHECK(tensor.is_contiguous(), "collectives need contiguous tensors");
    }
    const c10::cuda::CUDAGuard guard(device_);
    return launch_collective(kind, elements, name_, [&](uint64_t sequence) -> WorkPtr {
      if (checking_collectives())
        check_same_collective(exchange_->all_gather(detail::concat(kind, "[", elements, "] on ", name_)), sequence);
      const CollectiveRecord record(facts(kind, sequence, elements, out_elements, tensors[0].scalar_type()));
      Registry& registry = Registry::instance();
      const DeviceEvent ready = registry.take_event(device_.index());
      check_cuda(cudaEventRecord(cuda_event(ready), c10::cuda::getCurrentCUDAStream(device_.index())),
                 "cudaEventRecord");
      check_cuda(cudaStreamWaitEvent(stream_, cuda_event(ready), 0), "cudaStreamWaitEvent");
      registry.queue().give_back(ready);  // the wait refers to the record made above
      check_nccl(call(), kind);
      const DeviceEvent done = registry.take_event(device_.index());
      check_cuda(cudaEventRecord(cuda_event(done), stream_), "cudaEventRecord");
      return std::make_unique<NcclWork>(done, device_, std::move(tensors), sequence);
    });
  }

  std::unique_ptr<HostExchange> exchange_;
  at::Device device_;
  ncclComm_t handle_;
  cudaStream_t stream_;
};

void prepare_nccl() {
  // Set already by programs that train (set_library_environment()); others use no NVLink multicast either.
  setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/0);
  int loaded = 0;
  check_nccl(ncclGetVersion(&loaded), "ncclGetVersion");
  TRIREME_CHECK(loaded / 100 == NCCL_VERSION_CODE / 100, "built for NCCL ", NCCL_VERSION_CODE, " but ", loaded,
                " was loaded: the program must load the copy that LibTorch loads");
}

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<HostExchange> exchange, at::Device device,
                                                     const char* name) {
  prepare_nccl();
  const c10::cuda::CUDAGuard guard(device);
  ncclComm_t handle = nullptr;
  block_in_collective("ncclCommInitRank", 0, name, [&] {
    ncclUniqueId id{};
    std::string text(sizeof id, '\0');
    if (exchange->rank() == 0) {
      check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
      std::memcpy(text.data(), &id, sizeof id);
    }
    text = exchange->broadcast(text);
    std::memcpy(&id, text.data(), sizeof id);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    check_nccl(ncclCommInitRankConfig(&handle, exchange->size(), id, exchange->rank(), &config), "ncclCommInitRank");
  });
  return std::make_unique<NcclCommunicator>(std::move(exchange), device, name, handle, std::vector<int>{0, 1});
}

double nccl_stuck_for() {
  const auto device = Registry::instance().device();
  if (!device) return 0;
  // In a thread without a current device the first CUDA call would create a context on GPU 0.
  const c10::cuda::CUDAGuard guard(*device);
  // The query must not invalidate a graph capture of the training thread.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
  const double seconds = Registry::instance().queue().stuck_for(steady_seconds());
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
  return seconds;
}

std::string nccl_error() {
  const auto device = Registry::instance().device();
  if (!device) return "";
  const c10::cuda::CUDAGuard guard(*device);
  return Registry::instance().error();
}

}  // namespace trireme
