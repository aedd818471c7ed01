#pragma once
// Private to comm/: small host values between the processes of a GPU world, over MPI or c10d's TCPStore, without a GPU
// stream.

#include <memory>
#include <string>
#include <vector>

namespace trireme {

class HostExchange {
 public:
  virtual ~HostExchange() = default;
  /// Error with exit code 71 when rank 0's store is gone.
  virtual std::vector<std::string> all_gather(const std::string& value) = 0;
  /// The sub-group of this group's ranks with the same colour, ordered by rank. Collective.
  virtual std::unique_ptr<HostExchange> split(int colour) = 0;
  int rank() const { return rank_; }
  int size() const { return size_; }

 protected:
  HostExchange(int rank, int size) : rank_(rank), size_(size) {}
  int rank_, size_;
};

/// Over MPI. `mpi_comm` points to an MPI_Comm, so that this header needs no mpi.h; parts made by split() own theirs.
std::unique_ptr<HostExchange> make_mpi_exchange(const void* mpi_comm);

}  // namespace trireme
