#pragma once
// Everything that is wrong with a configuration, collected so that a user sees it in one go.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// Where a value was written: in the file, or in an override (0-based index of --set).
struct Place {
  int override_index = -1;
  size_t line = 1, column = 1;
};

class Problems {
 public:
  Problems(std::string file, std::vector<std::string> overrides)
      : file_(std::move(file)), overrides_(std::move(overrides)) {}

  void add(const Place& place, const std::string& text) { list_.push_back({place, text}); }
  /// "file:line:column: text" of each problem, in the order of add(); without overrides.
  std::vector<std::string> lines() const;
  bool empty() const { return list_.empty(); }
  size_t size() const { return list_.size(); }
  /// Suggestions cost time: past what is printed there is no point in them.
  bool wants_suggestions() const { return list_.size() < kShown; }
  /// ConfigError with one line for each problem, in the order of the file, overrides last.
  void throw_if_any();

 private:
  static constexpr size_t kShown = 100;
  struct Problem {
    Place place;
    std::string text;
  };
  std::string file_;
  std::vector<std::string> overrides_;
  std::vector<Problem> list_;
};

/// `text` as part of a message: at most 60 bytes, control characters escaped.
std::string shown(std::string_view text);

}  // namespace trireme
