#pragma once
// One forward pass over several ranks: each rank has a slice of the pass's tokens. Attention alone reads all tokens;
// for it the ranks exchange heads for tokens (ops/attention.h). The module that knows ranks implements the interface.

#include <ATen/core/Tensor.h>

namespace trireme {

/// The ranks that share the T tokens of a pass: rank r of n has tokens r T / n, …, (r + 1) T / n - 1.
class SequenceExchange {
 public:
  virtual ~SequenceExchange() = default;
  int size() const { return size_; }
  int rank() const { return rank_; }
  /// parts [size, …], contiguous: part i goes to rank i. Part i of the result, of the same shape, is from rank i.
  /// Collective: all ranks call it in the same order. Autograd does not record it.
  virtual at::Tensor exchange(const at::Tensor& parts) = 0;

 protected:
  SequenceExchange(int rank, int size) : rank_(rank), size_(size) {}

 private:
  int rank_, size_;
};

}  // namespace trireme
