#pragma once
#include "trireme/config_import/import.h"

#include <filesystem>
#include <optional>
#include <string>

namespace trireme {

/// config.json of an imported model.
std::string imported_model_json(const ImportedModel& model);

/// The reader of import_nemo() and import_torchtitan(): tokenizer.model, tokenizer.json, vocab.json with its merges, or
/// a directory.
std::optional<ImportedTokenizer> read_imported_tokenizer(const std::filesystem::path& path);
/// Copies the tokenizer's files into a model's directory. WriteError.
void write_imported_tokenizer(const ImportedConfig& imported, const std::filesystem::path& model_directory);

}  // namespace trireme
