#pragma once
// Private to comm/: small host values between the processes of a GPU world, over MPI or a key store, without a GPU
// stream. Collective over the ranks of the exchange, in the same order on all of them.

#include "trireme/comm/communicator.h"

#include <memory>
#include <string>
#include <vector>

namespace trireme {

class HostExchange {
 public:
  virtual ~HostExchange() = default;
  /// On rank 0 every rank's value in rank order. Empty on the others, which do not wait for rank 0.
  virtual std::vector<std::string> gather(const std::string& mine) = 0;
  /// Rank 0's value on every rank.
  virtual std::string broadcast(const std::string& value) = 0;
  /// Every rank's value on every rank, in rank order. Goes through rank 0 unless the backend has its own all-gather.
  virtual std::vector<std::string> all_gather(const std::string& mine);
  /// Reduced by rank 0 in rank order, so that all ranks and all backends get the same bits. InternalError on all ranks
  /// when their numbers of values differ.
  std::vector<double> all_reduce(const std::vector<double>& values, ReduceOp op);
  void barrier();
  /// False when a rank did not arrive within `seconds` or the exchange failed. After false the exchange must not be
  /// used.
  virtual bool barrier_within(double seconds) = 0;
  /// The sub-group of this group's ranks with the same colour, ordered by rank. Collective.
  virtual std::unique_ptr<HostExchange> split(int colour) = 0;
  /// Renumbers the ranks: this one is `rank`, rank 0 stays rank 0. Collective.
  virtual std::unique_ptr<HostExchange> renumber(int rank) = 0;
  int rank() const { return rank_; }
  int size() const { return size_; }

 protected:
  HostExchange(int rank, int size) : rank_(rank), size_(size) {}
  int rank_, size_;
};

}  // namespace trireme
