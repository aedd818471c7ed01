#include "mpi_communicator.h"

#include "collectives.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>
#include <sched.h>

#include <algorithm>
#include <functional>
#include <string_view>
#include <type_traits>
#include <utility>

namespace trireme {

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw InternalError(detail::concat(call, ": ", std::string(text, static_cast<size_t>(length))));
}

MPI_Comm& mpi_job() {
  static MPI_Comm job = MPI_COMM_WORLD;
  return job;
}

void initialize_mpi() {
  int already = 0;
  MPI_Initialized(&already);
  if (already != 0) return;
  int provided = 0;
  // Calls come from one thread at a time, but not always from the same: TRIREME_CHECK_COLLECTIVES=1 exchanges text
  // before a collective of backward, which autograd's thread starts while the main thread waits for it.
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  TRIREME_CHECK(provided >= MPI_THREAD_SERIALIZED, "MPI gives thread level ", provided, ", needed is ",
                MPI_THREAD_SERIALIZED);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
}

bool mpi_runs() {
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized != 0 && finalized == 0;
}

int mpi_rank(MPI_Comm handle) {
  int rank = 0;
  check_mpi(MPI_Comm_rank(handle, &rank), "MPI_Comm_rank");
  return rank;
}

int mpi_size(MPI_Comm handle) {
  int size = 0;
  check_mpi(MPI_Comm_size(handle, &size), "MPI_Comm_size");
  return size;
}

void finalize_mpi() {
  if (mpi_runs()) block_in_collective(kMpiFinalize, 0, "world", [] { MPI_Finalize(); });
}

void abort_mpi(int exit_code) {
  if (mpi_runs()) MPI_Abort(MPI_COMM_WORLD, exit_code);
}

int64_t& mpi_piece_elements() {
  static int64_t elements = int64_t{1} << 30;
  return elements;
}

namespace {

/// Requests of one collective, what they read and write, and what happens when they are done.
struct MpiRequests {
  std::vector<MPI_Request> all;
  std::vector<at::Tensor> alive;
  std::function<void()> then;

  /// A new request, for the call that starts it.
  MPI_Request* add() { return &all.emplace_back(MPI_REQUEST_NULL); }
};

class MpiWork final : public Work {
 public:
  MpiWork(MpiRequests requests, uint64_t sequence) : requests_(std::move(requests)), sequence_(sequence) {}
  ~MpiWork() override {
    try {
      wait();
    } catch (const std::exception&) {
      // wait() has thrown the same failure to its caller; a destructor must not throw.
    }
  }
  void wait() override {
    if (done_) return;
    done_ = true;
    collective_observer().wait(sequence_);
    const ProfileRange range("wait for MPI");
    // Polls instead of blocking in MPI: with more ranks than cores the others need this core.
    for (int finished = 0; finished == 0;) {
      check_mpi(
          MPI_Testall(static_cast<int>(requests_.all.size()), requests_.all.data(), &finished, MPI_STATUSES_IGNORE),
          "MPI_Testall");
      if (finished == 0) sched_yield();
    }
    if (requests_.then) requests_.then();
    collective_observer().end(sequence_);
    requests_.alive.clear();
  }

 private:
  MpiRequests requests_;
  uint64_t sequence_;
  bool done_ = false;
};

/// A tensor in a type that MPI can add: itself, or its fp32 copy.
struct Staged {
  at::Tensor data;
  MPI_Datatype type;
};

Staged stage(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat: return {tensor, MPI_FLOAT};
    case at::kDouble: return {tensor, MPI_DOUBLE};
    case at::kInt: return {tensor, MPI_INT32_T};
    case at::kLong: return {tensor, MPI_INT64_T};
    case at::kBFloat16:
    case at::kHalf: return {tensor.detach().to(at::kFloat), MPI_FLOAT};
    default:
      TRIREME_CHECK(false, "MPI groups reduce floats, int32 and int64, not ", c10::toString(tensor.scalar_type()));
  }
  return {};
}

std::function<void()> copy_back(const at::Tensor& tensor, const Staged& staged) {
  if (staged.data.is_same(tensor)) return {};
  return [target = tensor.detach(), data = staged.data]() mutable { target.copy_(data); };
}

class MpiCommunicator final : public GroupCommunicator {
 public:
  MpiCommunicator(MPI_Comm handle, const char* name)
      : GroupCommunicator(mpi_rank(handle), mpi_size(handle), name), handle_(handle) {
    MPI_Comm_set_errhandler(handle, MPI_ERRORS_RETURN);
    place_in_job();
  }
  ~MpiCommunicator() override {
    if (mpi_runs() && handle_ != mpi_job()) MPI_Comm_free(&handle_);
  }
  const char* backend() const override { return "mpi"; }

