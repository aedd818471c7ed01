#include "out_of_memory.h"

#include "memory_snapshot.h"
#include "trireme/base/text.h"
#include "trireme/ops/device.h"
#include "trireme/plan/hints.h"
#include "trireme/plan/search.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <string_view>

namespace trireme {

namespace {

bool ran_out(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
      dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr)
    return true;
  const std::string_view text = error.what();
  for (const char* words : {"not enough memory", "can't allocate memory", "out of memory"})
    if (text.find(words) != std::string_view::npos) return true;
  return false;
}

std::string bytes(int64_t count) { return format_bytes(static_cast<double>(count)); }

/// What the machine still has for this process.
std::string free_memory(at::Device device) {
  if (device.is_cuda()) {
    const std::string snapshot = out_of_memory_snapshot().string();
    return fmt::format(
        "the allocator's peak was {}{}", bytes(peak_reserved_memory(device)),
        snapshot.empty() ? "" : fmt::format(", and its snapshot is {} (pytorch.org/memory_viz)", snapshot));
  }
  const int64_t free = static_cast<int64_t>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  std::string text =
      fmt::format("{} were resident at most, the machine has {} free", bytes(peak_memory(device)), bytes(free));
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    text += fmt::format(", and the process is limited to {} of address space (ulimit -v)",
                        bytes(static_cast<int64_t>(limit.rlim_cur)));
  return text;
}

}  // namespace

std::optional<std::string> out_of_memory_message(const std::exception& error, const PlanQuestion& question,
                                                 const MemoryPlan& plan, at::Device device, int rank) {
  if (!ran_out(error)) return std::nullopt;
  // The plan predicted too little: settings that need less memory, the largest saving first.
  std::vector<std::string> advice;
  if (question.config.parallel.recompute.word != ParallelSection::Recompute::kFull &&
      plan.total() > least_plan(plan_input(question)).total())
    advice.emplace_back("parallel.recompute: full");
  std::vector<PlanHint> hints = plan_hints(question);
  std::stable_sort(hints.begin(), hints.end(), [](const PlanHint& a, const PlanHint& b) { return a.saved > b.saved; });
  for (const PlanHint& hint : hints)
    if (std::find(advice.begin(), advice.end(), join(hint.settings, " with ")) == advice.end())
      advice.push_back(join(hint.settings, " with "));
  if (advice.size() > 3) advice.resize(3);
  return fmt::format(
      "rank {} is out of memory: the plan counts weights {}, master weights {}, moments {}, gradients {}, gather slots "
      "{}, activations "
      "{}, working memory {}, libraries {}; {}; try {}",
      rank, bytes(plan.weights), bytes(plan.masters), bytes(plan.moments), bytes(plan.gradients),
      bytes(plan.gather_slots), bytes(plan.activations), bytes(plan.working), bytes(plan.overhead), free_memory(device),
      advice.empty() ? "a device with more memory" : join(advice, ", or "));
}

}  // namespace trireme
