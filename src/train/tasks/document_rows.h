#pragma once
// Private to train/: the rows of a causal language model that are packed from documents while the run reads them.

#include "data/dataset.h"
#include "data/stream/open_stream.h"
#include "data/stream/stream_loader.h"
#include "trireme/config/config.h"

#include <memory>
#include <string>
#include <vector>

namespace trireme {

/// data.train, data.valid or data.test (`key`) as the files of a stream. Text is tokenised with model.path's tokenizer.
StreamFiles stream_files(const Config& config, const std::string& key);
/// What config.data says about documents.
StreamOptions stream_options(const Config& config, int64_t vocab_size);

/// data.valid or data.test (`key`): file order, one shard, no weights.
std::shared_ptr<const TokenStream> open_evaluation_stream(const Config& config, const std::string& key,
                                                          int64_t vocab_size);

/// A row of one sequence with a loss on every target. Position t predicts token t + 1, so a row of S tokens has S - 1
/// targets: as many as fms-fsdp's row of S + 1 tokens, whose first target it ignores.
Sample stream_sample(std::vector<int64_t> tokens);

/// ConfigError where a key for documents is set, but data.train has rows.
void refuse_document_keys(const Config& config);

/// Files of conversations, which a run does not read as they are.
///
/// DataError with the command that makes rows of them if the first of `files` (of `key`, "data.train") that is JSON or
/// Parquet holds conversations: the field or column `messages` or `conversations`, where data.column names no other.
void refuse_conversations(const Config& config, const std::string& key, const std::vector<std::string>& files);

}  // namespace trireme
