#include "models/decoder/family.h"

#include "trireme/base/error.h"

namespace trireme {

// Every family: NAME is const Family& NAME_family() of families/NAME.cpp.
#define TRIREME_DECODER_FAMILIES(FAMILY) FAMILY(gpt2) FAMILY(llama) FAMILY(mistral) FAMILY(qwen2)

#define TRIREME_DECLARE_FAMILY(name) const Family& name##_family();
TRIREME_DECODER_FAMILIES(TRIREME_DECLARE_FAMILY)

const std::vector<const Family*>& families() {
#define TRIREME_FAMILY_ADDRESS(name) &name##_family(),
  static const std::vector<const Family*> all = {TRIREME_DECODER_FAMILIES(TRIREME_FAMILY_ADDRESS)};
  return all;
}

const Family& family_of(const DecoderConfig& config) {
  for (const Family* family : families())
    if (family->model_type == config.family) return *family;
  throw InternalError("no decoder family '" + config.family + "'");
}

BlockTable decoder_block(const DecoderConfig& config) { return family_of(config).block(config); }

}  // namespace trireme
