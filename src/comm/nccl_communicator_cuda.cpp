#include "nccl_communicator.h"

#include "progress_ring.h"
#include "trireme/base/error.h"
#include "trireme/base/time.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nccl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <list>
#include <mutex>

namespace trireme {

namespace {

void check_cuda(cudaError_t status, const char* call) {
  TRIREME_CHECK(status == cudaSuccess, call, ": ", cudaGetErrorString(status));
}

void check_nccl(ncclResult_t status, const char* call) {
  TRIREME_CHECK(status == ncclSuccess || status == ncclInProgress, call, ": ", ncclGetErrorString(status), "; ",
                ncclGetLastError(nullptr));
}

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

/// A collective on a GPU stream, from its call until its event is seen finished. The watchdog reads these: a host that
/// has gone on and now waits for the stream elsewhere is as stuck as the collective.
struct Queued {
  cudaEvent_t event;
  uint64_t sequence;
  double began;
  bool released = false;  // its Work is gone: the event may serve again
};

class Registry {
 public:
  static Registry& instance() {
    static auto* registry = new Registry;  // outlives every static that may still finish a collective
    return *registry;
  }
  cudaEvent_t take_event() {
    const std::lock_guard lock(mutex_);
    if (spare_.empty()) collect();
    if (!spare_.empty()) {
      cudaEvent_t event = spare_.back();
      spare_.pop_back();
      return event;
    }
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    return event;
  }
  void give_back(cudaEvent_t event) {
    const std::lock_guard lock(mutex_);
    spare_.push_back(event);
  }
  std::list<Queued>::iterator add(cudaEvent_t event, uint64_t sequence) {
    const std::lock_guard lock(mutex_);
    return queued_.insert(queued_.end(), {event, sequence, steady_seconds()});
  }
  void release(std::list<Queued>::iterator entry) {
    const std::lock_guard lock(mutex_);
    entry->released = true;
  }
  double stuck_for() {
    const std::lock_guard lock(mutex_);
    collect();
    for (const Queued& entry : queued_)
      if (!finished(entry)) return steady_seconds() - std::max(entry.began, last_progress_);
    return 0;
  }
  void add_communicator(ncclComm_t handle) {
    const std::lock_guard lock(mutex_);
    communicators_.push_back(handle);
  }
  void remove_communicator(ncclComm_t handle) {
    const std::lock_guard lock(mutex_);
    communicators_.erase(std::find(communicators_.begin(), communicators_.end(), handle));
  }
  std::string error() {
    const std::lock_guard lock(mutex_);
    for (const ncclComm_t handle : communicators_) {
      ncclResult_t state = ncclSuccess;
      if (ncclCommGetAsyncError(handle, &state) != ncclSuccess || state == ncclSuccess || state == ncclInProgress)
        continue;
      return fmt::format("NCCL: {}; {}", ncclGetErrorString(state), ncclGetLastError(handle));
    }
    return "";
  }

 private:
  static bool finished(const Queued& entry) { return cudaEventQuery(entry.event) != cudaErrorNotReady; }

  /// Notes what has finished; events that nobody needs any more become spare.
  void collect() {
    for (auto entry = queued_.begin(); entry != queued_.end();) {
      if (!finished(*entry)) {
        ++entry;
        continue;
      }
      ProgressRing::instance().end(entry->sequence);
      last_progress_ = steady_seconds();
      if (!entry->released) {
        ++entry;
        continue;
      }
      spare_.push_back(entry->event);
      entry = queued_.erase(entry);
    }
  }

  std::mutex mutex_;
  std::list<Queued> queued_;
  std::vector<cudaEvent_t> spare_;
  std::vector<ncclComm_t> communicators_;
  double last_progress_ = 0;
};

class NcclWork final : public Work {
 public:
  NcclWork(cudaEvent_t done, at::Device device, std::vector<at::Tensor> alive, uint64_t sequence)
      : done_(done), device_(device), alive_(std::move(alive)), entry_(Registry::instance().add(done, sequence)) {}
  ~NcclWork() override {
    wait();
    Registry::instance().release(entry_);
  }
  void wait() override {
    if (waited_) return;
    waited_ = true;
    // Ordered after the collective, the current stream may reuse the memory of tensors that were allocated on it.
    (void)cudaStreamWaitEvent(c10::cuda::getCurrentCUDAStream(device_.index()), done_, 0);
    alive_.clear();
  }

 private:
  cudaEvent_t done_;
  at::Device device_;
  std::vector<at::Tensor> alive_;
  std::list<Queued>::iterator entry_;
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

class NcclCommunicator final : public Communicator {
 public:
  /// Takes over `handle`; the current device is `device`.
  NcclCommunicator(std::unique_ptr<HostExchange> exchange, at::Device device, const char* name, ncclComm_t handle)
      : Communicator(exchange->rank(), exchange->size()),
        exchange_(std::move(exchange)),
        device_(device),
        name_(name),
        handle_(handle),
        stream_(make_stream()) {
    Registry::instance().add_communicator(handle_);
  }
  ~NcclCommunicator() override {
    Registry::instance().remove_communicator(handle_);
    const c10::cuda::CUDAGuard guard(device_);
    (void)cudaStreamSynchronize(stream_);
    ncclCommDestroy(handle_);
    (void)cudaStreamDestroy(stream_);
  }
  const char* backend() const override { return "nccl"; }

