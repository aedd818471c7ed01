#pragma once
// Regular expressions of pre-splits: written for Oniguruma, run by PCRE2.

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace trireme {

/// A compiled pattern. Const members are thread-safe.
///
/// \s, \w, \b, ^ and $ mean what they mean in Oniguruma. \p{…} has PCRE2's Unicode version, which may know fewer
/// characters than that of `tokenizers`: letters that Unicode added since may be cut in another way.
class Pattern {
 public:
  /// `literal`: plain text. DataError with `path` for what PCRE2 refuses, and for what the two read in different ways:
  /// a `+` or `?` after a count ({1,3}+, {2}?), {,3}, sets inside of sets, the options m and s, and the escapes
  /// \h \R \X \v \Q \E, \x80 and more, \S and \W in a set.
  Pattern(const std::string& pattern, bool literal, const std::filesystem::path& path);
  ~Pattern();

  /// Calls visit(begin, end) for the matches from left to right, as Oniguruma's find_iter gives them. DataError when a
  /// match takes more than ten million steps.
  void for_each_match(std::string_view text, const std::function<void(size_t, size_t)>& visit) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme
