// `trireme adapter merge|show`: LoRA adapters.
#include "tools.h"

#include "data/tokenizer/tokenizer.h"
#include "models/decoder/adapter.h"
#include "models/decoder/family.h"
#include "models/decoder/model_directory.h"
#include "models/decoder/vocabulary.h"
#include "models/decoder/weights.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>

namespace trireme {

namespace {

struct MergeOptions {
  std::string model, adapter, output, dtype;
  bool force = false;
};

/// A base with the adapter's rows of the vocabulary in fp32; as rows of the stored matrix they have its type.
class WithTrainedRows final : public WeightSource {
 public:
  WithTrainedRows(const WeightSource& base, const std::map<std::string, TokenRows>& trained) : base_(base) {
    for (const auto& [module, rows] : trained) {
      at::Tensor& matrix = matrices_[module + ".weight"] = read_tensor(base, module + ".weight");
      matrix.index_copy_(0, at::tensor(rows.ids), at::tensor(rows.values).view({-1, rows.columns}));
    }
  }
  std::vector<std::string> names() const override { return base_.names(); }
  std::optional<TensorInfo> find(const std::string& name) const override {
    const auto found = matrices_.find(name);
    if (found == matrices_.end()) return base_.find(name);
    return TensorInfo{DType::kF32, found->second.sizes().vec()};
  }
  std::vector<ElementSpan> read(const std::string& name, int64_t begin, int64_t end) const override {
    const auto found = matrices_.find(name);
    if (found == matrices_.end()) return base_.read(name, begin, end);
    const float* values = found->second.const_data_ptr<float>();
    return {{reinterpret_cast<const std::byte*>(values + begin), end - begin}};
  }
  std::string place(const std::string& name) const override { return base_.place(name); }
  std::string description() const override { return base_.description(); }

