// Host values of a GPU world's ranks over MPI.
#include "host_exchange.h"
#include "mpi_communicator.h"

namespace trireme {

namespace {

class MpiExchange final : public HostExchange {
 public:
  MpiExchange(MPI_Comm handle, bool owned, int rank, int size)
      : HostExchange(rank, size), handle_(handle), owned_(owned) {}
  ~MpiExchange() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (owned_ && finalized == 0) MPI_Comm_free(&handle_);
  }
  std::vector<std::string> gather(const std::string& mine) override { return mpi_gather_host(handle_, mine); }
  std::string broadcast(const std::string& value) override { return mpi_broadcast_host(handle_, value); }
  std::vector<std::string> all_gather(const std::string& mine) override { return mpi_all_gather_host(handle_, mine); }
  bool barrier_within(double seconds) override { return mpi_barrier_within(handle_, seconds); }
  std::unique_ptr<HostExchange> split(int colour) override {
    MPI_Comm part = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split(handle_, colour, rank_, &part), "MPI_Comm_split");
    return make(part, /*owned=*/true);
  }
  std::unique_ptr<HostExchange> renumber(int rank) override {
    MPI_Comm same = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split(handle_, 0, rank, &same), "MPI_Comm_split");
    return make(same, /*owned=*/true);
  }
  static std::unique_ptr<HostExchange> make(MPI_Comm handle, bool owned) {
    int rank = 0, size = 0;
    MPI_Comm_rank(handle, &rank);
    MPI_Comm_size(handle, &size);
    MPI_Comm_set_errhandler(handle, MPI_ERRORS_RETURN);
    return std::make_unique<MpiExchange>(handle, owned, rank, size);
  }

 private:
  MPI_Comm handle_;
  bool owned_;
};

}  // namespace

std::unique_ptr<HostExchange> make_mpi_exchange(MPI_Comm handle) { return MpiExchange::make(handle, /*owned=*/false); }

}  // namespace trireme
