#include "rank_plan.h"

#include "collective_check.h"
#include "trireme/base/error.h"
#include "trireme/base/hash.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/config/keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

namespace trireme {

namespace {

/// Every key but those whose paths may differ from host to host.
std::string common_configuration(const Config& config) {
  std::string text;
  for (const auto& [key, value] : flatten_config(config))
    if (!key_traits(key).path) text += key + "=" + value + "\n";
  return hex64(xxh3_64(text.data(), text.size()));
}

/// What of a plan all ranks must share, in words, and a hash of every number of it.
std::string summary(const MemoryPlan& plan) {
  std::string all =
      fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {}", policy_name(plan.policy), plan.shard_size,
                  plan.rows_per_pass, plan.weights, plan.masters, plan.moments, plan.gradients, plan.gather_slots,
                  plan.activations, plan.working, plan.overhead, plan.gathered_per_pass, plan.device_memory);
  for (const bool resident : plan.resident) all += resident ? " r" : " s";
  for (const Recompute what : plan.recompute) all += fmt::format(" {}", static_cast<int>(what));
  const auto recomputed = [&](Recompute what) {
    return std::count(plan.recompute.begin(), plan.recompute.end(), what);
  };
  return fmt::format(
      "shard size {}, policy {}, {} rows in each pass, {} units resident, {} + {} blocks recomputed, {} (plan {})",
      plan.shard_size, policy_name(plan.policy), plan.rows_per_pass,
      std::count(plan.resident.begin(), plan.resident.end(), true), recomputed(Recompute::kFull),
      recomputed(Recompute::kMlp), format_bytes(static_cast<double>(plan.total())),
      hex64(xxh3_64(all.data(), all.size())));
}

/// "ranks 1, 3 and 4 on node7", at most five of them.
std::string ranks_and_hosts(const std::vector<int>& ranks, const std::vector<std::string>& hosts) {
  std::set<std::string> names;
  std::vector<std::string> shown;
  for (const int rank : ranks) {
    names.insert(hosts[static_cast<size_t>(rank)]);
    if (shown.size() < 5) shown.push_back(std::to_string(rank));
  }
  if (shown.size() < ranks.size()) shown.push_back(fmt::format("… ({} in all)", ranks.size()));
  std::vector<std::string> some(names.begin(),
                                std::next(names.begin(), std::min<long>(5, static_cast<long>(names.size()))));
  return fmt::format("rank{} {} on {}{}", ranks.size() == 1 ? "" : "s", join(shown, ", "), join(some, ", "),
                     names.size() > some.size() ? ", …" : "");
}

/// CollectiveError when the ranks have not all the same text; `message(others, their text, rank 0's text)`.
template <class Message>
void require_equal(const std::vector<std::string>& texts, const std::vector<std::string>& hosts,
                   const Message& message) {
  std::vector<int> others;
  for (size_t rank = 1; rank < texts.size(); ++rank)
    if (texts[rank] != texts[0]) others.push_back(static_cast<int>(rank));
  if (others.empty()) return;
  throw CollectiveError(ExitCode::kConfig,
                        message(ranks_and_hosts(others, hosts), texts[static_cast<size_t>(others[0])],
                                ranks_and_hosts({0}, hosts), texts[0]));
}

}  // namespace

MemoryPlan plan_for_all_ranks(PlanQuestion question, World& world) {
  Communicator& comm = world.communicator();
  require_equal(comm.all_gather_host(common_configuration(question.config)), world.hosts(),
                [](const std::string& others, const std::string&, const std::string& first, const std::string&) {
                  return fmt::format(
                      "{} and {} run different configurations: give every rank the same file and the same --set",
                      others, first);
                });

  const auto memories = comm.all_gather_host(std::to_string(question.device_memory));
  std::vector<int64_t> bytes;
  for (const std::string& memory : memories) bytes.push_back(std::stoll(memory));
  const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
  if (*least < *most)
    log_info(fmt::format(
        "device memory differs between ranks: the plan is made for the smallest, {} of {} (the largest is {})",
        format_bytes(static_cast<double>(*least)),
        ranks_and_hosts({static_cast<int>(least - bytes.begin())}, world.hosts()),
        format_bytes(static_cast<double>(*most))));
  question.device_memory = *least;

  MemoryPlan plan;
  collective_check(comm, [&] { plan = plan_run(question); });
  require_equal(
      comm.all_gather_host(summary(plan)), world.hosts(),
      [](const std::string& others, const std::string& theirs, const std::string& first, const std::string& its) {
        return fmt::format(
            "{} and {} come to different memory plans: {}, and {}: the files of model or data differ between "
            "the hosts",
            others, first, theirs, its);
      });
  return plan;
}

}  // namespace trireme
