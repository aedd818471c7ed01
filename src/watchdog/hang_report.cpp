#include "hang_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace trireme {

namespace {

/// Seconds since the last heartbeat after which a rank counts as silent: its process or host is stopped.
constexpr double kSilent = 5;

/// The attributes that must be equal on all ranks. The size of host values is not one: it differs between ranks.
std::string identity(const RankView::Collective& entry) {
  const bool any_size = entry.kind.ends_with("_host");
  return any_size ? fmt::format("{} on {}", entry.kind, entry.group)
                  : fmt::format("{}[{}] on {}", entry.kind, entry.elements, entry.group);
}

std::string number_list(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (!text.empty()) text += ", ";
    text += last == i ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[last]);
    i = last + 1;
  }
  return text;
}

std::string state_of(const RankView& view) {
  if (view.dead) return "dead";
  if (view.stopped) return "stopped";
  if (view.silent_for > kSilent) return "silent";
  return "";
}

/// Contains no times, so that ranks at the same position have equal texts.
std::string place_of(const RankView& view) {
  if (!view.answered) return "no answer";
  std::string text = view.step > 0 ? fmt::format("step {}", view.step) : std::string("before the first step");
  if (!view.section.empty()) text += ", " + view.section;
  if (const auto* at = view.position()) {
    const bool waiting = at->waiting_for >= 0 && at->ended_ago < 0;
    text += fmt::format(", {} {}", at->ended_ago >= 0 ? "last finished" : waiting ? "waiting in" : "begun", at->name());
  } else {
    text += ", before the first collective";
  }
  if (const std::string state = state_of(view); !state.empty()) text += ", " + state;
  return text;
}

double age_of(const RankView& view) {
  const auto* at = view.position();
  if (at == nullptr) return view.section_for;
  return at->ended_ago >= 0 ? at->ended_ago : at->waiting_for >= 0 ? at->waiting_for : at->began_ago;
}

std::string describe_positions(const std::vector<RankView>& views) {
  struct Line {
    std::vector<int> ranks;
    std::set<std::string> hosts;
    double oldest = 0;
    uint64_t sequence = 0;
  };
  std::map<std::string, Line> lines;
  for (const RankView& view : views) {
    Line& line = lines[place_of(view)];
    line.ranks.push_back(view.rank);
    line.hosts.insert(view.host);
    line.oldest = std::max(line.oldest, age_of(view));
    line.sequence = view.position() != nullptr ? view.position()->sequence : 0;
  }
  std::vector<std::pair<std::string, Line>> sorted(lines.begin(), lines.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.sequence < b.second.sequence; });
  std::string text;
  for (const auto& [place, line] : sorted) {
    const std::string hosts = line.hosts.size() == 1 ? *line.hosts.begin() : fmt::format("{} hosts", line.hosts.size());
    text +=
        fmt::format("  rank{} {} on {}: {}", line.ranks.size() > 1 ? "s" : "", number_list(line.ranks), hosts, place);
    if (place != "no answer") text += fmt::format(", {:.0f} s", line.oldest);
    text += "\n";
  }
  return text;
}

std::string doing(const RankView& view) {
  std::string text = view.step > 0 ? fmt::format("step {}", view.step) : std::string("start-up");
  if (!view.section.empty()) text += fmt::format(", section {} since {:.0f} s", view.section, view.section_for);
  if (const std::string state = state_of(view); !state.empty()) text += ", " + state;
  return text;
}

/// "rank 1 on node7" / "ranks 1, 3-5"
std::string rank_names(const std::vector<RankView>& views, const std::vector<int>& ranks) {
  if (ranks.size() == 1) {
    for (const RankView& view : views)
      if (view.rank == ranks[0]) return fmt::format("rank {} on {}", view.rank, view.host);
  }
  return "ranks " + number_list(ranks);
}

}  // namespace

