#pragma once
// Cuts added tokens out of a text.

#include "trireme/formats/huggingface/byte_level_model.h"

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace trireme {

/// Finds a set of tokens in text: the leftmost, and of tokens that begin at one place the longest. Const members are
/// thread-safe.
class AddedTokenFinder {
 public:
  /// `content`: the text of each token.
  void add(const AddedToken& token, std::string_view content);

  /// Calls found(id, end of it in the text) and plain(text) in the order of the text. A token includes the white space
  /// beside it if its flags say so; a token with single_word between word characters is plain text.
  template <class Found, class Plain>
  void split(std::string_view text, const Found& found, const Plain& plain) const {
    size_t done = 0;
    for (Match match = next(text, 0); match.token != nullptr; match = next(text, match.end)) {
      const size_t begin = begin_of(text, match, done), end = end_of(text, match);
      if (done < begin) plain(text.substr(done, begin - done));
      if (begin < end) found(match.token->id, end);  // not where the token before has taken all of it
      done = end;
    }
    if (done < text.size()) plain(text.substr(done));
  }

 private:
  struct Match {
    const AddedToken* token = nullptr;
    size_t begin = 0, end = 0;
  };
  Match next(std::string_view text, size_t at) const;
  size_t begin_of(std::string_view text, const Match& match, size_t done) const;
  size_t end_of(std::string_view text, const Match& match) const;

  std::vector<AddedToken> tokens_;
  std::array<bool, 256> first_{};                    // a token begins with this byte
  std::unordered_map<uint64_t, uint32_t> children_;  // node << 8 | byte -> node; 0 is the root
  std::vector<int32_t> ends_ = {-1};                 // by node: the token that ends there
};

}  // namespace trireme