 private:
  const WeightSource& base_;
  std::map<std::string, at::Tensor> matrices_;
};

/// What an adapter makes of one base tensor, fp32: W + scale B A, with DoRA its rows brought to the magnitudes'
/// lengths; undefined when it has no matrices for it.
at::Tensor adapted(const std::string& name, const at::Tensor& weight, const std::map<std::string, at::Tensor>& adapter,
                   const LoraOptions& lora) {
  const std::string suffix = ".weight";
  if (!name.ends_with(suffix)) return {};
  const std::string module = name.substr(0, name.size() - suffix.size());
  const auto find = [&](const char* end) {
    const auto found = adapter.find(module + end);
    return found == adapter.end() ? at::Tensor() : found->second;
  };
  if (const at::Tensor a = find(".lora_embedding_A"), b = find(".lora_embedding_B"); a.defined() && b.defined())
    return weight + at::mm(a, b.t()).mul_(strength_of(lora, module).scale);
  const at::Tensor a = find(".lora_A.weight"), b = find(".lora_B.weight"), magnitude = find(kMagnitudeSuffix);
  if (!a.defined() || !b.defined()) return {};
  const at::Tensor sum = weight + at::mm(b, a).mul_(strength_of(lora, module).scale);
  return magnitude.defined() ? sum * (magnitude / sum.norm(2, {1})).unsqueeze(1) : sum;
}

/// Errors of merging in the weights of one target over all blocks, measured on the stored result.
struct TargetChange {
  int64_t modules = 0, zero_b = 0;
  double smallest = std::numeric_limits<double>::infinity(),
         largest = 0;  // Frobenius norms of merged - base
  /// Least share of a module's update that survived rounding: <merged - rounded base, update> /
  /// <update, update>; 1 = all of it.
  double kept = std::numeric_limits<double>::infinity();
  std::string worst;  // the module with that share
};

void record_change(std::map<std::string, TargetChange>& changes, const std::string& name, const at::Tensor& weight,
                   const at::Tensor& update, const at::Tensor& merged, at::ScalarType stored) {
  const std::string module = name.substr(0, name.size() - std::string(".weight").size());
  TargetChange& change = changes[module.substr(module.rfind('.') + 1)];
  const double norm = (merged - weight).norm().item<double>();
  ++change.modules;
  change.smallest = std::min(change.smallest, norm);
  change.largest = std::max(change.largest, norm);
  const double size = update.square().sum(at::kDouble).item<double>();
  if (size == 0) {
    ++change.zero_b;
    return;
  }
  const double kept = ((merged - weight.to(stored).to(at::kFloat)) * update).sum(at::kDouble).item<double>() / size;
  if (kept < change.kept) {
    change.kept = kept;
    change.worst = module;
  }
}

/// Below this share an adapter counts as lost to rounding.
constexpr double kLeastKept = 0.5;

/// The tokenizer in `directory`; none where Trireme cannot read it: merging copies it all the same.
std::optional<Tokenizer> readable_tokenizer(const std::filesystem::path& directory) {
  if (!find_tokenizer(directory)) return std::nullopt;
  try {
    return std::make_optional<Tokenizer>(directory);
  } catch (const DataError&) {
    return std::nullopt;
  }
}

/// Eight tokens: the start of a sentence when the model has a tokenizer, else 1 to 8.
std::vector<int64_t> eight_tokens(const std::filesystem::path& model, int64_t vocab_size) {
  std::vector<int64_t> ids;
  if (const auto tokenizer = readable_tokenizer(model)) {
    for (const int32_t id : tokenizer->leading()) ids.push_back(id);
    for (const int32_t id : tokenizer->encode("The quick brown fox jumps over the lazy dog and runs away"))
      ids.push_back(id);
  }
  for (int64_t id = 1; ids.size() < 8; ++id) ids.push_back(id);
  ids.resize(8);
  for (int64_t& id : ids) id = std::min(id, vocab_size - 1);
  return ids;
}

at::Tensor logits_of(const DecoderModel& model, UnitStore& store, const std::vector<int64_t>& ids) {
  const auto length = static_cast<int64_t>(ids.size());
  TokenBatch batch;
  batch.tokens_BS = at::tensor(ids, at::kLong).view({1, length});
  batch.positions_BS = at::arange(length, at::TensorOptions(at::kLong)).view({1, length});
  batch.loss_weight_BS = at::zeros({1, length}, at::kFloat);
  batch.cu_seqlens = {0, static_cast<int32_t>(length)};
  ForwardOptions options;
  options.train = false;
  return model.logits(store, batch, options);
}

/// Largest allowed difference between the logits of the merged model and of base + adapter, relative to the largest
/// logit: rounding of fp32 sums, or of the stored weights.
double logits_bound(DType dtype) {
  switch (dtype) {
    case DType::kBF16: return 5e-2;
    case DType::kF16: return 5e-3;
    default: return 1e-4;
  }
}

void print_changes(const std::map<std::string, TargetChange>& changes) {
  fmt::print("{:<12}{:>9}{:>8}{:>36}{:>14}\n", "target", "modules", "zero B", "norm of merged - base, min to max",
             "update kept");
  for (const auto& [target, change] : changes)
    fmt::print("{:<12}{:>9}{:>8}{:>36}{:>14}\n", target, change.modules, change.zero_b,
               fmt::format("{:.4g} to {:.4g}", change.smallest, change.largest),
               change.worst.empty() ? "-" : fmt::format("{:.1f} %", 100 * change.kept));
}

/// Throws unless the merged model in `directory` differs from the base in every target and computes what base + adapter
/// computes.
void prove_merge(const MergeOptions& options, const std::filesystem::path& directory, const DecoderConfig& config,
                 const DecoderModel& with_adapter, const WeightSource& base,
                 const std::map<std::string, at::Tensor>& adapter, const std::map<std::string, TargetChange>& changes,
                 DType coarsest) {
  print_changes(changes);
  for (const auto& [target, change] : changes)
    if (!change.worst.empty() && !(change.kept >= kLeastKept && change.largest > 0))
      throw ModelError(
          fmt::format("only {:.1f} % of the update of {} survived: it is below the resolution of "
                      "the stored weights; nothing is written: merge with --dtype fp32",
                      100 * change.kept, change.worst));
  const DecoderModel plain(config, std::nullopt), base_model(with_adapter.config(), std::nullopt);
  const std::unique_ptr<WeightSource> merged = open_decoder_weights(directory, config);
  const std::vector<int64_t> ids = eight_tokens(options.model, config.vocab_size);
  StreamedStore base_store(base_model, base, at::kFloat), merged_store(plain, *merged, at::kFloat);
  StreamedStore adapter_store(with_adapter, base, at::kFloat, adapter);
  const at::Tensor from_base = logits_of(base_model, base_store, ids),
                   from_merged = logits_of(plain, merged_store, ids);
  const at::Tensor from_adapter = logits_of(with_adapter, adapter_store, ids);
  const double largest = from_adapter.abs().max().item<double>(),
               moved = (from_merged - from_base).abs().max().item<double>();
  const double apart = (from_merged - from_adapter).abs().max().item<double>(),
               bound = logits_bound(coarsest) * largest;
  fmt::print(
      "logits of 8 tokens, computed in fp32: largest {:.4g}; merged - base {:.4g}; merged - (base "
      "+ adapter) {:.4g}, bound {:.4g}\n",
      largest, moved, apart, bound);
  if (!std::isfinite(largest))
    throw ModelError("the logits of base + adapter are not finite: one of them holds NaN or Inf; nothing is written");
  if (!(apart <= bound))
    throw ModelError(
        fmt::format("the merged model's logits are {:.4g} away from base + adapter, bound {:.4g}; nothing is written: "
                    "merge with --dtype fp32",
                    apart, bound));
  // The base has the rows of tokens already that the adapter brings.
  if (!(moved > 0) && std::ranges::any_of(changes, [](const auto& c) { return c.second.zero_b < c.second.modules; }))
    throw ModelError(
        "the merged model gives the base's logits on 8 tokens; nothing is written: merge with --dtype fp32");
}

/// What is written: the base's tensors, in the types asked for, and the type of least precision among them.
std::vector<StoredTensor> merged_tensors(const MergeOptions& options, const DecoderConfig& config,
                                         const WeightSource& base, DType& coarsest) {
  std::vector<StoredTensor> declared = stored_tensors(DecoderModel(config, std::nullopt).units(), DType::kF32);
  coarsest = DType::kF32;
  for (auto& [name, info, transposed, padded] : declared) {
    const DType stored = weight_type(base, name, info.shape);
    info.dtype = options.dtype.empty() ? stored : dtype_option("adapter merge", options.dtype);
    if (dtype_size(info.dtype) < 4 && coarsest != DType::kBF16) coarsest = info.dtype;
  }
  return declared;
}

/// Rows that were added to the base are added rows of the merged model: LoRA on it trains them too.
void keep_added_rows(const std::filesystem::path& model, ModelDirectoryWriter& writer) {
  const std::filesystem::path stored = model / "config.json", written = writer.path() / "config.json";
  if (!std::filesystem::is_regular_file(stored)) return;
  const auto read = [](const std::filesystem::path& path) {
    return nlohmann::ordered_json::parse(read_text_file(path, ExitCode::kModel));
  };
  const nlohmann::ordered_json base = read(stored);
  if (!base.contains(kAddedRowsKey)) return;
  nlohmann::ordered_json merged = read(written);
  merged[kAddedRowsKey] = base[kAddedRowsKey];
  writer.write_companion("config.json", merged.dump(2) + "\n");
}

/// Tokenizer and chat template, which an adapter's trainer may have saved beside it, with the rest of the base's files.
void copy_companions(const MergeOptions& options, DecoderConfig& config, ModelDirectoryWriter& writer) {
  const std::filesystem::path from = tokenizer_directory(options.model, options.adapter),
                              chat = std::filesystem::path(options.adapter) / "chat_template.jinja";
  writer.copy_companions(options.model, from);
  const auto tokenizer = readable_tokenizer(from);
  if (!tokenizer && find_tokenizer(from))
    log_warn(fmt::format("the tokenizer of {} is copied, and Trireme cannot read it", from.string()));
  if (tokenizer && tokenizer->vocab_size() > config.vocab_size)
    log_warn(fmt::format(
        "the tokenizer of {} has ids up to {}, and the merged model has {} rows: a text with a token beyond "
        "them is an error; add rows with trireme model resize-vocab --vocab-size {}",
        from.string(), tokenizer->vocab_size() - 1, config.vocab_size, tokenizer->vocab_size()));
  if (from == options.model) {
    if (!std::filesystem::is_regular_file(chat)) return;
    writer.write_companion("chat_template.jinja", read_text_file(chat, ExitCode::kData));
    fmt::print("the chat template is {}\n", chat.string());
    return;
  }
  std::string ends;
  const auto eos = tokenizer ? tokenizer->eos_id() : std::nullopt;
  if (eos && *eos < config.vocab_size && std::ranges::count(end_of_text_ids(options.model, config), *eos) == 0) {
    writer.write_ends(options.model, config, *eos);
    config.eos_token_ids = {*eos};
    ends = fmt::format("; its EOS, {}, ends texts in config.json and generation_config.json", *eos);
  }
  fmt::print("the tokenizer and its chat template are those of {}{}\n", options.adapter, ends);
}

void merge(const MergeOptions& options) {
  at::NoGradGuard no_grad;
  const std::filesystem::path output = options.output;
  require_model_output("adapter merge", options.output, options.force, options.model);
  const DecoderConfig stored = read_model_config(options.model);
  const Adapter adapter = read_adapter(options.adapter, stored);
  // As peft, merge takes any base; unlike peft, it says when it is not the one that the adapter names.
  if (const std::string other = other_base(adapter, options.model, "--model"); !other.empty()) log_warn(other);
  DecoderConfig config = stored;
  config.vocab_size = vocab_with_adapter(stored, adapter);
  const DecoderModel with_adapter = model_for_adapter(config, adapter);
  const std::map<std::string, at::Tensor> tensors = import_adapter(adapter, with_adapter);
  const bool zero = std::none_of(tensors.begin(), tensors.end(), [](const auto& entry) {
    const bool starts_as_zero = entry.first.ends_with(".lora_B.weight") || entry.first.ends_with(".lora_embedding_A");
    return starts_as_zero && entry.second.abs().max().template item<double>() > 0;
  });
  const LoraOptions& lora = adapter.config.lora;
  if ((zero || lora.alpha == 0) && adapter.token_rows.empty() && adapter.saved.empty() && !lora.use_dora)
    throw ModelError(fmt::format("adapter {} changes nothing: {}", options.adapter,
                                 zero ? "every lora_B is zero (was it trained?)" : "its alpha is zero"));

  const auto files = open_decoder_weights(options.model, stored, config.vocab_size, 0, adapter.token_rows);
  check_base_tensors(adapter, *files);
  const WithTrainedRows base(*files, adapter.token_rows);
  // An embedding and an output matrix that were one and are no more are written as two.
  const std::string head = family_of(config).names.head + ".weight",
                    embedding = family_of(config).names.embedding + ".weight";
  const bool untied = config.tie_word_embeddings && (!with_adapter.tied() || with_adapter.embedding_adapter());
  config.tie_word_embeddings = config.tie_word_embeddings && !untied;
  DType coarsest = DType::kF32;
  const auto declared = merged_tensors(options, config, *files, coarsest);
  config.dtype = torch_dtype_name(declared.front().info.dtype);
  ModelDirectoryWriter writer(output, declared);
  std::map<std::string, TargetChange> changes;
  for (const auto& [name, info, transposed, padded] : declared) {
    at::Tensor weight = read_tensor(base, untied && name == head ? embedding : name);
    if (const auto saved = tensors.find(name); saved != tensors.end()) {
      weight = saved->second;
    } else if (const at::Tensor changed = adapted(name, weight, tensors, lora); changed.defined()) {
      const at::Tensor merged = changed.to(to_scalar_type(info.dtype)).to(at::kFloat);
      record_change(changes, name, weight, changed - weight, merged, to_scalar_type(info.dtype));
      weight = merged;
    }
    writer.append(name, weight);
  }
  copy_companions(options, config, writer);
  writer.seal(config);
  keep_added_rows(options.model, writer);
  prove_merge(options, writer.path(), config, with_adapter, base, tensors, changes, coarsest);
  writer.commit();
  fmt::print("merged model in {}\n", options.output);
}

void show(const std::string& directory) {
  const Adapter adapter = read_adapter(directory);
  struct Row {
    int64_t modules = 0, parameters = 0;
    double a = 0, b = 0;
  };
  std::map<std::string, Row> rows;
  int64_t parameters = 0;
  const auto square_sum = [](const std::vector<float>& values) {
    double sum = 0;
    for (const float v : values) sum += static_cast<double>(v) * v;
    return sum;
  };
  for (const auto& [module, pair] : adapter.modules) {
    Row& row = rows[module.substr(module.rfind('.') + 1)];
    ++row.modules;
    row.parameters += static_cast<int64_t>(pair.a.size() + pair.b.size() + pair.magnitude.size());
    row.a += square_sum(pair.a);
    row.b += square_sum(pair.b);
    parameters += static_cast<int64_t>(pair.a.size() + pair.b.size() + pair.magnitude.size());
  }
  const auto trained_rows = [&](const std::string& module) -> int64_t {
    const auto named = adapter.config.token_indices.find(module);
    return named == adapter.config.token_indices.end() ? 0 : std::ssize(named->second);
  };
  for (const auto& [module, of] : adapter.token_rows) parameters += trained_rows(module) * of.columns;
  for (const auto& [name, tensor] : adapter.saved) parameters += static_cast<int64_t>(tensor.values.size());
  const LoraOptions& lora = adapter.config.lora;
  fmt::print("base model {}\nr {}, alpha {}, dropout {}{}\n{} parameters in {} modules\n",
             adapter.config.base_model.empty() ? "(not named)" : adapter.config.base_model, lora.r, lora.alpha,
             lora.dropout, std::string(lora.use_rslora ? ", rsLoRA" : "") + (lora.use_dora ? ", DoRA" : ""),
             format_count(parameters), adapter.modules.size());
  const auto print_pattern = [](const char* name, const auto& pattern) {
    for (const auto& [key, value] : pattern) fmt::print("{} {} for {}\n", name, value, key);
  };
  print_pattern("r", lora.rank_pattern);
  print_pattern("alpha", lora.alpha_pattern);
  for (const auto& [module, of] : adapter.token_rows) {
    const int64_t all = std::ssize(of.ids), trained = trained_rows(module);
    fmt::print("{} of {}, {} parameters{}\n", counted(all, "row"), module, format_count(std::ssize(of.values)),
               trained == 0    ? ", not trained"
               : trained < all ? fmt::format(", {} trained", counted(trained, "row"))
                               : "");
  }
  for (const auto& [name, tensor] : adapter.saved)
    if (name.ends_with(".weight")) fmt::print("{} as a whole\n", name);
  if (const auto biases =
          std::ranges::count_if(adapter.saved, [](const auto& s) { return s.first.ends_with(".bias"); }))
    fmt::print("{}\n", counted(biases, "trained bias", "trained biases"));
  fmt::print("{:<12}{:>9}{:>14}{:>12}{:>12}\n", "target", "modules", "parameters", "norm of A", "norm of B");
  for (const auto& [target, row] : rows)
    fmt::print("{:<12}{:>9}{:>14}{:>12.4g}{:>12.4g}\n", target, row.modules, format_count(row.parameters),
               std::sqrt(row.a), std::sqrt(row.b));
}

}  // namespace

std::filesystem::path tokenizer_directory(const std::filesystem::path& model, const std::filesystem::path& adapter) {
  return std::filesystem::is_directory(adapter) && find_tokenizer(adapter) ? adapter : model;
}

void add_adapter_tool(CLI::App& app) {
  CLI::App* tool = app.add_subcommand("adapter", "LoRA adapters: merge, show");
  tool->require_subcommand(1);

  auto options = std::make_shared<MergeOptions>();
  CLI::App* merge_tool = tool->add_subcommand(
      "merge", "Write base and adapter as one model; their logits on eight tokens are compared first");
  merge_tool->add_option("--model", options->model, "Base model directory")->required();
  merge_tool->add_option("--adapter", options->adapter, "PEFT adapter directory")->required();
  merge_tool->add_option("--output", options->output, "Directory to write")->required();
  merge_tool->add_option("--dtype", options->dtype, "fp32, bf16 or fp16 (default: that of the base)");
  merge_tool->add_flag("--force", options->force, "Replace the model in --output");
  merge_tool->callback([options] { merge(*options); });

  auto directory = std::make_shared<std::string>();
  CLI::App* show_tool = tool->add_subcommand("show", "What an adapter holds");
  show_tool->add_option("adapter", *directory, "PEFT adapter directory")->required();
  show_tool->callback([directory] { show(*directory); });
}

}  // namespace trireme
