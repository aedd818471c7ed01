#include "models/decoder/vocabulary.h"

#include "models/common/stored.h"
#include "models/decoder/decoder.h"
#include "models/decoder/family.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/process.h"
#include "trireme/base/rng.h"
#include "trireme/base/rounding.h"
#include "trireme/base/text.h"
#include "trireme/formats/huggingface/sentencepiece_model.h"
#include "trireme/formats/huggingface/stored_nf4.h"
#include "trireme/formats/json.h"
#include "trireme/formats/nemo/zarr_checkpoint.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

namespace trireme {

namespace {

constexpr double kCovarianceScale = 1e-9;  // transformers' epsilon
constexpr int64_t kDrawnRows = 1024;       // of the matrix, for the covariance of one new row

std::string embedding_name(const DecoderConfig& config) { return family_of(config).names.embedding + ".weight"; }
std::string head_name(const DecoderConfig& config) { return family_of(config).names.head + ".weight"; }

/// Standard normal number `index` of one new row's stream (Box and Muller).
double normal(uint64_t stream, uint64_t index) {
  const auto uniform = [&](const char* name) { return uniform_draw(stream, name, index) + 0x1p-54; };  // above 0
  return std::sqrt(-2 * std::log(uniform("radius"))) * std::cos(2 * std::numbers::pi * uniform("angle"));
}

/// Rows of one tensor as fp32, by id.
class MatrixRows {
 public:
  MatrixRows(const WeightSource& source, const std::string& name) {
    const auto info = source.find(name);
    if (!info || info->shape.size() != 2)
      throw ModelError(fmt::format("{} has no matrix {}", source.description(), name));
    dtype = weight_type(source, name, info->shape);
    rows = info->shape[0], columns = info->shape[1];
    values_.resize(static_cast<size_t>(columns));
    spans_ = source.read(name, 0, rows * columns);
    for (const ElementSpan& span : spans_) ends_.push_back(span.count + (ends_.empty() ? 0 : ends_.back()));
  }
  const std::vector<float>& operator[](int64_t row) {
    read(row, values_.data());
    return values_;
  }
  void read(int64_t row, float* to) const {
    auto s = static_cast<size_t>(std::ranges::upper_bound(ends_, row * columns) - ends_.begin());
    for (int64_t done = 0; done < columns; ++s) {
      const ElementSpan& span = spans_[s];
      const int64_t at = row * columns + done - (ends_[s] - span.count),
                    count = std::min(span.count - at, columns - done);
      convert_floats(span.data + at * static_cast<int64_t>(dtype_size(dtype)), dtype, to + done, DType::kF32, count);
      done += count;
    }
  }
  int64_t rows = 0, columns = 0;
  DType dtype = DType::kF32;

