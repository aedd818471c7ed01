// The rotary parameters of config.json: rope_parameters of transformers 5, rope_theta and rope_scaling of
// transformers 4.
#include "models/decoder/hf_config.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace trireme {

namespace {

using Json = nlohmann::json;
using Scaling = RopeFrequencies::Scaling;
constexpr std::pair<Scaling, const char*> kScalings[] = {
    {Scaling::kNone, "default"}, {Scaling::kLinear, "linear"},   {Scaling::kLlama3, "llama3"},
    {Scaling::kYarn, "yarn"},    {Scaling::kDynamic, "dynamic"}, {Scaling::kLongrope, "longrope"}};

/// Reads one set of rotary parameters, `key` of config.json, into `rope`.
class RopeSetReader {
 public:
  RopeSetReader(ConfigReader& reader, const Json& set, std::string key, const DecoderConfig& config,
                const RopeWords& words)
      : reader_(reader), set_(set), key_(std::move(key)), config_(config), words_(words) {}

  void read(RopeFrequencies& rope) {
    rope.theta = reader_.number(set_, "rope_theta", rope.theta);
    if (set_.contains("partial_rotary_factor") && !words_.partial && set_["partial_rotary_factor"] != Json(1.0))
      reader_.lacking("partial_rotary_factor", set_["partial_rotary_factor"]);
    if (words_.partial) rope.part = reader_.number(set_, "partial_rotary_factor", rope.part);
    const Json type = set_.contains("rope_type") ? set_["rope_type"]
                      : set_.contains("type")    ? set_["type"]
                                                 : Json("default");
    if (!read_type(type, rope)) return reader_.lacking(fmt::format("{}.rope_type", key_), type);
    if (rope.scaling == Scaling::kNone) return;
    read_factor(rope);
    if (rope.scaling == Scaling::kDynamic) rope.original_max_position = config_.max_position_embeddings;
    if (rope.scaling == Scaling::kLlama3) read_llama3(rope);
    if (rope.scaling == Scaling::kYarn) read_yarn(rope);
    if (rope.scaling == Scaling::kLongrope) {
      rope.short_factor = numbers("short_factor");
      rope.long_factor = numbers("long_factor");
    }
    if ((rope.scaling == Scaling::kYarn || rope.scaling == Scaling::kLongrope) && holds("attention_factor"))
      rope.attention_factor = reader_.number(set_, "attention_factor", 1);
  }

 private:
  bool holds(const char* name) const { return set_.contains(name) && !set_[name].is_null(); }

  bool read_type(const Json& type, RopeFrequencies& rope) const {
    if (words_.longrope_only && (type == "su" || type == "yarn")) {
      rope.scaling = Scaling::kLongrope;
      return true;
    }
    for (const auto& [scaling, name] : kScalings) {
      if (type != name) continue;
      rope.scaling = scaling;
      return !words_.longrope_only || scaling == Scaling::kNone || scaling == Scaling::kLongrope;
    }
    return false;
  }

  /// factor and original_max_position_embeddings. A value of the latter beside the set overrides the one in it.
  void read_factor(RopeFrequencies& rope) {
    const bool by_ratio =
        rope.scaling == Scaling::kLongrope || (rope.scaling == Scaling::kYarn && set_.contains("factor"));
    if (!by_ratio && !holds("factor")) reader_.problem(fmt::format("{}.factor is missing", key_));
    rope.factor = reader_.number(set_, "factor", 0.0);
    if (rope.scaling == Scaling::kLinear || rope.scaling == Scaling::kDynamic) return;
    constexpr const char* kOriginal = "original_max_position_embeddings";
    const Json outer = member(reader_.json(), kOriginal);
    const double absent = static_cast<double>(config_.max_position_embeddings);
    double original =
        outer.is_null() ? reader_.number(set_, kOriginal, absent) : reader_.number(reader_.json(), kOriginal, absent);
    if (outer.is_null() && words_.original > 0) original = static_cast<double>(words_.original);
    if (original < 1 || original > static_cast<double>(ConfigReader::kMaxInteger) || original != std::floor(original))
      return reader_.problem(fmt::format("{}.{} is {}, expected an integer from 1 to {}", key_, kOriginal, original,
                                         ConfigReader::kMaxInteger));
    rope.original_max_position = static_cast<int64_t>(original);
    rope.factor_stated = rope.factor > 0;
    if (!rope.factor_stated) rope.factor = absent / original;
  }

