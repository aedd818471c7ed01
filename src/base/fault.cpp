#include "trireme/base/fault.h"

#include "trireme/base/error.h"
#include "trireme/base/process.h"
#include "trireme/base/text.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace trireme {

namespace {

enum class Action { kKill, kStop, kTerminate, kSleep, kFail, kNan, kCrash, kAbort, kSet };
const std::map<std::string_view, Action> kActions = {
    {"sigkill", Action::kKill}, {"sigstop", Action::kStop}, {"sigterm", Action::kTerminate},
    {"sleep", Action::kSleep},  {"fail", Action::kFail},    {"nan", Action::kNan},
    {"crash", Action::kCrash},  {"abort", Action::kAbort},  {"set", Action::kSet}};

struct Fault {
  std::string text, name;
  Action action = Action::kFail;
  std::optional<int64_t> rank, step;
  double seconds = 0, value = 0;
  std::atomic<int64_t> left = std::numeric_limits<int64_t>::max();
};

template <class Number>
std::optional<Number> number_after(std::string_view text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return std::nullopt;
  return parse_whole<Number>(text.substr(prefix.size()));
}

[[noreturn]] void refuse(const std::string& text, const char* why) {
  throw ConfigError(
      fmt::format("TRIREME_FAULT: '{}' {}; the form is action@part:part, e.g. sigkill@rank1:step7", text, why));
}

std::unique_ptr<Fault> parse(const std::string& text) {
  auto fault = std::make_unique<Fault>();
  fault->text = text;
  const size_t at = text.find('@');
  std::string action = text.substr(0, at);
  if (const size_t colon = action.find(':'); colon != std::string::npos) {
    const auto number = number_after<double>(std::string_view(action).substr(colon + 1), "");
    if (!number) refuse(text, "has a number after ':' that cannot be read");
    fault->seconds = fault->value = *number;
    action.resize(colon);
  }
  const auto named = kActions.find(action);
  if (named == kActions.end())
    refuse(text, "has an unknown action (sigkill, sigstop, sigterm, crash, abort, sleep, fail, nan, set)");
  fault->action = named->second;
  if (at != std::string::npos) {
    for (const std::string& part : split(std::string_view(text).substr(at + 1), ':')) {
      if (const auto rank = number_after<int64_t>(part, "rank")) {
        fault->rank = *rank;
      } else if (const auto step = number_after<int64_t>(part, "step")) {
        fault->step = *step;
      } else if (const auto times = number_after<int64_t>(part, "x")) {
        fault->left = *times;
      } else if (const auto seconds = part.ends_with('s')
                                          ? number_after<double>(std::string_view(part).substr(0, part.size() - 1), "")
                                          : std::nullopt) {
        fault->seconds = *seconds;
      } else {
        if (part.empty()) refuse(text, "has an empty part");
        fault->name += (fault->name.empty() ? "" : ":") + part;
      }
    }
  }
  if (fault->name.empty()) fault->name = "step";
  if (fault->action == Action::kSleep && fault->seconds <= 0) refuse(text, "sleeps without a time");
  return fault;
}

std::vector<std::unique_ptr<Fault>> parse_all() {
  std::vector<std::unique_ptr<Fault>> faults;
  const std::string variable = environment("TRIREME_FAULT");
  if (variable.empty()) return faults;
  for (const std::string& text : split(variable, ',')) faults.push_back(parse(text));
  return faults;
}

const std::vector<std::unique_ptr<Fault>>& faults() {
  static const std::vector<std::unique_ptr<Fault>> parsed = parse_all();
  return parsed;
}

/// Writes through an invalid pointer, as a bug in launch code or in a reader would.
void write_where_nothing_is() {
  void* page = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  *static_cast<volatile int*>(page) = 1;
}

}  // namespace

void check_fault_specifications() { (void)faults(); }

std::optional<double> fault_value(std::string_view name, int rank) {
  for (const auto& fault : faults())
    if (fault->action == Action::kSet && fault->name == name && (!fault->rank || *fault->rank == rank))
      return fault->value;
  return std::nullopt;
}

bool fault_point(std::string_view name, int rank, int64_t step) {
  bool make_nan = false;
  for (const auto& fault : faults()) {
    if (fault->action == Action::kSet || fault->name != name || (fault->rank && *fault->rank != rank) ||
        (fault->step && *fault->step != step))
      continue;
    if (fault->left.fetch_sub(1) <= 0) continue;
    std::fputs(fmt::format("fault injected: {} (rank {}, step {})\n", fault->text, rank, step).c_str(), stderr);
    std::fflush(stderr);
    switch (fault->action) {
      case Action::kKill: std::raise(SIGKILL); break;
      case Action::kStop: std::raise(SIGSTOP); break;
      case Action::kTerminate: std::raise(SIGTERM); break;
      case Action::kSleep: std::this_thread::sleep_for(std::chrono::duration<double>(fault->seconds)); break;
      case Action::kFail:
        throw InternalError(fmt::format("fault injected at {} (TRIREME_FAULT={})", name, fault->text));
      case Action::kNan: make_nan = true; break;
      case Action::kCrash: write_where_nothing_is(); break;
      case Action::kAbort: std::abort();
      case Action::kSet: break;  // handled by fault_value()
    }
  }
  return make_nan;
}

}  // namespace trireme
