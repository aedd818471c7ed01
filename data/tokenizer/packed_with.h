#pragma once
// Which tokenizer made a file of ids: FILE.tokenizer.json beside it (Megatron's: PREFIX.tokenizer.json), so that the
// formats themselves stay those of other programs.

#include "data/tokenizer/tokenizer.h"

#include <filesystem>
#include <string>
#include <vector>

namespace trireme {

/// Hash of the texts of the ids 0 to `count` - 1, of which a tokenizer has at least as many. tokenizer.model and
/// tokenizer.json of one model have the same. `version`: 2; 1 for a hash of an older file, which may differ between a
/// tokenizer.model alone and beside the files of a model.
std::string vocabulary_hash(const Tokenizer& tokenizer, int64_t count, int version);

/// Says beside `file` (npy, HDF5, or Megatron's prefix) that `tokenizer` made it, without tokens of add_special().
/// `opened`: its path. WriteError.
void write_packed_with(const std::filesystem::path& file, const Tokenizer& tokenizer,
                       const std::filesystem::path& opened);

/// DataError where two of `parts` say that tokenizers with other tokens made them.
void check_packed_alike(const std::vector<std::filesystem::path>& parts);
/// Says beside `file`, which consists of `parts`, what they say, where all of them say it. WriteError.
void merge_packed_with(const std::vector<std::filesystem::path>& parts, const std::filesystem::path& file);

/// A sentence for each of `files` (npy, HDF5, or Megatron's .idx or prefix) whose ids mean other texts in the tokenizer
/// of the directory `model`. No warning for files of unknown origin, for a file that is newer than its record, and for
/// a model without a tokenizer.
std::vector<std::string> packed_with_others(const std::vector<std::filesystem::path>& files,
                                            const std::filesystem::path& model);

}  // namespace trireme
