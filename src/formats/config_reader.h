#pragma once
// Private to formats/: reads the fields of one config.json and reports all problems together.

#include "json.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

/// Reads fields of one config.json and collects missing, invalid and unsupported ones for one report.
class ConfigReader {
 public:
  static constexpr int64_t kMaxInteger = INT32_MAX;

  ConfigReader(const nlohmann::json& json, std::string path) : json_(json), path_(std::move(path)) {}

  bool has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }

  int64_t integer(const char* key, std::optional<int64_t> fallback = std::nullopt, int64_t lowest = 1) {
    if (!has(key)) {
      if (!fallback) problems_.push_back(fmt::format("{} is missing", key));
      return fallback.value_or(lowest);
    }
    const nlohmann::json& number = json_[key];
    if (!is_integer(number, lowest)) {
      problems_.push_back(fmt::format("{} is {}, expected an integer from {} to {}", key, number.dump().substr(0, 80),
                                      lowest, kMaxInteger));
      return lowest;
    }
    return number.get<int64_t>();
  }
  /// The ids under `key`: a list, one number, or null for none; `absent` if the key is missing.
  std::vector<int64_t> token_ids(const char* key, std::vector<int64_t> absent, int64_t lowest = 0) {
    if (!json_.contains(key)) return absent;
    const nlohmann::json& value = json_[key];
    std::vector<int64_t> ids;
    for (const nlohmann::json& id : value.is_array() ? value : nlohmann::json::array({value})) {
      if (value.is_null()) break;
      if (!is_integer(id, lowest)) {
        problems_.push_back(
            fmt::format("{} is {}, expected ids from {} to {}", key, value.dump().substr(0, 80), lowest, kMaxInteger));
        break;
      }
      ids.push_back(id.get<int64_t>());
    }
    return ids;
  }
  /// As token_ids(), for at most one id.
  std::optional<int64_t> token_id(const char* key, std::optional<int64_t> absent, int64_t lowest = 0) {
    const std::vector<int64_t> ids = token_ids(key, absent ? std::vector{*absent} : std::vector<int64_t>{}, lowest);
    if (ids.size() > 1) problems_.push_back(fmt::format("{} is a list of {}, expected one id", key, ids.size()));
    return ids.empty() ? std::nullopt : std::optional(ids[0]);
  }
  double number(const nlohmann::json& from, const char* key, double fallback) {
    if (!from.contains(key) || from[key].is_null()) return fallback;
    if (!from[key].is_number() || !(from[key].get<double>() > 0) || !std::isfinite(from[key].get<double>())) {
      problems_.push_back(fmt::format("{} is {}, expected a positive number", key, from[key].dump()));
      return fallback;
    }
    return from[key].get<double>();
  }
  double number(const char* key, double fallback) { return number(json_, key, fallback); }
  bool boolean(const char* key, bool fallback) {
    if (!has(key)) return fallback;
    if (!json_[key].is_boolean()) {
      problems_.push_back(fmt::format("{} is {}, expected true or false", key, json_[key].dump()));
      return fallback;
    }
    return json_[key].get<bool>();
  }
  /// `key`, when present, must be one of `allowed` (as JSON text).
  void only(const char* key, std::initializer_list<const char*> allowed) {
    if (!has(key)) return;
    for (const char* text : allowed)
      if (json_[key] == nlohmann::json::parse(text)) return;
    lacking(key, json_[key]);
  }
  void lacking(const std::string& key, const nlohmann::json& value) {
    problems_.push_back(fmt::format("{}: {} is not supported", key, value.dump().substr(0, 120)));
  }
  void problem(const std::string& text) { problems_.push_back(text); }
  const nlohmann::json& json() const { return json_; }
  void finish() const {
    if (!problems_.empty()) throw ModelError(fmt::format("{}: {}", path_, join(problems_, "; ")));
  }

 private:
  static bool is_integer(const nlohmann::json& value, int64_t lowest) {
    return value.is_number_integer() && value.get<int64_t>() >= lowest && value.get<int64_t>() <= kMaxInteger;
  }

  const nlohmann::json& json_;
  std::string path_;
  std::vector<std::string> problems_;
};

}  // namespace trireme
