#include "variants.h"

#include <algorithm>
#include <cctype>

namespace trireme {

namespace {

// Name, width, heads, key/value heads, blocks, MLP width, vocabulary, positions, RoPE base.
const std::vector<ImportedModel>& fms_variants() {
  static const std::vector<ImportedModel> variants = {
      {"llama2_1.4b", 2048, 16, 4, 24, 6144, 32000, 4096, 1e4},
      {"llama2_7b", 4096, 32, 32, 32, 11008, 32000, 4096, 1e4},
      {"llama2_13b", 5120, 40, 40, 40, 13824, 32000, 4096, 1e4},
      {"llama2_34b", 8192, 64, 8, 48, 22016, 32000, 16384, 1e6},
      {"llama2_70b", 8192, 64, 8, 80, 28672, 32000, 4096, 1e4},
      // 8/3 of the width, up to a multiple of 256.
      {"llama3_194m_4k", 1024, 8, 8, 10, 2816, 128256, 4096, 5e5},
      {"llama3_1.8b", 2048, 16, 8, 24, 7168, 128256, 8192, 5e5},
      {"llama3_1.8b_4k", 2048, 16, 8, 24, 7168, 128256, 4096, 5e5},
      {"llama3_3.2b", 3072, 24, 8, 24, 8192, 128256, 8192, 5e5},
      {"llama3_3.2b_4k", 3072, 24, 8, 24, 8192, 128256, 4096, 5e5},
      {"llama3_8b", 4096, 32, 8, 32, 14336, 128256, 8192, 5e5},
      {"llama3_8b_4k", 4096, 32, 8, 32, 14336, 128256, 4096, 5e5},
      {"llama3_70b", 8192, 64, 8, 80, 28672, 128256, 8192, 5e5},
      {"llama3_70b_4k", 8192, 64, 8, 80, 28672, 128256, 4096, 5e5},
  };
  return variants;
}

const std::vector<ImportedModel>& torchtitan_flavors() {
  static const std::vector<ImportedModel> flavors = {
      {"debugmodel", 256, 16, 16, 6, 768, 2048, 131072, 5e5, true},
      {"8B", 4096, 32, 8, 32, 14336, 128256, 131072, 5e5, true},
      {"70B", 8192, 64, 8, 80, 28672, 128256, 131072, 5e5, true},
      {"405B", 16384, 128, 8, 126, 53248, 128256, 131072, 5e5, true},
  };
  return flavors;
}

std::optional<ImportedModel> named(const std::vector<ImportedModel>& models, const std::string& name) {
  const auto found = std::find_if(models.begin(), models.end(), [&](const auto& model) { return model.name == name; });
  return found == models.end() ? std::nullopt : std::optional(*found);
}

std::vector<std::string> names(const std::vector<ImportedModel>& models) {
  std::vector<std::string> all;
  for (const ImportedModel& model : models) all.push_back(model.name);
  return all;
}

}  // namespace

std::optional<ImportedModel> fms_variant(const std::string& name) {
  std::string canonical;
  for (const char c : name)
    canonical += c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (!canonical.starts_with("llama")) canonical = "llama2_" + canonical;
  return named(fms_variants(), canonical);
}
std::vector<std::string> fms_variant_names() { return names(fms_variants()); }

std::optional<ImportedModel> torchtitan_flavor(const std::string& flavor) {
  return named(torchtitan_flavors(), flavor);
}
std::vector<std::string> torchtitan_flavor_names() { return names(torchtitan_flavors()); }

}  // namespace trireme
