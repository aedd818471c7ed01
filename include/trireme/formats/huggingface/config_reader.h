#pragma once
// Reads the fields of one JSON configuration and reports all problems together.

#include "trireme/formats/json.h"

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

/// Beyond these a configuration is taken for damaged.
constexpr int64_t kMaxLayers = 10'000;
constexpr double kMaxParameters = 1125899906842624.0;  // 2^50

/// Reads fields of one config.json and collects missing, ill-typed and unsupported fields. A null field counts as
/// absent.
class ConfigReader {
 public:
  static constexpr int64_t kMaxInteger = INT32_MAX;

  /// `json`, an object, must outlive the reader; the error begins with `path`.
  ConfigReader(const nlohmann::json& json, std::string path) : json_(json), path_(std::move(path)) {
    // Of transformers: other values of fields for single layers, other names of fields, another file of weights, other
    // files in place of this one.
    only("per_layer_config", {"{}"});
    only("transformers_weights", {"\"model.safetensors\"", "\"model.safetensors.index.json\""});
    only("configuration_files", {"[]"});
    only("attribute_map", {"{}"});
  }

  bool has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }
  bool is_null(const char* key) const { return json_.contains(key) && json_[key].is_null(); }

  /// An integer in [lowest, kMaxInteger]; a problem if it is absent and there is no fallback.
  int64_t integer(const char* key, std::optional<int64_t> fallback = std::nullopt, int64_t lowest = 1);
  /// The object under `key`; an empty one where it is absent, or is, with a problem, something else.
  nlohmann::json object(const char* key);
  /// Ids under `key`: a list, one number, or null for none; `absent` if the key is absent.
  std::vector<int64_t> token_ids(const char* key, std::vector<int64_t> absent);
  /// An id or null; `absent` if the key is absent.
  std::optional<int64_t> token_id(const char* key, std::optional<int64_t> absent, int64_t lowest = 0);
  /// A positive finite number.
  double number(const nlohmann::json& from, const char* key, double fallback);
  double number(const char* key, double fallback) { return number(json_, key, fallback); }
  /// A probability of dropout, in [0, 1), that steps of 1 / steps can represent (trireme/base/dropout_steps.h).
  double probability(const char* key, double fallback, int64_t steps);
  bool boolean(const char* key, bool fallback);
  /// `key`, when present, must be one of `allowed` (as JSON text).
  void only(const char* key, std::initializer_list<const char*> allowed);
  /// "<key>: <value> is not supported".
  void lacking(const std::string& key, const nlohmann::json& value);
  void problem(const std::string& text) { problems_.push_back(text); }
  const nlohmann::json& json() const { return json_; }
  /// Throws ModelError with all problems, if any.
  void finish() const;

 private:
  const nlohmann::json& json_;
  std::string path_;
  std::vector<std::string> problems_;
};

/// The ids under eos_token_id of config.json or generation_config.json; none where there is no such file. ModelError.
std::vector<int64_t> eos_ids_of(const std::filesystem::path& path);

}  // namespace trireme