 private:
  std::vector<ElementSpan> spans_;
  std::vector<int64_t> ends_;  // elements through span i
  std::vector<float> values_;
};

/// The rows that come after the matrix's own, `count` of them.
std::vector<float> draw_new_rows(MatrixRows& matrix, const std::string& name, int64_t count, uint64_t seed) {
  const auto columns = static_cast<size_t>(matrix.columns);
  std::vector<double> mean(columns);
  for (int64_t row = 0; row < matrix.rows; ++row) {
    const std::vector<float>& values = matrix[row];
    for (size_t c = 0; c < columns; ++c) mean[c] += values[c];
  }
  for (double& value : mean) value /= static_cast<double>(matrix.rows);
  if (std::ranges::any_of(mean, [](double value) { return !std::isfinite(value); }))
    throw ModelError(fmt::format("{} holds NaN or Inf: new rows would be as well", name));
  std::vector<float> drawn(static_cast<size_t>(count) * columns);
  parallel_for(static_cast<size_t>(count), /*threads=*/0, [&](size_t i) {
    std::vector<double> deviation(columns);
    if (matrix.rows > matrix.columns) {
      // A sum of centred rows, drawn evenly, with independent normal weights has the rows' covariance.
      std::vector<float> values(columns);
      const auto rows = static_cast<uint64_t>(matrix.rows);
      const uint64_t stream = derive_seed(derive_seed(seed, name), "new_row", rows + i);
      for (uint64_t k = 0; k < kDrawnRows; ++k) {
        const double weight = normal(stream, k);
        matrix.read(static_cast<int64_t>(derive_seed(stream, "row", k) % rows), values.data());
        for (size_t c = 0; c < columns; ++c) deviation[c] += weight * (values[c] - mean[c]);
      }
    }
    const double scale = std::sqrt(kCovarianceScale / static_cast<double>(kDrawnRows));
    for (size_t c = 0; c < columns; ++c) drawn[i * columns + c] = static_cast<float>(mean[c] + scale * deviation[c]);
  });
  return drawn;
}

/// Gives a matrix of `weights` `vocab_size` rows: new ones drawn, those of `rows`, which may be null, replaced.
void resize_matrix(StoredWeights& weights, const std::string& name, int64_t vocab_size, uint64_t seed,
                   const TokenRows* rows) {
  MatrixRows matrix(weights, name);
  std::map<int64_t, const float*> values;
  const std::vector<float> drawn = draw_new_rows(matrix, name, vocab_size - matrix.rows, seed);
  for (int64_t row = matrix.rows; row < vocab_size; ++row)
    values[row] = drawn.data() + (row - matrix.rows) * matrix.columns;
  if (rows != nullptr) {
    if (rows->columns != matrix.columns)
      throw ModelError(fmt::format("the adapter's rows of {} have {} columns, the model's have {}", name, rows->columns,
                                   matrix.columns));
    for (size_t i = 0; i < rows->ids.size(); ++i)
      values[rows->ids[i]] = rows->values.data() + static_cast<int64_t>(i) * matrix.columns;
  }
  std::map<int64_t, std::vector<std::byte>> stored;
  for (const auto& [row, value] : values) {
    std::vector<std::byte>& bytes = stored[row];
    bytes.resize(static_cast<size_t>(matrix.columns) * dtype_size(matrix.dtype));
    convert_floats(value, DType::kF32, bytes.data(), matrix.dtype, matrix.columns);
  }
  weights.replace_rows(name, vocab_size, stored);
}

/// Opens the files of a model's directory (safetensors, or a NeMo zarr checkpoint) under the model's names. Files may
/// leave out the prefix of the base model, and have the output matrix of a tied model alone.
std::unique_ptr<StoredWeights> open_stored(const std::filesystem::path& directory, const DecoderConfig& config) {
  const bool zarr =
      !has_safetensors(directory) && std::filesystem::is_directory(directory) && is_zarr_checkpoint(directory);
  const std::string base = family_of(config).names.base, embedding = embedding_name(config);
  const std::string tied_head = config.tie_word_embeddings ? head_name(config) : "";
  std::set<std::string> transposed;
  for (const StoredTensor& tensor : stored_tensors(DecoderModel(config, std::nullopt).units(), DType::kF32))
    if (tensor.transposed) transposed.insert(tensor.name);
  return std::make_unique<StoredWeights>(
      zarr ? open_zarr_checkpoint(directory, nemo_tensors(config)) : open_weights(directory),
      StoredWeights::Rules{[=](const std::string& name) {
                             std::vector<std::string> all = {name};
                             if (name.starts_with(base)) all.push_back(name.substr(base.size()));
                             if (name == embedding && !tied_head.empty()) all.push_back(tied_head);
                             if (name == tied_head)  // of a model that an adapter unties
                               all.insert(all.end(), {embedding, embedding.substr(base.size())});
                             return all;
                           },
                           [=](const std::string& name) { return transposed.contains(name); }});
}

/// Ids below this are of the vocabulary that the tokenizer in `directory` was trained with, not of added tokens; 0
/// where no tokenizer is.
int64_t own_tokens(const std::filesystem::path& directory) {
  int64_t count = 0;
  std::set<std::string> added;
  const auto json_file = [&](const char* name) { return read_json_if_there(directory / name, ExitCode::kModel); };
  const auto include = [&](const std::string& text, int64_t id) {
    if (!added.contains(text)) count = std::max(count, id + 1);
  };
  const auto include_all = [&](const nlohmann::json& vocab) {
    for (const auto& [text, id] : vocab.items())
      if (id.is_number_unsigned()) include(text, id.get<int64_t>());
  };
  if (const nlohmann::json json = json_file("tokenizer.json"); !json.is_null()) {
    for (const auto& token : member(json, "added_tokens"))
      if (member(token, "content").is_string()) added.insert(token["content"].get<std::string>());
    const nlohmann::json vocab = member(member(json, "model"), "vocab");
    if (vocab.is_object()) include_all(vocab);
    for (size_t id = 0; vocab.is_array() && id < vocab.size(); ++id)  // unigram: piece and score
      if (vocab[id].is_array() && !vocab[id].empty() && vocab[id][0].is_string())
        include(vocab[id][0].get<std::string>(), static_cast<int64_t>(id));
  } else if (const auto model = directory / "tokenizer.model"; std::filesystem::is_regular_file(model)) {
    try {
      const SentencepieceModel read = read_sentencepiece_model(read_text_file(model, ExitCode::kModel), model);
      for (size_t id = 0; id < read.pieces.size(); ++id)
        if (read.pieces[id].type == SentencepiecePiece::kNormal) count = static_cast<int64_t>(id) + 1;
    } catch (const DataError&) {
      // Llama 3's file of this name is not sentencepiece's.
    }
  } else if (const nlohmann::json vocab = json_file("vocab.json"); vocab.is_object()) {
    if (const nlohmann::json others = json_file("added_tokens.json"); others.is_object())
      for (const auto& [text, id] : others.items()) added.insert(text);
    include_all(vocab);
  }
  return count;
}

void check_names(const StoredWeights& source, const DecoderConfig& config, const std::filesystem::path& directory) {
  std::set<std::string> known;
  for (const StoredTensor& tensor : stored_tensors(DecoderModel(config, std::nullopt).units(), DType::kF32)) {
    known.insert(source.stored(tensor.name));
    if (!has_stored_nf4(source, tensor.name)) continue;
    for (const char* suffix : kStoredNf4Beside) known.insert(source.stored(tensor.name + suffix));
  }
  if (config.tie_word_embeddings) known.insert(head_name(config));
  const std::vector<std::string>& buffers = family_of(config).names.buffers;
  std::vector<std::string> unused;
  for (const std::string& name : source.names())
    if (!known.contains(name) &&
        std::none_of(buffers.begin(), buffers.end(), [&](const std::string& end) { return name.ends_with(end); }))
      unused.push_back(name);
  if (unused.empty()) return;
  const size_t count = unused.size();
  if (count > 5) unused.resize(5);
  log_run_warn(fmt::format("{}: {} that this {} has no use for: {}{}", directory.string(), counted(count, "tensor"),
                           config.family, join(unused, ", "), count > 5 ? fmt::format(" and {} more", count - 5) : ""));
}

}  // namespace

int64_t resized_vocab(int64_t vocab_size, std::optional<int64_t> wanted, std::optional<int64_t> multiple) {
  if (wanted && *wanted < vocab_size)
    throw ConfigError(
        fmt::format("model.vocab_size is {}, and the model has {} rows already: rows are only added, leave the key out",
                    *wanted, vocab_size));
  return round_up(wanted.value_or(vocab_size), multiple.value_or(1));
}

Adapter read_adapter(const std::filesystem::path& directory, const DecoderConfig& base) {
  Adapter adapter = read_adapter(directory);
  const TensorNames& names = family_of(base).names;
  // Of a base that was resized before it got an adapter of its embedding.
  for (const auto& [name, tensor] : adapter.base) {
    if (tensor.shape.size() != 2 || tensor.shape[0] <= base.vocab_size) continue;
    TokenRows& rows = adapter.token_rows[name.substr(0, name.rfind('.'))];
    rows = {};
    rows.columns = tensor.shape[1];
    for (int64_t id = base.vocab_size; id < tensor.shape[0]; ++id) rows.ids.push_back(id);
    rows.values.assign(tensor.values.begin() + base.vocab_size * rows.columns, tensor.values.end());
    // With GPT-2 peft puts the tied output matrix beside it.
    if (const auto copy = adapter.token_rows.find(names.head);
        base.tie_word_embeddings && copy != adapter.token_rows.end() && copy->second.values == tensor.values)
      adapter.token_rows.erase(copy);
  }
  const auto head = adapter.token_rows.find(names.head);
  if (!base.tie_word_embeddings || head == adapter.token_rows.end()) return adapter;
  if (adapter.token_rows.try_emplace(names.embedding, head->second).first->second != head->second)
    throw ModelError("the adapter has rows of lm_head other than its embedding's, to which this model ties it");
  adapter.token_rows.erase(head);
  return adapter;
}

int64_t vocab_with_adapter(const DecoderConfig& base, const Adapter& adapter) {
  const std::map<std::string, TokenRows>& rows = adapter.token_rows;
  int64_t size = base.vocab_size;
  const auto saved_rows = [&](const std::string& module) {
    const auto saved = adapter.saved.find(module + ".weight");
    return saved == adapter.saved.end() ? 0 : saved->second.shape[0];
  };
  for (const std::string& module : token_modules(base)) size = std::max(size, saved_rows(module));
  for (const auto& [module, part] : rows) size = std::max(size, part.ids.back() + 1);
  for (const std::string& module : token_modules(base)) {
    const auto part = rows.find(module);
    for (int64_t row = std::max(base.vocab_size, saved_rows(module)); row < size; ++row)
      if (part == rows.end() || !std::binary_search(part->second.ids.begin(), part->second.ids.end(), row))
        throw ModelError(
            fmt::format("the adapter brings rows up to {}, but neither it nor the model of {} rows has row "
                        "{} of {}: resize the model first (trireme model resize-vocab)",
                        size - 1, base.vocab_size, row, module));
  }
  return size;
}

std::unique_ptr<WeightSource> open_decoder_weights(const std::filesystem::path& directory, const DecoderConfig& config,
                                                   int64_t vocab_size, uint64_t seed,
                                                   const std::map<std::string, TokenRows>& rows) {
  std::unique_ptr<StoredWeights> weights = open_stored(directory, config);
  check_names(*weights, config, directory);
  const std::string embedding = embedding_name(config), head = head_name(config);
  if (config.tie_word_embeddings && weights->stored(embedding) != head && weights->find(embedding) &&
      weights->stored(head) == head && weights->find(head) && !equal_tensors(*weights, embedding, head))
    throw ModelError(
        fmt::format("{}: config.json says tie_word_embeddings, but {} differs from {}: transformers uses both then; "
                    "set tie_word_embeddings to false to do the same",
                    directory.string(), head, embedding));
  for (const auto& [module, part] : rows)
    if (part.ids.back() >= vocab_size)
      throw ModelError(fmt::format("the adapter replaces row {} of {}, the model has {}: set model.vocab_size to {}",
                                   part.ids.back(), module, vocab_size, part.ids.back() + 1));
  if (vocab_size == config.vocab_size && rows.empty()) return weights;
  for (const std::string& module : token_modules(config)) {
    const std::string name = module + ".weight";
    const auto info = weights->find(name);
    if (!info || info->shape.size() != 2 || info->shape[0] != config.vocab_size)
      throw ModelError(fmt::format("{}: {} does not have the {} rows that config.json says", directory.string(), name,
                                   config.vocab_size));
    const auto found = rows.find(module);
    resize_matrix(*weights, name, vocab_size, seed, found == rows.end() ? nullptr : &found->second);
  }
  return weights;
}

std::unique_ptr<WeightSource> open_decoder_weights(const std::filesystem::path& directory,
                                                   const DecoderConfig& config) {
  return open_decoder_weights(directory, config, config.vocab_size, 0);
}

AddedRows added_rows(const std::filesystem::path& directory, int64_t stored_vocab, int64_t data_vocab) {
  AddedRows rows;
  int64_t first = stored_vocab;
  std::set<int64_t> named;
  const auto path = directory / "config.json";
  if (std::filesystem::is_regular_file(path)) {
    const nlohmann::json json = read_json(path, ExitCode::kModel), added = member(json, kAddedRowsKey),
                         tokens = member(added, "tokens");
    const auto row = [&](const std::string& name, const nlohmann::json& id, int64_t largest) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() > static_cast<uint64_t>(largest))
        throw ModelError(fmt::format("{}: {}.{} is {}, expected a row of {}", path.string(), kAddedRowsKey, name,
                                     id.dump(), stored_vocab));
      return id.get<int64_t>();
    };
    if (added.contains("first")) first = row("first", added["first"], stored_vocab);
    std::vector<std::string> parts;
    for (const auto& [text, id] : tokens.items()) {
      named.insert(row(text, id, stored_vocab - 1));
      parts.push_back(fmt::format("{} = {}", text, id.dump()));
    }
    rows.tokens = join(parts, ", ");
  }
  for (int64_t id = first; id < std::max(stored_vocab, data_vocab); ++id) named.insert(id);
  rows.ids.assign(named.begin(), named.end());
  const int64_t begin = rows.ids.empty() ? stored_vocab : rows.ids.front();
  if (const int64_t own = begin < stored_vocab ? own_tokens(directory) : 0; begin < own)
    throw ModelError(fmt::format(
        "{}: {} begins at row {}, and the tokens of the base's own tokenizer have the rows 0 to {}: give the "
        "first row that was added",
        path.string(), kAddedRowsKey, begin, own - 1));
  return rows;
}

