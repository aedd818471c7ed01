#include "trireme/base/error.h"
#include "trireme/comm/communicator.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace trireme {

namespace {

class SelfCommunicator final : public Communicator {
 public:
  SelfCommunicator() : Communicator(0, 1) {}
  const char* backend() const override { return "self"; }

  WorkPtr all_gather(at::Tensor out, const at::Tensor& in) override { return copy(out, in); }
  WorkPtr reduce_scatter(at::Tensor out, const at::Tensor& in, ReduceOp) override { return copy(out, in); }
  WorkPtr all_to_all(at::Tensor out, const at::Tensor& in) override { return copy(out, in); }
  WorkPtr all_reduce(at::Tensor tensor, ReduceOp) override {
    check_layout(tensor);
    return std::make_unique<DoneWork>();
  }
  WorkPtr broadcast(at::Tensor tensor, int root) override {
    check_layout(tensor);
    TRIREME_CHECK(root == 0, "broadcast from rank ", root, " of 1");
    return std::make_unique<DoneWork>();
  }
  void barrier() override {}
  bool barrier_within(double) override { return true; }
  std::vector<double> all_reduce_host(std::vector<double> values, ReduceOp) override { return values; }
  std::vector<std::string> all_gather_host(const std::string& value) override { return {value}; }
  std::unique_ptr<Communicator> split(int, int) override { return make_self_communicator(); }

 private:
  // The same conditions as between several ranks.
  static void check_layout(const at::Tensor& tensor) {
    TRIREME_CHECK(tensor.is_contiguous(), "collectives need contiguous tensors");
  }

  static WorkPtr copy(at::Tensor& out, const at::Tensor& in) {
    check_layout(out);
    check_layout(in);
    TRIREME_CHECK(out.numel() == in.numel() && out.scalar_type() == in.scalar_type(), "one rank: out has ", out.numel(),
                  " elements of ", c10::toString(out.scalar_type()), ", in has ", in.numel(), " of ",
                  c10::toString(in.scalar_type()));
    at::NoGradGuard no_grad;
    if (out.data_ptr() != in.data_ptr()) out.copy_(in.view_as(out));
    return std::make_unique<DoneWork>();
  }
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator() { return std::make_unique<SelfCommunicator>(); }

}  // namespace trireme