  WorkPtr all_gather(at::Tensor out, const at::Tensor& in) override {
    TRIREME_CHECK(out.numel() == in.numel() * size_ && out.scalar_type() == in.scalar_type(), "all_gather of ",
                  in.numel(), " elements into ", out.numel(), " over ", size_, " ranks");
    return run("all_gather", {out, in}, in.numel(), [&] {
      return ncclAllGather(in.const_data_ptr(), out.data_ptr(), static_cast<size_t>(in.numel()),
                           nccl_type(in.scalar_type()), handle_, stream_);
    });
  }
  WorkPtr reduce_scatter(at::Tensor out, const at::Tensor& in, ReduceOp op) override {
    TRIREME_CHECK(in.numel() == out.numel() * size_ && out.scalar_type() == in.scalar_type(), "reduce_scatter of ",
                  in.numel(), " elements into ", out.numel(), " over ", size_, " ranks");
    return run("reduce_scatter", {out, in}, in.numel(), [&] {
      return ncclReduceScatter(in.const_data_ptr(), out.data_ptr(), static_cast<size_t>(out.numel()),
                               nccl_type(in.scalar_type()), operation(op), handle_, stream_);
    });
  }
  WorkPtr all_reduce(at::Tensor tensor, ReduceOp op) override {
    return run("all_reduce", {tensor}, tensor.numel(), [&] {
      return ncclAllReduce(tensor.data_ptr(), tensor.data_ptr(), static_cast<size_t>(tensor.numel()),
                           nccl_type(tensor.scalar_type()), operation(op), handle_, stream_);
    });
  }
  WorkPtr broadcast(at::Tensor tensor, int root) override {
    TRIREME_CHECK(root >= 0 && root < size_, "broadcast from rank ", root, " of ", size_);
    return run("broadcast", {tensor}, tensor.numel(), [&] {
      return ncclBroadcast(tensor.data_ptr(), tensor.data_ptr(), static_cast<size_t>(tensor.numel()),
                           nccl_type(tensor.scalar_type()), root, handle_, stream_);
    });
  }
  void barrier() override {
    block_in_collective("barrier", 0, name_, [&] { exchange_->barrier(); });
  }

  std::vector<double> all_reduce_host(std::vector<double> values, ReduceOp op) override {
    block_in_collective("all_reduce_host", static_cast<int64_t>(values.size()), name_,
                        [&] { values = exchange_->all_reduce(values, op); });
    return values;
  }
  std::vector<std::string> all_gather_host(const std::string& value) override {
    std::vector<std::string> result;
    block_in_collective("all_gather_host", static_cast<int64_t>(value.size()), name_,
                        [&] { result = exchange_->all_gather(value); });
    return result;
  }
  std::vector<std::string> gather_host(const std::string& mine) override {
    std::vector<std::string> result;
    block_in_collective("gather_host", static_cast<int64_t>(mine.size()), name_,
                        [&] { result = exchange_->gather(mine); });
    return result;
  }
  std::unique_ptr<Communicator> split(int colour) override {
    // NCCL takes colours from 0 up and makes no communicator for others.
    TRIREME_CHECK(colour >= 0, "split with colour ", colour);
    const c10::cuda::CUDAGuard guard(device_);
    auto part = exchange_->split(colour);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t handle = nullptr;
    check_nccl(ncclCommSplit(handle_, colour, rank_, &handle, &config), "ncclCommSplit");
    return std::make_unique<NcclCommunicator>(std::move(part), device_, "part", handle);
  }

 private:
  static ncclRedOp_t operation(ReduceOp op) { return op == ReduceOp::kSum ? ncclSum : ncclMax; }

  template <class Call>
  WorkPtr run(const char* kind, std::vector<at::Tensor> tensors, int64_t elements, const Call& call) {
    for (const at::Tensor& tensor : tensors) {
      TRIREME_CHECK(tensor.device() == device_, kind, " of a tensor on ", tensor.device().str(), " in a group on ",
                    device_.str());
      TRIREME_CHECK(tensor.is_contiguous(), "collectives need contiguous tensors");
    }
    const c10::cuda::CUDAGuard guard(device_);
    const uint64_t sequence = ProgressRing::instance().begin(kind, elements, name_);
    if (checking_collectives())
      check_same_collective(exchange_->all_gather(detail::concat(kind, "[", elements, "] on ", name_)), sequence);
    Registry& registry = Registry::instance();
    const cudaEvent_t ready = registry.take_event();
    check_cuda(cudaEventRecord(ready, c10::cuda::getCurrentCUDAStream(device_.index())), "cudaEventRecord");
    check_cuda(cudaStreamWaitEvent(stream_, ready, 0), "cudaStreamWaitEvent");
    registry.give_back(ready);  // a wait is bound to the record that was there when it was called
    check_nccl(call(), kind);
    const cudaEvent_t done = registry.take_event();
    check_cuda(cudaEventRecord(done, stream_), "cudaEventRecord");
    return std::make_unique<NcclWork>(done, device_, std::move(tensors), sequence);
  }

  std::unique_ptr<HostExchange> exchange_;
  at::Device device_;
  const char* name_;
  ncclComm_t handle_;
  cudaStream_t stream_;
};

void prepare_nccl() {
  // NVLink multicast stays off by design: one faulty program that uses it can take a host's GPUs out of service.
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
  ncclUniqueId id{};
  std::string text(sizeof id, '\0');
  if (exchange->rank() == 0) {
    check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
    std::memcpy(text.data(), &id, sizeof id);
  }
  text = exchange->broadcast(text);
  std::memcpy(&id, text.data(), sizeof id);
  ncclComm_t handle = nullptr;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  check_nccl(ncclCommInitRankConfig(&handle, exchange->size(), id, exchange->rank(), &config), "ncclCommInitRank");
  return std::make_unique<NcclCommunicator>(std::move(exchange), device, name, handle);
}

double nccl_stuck_for() {
  // A query beside a graph capture of the training thread must not invalidate it.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
  const double seconds = Registry::instance().stuck_for();
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
  return seconds;
}

std::string nccl_error() { return Registry::instance().error(); }

}  // namespace trireme