void train_added_rows(const AddedRows& added, const DecoderConfig& config, LoraOptions& lora) {
  // With lora.ensure_weight_tying any saved module is the tied matrix.
  const bool tied = config.tie_word_embeddings && lora.ensure_weight_tying && !lora.modules_to_save.empty();
  if (added.ids.empty() || tied) return;
  for (const std::string& module : token_modules(config))
    if (!is_saved(lora, module)) lora.trainable_token_indices.emplace_back(module, added.ids);
}

std::map<std::string, TokenRows> adapter_token_rows(const WeightSource& source, const DecoderConfig& config,
                                                    int64_t stored_vocab,
                                                    const std::map<std::string, TokenRows>& start) {
  std::map<std::string, TokenRows> rows;
  for (const std::string& module : token_modules(config)) {
    std::set<int64_t> ids;
    for (int64_t row = stored_vocab; row < config.vocab_size; ++row) ids.insert(row);
    if (const auto part = start.find(module); part != start.end())
      ids.insert(part->second.ids.begin(), part->second.ids.end());
    if (ids.empty()) continue;
    MatrixRows matrix(source, module + ".weight");
    TokenRows& part = rows[module];
    part.columns = matrix.columns;
    part.ids.assign(ids.begin(), ids.end());
    for (const int64_t row : ids) {
      const std::vector<float>& values = matrix[row];
      part.values.insert(part.values.end(), values.begin(), values.end());
    }
  }
  return rows;
}

