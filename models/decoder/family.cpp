#include "models/decoder/family.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme {

// NAME is const Family& NAME_family() of families/NAME.cpp; CMake writes FAMILY(NAME) for each file.
#define FAMILY(name) const Family& name##_family();
#include "decoder_families.inc"
#undef FAMILY

const std::vector<const Family*>& families() {
#define FAMILY(name) &name##_family(),
  static const std::vector<const Family*> all = {
#include "decoder_families.inc"
  };
#undef FAMILY
  return all;
}

const Family& family_of(const DecoderConfig& config) {
  for (const Family* family : families())
    if (family->model_type == config.family) return *family;
  throw InternalError("no decoder family '" + config.family + "'");
}

BlockTable decoder_block(const DecoderConfig& config) { return family_of(config).block(config); }

std::vector<std::string> decoder_preset_names() {
  std::vector<std::string> names;
  for (const Family* family : families())
    for (const Preset& preset : family->presets()) names.push_back(preset.name);
  return names;
}

DecoderConfig decoder_preset(const std::string& name) {
  for (const Family* family : families())
    for (const Preset& preset : family->presets())
      if (preset.name == name) return preset.config;
  throw ConfigError("no model preset '" + name + "'." + did_you_mean(name, decoder_preset_names()) +
                    " Presets: " + join(decoder_preset_names(), ", "));
}

}  // namespace trireme
