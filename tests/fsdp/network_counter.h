#pragma once
#include "trireme/comm/communicator.h"

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

/// A communicator that adds up the bytes that this rank receives in collectives of groups with ranks on several hosts,
/// each as a ring: what the plan's cost model charges to the network. Scalars (the statistics of a step) do not count.
class NetworkCounter final : public Communicator {
 public:
  /// `hosts`: of each rank of `inner`.
  NetworkCounter(Communicator& inner, std::vector<int> hosts, int64_t& bytes)
      : Communicator(inner.rank(), inner.size()), inner_(inner), hosts_(std::move(hosts)), bytes_(bytes) {}
  const char* backend() const override { return inner_.backend(); }
  WorkPtr all_gather(at::Tensor out, const at::Tensor& in) override {
    count(static_cast<int64_t>(out.nbytes() - in.nbytes()));
    return inner_.all_gather(out, in);
  }
  WorkPtr reduce_scatter(at::Tensor out, const at::Tensor& in, ReduceOp op) override {
    count(static_cast<int64_t>(in.nbytes() - out.nbytes()));
    return inner_.reduce_scatter(out, in, op);
  }
  WorkPtr all_to_all(at::Tensor out, const at::Tensor& in) override {
    count((size() - 1) * static_cast<int64_t>(in.nbytes()) / size());
    return inner_.all_to_all(out, in);
  }
  WorkPtr all_reduce(at::Tensor tensor, ReduceOp op) override {
    if (tensor.numel() > 1) count(2 * (size() - 1) * static_cast<int64_t>(tensor.nbytes()) / size());
    return inner_.all_reduce(tensor, op);
  }
  WorkPtr broadcast(at::Tensor tensor, int root) override { return inner_.broadcast(tensor, root); }
  void barrier() override { inner_.barrier(); }
  bool barrier_within(double seconds) override { return inner_.barrier_within(seconds); }
  std::vector<double> all_reduce_host(std::vector<double> values, ReduceOp op) override {
    return inner_.all_reduce_host(std::move(values), op);
  }
  std::vector<std::string> all_gather_host(const std::string& value) override { return inner_.all_gather_host(value); }
  std::unique_ptr<Communicator> split(int colour, int multiprocessors) override {
    std::vector<int> hosts;
    const auto colours = inner_.all_gather_host(std::to_string(colour));
    for (size_t i = 0; i < colours.size(); ++i)
      if (colours[i] == std::to_string(colour)) hosts.push_back(hosts_[i]);
    auto part = inner_.split(colour, multiprocessors);
    auto counter = std::make_unique<NetworkCounter>(*part, std::move(hosts), bytes_);
    counter->owned_ = std::move(part);
    return counter;
  }

 private:
  void count(int64_t received) {
    if (hosts_.front() != hosts_.back()) bytes_ += received;
  }
  Communicator& inner_;
  std::unique_ptr<Communicator> owned_;
  std::vector<int> hosts_;
  int64_t& bytes_;
};

}  // namespace trireme
