#include "straggler.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>

namespace trireme {

namespace {
constexpr int64_t kFirst = 10, kEvery = 50;
constexpr double kRatio = 2, kShareOfStep = 0.25;
}  // namespace

bool straggler_report_due(int64_t steps) { return steps == kFirst || (steps > 0 && steps % kEvery == 0); }

std::string encode_section_times(const std::vector<SectionTime>& times) {
  std::string text;
  for (const SectionTime& time : times) text += fmt::format("{} {} ", time.name, time.seconds);
  return text;
}

std::vector<std::string> find_stragglers(const std::vector<std::string>& per_rank,
                                         const std::vector<std::string>& hosts, int64_t steps, double step_seconds) {
  const size_t ranks = per_rank.size();
  std::map<std::string, std::vector<double>> sections;
  for (size_t rank = 0; rank < ranks; ++rank) {
    std::istringstream in(per_rank[rank]);
    std::string name;
    for (double seconds; in >> name >> seconds;) {
      auto& of_ranks = sections[name];
      of_ranks.resize(ranks, 0);
      of_ranks[rank] = seconds / static_cast<double>(steps);
    }
  }
  std::vector<std::string> found;
  for (const auto& [name, seconds] : sections) {
    std::vector<double> sorted = seconds;
    // The lower of two middles: with two ranks, the faster one is the measure.
    const size_t middle = (ranks - 1) / 2;
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<long>(middle), sorted.end());
    const double median = sorted[middle];
    for (size_t rank = 0; rank < ranks; ++rank) {
      if (seconds[rank] <= kRatio * median || seconds[rank] - median < kShareOfStep * step_seconds) continue;
      const std::string ratio = median > 1e-6
                                    ? fmt::format("{:.1f} times the others' {:.3g} s", seconds[rank] / median, median)
                                    : std::string("the others need none");
      found.push_back(fmt::format("rank {} on {} is slow in section {}: {:.3g} s a step, {}; a step takes {:.3g} s",
                                  rank, hosts[rank], name, seconds[rank], ratio, step_seconds));
    }
  }
  return found;
}

}  // namespace trireme
