#include "problems.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme {

std::string shown(std::string_view text) {
  constexpr size_t kLongest = 60;
  std::string_view part = text.substr(0, kLongest);
  part = part.substr(0, valid_utf8_prefix(part));
  std::string result;
  for (const char c : part) {
    const auto byte = static_cast<unsigned char>(c);
    result += byte < 0x20 || byte == 0x7F ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return part.size() < text.size() ? result + "…" : result;
}

std::vector<std::string> Problems::lines() const {
  std::vector<std::string> all;
  for (const auto& [place, text] : list_)
    all.push_back(fmt::format("{}:{}:{}: {}", file_, place.line, place.column, text));
  return all;
}

void Problems::throw_if_any() {
  if (list_.empty()) return;
  const auto order = [](const Problem& problem) {
    const Place& place = problem.place;
    return std::tuple(place.override_index, place.line, place.column);
  };
  std::stable_sort(list_.begin(), list_.end(), [&](const Problem& a, const Problem& b) { return order(a) < order(b); });
  std::string message;
  for (size_t i = 0; i < std::min(list_.size(), kShown); ++i) {
    const auto& [place, text] = list_[i];
    message += place.override_index < 0
                   ? fmt::format("{}:{}:{}: {}\n", file_, place.line, place.column, text)
                   : fmt::format("--set {}: {}\n", shown(overrides_[static_cast<size_t>(place.override_index)]), text);
  }
  if (list_.size() > kShown) message += fmt::format("… and {} more\n", list_.size() - kShown);
  message += fmt::format("the configuration {} has {}: correct {} and run again", file_,
                         list_.size() == 1 ? "one problem" : fmt::format("{} problems", list_.size()),
                         list_.size() == 1 ? "it" : "them");
  throw ConfigError(message);
}

}  // namespace trireme
