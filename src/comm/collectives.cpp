#include "collectives.h"

#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/hash.h"
#include "trireme/base/process.h"
#include "trireme/base/text.h"

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string_view>
#include <tuple>
#include <utility>

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

/// A commit, and the hash of the program's file where the commit does not say what it was built from.
std::string build_of(const std::string& commit) {
  if (!commit.ends_with("-dirty") && commit != "unknown") return commit;
  const MappedFile program("/proc/self/exe", ExitCode::kConfig);
  return fmt::format("{} (hash {})", commit, hex64(xxh3_64(program.bytes().data(), program.bytes().size())));
}

/// "rank 0 on node1, rank 8 on node2 run build a; rank 16 on node3 runs build b".
std::string describe_builds(std::map<std::string, std::vector<std::string>>& builds) {
  constexpr size_t kMost = 8;
  std::vector<std::string> parts;
  for (auto& [build, ranks] : builds) {
    const size_t count = ranks.size();
    ranks.resize(std::min(count, kMost));
    parts.push_back(fmt::format("{}{} run{} build {}", join(ranks, ", "),
                                count > kMost ? fmt::format(" and {} more", count - kMost) : "", count == 1 ? "s" : "",
                                build));
  }
  return join(parts, "; ");
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
                         const std::string& commit) {
  std::vector<std::string> with, without;
  std::map<std::string, std::vector<std::string>> builds;  // the first of successive ranks of a host
  std::string host;
  const std::vector<std::string> all =
      all_gather(fmt::format("{}{}\n{}", checking_collectives() ? 1 : 0, host_name(), build_of(commit)));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const size_t line = all[rank].find('\n');
    std::vector<std::string>& ranks = builds[all[rank].substr(line + 1)];
    const std::string before = std::exchange(host, all[rank].substr(1, line - 1));
    if (ranks.empty() || host != before) ranks.push_back(fmt::format("rank {} on {}", rank, host));
    (all[rank][0] == '1' ? with : without).push_back(std::to_string(rank));
  }
  if (builds.size() > 1) throw ConfigError(describe_builds(builds) + ": give every host the same program");
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
