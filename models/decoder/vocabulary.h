#pragma once
// The weights of a model directory with another number of vocabulary rows, or with some rows replaced.

#include "models/decoder/config.h"
#include "trireme/base/lora.h"
#include "trireme/formats/huggingface/peft_adapter.h"
#include "trireme/formats/huggingface/weight_source.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

/// Rows of a vocabulary of `vocab_size` with model.vocab_size and model.pad_vocab_to applied. ConfigError when
/// `wanted` is less than the model has: rows are never dropped.
int64_t resized_vocab(int64_t vocab_size, std::optional<int64_t> wanted, std::optional<int64_t> multiple);

/// The adapter in `directory` for `base`, without the rows of an output matrix that `base` ties to its embedding: peft
/// writes both. ModelError where they differ.
Adapter read_adapter(const std::filesystem::path& directory, const DecoderConfig& base);

/// Rows of the vocabulary that base and adapter have together: the base's, or more where the adapter brings all of the
/// rows that the base lacks. ModelError when some are missing.
int64_t vocab_with_adapter(const DecoderConfig& base, const Adapter& adapter);

/// Opens the weights of `directory`, whose configuration is `config`, with `vocab_size` rows (at least
/// config.vocab_size) in the embedding and the output matrix.
///
/// New rows are drawn as transformers' resize_token_embeddings draws them: normal with the mean of the matrix's own
/// rows and 1e-9 times their covariance (the mean alone where there are no more rows than columns: their covariance is
/// singular), rounded to the matrix's type. They depend on `seed` and the row's id only. `rows` replace rows by id, new
/// rows or the model's own.
///
/// Tensors that the model has no use for are named in a warning, as transformers does. A tied model whose file has an
/// lm_head.weight other than its embedding is refused (ModelError): transformers leaves such a model untied. One that
/// has lm_head.weight alone is read from there.
std::unique_ptr<WeightSource> open_decoder_weights(const std::filesystem::path& directory, const DecoderConfig& config,
                                                   int64_t vocab_size, uint64_t seed,
                                                   const std::map<std::string, TokenRows>& rows = {});
/// The same with the vocabulary as it is.
std::unique_ptr<WeightSource> open_decoder_weights(const std::filesystem::path& directory, const DecoderConfig& config);

/// Of config.json: {"first": rows before `model resize-vocab` added some, "tokens": {text: id}}.
inline constexpr const char* kAddedRowsKey = "trireme_added_rows";

/// Rows of the vocabulary that no training has seen.
struct AddedRows {
  std::vector<int64_t> ids;  // ascending
  std::string tokens;        // "<|im_start|> = 32000, …": rows that `model resize-vocab` named
};
/// The rows from the first that `model resize-vocab` added to the model in `directory`, else from `stored_vocab`, to
/// `data_vocab`, the ids that data may have; and the rows before them that it gave to tokens.
AddedRows added_rows(const std::filesystem::path& directory, int64_t stored_vocab, int64_t data_vocab);
/// Trains these rows of every matrix with a row for each token that lora.modules_to_save does not train whole.
void train_added_rows(const AddedRows& added, const DecoderConfig& config, LoraOptions& lora);

/// The rows of `source` that an adapter has to hold, so that it computes the same on a base that was resized elsewhere:
/// rows that the stored base lacks, [stored_vocab, config.vocab_size), and rows that `start` replaced.
std::map<std::string, TokenRows> adapter_token_rows(const WeightSource& source, const DecoderConfig& config,
                                                    int64_t stored_vocab,
                                                    const std::map<std::string, TokenRows>& start);

/// Rows of one matrix, fp32.
at::Tensor matrix_rows(const WeightSource& source, const std::string& name, const std::vector<int64_t>& ids);

/// Number of last rows of a matrix of `rows` that are like those that transformers' resize_token_embeddings() adds:
/// almost equal to each other, or one that almost equals the mean of the others. Rows of zeros, which fill a vocabulary
/// up: none.
int64_t added_last_rows(const WeightSource& source, const std::string& name, int64_t rows);

}  // namespace trireme