  void read_llama3(RopeFrequencies& rope) {
    for (const char* field : {"low_freq_factor", "high_freq_factor"})
      if (!set_.contains(field)) reader_.problem(fmt::format("{}.{} is missing", key_, field));
    rope.low_freq_factor = reader_.number(set_, "low_freq_factor", 1.0);
    rope.high_freq_factor = reader_.number(set_, "high_freq_factor", 4.0);
    if (rope.high_freq_factor <= rope.low_freq_factor)
      reader_.problem(fmt::format("{}.high_freq_factor must be greater than low_freq_factor", key_));
  }

  void read_yarn(RopeFrequencies& rope) {
    rope.beta_fast = reader_.number(set_, "beta_fast", rope.beta_fast);
    rope.beta_slow = reader_.number(set_, "beta_slow", rope.beta_slow);
    if (member(set_, "mscale") != Json(0)) rope.mscale = reader_.number(set_, "mscale", 0);
    if (member(set_, "mscale_all_dim") != Json(0)) rope.mscale_all_dim = reader_.number(set_, "mscale_all_dim", 0);
    if (!set_.contains("truncate")) return;
    const Json truncate = set_["truncate"];
    if (!truncate.is_boolean() && !truncate.is_null())
      return reader_.problem(fmt::format("{}.truncate is {}, expected true or false", key_, truncate.dump()));
    rope.truncate = truncate == true;  // null counts as false in transformers
    // transformers (5.23) ignores it in the set of one kind of layer.
    if (config_.window_rope && !rope.truncate) reader_.lacking(fmt::format("{}.truncate", key_), false);
  }

  std::vector<double> numbers(const char* name) {
    constexpr size_t kMost = 4096;
    const Json list = member(set_, name);
    std::vector<double> values;
    if (list.is_array() && list.size() <= kMost)
      for (const Json& value : list)
        if (value.is_number() && value.get<double>() > 0 && std::isfinite(value.get<double>()))
          values.push_back(value.get<double>());
    if (!list.is_array() || values.size() != list.size())
      reader_.problem(fmt::format("{}.{} must be a list of positive numbers", key_, name));
    return values;
  }

  ConfigReader& reader_;
  const Json& set_;
  std::string key_;
  const DecoderConfig& config_;
  const RopeWords& words_;
};

/// Rotary parameters of blocks with and without a window, in one object each; transformers 4 has rope_theta,
/// rope_local_base_freq and rope_scaling, which is that of the blocks without.
void read_ropes_by_window(ConfigReader& reader, DecoderConfig& config, const RopeWords& words) {
  config.window_rope->theta = reader.number("rope_local_base_freq", config.window_rope->theta);
  const Json sets = reader.object("rope_parameters");
  Json full = Json::object();
  for (const auto& [name, set] : sets.items()) {
    if (set.is_null()) continue;
    if ((name != "full_attention" && name != "sliding_attention") || !set.is_object()) {
      reader.lacking("rope_parameters." + name, set);
      continue;
    }
    if (name == "full_attention")
      full = set;
    else
      RopeSetReader(reader, set, "rope_parameters." + name, config, words).read(*config.window_rope);
  }
  const Json scaling = reader.object("rope_scaling");
  // transformers 5 takes no scaling then, transformers 4 takes it.
  if (!reader.has("rope_parameters") && scaling.contains("type") && !scaling.contains("rope_type") &&
      scaling["type"] != "default")
    reader.lacking("rope_scaling.type without rope_type", scaling["type"]);
  full.update(scaling);
  RopeSetReader(reader, full, "rope_parameters.full_attention", config, words).read(config.rope);
}

}  // namespace