  WorkPtr all_gather(at::Tensor out, const at::Tensor& in) override {
    check_sizes("all_gather", in, out, /*whole=*/out, in);
    return run("all_gather", {out, in}, in.numel(), out.numel(), [&](MpiRequests& requests) {
      const auto bytes = static_cast<int64_t>(in.nbytes());
      auto* target = static_cast<char*>(out.data_ptr());
      const bool in_place = in.const_data_ptr() == target + rank_ * bytes;
      if (bytes * size_ <= mpi_piece_elements()) {
        check_mpi(MPI_Iallgather(in_place ? MPI_IN_PLACE : in.const_data_ptr(), static_cast<int>(bytes), MPI_BYTE,
                                 target, static_cast<int>(bytes), MPI_BYTE, handle_, requests.add()),
                  "MPI_Iallgather");
        return;
      }
      // Long slices: one broadcast per rank and piece.
      if (!in_place) std::copy_n(static_cast<const char*>(in.const_data_ptr()), bytes, target + rank_ * bytes);
      for (int root = 0; root < size_; ++root) broadcast_pieces(target + root * bytes, bytes, root, requests);
    });
  }

  WorkPtr reduce_scatter(at::Tensor out, const at::Tensor& in, ReduceOp op) override {
    check_sizes("reduce_scatter", in, out, /*whole=*/in, out);
    return run("reduce_scatter", {in, out}, in.numel(), out.numel(), [&](MpiRequests& requests) {
      const Staged source = stage(in), target = stage(out);
      const auto* from = static_cast<const char*>(source.data.const_data_ptr());
      auto* to = static_cast<char*>(target.data.data_ptr());
      const int64_t count = out.numel(), width = target.data.element_size();
      if (in.numel() <= mpi_piece_elements()) {
        check_mpi(MPI_Ireduce_scatter_block(from, to, static_cast<int>(count), source.type, operation(op), handle_,
                                            requests.add()),
                  "MPI_Ireduce_scatter_block");
      } else {
        // Long inputs: one reduction per receiving rank and piece.
        for (int root = 0; root < size_; ++root)
          for (int64_t begin = 0; begin < count; begin += mpi_piece_elements())
            check_mpi(MPI_Ireduce(from + (root * count + begin) * width, to + begin * width,
                                  static_cast<int>(std::min(mpi_piece_elements(), count - begin)), source.type,
                                  operation(op), root, handle_, requests.add()),
                      "MPI_Ireduce");
      }
      requests.alive.insert(requests.alive.end(), {source.data, target.data});
      requests.then = copy_back(out, target);
    });
  }

  WorkPtr all_to_all(at::Tensor out, const at::Tensor& in) override {
    check_parts(in, out);
    return run("all_to_all", {out, in}, in.numel(), out.numel(), [&](MpiRequests& requests) {
      const int64_t bytes = static_cast<int64_t>(in.nbytes()) / size_;
      const auto* from = static_cast<const char*>(in.const_data_ptr());
      auto* to = static_cast<char*>(out.data_ptr());
      std::copy_n(from + rank_ * bytes, bytes, to + rank_ * bytes);
      // Messages of one pair of ranks arrive in the order in which they are sent.
      for (int peer = 0; peer < size_; ++peer)
        for (int64_t begin = peer * bytes; peer != rank_ && begin < (peer + 1) * bytes; begin += mpi_piece_elements()) {
          const auto count = static_cast<int>(std::min(mpi_piece_elements(), (peer + 1) * bytes - begin));
          check_mpi(MPI_Irecv(to + begin, count, MPI_BYTE, peer, 0, handle_, requests.add()), "MPI_Irecv");
          check_mpi(MPI_Isend(from + begin, count, MPI_BYTE, peer, 0, handle_, requests.add()), "MPI_Isend");
        }
    });
  }

  WorkPtr all_reduce(at::Tensor tensor, ReduceOp op) override {
    return run("all_reduce", {tensor}, tensor.numel(), tensor.numel(), [&](MpiRequests& requests) {
      const Staged staged = stage(tensor);
      auto* data = static_cast<char*>(staged.data.data_ptr());
      const int64_t count = tensor.numel(), width = staged.data.element_size();
      for (int64_t begin = 0; begin < count; begin += mpi_piece_elements())
        check_mpi(MPI_Iallreduce(MPI_IN_PLACE, data + begin * width,
                                 static_cast<int>(std::min(mpi_piece_elements(), count - begin)), staged.type,
                                 operation(op), handle_, requests.add()),
                  "MPI_Iallreduce");
      requests.alive.push_back(staged.data);
      requests.then = copy_back(tensor, staged);
    });
  }

  WorkPtr broadcast(at::Tensor tensor, int root) override {
    check_root(root);
    return run("broadcast", {tensor}, tensor.numel(), tensor.numel(), [&](MpiRequests& requests) {
      broadcast_pieces(static_cast<char*>(tensor.data_ptr()), static_cast<int64_t>(tensor.nbytes()), root, requests);
    });
  }

  void barrier() override {
    const uint64_t sequence = begin("barrier", 0);
    const CollectiveRecord record(facts("barrier", sequence));
    MpiRequests requests;
    check_mpi(MPI_Ibarrier(handle_, requests.add()), "MPI_Ibarrier");
    MpiWork(std::move(requests), sequence).wait();
  }

