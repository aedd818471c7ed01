#include "data/tokenizer/unigram.h"

#include "trireme/base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>

namespace trireme {

namespace {

constexpr float kUnknownPenalty = 10;

/// Number of bytes of the UTF-8 character whose first byte is `first`.
size_t character_length(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

}  // namespace

UnigramDecoder::UnigramDecoder(const ByteLevelModel& model)
    : rounds_(false), byte_fallback_(model.byte_fallback), unknown_id_(model.unknown_id.value_or(-1)), bytes_(256, -1) {
  unknown_score_ = *std::min_element(model.scores.begin(), model.scores.end()) - static_cast<double>(kUnknownPenalty);
  for (size_t id = 0; id < model.scores.size(); ++id) {
    pieces_.emplace(model.tokens[id], Entry{static_cast<int32_t>(id), model.scores[id]});
    lengths_.insert(model.tokens[id].size());
  }
  if (!byte_fallback_) return;
  for (size_t byte = 0; byte < 256; ++byte) bytes_[byte] = pieces_.at(fmt::format("<0x{:02X}>", byte)).id;
}

UnigramDecoder::UnigramDecoder(const SentencepieceModel& model)
    : rounds_(true),
      byte_fallback_(model.byte_fallback),
      unknown_id_(static_cast<int32_t>(model.unknown_id)),
      bytes_(256, -1) {
  float lowest = std::numeric_limits<float>::max();
  for (const SentencepiecePiece& piece : model.pieces)
    if (piece.type == SentencepiecePiece::kNormal) lowest = std::min(lowest, piece.score);
  unknown_score_ = static_cast<double>(lowest - kUnknownPenalty);
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencepiecePiece& piece = model.pieces[id];
    if (piece.type == SentencepiecePiece::kByte) {  // "<0x25>"
      unsigned byte = 0;
      std::from_chars(piece.text.data() + std::min<size_t>(3, piece.text.size()), piece.text.data() + piece.text.size(),
                      byte, 16);
      bytes_[byte & 0xFF] = static_cast<int32_t>(id);
      bytes_of_.emplace(piece.text, static_cast<char>(byte));
    }
    const bool user_defined = piece.type == SentencepiecePiece::kUserDefined;
    if (piece.type != SentencepiecePiece::kNormal && !user_defined) continue;
    // User-defined pieces have precedence over normal pieces, longer ones over shorter ones.
    const auto bonus = static_cast<float>(0.1 * static_cast<double>(piece.text.size()) - 0.1);
    const float score = user_defined ? bonus : piece.score;
    pieces_.emplace(piece.text, Entry{static_cast<int32_t>(id), static_cast<double>(score)});
    lengths_.insert(piece.text.size());
  }
}

void UnigramDecoder::encode(std::string_view text, std::vector<int32_t>& ids) const {
  struct Best {
    double score = 0;
    int32_t id = -1;
    int64_t begin = -1;
  };
  std::vector<Best> best(text.size() + 1);  // indexed by the end of the segmentation
  for (size_t begin = 0; begin < text.size();) {
    const size_t character = std::min(character_length(text[begin]), text.size() - begin);
    const double so_far = best[begin].score;
    const auto offer = [&](size_t end, double score, int32_t id) {
      // The sum of two floats is exact enough in double to be rounded once.
      const double sum = score + so_far, candidate = rounds_ ? static_cast<double>(static_cast<float>(sum)) : sum;
      if (best[end].begin < 0 || candidate > best[end].score) best[end] = {candidate, id, static_cast<int64_t>(begin)};
    };
    bool has_character = false;
    for (const size_t length : lengths_) {
      if (length > text.size() - begin) break;
      const auto found = pieces_.find(text.substr(begin, length));
      if (found == pieces_.end()) continue;
      offer(begin + length, found->second.score, found->second.id);
      has_character |= length == character;
    }
    if (!has_character) offer(begin + character, unknown_score_, unknown_id_);
    begin += character;
  }
  std::vector<size_t> ends;
  for (size_t end = text.size(); end > 0; end = static_cast<size_t>(best[end].begin)) ends.push_back(end);
  size_t unknown_from = text.size();
  for (auto end = ends.rbegin(); end != ends.rend(); ++end) {
    const Best& piece = best[*end];
    if (piece.id != unknown_id_) {
      ids.push_back(piece.id);
      unknown_from = text.size();
      continue;
    }
    unknown_from = std::min(unknown_from, static_cast<size_t>(piece.begin));
    if (const auto next = std::next(end); next != ends.rend() && best[*next].id == unknown_id_) continue;
    // `tokenizers` looks the run up: "<unk>" in a text is a piece.
    const std::string_view run = text.substr(unknown_from, *end - unknown_from);
    if (const auto found = rounds_ ? pieces_.end() : pieces_.find(run); found != pieces_.end())
      ids.push_back(found->second.id);
    else if (byte_fallback_)
      for (const char byte : run) ids.push_back(bytes_[static_cast<unsigned char>(byte)]);
    else if (unknown_id_ < 0)
      throw DataError("the tokenizer has neither a token for a character of the text nor an unk_id");
    else
      ids.push_back(unknown_id_);
  }
}

std::string UnigramDecoder::normalised(const std::vector<std::string>& pieces) const {
  std::string text;
  for (const std::string& piece : pieces) {
    if (const auto byte = bytes_of_.find(piece); byte != bytes_of_.end())
      text += byte->second;
    else
      text += piece;
  }
  return text;
}

}  // namespace trireme
