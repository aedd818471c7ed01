#include "trireme/formats/huggingface/config_reader.h"

#include "trireme/base/dropout_steps.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <cmath>

namespace trireme {

namespace {

bool is_integer_from(const nlohmann::json& value, int64_t lowest) {
  // Beyond int64 get() wraps around.
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{ConfigReader::kMaxInteger}) return false;
  return value.is_number_integer() && value.get<int64_t>() >= lowest &&
         value.get<int64_t>() <= ConfigReader::kMaxInteger;
}

}  // namespace

int64_t ConfigReader::integer(const char* key, std::optional<int64_t> fallback, int64_t lowest) {
  if (!has(key)) {
    if (!fallback) problems_.push_back(fmt::format("{} is missing", key));
    return fallback.value_or(lowest);
  }
  const nlohmann::json& number = json_[key];
  if (!is_integer_from(number, lowest)) {
    problems_.push_back(fmt::format("{} is {}, expected an integer from {} to {}", key, number.dump().substr(0, 80),
                                    lowest, kMaxInteger));
    return lowest;
  }
  return number.get<int64_t>();
}

nlohmann::json ConfigReader::object(const char* key) {
  if (has(key) && json_[key].is_object()) return json_[key];
  if (has(key)) problems_.push_back(fmt::format("{} is not an object", key));
  return nlohmann::json::object();
}

std::vector<int64_t> ConfigReader::token_ids(const char* key, std::vector<int64_t> absent) {
  if (!json_.contains(key)) return absent;
  const nlohmann::json& value = json_[key];
  std::vector<int64_t> ids;
  for (const nlohmann::json& id : value.is_array() ? value : nlohmann::json::array({value})) {
    if (value.is_null()) break;
    if (!is_integer_from(id, 0)) {
      problems_.push_back(
          fmt::format("{} is {}, expected ids from 0 to {}", key, value.dump().substr(0, 80), kMaxInteger));
      break;
    }
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

std::optional<int64_t> ConfigReader::token_id(const char* key, std::optional<int64_t> absent, int64_t lowest) {
  if (!json_.contains(key)) return absent;
  return is_null(key) ? std::nullopt : std::optional(integer(key, std::nullopt, lowest));
}

double ConfigReader::number(const nlohmann::json& from, const char* key, double fallback) {
  if (!from.contains(key) || from[key].is_null()) return fallback;
  if (!from[key].is_number() || !(from[key].get<double>() > 0) || !std::isfinite(from[key].get<double>())) {
    problems_.push_back(fmt::format("{} is {}, expected a positive number", key, from[key].dump()));
    return fallback;
  }
  return from[key].get<double>();
}

double ConfigReader::probability(const char* key, double fallback, int64_t steps) {
  if (!has(key)) return fallback;
  const nlohmann::json& value = json_[key];
  if (!value.is_number() || !(value.get<double>() >= 0) || !(value.get<double>() < 1)) {
    problems_.push_back(fmt::format("{} is {}, expected a number from 0 to below 1", key, value.dump().substr(0, 80)));
    return fallback;
  }
  if (const std::string why = dropout_problem(value.get<double>(), steps); !why.empty())
    problems_.push_back(fmt::format("{} {}", key, why));
  return value.get<double>();
}

bool ConfigReader::boolean(const char* key, bool fallback) {
  if (!has(key)) return fallback;
  if (!json_[key].is_boolean()) {
    problems_.push_back(fmt::format("{} is {}, expected true or false", key, json_[key].dump()));
    return fallback;
  }
  return json_[key].get<bool>();
}

void ConfigReader::only(const char* key, std::initializer_list<const char*> allowed) {
  if (!has(key)) return;
  for (const char* text : allowed)
    if (json_[key] == nlohmann::json::parse(text)) return;
  lacking(key, json_[key]);
}

void ConfigReader::lacking(const std::string& key, const nlohmann::json& value) {
  problems_.push_back(fmt::format("{}: {} is not supported", key, value.dump().substr(0, 120)));
}

void ConfigReader::finish() const {
  if (!problems_.empty()) throw ModelError(fmt::format("{}: {}", path_, join(problems_, "; ")));
}

std::vector<int64_t> eos_ids_of(const std::filesystem::path& path) {
  if (!std::filesystem::is_regular_file(path)) return {};
  const nlohmann::json json = read_json_object(path);
  ConfigReader reader(json, path.string());
  std::vector<int64_t> ids = reader.token_ids("eos_token_id", {});
  reader.finish();
  return ids;
}

}  // namespace trireme
