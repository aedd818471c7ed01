#include "collective_record.h"

#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace trireme {

namespace {

/// c10d's names, which trace tools know; host exchanges keep ours.
std::string c10d_name(std::string_view kind) {
  if (kind == "all_gather") return "_allgather_base";
  if (kind == "reduce_scatter") return "_reduce_scatter_base";
  if (kind == "all_reduce") return "allreduce";
  return std::string(kind);
}

}  // namespace

void CollectiveRecord::begin(const CollectiveFacts& facts) {
  // Groups of one name differ by their ranks.
  const std::tuple<std::string, std::string> group{std::string(facts.group) + ' ' + std::to_string(facts.first_rank) +
                                                       '+' + std::to_string(facts.size) + 'x' +
                                                       std::to_string(facts.rank_stride),
                                                   facts.group};
  const std::vector<int64_t> no_splits;
  const std::string name = c10d_name(facts.kind);
  info_.emplace(c10::DebugInfoKind::PARAM_COMMS_INFO,
                std::make_shared<torch::ParamCommsDebugInfo>(group, facts.rank, std::string(name), facts.in_elements,
                                                             facts.out_elements, facts.dtype, no_splits, no_splits,
                                                             facts.first_rank, facts.rank_stride, facts.size));
  record_.emplace(at::RecordScope::FUNCTION);
  if (!record_->isActive()) return;
  // The arguments of RECORD_PARAM_COMMS in their order.
  const std::vector<c10::IValue> arguments = {std::make_tuple(static_cast<int64_t>(facts.sequence), false),
                                              group,
                                              facts.rank,
                                              name,
                                              no_splits,
                                              no_splits,
                                              facts.first_rank,
                                              facts.rank_stride,
                                              facts.size};
  record_->before(at::kParamCommsCallName, c10::ArrayRef<const c10::IValue>(arguments.data(), arguments.size()));
}

}  // namespace trireme
