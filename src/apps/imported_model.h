#pragma once
#include "trireme/config_import/import.h"

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

/// The reader of import_nemo() and import_torchtitan(): tokenizer.model, tokenizer.json, vocab.json with its merges, or
/// a directory.
std::optional<ImportedTokenizer> read_imported_tokenizer(const std::filesystem::path& path);
/// Files below `directory` and their contents: config.json, and those of the tokenizer that are not there already.
/// None where `imported` has no model.
std::vector<std::pair<std::filesystem::path, std::string>> imported_model_files(const ImportedConfig& imported,
                                                                                const std::filesystem::path& directory);

}  // namespace trireme
