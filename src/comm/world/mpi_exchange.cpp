// Host values through MPI: the calls, and the exchange of a GPU world's ranks.
#include "host_exchange.h"
#include "mpi_communicator.h"
#include "trireme/base/error.h"
#include "trireme/base/time.h"

#include <sched.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace trireme {

std::vector<double> mpi_all_reduce_host(MPI_Comm handle, std::vector<double> values, ReduceOp op) {
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE,
                          op == ReduceOp::kSum ? MPI_SUM : MPI_MAX, handle),
            "MPI_Allreduce");
  return values;
}

namespace {

/// Offset of each rank's value in the concatenation, and the end of the last value. MPI takes offsets as int.
std::vector<int> offsets_of(const std::vector<int>& lengths) {
  std::vector<int> offsets = {0};
  int64_t total = 0;
  for (const int length : lengths) {
    total += length;
    TRIREME_CHECK(total <= std::numeric_limits<int>::max(), "host values of more than ", total - length, " bytes over ",
                  lengths.size(), " ranks");
    offsets.push_back(static_cast<int>(total));
  }
  return offsets;
}

int length_of(const std::string& value) {
  TRIREME_CHECK(value.size() <= static_cast<size_t>(std::numeric_limits<int>::max()), "a host value of ", value.size(),
                " bytes");
  return static_cast<int>(value.size());
}

std::vector<std::string> cut(const std::string& all, const std::vector<int>& offsets) {
  std::vector<std::string> values;
  for (size_t i = 0; i + 1 < offsets.size(); ++i)
    values.push_back(all.substr(static_cast<size_t>(offsets[i]), static_cast<size_t>(offsets[i + 1] - offsets[i])));
  return values;
}

}  // namespace

std::vector<std::string> mpi_all_gather_host(MPI_Comm handle, const std::string& value) {
  std::vector<int> lengths(static_cast<size_t>(mpi_size(handle)));
  const int length = length_of(value);
  check_mpi(MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, handle), "MPI_Allgather");
  const std::vector<int> offsets = offsets_of(lengths);
  std::string all(static_cast<size_t>(offsets.back()), '\0');
  check_mpi(
      MPI_Allgatherv(value.data(), length, MPI_CHAR, all.data(), lengths.data(), offsets.data(), MPI_CHAR, handle),
      "MPI_Allgatherv");
  return cut(all, offsets);
}

std::vector<std::string> mpi_gather_host(MPI_Comm handle, const std::string& value) {
  const bool root = mpi_rank(handle) == 0;
  std::vector<int> lengths(root ? static_cast<size_t>(mpi_size(handle)) : 0);
  const int length = length_of(value);
  check_mpi(MPI_Gather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, 0, handle), "MPI_Gather");
  const std::vector<int> offsets = offsets_of(lengths);
  std::string all(static_cast<size_t>(offsets.back()), '\0');
  check_mpi(
      MPI_Gatherv(value.data(), length, MPI_CHAR, all.data(), lengths.data(), offsets.data(), MPI_CHAR, 0, handle),
      "MPI_Gatherv");
  return cut(all, offsets);
}

std::string mpi_broadcast_host(MPI_Comm handle, const std::string& value) {
  const bool root = mpi_rank(handle) == 0;
  int length = root ? length_of(value) : 0;
  check_mpi(MPI_Bcast(&length, 1, MPI_INT, 0, handle), "MPI_Bcast");
  std::string received = root ? value : std::string(static_cast<size_t>(length), '\0');
  check_mpi(MPI_Bcast(received.data(), length, MPI_CHAR, 0, handle), "MPI_Bcast");
  return received;
}

bool mpi_barrier_within(MPI_Comm handle, double seconds) {
  const double end = steady_seconds() + seconds;
  MPI_Request request = MPI_REQUEST_NULL;
  if (MPI_Ibarrier(handle, &request) != MPI_SUCCESS) return false;
  for (int finished = 0;; sched_yield()) {
    if (MPI_Test(&request, &finished, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
    if (finished != 0) return true;
    if (steady_seconds() > end) return false;
  }
}

namespace {

class MpiExchange final : public HostExchange {
 public:
  MpiExchange(MPI_Comm handle, bool owned)
      : HostExchange(mpi_rank(handle), mpi_size(handle)), handle_(handle), owned_(owned) {
    MPI_Comm_set_errhandler(handle, MPI_ERRORS_RETURN);
  }
  ~MpiExchange() override {
    if (owned_ && mpi_runs()) MPI_Comm_free(&handle_);
  }
  std::vector<std::string> gather(const std::string& mine) override { return mpi_gather_host(handle_, mine); }
  std::string broadcast(const std::string& value) override { return mpi_broadcast_host(handle_, value); }
  std::vector<std::string> all_gather(const std::string& mine) override { return mpi_all_gather_host(handle_, mine); }
  bool barrier_within(double seconds) override { return mpi_barrier_within(handle_, seconds); }
  std::unique_ptr<HostExchange> split(int colour) override {
    MPI_Comm part = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split(handle_, colour, rank_, &part), "MPI_Comm_split");
    return std::make_unique<MpiExchange>(part, /*owned=*/true);
  }
  std::unique_ptr<HostExchange> renumber(int rank) override {
    MPI_Comm same = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split(handle_, 0, rank, &same), "MPI_Comm_split");
    return std::make_unique<MpiExchange>(same, /*owned=*/true);
  }

 private:
  MPI_Comm handle_;
  bool owned_;
};

}  // namespace

std::unique_ptr<HostExchange> make_mpi_exchange(MPI_Comm handle) {
  return std::make_unique<MpiExchange>(handle, /*owned=*/false);
}

}  // namespace trireme
