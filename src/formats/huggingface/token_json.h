#pragma once
// Fields of the JSON files of a tokenizer.

#include "trireme/base/error.h"
#include "trireme/formats/huggingface/folder_tokens.h"
#include "trireme/formats/json.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <string>

namespace trireme {

inline constexpr size_t kMaxTokenizerFile = size_t{256} << 20;
inline constexpr int64_t kMaxTokenId = 1 << 24;

/// Reads the fields of one file: every message begins with its path.
class TokenJson {
 public:
  explicit TokenJson(const std::filesystem::path& path) : path_(path) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(fmt::format("{}: {}", path_.string(), what));
  }
  std::string text(const nlohmann::json& object, const char* key, const std::string& where) const {
    const auto value = member(object, key);
    if (!value.is_string()) fail(fmt::format("{}: \"{}\" is missing or not a string", where, key));
    return value.get<std::string>();
  }
  bool flag(const nlohmann::json& object, const char* key, bool fallback, const std::string& where) const {
    const auto value = member(object, key);
    if (value.is_null()) return fallback;
    if (!value.is_boolean()) fail(fmt::format("{}: \"{}\" is not true or false", where, key));
    return value.get<bool>();
  }
  int32_t id(const nlohmann::json& value, const std::string& what) const {
    if (!value.is_number_integer()) fail(fmt::format("the id of {} is not an integer", what));
    const bool large = value.is_number_unsigned() && value.get<uint64_t>() >= static_cast<uint64_t>(kMaxTokenId);
    if (large || value.get<int64_t>() < 0 || value.get<int64_t>() >= kMaxTokenId)
      fail(fmt::format("the id of {} is {}, expected 0 to {}", what, value.dump(), kMaxTokenId - 1));
    return value.get<int32_t>();
  }

  /// All of it but the id.
  AddedToken added_token(const nlohmann::json& entry, const std::string& where) const {
    AddedToken token;
    token.content = text(entry, "content", where);
    token.special = flag(entry, "special", false, where);
    token.single_word = flag(entry, "single_word", false, where);
    token.lstrip = flag(entry, "lstrip", false, where);
    token.rstrip = flag(entry, "rstrip", false, where);
    token.normalized = flag(entry, "normalized", !token.special, where);
    return token;
  }

 protected:
  const std::filesystem::path& path_;
};

}  // namespace trireme