at::Tensor matrix_rows(const WeightSource& source, const std::string& name, const std::vector<int64_t>& ids) {
  MatrixRows matrix(source, name);
  at::Tensor rows = at::empty({static_cast<int64_t>(ids.size()), matrix.columns}, at::TensorOptions(at::kFloat));
  float* next = rows.mutable_data_ptr<float>();
  for (const int64_t id : ids) next = std::copy_n(matrix[id].data(), matrix.columns, next);
  return rows;
}

int64_t added_last_rows(const WeightSource& source, const std::string& name, int64_t rows) {
  constexpr int64_t kMost = 1024;
  constexpr double kClose = 1e-2;  // added rows differ by about 1e-4 of their norm, trained rows by about their norm
  std::vector<int64_t> ids;
  for (int64_t id = std::max<int64_t>(0, rows - kMost); id < rows; ++id) ids.push_back(id);
  const at::Tensor last = matrix_rows(source, name, ids);
  const at::Tensor reference = last.select(0, last.size(0) - 1);
  const double norm = reference.norm().item<double>();
  if (norm == 0) return 0;
  const at::Tensor differs = (last - reference).norm(2, 1).gt(kClose * norm);
  int64_t equal = 0;
  while (equal < last.size(0) && !differs[last.size(0) - 1 - equal].item<bool>()) ++equal;
  if (equal > 1 || rows < 2) return equal > 1 ? equal : 0;
  const at::Tensor others = read_tensor(source, name).narrow(0, 0, rows - 1).mean(0, false, at::kFloat);
  return (others - reference).norm().item<double>() <= kClose * norm ? 1 : 0;
}

}  // namespace trireme