  bool barrier_within(double seconds) override {
    bool all_came = false;
    block_in_collective("barrier", 0, name_, [&] { all_came = mpi_barrier_within(handle_, seconds); });
    return all_came;
  }

  std::vector<double> all_reduce_host(std::vector<double> values, ReduceOp op) override {
    const auto count = static_cast<int64_t>(values.size());
    return on_host("all_reduce_host", count, count, at::kDouble,
                   [&] { return mpi_all_reduce_host(handle_, std::move(values), op); });
  }

  std::vector<std::string> all_gather_host(const std::string& value) override {
    const auto bytes = static_cast<int64_t>(value.size());
    return on_host("all_gather_host", bytes, bytes * size_, at::kByte,
                   [&] { return mpi_all_gather_host(handle_, value); });
  }

  std::vector<std::string> gather_host(const std::string& mine) override {
    const auto bytes = static_cast<int64_t>(mine.size());
    return on_host("gather_host", bytes, rank_ == 0 ? bytes * size_ : 0, at::kByte,
                   [&] { return mpi_gather_host(handle_, mine); });
  }

  std::unique_ptr<Communicator> split(int colour, int) override {
    MPI_Comm part = MPI_COMM_NULL;
    block_in_collective("MPI_Comm_split", 0, name_,
                        [&] { check_mpi(MPI_Comm_split(handle_, colour, rank_, &part), "MPI_Comm_split"); });
    return make_mpi_communicator(part, "part");
  }

 private:
  /// Starts the requests of a collective of `tensors`.
  template <class Start>
  WorkPtr run(const char* kind, std::vector<at::Tensor> tensors, int64_t in, int64_t out, const Start& start) {
    for (const at::Tensor& tensor : tensors) check_tensor(tensor);
    const uint64_t sequence = begin(kind, in);
    const CollectiveRecord record(facts(kind, sequence, in, out, tensors[0].scalar_type()));
    MpiRequests requests{{}, std::move(tensors), {}};
    start(requests);
    return std::make_unique<MpiWork>(std::move(requests), sequence);
  }
  /// An exchange of values in which the host waits.
  template <class Exchange>
  std::invoke_result_t<Exchange> on_host(const char* kind, int64_t in, int64_t out, at::ScalarType type,
                                         const Exchange& exchange) {
    const uint64_t sequence = begin(kind, in);
    const CollectiveRecord record(facts(kind, sequence, in, out, type));
    collective_observer().wait(sequence);
    auto result = exchange();
    collective_observer().end(sequence);
    return result;
  }
  /// Values of hosts may differ in length from rank to rank.
  uint64_t begin(const char* kind, int64_t elements) const {
    const uint64_t sequence = collective_observer().begin(kind, elements, name_);
    if (checking_collectives()) {
      const bool any_size = std::string_view(kind).ends_with("gather_host");
      const std::string own =
          any_size ? detail::concat(kind, " on ", name_) : detail::concat(kind, "[", elements, "] on ", name_);
      collective_observer().wait(sequence);
      const std::vector<std::string> all = mpi_all_gather_host(handle_, own);
      collective_observer().resume(sequence);
      check_same_collective(all, sequence);
    }
    return sequence;
  }
  /// The job's ranks that this group has.
  void place_in_job() {
    MPI_Group world = MPI_GROUP_NULL, own = MPI_GROUP_NULL;
    check_mpi(MPI_Comm_group(mpi_job(), &world), "MPI_Comm_group");
    check_mpi(MPI_Comm_group(handle_, &own), "MPI_Comm_group");
    const int members[2] = {0, 1};
    int ranks[2] = {0, 1};
    check_mpi(MPI_Group_translate_ranks(own, size_ > 1 ? 2 : 1, members, world, ranks), "MPI_Group_translate_ranks");
    first_rank_ = ranks[0];
    rank_stride_ = size_ > 1 ? ranks[1] - ranks[0] : 1;
    MPI_Group_free(&own);
    MPI_Group_free(&world);
  }
  static MPI_Op operation(ReduceOp op) { return op == ReduceOp::kSum ? MPI_SUM : MPI_MAX; }
  static void check_tensor(const at::Tensor& tensor) {
    TRIREME_CHECK(tensor.device().is_cpu(), "an MPI group moves CPU tensors, this one is on ", tensor.device().str());
    TRIREME_CHECK(tensor.is_contiguous(), "collectives need contiguous tensors");
  }
  void broadcast_pieces(char* data, int64_t bytes, int root, MpiRequests& requests) {
    for (int64_t begin = 0; begin < bytes; begin += mpi_piece_elements())
      check_mpi(MPI_Ibcast(data + begin, static_cast<int>(std::min(mpi_piece_elements(), bytes - begin)), MPI_BYTE,
                           root, handle_, requests.add()),
                "MPI_Ibcast");
  }

  MPI_Comm handle_;
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm handle, const char* name) {
  return std::make_unique<MpiCommunicator>(handle, name);
}

}  // namespace trireme
