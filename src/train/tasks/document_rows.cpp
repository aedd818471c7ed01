#include "document_rows.h"

#include "task_base.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

namespace trireme {

StreamFiles stream_files(const Config& config, const std::string& key) {
  StreamFiles files;
  files.key = key;
  const bool train = key == "data.train";
  files.paths = paths(train ? config.data.train : key == "data.test" ? config.data.test : config.data.valid);
  if (train) {
    files.weights = config.data.weights;
    files.names = config.data.names;
  }
  files.column = config.data.column.value_or("");
  files.tokenizer = config.model.path;
  return files;
}

StreamOptions stream_options(const Config& config, int64_t vocab_size) {
  const DataSection& data = config.data;
  const std::pair<const char*, std::optional<int64_t>> ids[] = {{"data.bos_token", data.bos_token},
                                                                {"data.eos_token", data.eos_token},
                                                                {"data.bol_token", data.bol_token},
                                                                {"data.eol_token", data.eol_token}};
  for (const auto& [key, id] : ids)
    if (id && *id >= vocab_size)
      throw ConfigError(fmt::format("{} {} is outside the model's vocabulary of {}", key, *id, vocab_size));
  return {.seq_length = data.seq_length,
          .vocab_size = vocab_size,
          .logical_shards = data.logical_shards,
          .seed = static_cast<uint64_t>(config.train.seed),
          .shuffle = data.shuffle,
          .bos = data.bos_token,
          .eos = data.eos_token,
          .strip = data.strip_tokens,
          .min_length = data.min_length,
          .bol = data.bol_token,
          .eol = data.eol_token};
}

std::shared_ptr<const TokenStream> open_evaluation_stream(const Config& config, const std::string& key,
                                                          int64_t vocab_size) {
  StreamOptions options = stream_options(config, vocab_size);
  options.logical_shards = 1;
  options.shuffle = false;
  return open_token_stream(stream_files(config, key), options);
}

Sample stream_sample(std::vector<int64_t> tokens) {
  Sample sample;
  sample.loss_mask.assign(tokens.size(), 1);
  sample.loss_mask[0] = 0;
  sample.input_ids = std::move(tokens);
  sample.sequence_starts = {0};
  return sample;
}

void refuse_document_keys(const Config& config) {
  const DataSection &data = config.data, unset;
  std::vector<std::string> keys;
  const auto note = [&](const char* key, bool set) {
    if (set) keys.emplace_back(key);
  };
  note("data.weights", !data.weights.empty());
  note("data.names", !data.names.empty());
  note("data.column", data.column.has_value());
  note("data.bos_token", data.bos_token.has_value());
  note("data.eos_token", data.eos_token.has_value());
  note("data.bol_token", data.bol_token.has_value());
  note("data.eol_token", data.eol_token.has_value());
  note("data.strip_tokens", !data.strip_tokens.empty());
  note("data.min_length", data.min_length != unset.min_length);
  if (!keys.empty())
    throw ConfigError(fmt::format("{}: for documents, but {} holds rows that are packed already: leave it out",
                                  join(keys, ", "), data.train.front()));
}

}  // namespace trireme