const char* rope_type(RopeFrequencies::Scaling scaling) {
  for (const auto& [known, name] : kScalings)
    if (known == scaling) return name;
  return "";
}

Json rope_set_json(const RopeFrequencies& rope) {
  Json json = {{"rope_type", rope_type(rope.scaling)}, {"rope_theta", rope.theta}};
  if (rope.scaling == Scaling::kNone) return json;
  const bool longrope = rope.scaling == Scaling::kLongrope;
  if (rope.factor_stated || !longrope) json["factor"] = rope.factor_stated ? Json(rope.factor) : Json();
  if (rope.scaling == Scaling::kLinear || rope.scaling == Scaling::kDynamic) return json;
  json["original_max_position_embeddings"] = rope.original_max_position;
  if (rope.scaling == Scaling::kLlama3)
    json.update({{"low_freq_factor", rope.low_freq_factor}, {"high_freq_factor", rope.high_freq_factor}});
  if (longrope) json.update({{"short_factor", rope.short_factor}, {"long_factor", rope.long_factor}});
  if (rope.attention_factor) json["attention_factor"] = *rope.attention_factor;
  const RopeFrequencies absent;
  for (const auto& [name, member] : {std::pair("beta_fast", &RopeFrequencies::beta_fast),
                                     {"beta_slow", &RopeFrequencies::beta_slow},
                                     {"mscale", &RopeFrequencies::mscale},
                                     {"mscale_all_dim", &RopeFrequencies::mscale_all_dim}})
    if (rope.*member != absent.*member) json[name] = rope.*member;
  if (!rope.truncate) json["truncate"] = false;
  return json;
}

// rope_scaling, if it exists and is not empty, replaces rope_parameters; rope_theta beside them counts where neither
// holds one.
void read_rope(ConfigReader& reader, DecoderConfig& config, const RopeWords& words) {
  config.rope.theta = reader.number("rope_theta", config.rope.theta);
  if (words.partial) config.rope.part = reader.number("partial_rotary_factor", config.rope.part);
  if (config.window_rope) return read_ropes_by_window(reader, config, words);
  // transformers 5 writes one object, rope_parameters; transformers 4 rope_theta beside rope_scaling. If both exist,
  // transformers reads only rope_scaling, unless it is empty.
  const Json scaling = reader.object("rope_scaling"), parameters = reader.object("rope_parameters");
  const Json& rope = scaling.empty() ? parameters : scaling;
  const char* key = scaling.empty() ? "rope_parameters" : "rope_scaling";
  if (rope.empty()) return;
  for (const auto& [name, value] : rope.items())
    if (value.is_object()) reader.lacking(fmt::format("{}.{}", key, name), value);  // one set for each kind of layer
  RopeSetReader(reader, rope, key, config, words).read(config.rope);
}

Json rope_scaling_json(const DecoderConfig& config) {
  if (config.rope.scaling == Scaling::kNone) return Json();
  Json scaling = rope_set_json(config.rope);
  scaling.erase("rope_theta");
  // transformers 4 takes the ratio of the positions for longrope's factor.
  const double ratio =
      static_cast<double>(config.max_position_embeddings) / static_cast<double>(config.rope.original_max_position);
  if (config.rope.scaling == Scaling::kLongrope && config.rope.factor != ratio)
    scaling["attention_factor"] = rope_attention_factor(config.rope);
  // Two fields are what OLMo 2 takes there. transformers 5 reads `type` only where all blocks have one set, and
  // transformers 4 no `type` of a Granite.
  if ((config.rope.scaling == Scaling::kLinear || config.rope.scaling == Scaling::kDynamic) && !config.window_rope &&
      config.family != "granite")
    return {{"type", scaling["rope_type"]}, {"factor", scaling["factor"]}};
  return scaling;
}

}  // namespace trireme
