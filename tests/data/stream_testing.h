#pragma once
// Streams over documents made up on request.

#include "data/stream/token_stream.h"

#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

using Tokens = std::vector<int64_t>;

/// Documents made up on request: document i holds `length(i)` tokens first + i * stride, + 1, …
class MadeDocuments : public DocumentSet {
 public:
  MadeDocuments(int64_t size, int64_t first, int64_t stride, std::function<int64_t(int64_t)> length)
      : size_(size), first_(first), stride_(stride), length_(std::move(length)) {}
  int64_t size() const override { return size_; }
  void read(int64_t index, Tokens& tokens) const override {
    tokens.resize(static_cast<size_t>(length_(index)));
    std::iota(tokens.begin(), tokens.end(), first_ + index * stride_);
  }
  std::string place(int64_t index) const override { return "made: document " + std::to_string(index); }
  std::string kind() const override { return "made"; }

 private:
  int64_t size_, first_, stride_;
  std::function<int64_t(int64_t)> length_;
};

inline constexpr int64_t kVocabulary = 10'000'000;
inline constexpr int64_t kStride = 1000;  // token / kStride tells the document

inline std::shared_ptr<const DocumentSet> made(int64_t size, std::function<int64_t(int64_t)> length,
                                               int64_t first = 0) {
  return std::make_shared<MadeDocuments>(size, first, kStride, std::move(length));
}

inline std::shared_ptr<const TokenStream> stream_of(std::vector<StreamPart> parts, StreamOptions options) {
  if (options.vocab_size == 0) options.vocab_size = kVocabulary;
  return std::make_shared<TokenStream>(std::move(parts), options);
}

inline std::shared_ptr<const TokenStream> hundred(int64_t seq_length, int64_t shards, uint64_t seed = 1) {
  return stream_of({{"a", 1, made(100, [](int64_t i) { return 5 + i % 7; })}},
                   {.seq_length = seq_length, .logical_shards = shards, .seed = seed, .min_length = 1});
}

}  // namespace trireme
