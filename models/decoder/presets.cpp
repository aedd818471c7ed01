#include "models/decoder/presets.h"

#include "models/decoder/family.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme {

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
