#include "nonfinite.h"

#include "trireme/base/fault.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace trireme {

namespace {

bool injects_faults() { return std::getenv("TRIREME_FAULT") != nullptr; }

void inject_gradient_fault(const std::string& name, at::Tensor& gradient, int rank, int64_t step) {
  if (fault_point("gradient:" + name, rank, step)) gradient.view(-1)[0] = std::numeric_limits<float>::quiet_NaN();
}

/// In parts: a whole shard's comparison would take memory of the shard's size.
bool all_finite(const at::Tensor& tensor) {
  constexpr int64_t kPart = int64_t{1} << 24;
  if (!tensor.is_floating_point()) return true;
  at::NoGradGuard no_grad;
  const at::Tensor flat = tensor.reshape({-1});
  at::Tensor finite = at::ones({}, tensor.options().dtype(at::kBool));
  for (int64_t begin = 0; begin < flat.numel(); begin += kPart)
    finite.logical_and_(flat.narrow(0, begin, std::min(kPart, flat.numel() - begin)).isfinite().all());
  return finite.item<bool>();
}

/// "the gradient of a on rank 0 (host), the loss on rank 3 (host)"; empty: nothing on any rank.
std::string list_ranks(const std::vector<std::string>& found, const std::vector<std::string>& hosts) {
  constexpr size_t kLongest = 400;
  std::string text;
  for (size_t rank = 0; rank < found.size(); ++rank) {
    if (found[rank].empty()) continue;
    if (text.size() > kLongest) return text + ", and more";
    text += fmt::format("{}{} on rank {} ({})", text.empty() ? "" : ", ", found[rank], rank, hosts[rank]);
  }
  return text;
}

}  // namespace

void observe_gradient_faults(ShardedUnits& units, int rank, std::function<int64_t()> current_step) {
  if (!injects_faults()) return units.observe_gradients({});
  units.observe_gradients(
      [rank, current_step = std::move(current_step)](const ParameterSpec& parameter, at::Tensor& gradient) {
        inject_gradient_fault(parameter.parts.front().name, gradient, rank, current_step());
      });
}

std::string find_nonfinite_gradients(ShardedUnits& units, World& world, const StepReplay& replay) {
  Communicator& comm = world.communicator();
  std::string found;
  units.observe_gradients([&](const ParameterSpec& parameter, at::Tensor& gradient) {
    const std::string& name = parameter.parts.front().name;
    if (injects_faults()) inject_gradient_fault(name, gradient, comm.rank(), replay.step);
    if (found.empty() && !gradient.isfinite().all().item<bool>()) found = "the gradient of " + name;
  });
  units.begin_step();
  const double loss = replay.compute();
  if (found.empty()) found = units.find_nonfinite_operand();
  units.clear_gradients();
  units.observe_gradients({});
  if (!std::isfinite(loss)) found = "the loss" + (found.empty() ? "" : " and " + found);
  const std::string everywhere = list_ranks(comm.all_gather_host(found), world.hosts());
  std::string differences;  // from the first computation
  if (replay.weights_step) differences = fmt::format(" with the weights after step {}", *replay.weights_step);
  if (replay.loss_scale.defined())
    differences += fmt::format(" at a loss scale of {:g}", replay.loss_scale.item<double>());
  if (!everywhere.empty())
    return fmt::format("not finite{}: {}", differences.empty() ? "" : ", computed again" + differences, everywhere);
  return fmt::format("computed again{}, every gradient of every rank is finite{}", differences,
                     differences.empty() ? ": suspect a sum over ranks that overflows, or faulty memory" : "");
}

std::string find_nonfinite_state(const std::vector<std::pair<std::string, at::Tensor>>& state, Communicator& comm) {
  std::string mine;
  for (const auto& [name, tensor] : state)
    if (mine.empty() && !all_finite(tensor)) mine = fmt::format("{} on rank {} is not finite", name, comm.rank());
  if (comm.all_reduce_host({mine.empty() ? 0.0 : 1.0}, ReduceOp::kMax)[0] == 0) return "";
  const auto all = comm.gather_host(mine);
  const auto first = std::find_if(all.begin(), all.end(), [](const std::string& text) { return !text.empty(); });
  return first == all.end() ? "the state of another rank is not finite" : *first;
}

}  // namespace trireme