std::string find_desync(const std::vector<RankView>& views, std::vector<int>* responsible) {
  std::map<uint64_t, std::map<std::string, std::vector<const RankView*>>> issued;
  for (const RankView& view : views)
    for (const auto& entry : view.history) issued[entry.sequence][identity(entry)].push_back(&view);
  for (const auto& [sequence, kinds] : issued) {
    if (kinds.size() < 2) continue;
    const auto common = std::max_element(
        kinds.begin(), kinds.end(), [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    std::vector<int> odd;
    std::string what;
    for (const auto& [identity_text, ranks] : kinds) {
      if (identity_text == common->first) continue;
      std::vector<int> these;
      for (const RankView* view : ranks) these.push_back(view->rank);
      odd.insert(odd.end(), these.begin(), these.end());
      what +=
          fmt::format("{}{} at #{} {}", what.empty() ? "" : ", ", rank_names(views, these), sequence, identity_text);
    }
    uint64_t reached = 0;
    for (const RankView* view : common->second) reached = std::max(reached, view->last_begun());
    if (responsible != nullptr) *responsible = odd;
    return fmt::format("{}, others at #{} {} and by now at #{}: the ranks issue different collectives since #{}", what,
                       sequence, common->first, reached, sequence);
  }
  return "";
}

HangReport analyse(const std::vector<RankView>& views) {
  HangReport report;
  report.positions = describe_positions(views);
  const auto view_of_rank = [&](int rank) -> const RankView& {
    return *std::find_if(views.begin(), views.end(), [&](const RankView& view) { return view.rank == rank; });
  };

  // A process records the end of a GPU collective when it queries the event, which a stopped process does not do. A
  // collective that another rank has finished therefore counts as finished there.
  const auto finished_elsewhere = [&](uint64_t sequence) {
    for (const RankView& view : views)
      for (const auto& entry : view.history)
        if (entry.sequence == sequence && entry.ended_ago >= 0) return true;
    return false;
  };
  const auto unfinished = [&](const RankView& view) -> const RankView::Collective* {
    const bool outdated = view.stopped || view.dead || view.silent_for > kSilent;
    for (const auto& entry : view.history)
      if (entry.ended_ago < 0 && !(outdated && finished_elsewhere(entry.sequence))) return &entry;
    return nullptr;
  };

  // The collective that the ranks wait for: the oldest that any of them has begun and not finished.
  const RankView::Collective* stuck = nullptr;
  for (const RankView& view : views)
    if (const auto* open = unfinished(view); open != nullptr && (stuck == nullptr || open->sequence < stuck->sequence))
      stuck = open;

  std::vector<int> odd;
  if (const std::string desync = find_desync(views, &odd); !desync.empty()) {
    report.sentence = desync;
    report.responsible = odd;
    return report;
  }
  std::vector<int> absent, behind, silent, idle;
  for (const RankView& view : views) {
    if (!view.answered)
      absent.push_back(view.rank);
    else if (stuck != nullptr && view.last_begun() < stuck->sequence)
      behind.push_back(view.rank);
    else if (view.stopped || view.dead || view.silent_for > kSilent)
      silent.push_back(view.rank);
    else if (const auto* open = unfinished(view); stuck != nullptr && (open == nullptr || open->waiting_for < 0))
      idle.push_back(view.rank);
  }
  // All have begun it and none waits in it, as in one begun ahead: the oldest in which one waits may lack a rank.
  if (idle.size() == views.size()) {
    const RankView::Collective* waited = nullptr;
    for (const RankView& view : views)
      for (const auto& entry : view.history)
        if (entry.ended_ago < 0 && entry.waiting_for >= 0 && (waited == nullptr || entry.sequence < waited->sequence))
          waited = &entry;
    for (const RankView& view : views)
      if (waited != nullptr && view.last_begun() < waited->sequence) behind.push_back(view.rank);
    if (!behind.empty()) stuck = waited;
  }
  const std::string where = stuck != nullptr ? stuck->name() : "the next collective";
  if (!behind.empty()) {
    std::vector<int> late = behind;
    std::erase_if(late, [&](int rank) {
      const RankView& view = view_of_rank(rank);
      return !view.stopped && !view.dead && view.silent_for <= kSilent && view.section_for < view.section_allowance;
    });
    report.excused = late.empty();
    if (!late.empty()) behind = late;
    report.responsible = behind;
    report.sentence =
        fmt::format("{} never reached {} ({})", rank_names(views, behind), where, doing(view_of_rank(behind[0])));
  } else if (!absent.empty()) {
    report.responsible = absent;
    report.sentence = fmt::format("{} did not answer while the others wait in {}: host or network lost",
                                  rank_names(views, absent), where);
  } else if (!silent.empty()) {
    report.responsible = silent;
    report.sentence =
        fmt::format("{} stopped inside {} ({})", rank_names(views, silent), where, doing(view_of_rank(silent[0])));
  } else if (!idle.empty() && idle.size() < views.size()) {
    report.responsible = idle;
    report.sentence = fmt::format("{} began {} but does not wait for it ({})", rank_names(views, idle), where,
                                  doing(view_of_rank(idle[0])));
  } else {
    report.sentence = fmt::format("every rank reached {} and it does not finish: network or driver", where);
  }
  if (!behind.empty() && !absent.empty())
    report.sentence += fmt::format("; {} did not answer", rank_names(views, absent));
  return report;
}

}  // namespace trireme
