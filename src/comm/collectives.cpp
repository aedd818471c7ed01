#include "collectives.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string_view>
#include <tuple>

namespace trireme {

namespace {

/// Sequence numbers are needed without a watchdog too: messages name collectives by them.
class Counter final : public CollectiveObserver {
 public:
  uint64_t begin(const char*, int64_t, const char*) override { return ++last_; }
  void wait(uint64_t) override {}
  void resume(uint64_t) override {}
  void end(uint64_t) override {}

 private:
  std::atomic<uint64_t> last_ = 0;
};

std::atomic<CollectiveObserver*>& installed() {
  static std::atomic<CollectiveObserver*> observer =
      new Counter;  // never destroyed: threads may use it until the process ends
  return observer;
}

/// c10d's names, which trace tools expect; host exchanges keep ours.
std::string c10d_name(std::string_view kind) {
  if (kind == "all_gather") return "_allgather_base";
  if (kind == "reduce_scatter") return "_reduce_scatter_base";
  if (kind == "all_reduce") return "allreduce";
  return std::string(kind);
}

}  // namespace

CollectiveObserver& collective_observer() { return *installed().load(std::memory_order_acquire); }

void set_collective_observer(CollectiveObserver& observer) { installed().store(&observer, std::memory_order_release); }

bool checking_collectives() {
  static const bool on = [] {
    const char* value = std::getenv("TRIREME_CHECK_COLLECTIVES");
    return value != nullptr && std::strcmp(value, "0") != 0;
  }();
  return on;
}

void check_same_checking(const std::function<std::vector<std::string>(const std::string&)>& all_gather,
                         const std::string& build) {
  std::vector<std::string> with, without;
  const std::vector<std::string> all = all_gather((checking_collectives() ? "1" : "0") + build);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].substr(1) != all[0].substr(1))
      throw ConfigError("rank " + std::to_string(rank) + " runs build " + all[rank].substr(1) + ", and rank 0 build " +
                        all[0].substr(1) + ": give every host the same program");
    (all[rank][0] == '1' ? with : without).push_back(std::to_string(rank));
  }
  if (!with.empty() && !without.empty())
    throw ConfigError("TRIREME_CHECK_COLLECTIVES is set on rank " + join(with, ", ") + " and not on rank " +
                      join(without, ", ") + ": set it on all ranks, as with mpirun -x, or on none");
}

void check_same_collective(const std::vector<std::string>& all, uint64_t sequence) {
  std::map<std::string, std::string> ranks;
  for (size_t rank = 0; rank < all.size(); ++rank)
    ranks[all[rank]] += (ranks[all[rank]].empty() ? "" : ", ") + std::to_string(rank);
  if (ranks.size() == 1) return;
  std::string text;
  for (const auto& [what, who] : ranks) text += (text.empty() ? "" : "; ") + ("rank " + who + " at " + what);
  throw InternalError("the ranks issue different collectives at #" + std::to_string(sequence) +
                      " of this rank: " + text);
}

void GroupCommunicator::check_sizes(const char* kind, const at::Tensor& in, const at::Tensor& out,
                                    const at::Tensor& whole, const at::Tensor& part) const {
  TRIREME_CHECK(whole.numel() == part.numel() * size_ && out.scalar_type() == in.scalar_type(), kind, " of ",
                in.numel(), " elements into ", out.numel(), " over ", size_, " ranks");
}

void GroupCommunicator::check_parts(const at::Tensor& in, const at::Tensor& out) const {
  TRIREME_CHECK(in.numel() == out.numel() && in.numel() % size_ == 0 && out.scalar_type() == in.scalar_type(),
                "all_to_all of ", in.numel(), " elements into ", out.numel(), " over ", size_, " ranks");
  TRIREME_CHECK(in.numel() == 0 || !in.is_alias_of(out), "all_to_all within one storage");
}

void GroupCommunicator::check_root(int root) const {
  TRIREME_CHECK(root >= 0 && root < size_, "broadcast from rank ", root, " of ", size_);
}

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
