#include "trireme/formats/huggingface/weight_source.h"

#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/formats/huggingface/safetensors.h"
#include "trireme/formats/huggingface/stored_nf4.h"
#include "trireme/formats/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace trireme {

namespace {

/// Entries of a training checkpoint of Megatron.
bool is_of_megatron(const std::string& name) {
  return name.starts_with("mp_rank_") || name == "model_optim_rng.pt" || name == "latest_checkpointed_iteration.txt";
}

constexpr const char* kSavePretrained = "save_pretrained(path, safe_serialization=True)";

/// What to do about PyTorch's own file of this name, a pickle, which could run code and is never opened.
std::string pickle_advice(const std::string& name) {
  if (is_of_megatron(name))
    return "it belongs to a training checkpoint of Megatron: export that once to a Hugging Face directory, as "
           "with Megatron-Bridge";
  if (name.ends_with(".ckpt"))
    return fmt::format(
        "it is a training checkpoint, as of PyTorch Lightning, with the optimizer's state: load it once "
        "with the class that wrote it, and save its Hugging Face model with {}",
        kSavePretrained);
  return fmt::format("convert it once with transformers' {}", kSavePretrained);
}

bool is_ignored(const std::string& name) { return name.ends_with("rotary_emb.inv_freq"); }

/// One or more safetensors files as one set of tensors.
class SafetensorsWeights final : public WeightSource {
 public:
  void add(const std::filesystem::path& path) { files_.push_back(std::make_unique<SafetensorsFile>(path)); }

  /// Every tensor of every file.
  void take_all() {
    for (const auto& file : files_)
      for (const auto& [name, entry] : file->entries())
        if (!is_ignored(name)) where_[name] = {file.get(), &entry};
  }
  void take(const std::string& name, const SafetensorsFile* file) { where_[name] = {file, &file->entries().at(name)}; }
  const std::vector<std::unique_ptr<SafetensorsFile>>& files() const { return files_; }

  std::vector<std::string> names() const override { return keys_of(where_); }
  std::optional<TensorInfo> find(const std::string& name) const override {
    const auto found = where_.find(name);
    if (found == where_.end()) return std::nullopt;
    return found->second.second->info;
  }
  std::vector<ElementSpan> read(const std::string& name, int64_t begin, int64_t end) const override {
    const auto found = where_.find(name);
    if (found == where_.end()) throw ModelError(fmt::format("{} has no tensor {}", description(), name));
    const auto& [file, entry] = found->second;
    const auto size = static_cast<int64_t>(dtype_size(entry->info.dtype));
    const auto bytes = file->bytes(*entry);
    TRIREME_CHECK(begin >= 0 && begin <= end && end * size <= static_cast<int64_t>(bytes.size()), "elements ", begin,
                  "..", end, " of ", name, " with ", bytes.size(), " bytes");
    return {{bytes.data() + begin * size, end - begin}};
  }
  std::string place(const std::string& name) const override {
    const auto found = where_.find(name);
    return found == where_.end() ? "" : found->second.first->path().string();
  }
  std::string description() const override { return fmt::format("safetensors, {}", counted(files_.size(), "file")); }

 private:
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, std::pair<const SafetensorsFile*, const SafetensorsFile::Entry*>> where_;
};

std::unique_ptr<WeightSource> open_sharded(const std::filesystem::path& directory,
                                           const std::filesystem::path& index_path) {
  const auto index = read_json(index_path, ExitCode::kModel, 64 << 20, /*max_depth=*/8);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    throw ModelError(fmt::format("{} has no weight_map", index_path.string()));
  auto source = std::make_unique<SafetensorsWeights>();
  std::map<std::string, const SafetensorsFile*> opened;
  std::vector<std::string> problems;
  for (const auto& [name, file] : index["weight_map"].items()) {
    if (!file.is_string())
      throw ModelError(fmt::format("{}: weight_map of '{}' is not a file name", index_path.string(), name));
    const auto file_name = file.get<std::string>();
    const auto path = safe_join(directory, file_name, ExitCode::kModel);
    if (!file_name.ends_with(".safetensors"))
      throw ModelError(fmt::format("{}: '{}' is not a safetensors file", index_path.string(), file_name));
    if (!opened.contains(file_name)) {
      if (!std::filesystem::exists(path)) {
        opened[file_name] = nullptr;
        problems.push_back("file " + file_name + " is missing");
      } else {
        source->add(path);
        opened[file_name] = source->files().back().get();
      }
    }
    const SafetensorsFile* holder = opened[file_name];
    if (holder == nullptr || is_ignored(name)) continue;
    if (!holder->entries().contains(name)) {
      problems.push_back(fmt::format("tensor {} is not in {}", name, file_name));
      continue;
    }
    source->take(name, holder);
  }
  std::map<std::string, int> seen;
  for (const auto& file : source->files())
    for (const auto& [name, entry] : file->entries())
      if (++seen[name] == 2) problems.push_back(fmt::format("tensor {} is in two files", name));
  if (!problems.empty()) {
    std::vector<std::string> shown(problems.begin(),
                                   problems.begin() + static_cast<long>(std::min<size_t>(problems.size(), 5)));
    throw ModelError(fmt::format("{}: {}{}", index_path.string(), join(shown, "; "),
                                 problems.size() > 5 ? fmt::format("; and {} more", problems.size() - 5) : ""));
  }
  return source;
}

}  // namespace

std::string tensor_text(const WeightSource& source, const std::string& name) {
  const std::string place = source.place(name);
  return place.empty() ? name : name + " in " + place;
}

DType weight_type(const WeightSource& source, const std::string& name, const std::vector<int64_t>& shape) {
  const auto info = source.find(name);
  if (!info) throw ModelError(fmt::format("{} has no tensor {}", source.description(), name));
  if (has_stored_nf4(source, name)) throw ModelError(tensor_text(source, name) + " " + kStoredNf4);
  if (info->shape != shape)
    throw ModelError(fmt::format("{} does not have the shape that config.json asks for", tensor_text(source, name)));
  if (!dtype_is_float(info->dtype) || dtype_size(info->dtype) < 2)
    throw ModelError(fmt::format("{} is stored as {}, not as F32, F16, BF16 or F64", tensor_text(source, name),
                                 dtype_name(info->dtype)));
  return info->dtype;
}

std::string training_checkpoint_text(const std::filesystem::path& directory) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error))
    if (const std::string name = entry.path().filename().string(); is_of_megatron(name))
      return fmt::format("; it has {}: {}", name, pickle_advice(name));
  return "";
}

std::string hub_cache_text(const std::filesystem::path& directory) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path snapshots = directory / "snapshots";
  if (!fs::is_directory(snapshots, error) || !fs::is_directory(directory / "refs", error)) return "";
  fs::path snapshot;
  for (const auto& entry : fs::directory_iterator(snapshots, error)) snapshot = std::max(snapshot, entry.path());
  if (const fs::path main = directory / "refs" / "main"; fs::is_regular_file(main, error)) {
    const std::string revision = file_head(main, 64);
    const fs::path named = snapshots / revision.substr(0, revision.find_first_of("/\n"));
    if (fs::is_directory(named, error)) snapshot = named;
  }
  if (snapshot.empty()) return "; it is a folder of the Hugging Face Hub's cache, whose snapshots/ is empty";
  return fmt::format("; it is a folder of the Hugging Face Hub's cache: the files are in {}", snapshot.string());
}

void require_model_directory(const std::filesystem::path& path) {
  if (std::filesystem::is_regular_file(path))
    throw ModelError(fmt::format(
        "{} is a file where a model's directory is expected (config.json, *.safetensors); PyTorch's own files (.pt, "
        ".bin, .ckpt) are pickles and never opened: {}",
        path.string(), pickle_advice(path.filename().string())));
  if (!std::filesystem::is_directory(path))
    throw ModelError(fmt::format("model directory {} {}", path.string(),
                                 std::filesystem::exists(path)
                                     ? "is no directory"
                                     : "does not exist (a model of the Hugging Face Hub is downloaded first: hf "
                                       "download NAME --local-dir PATH)"));
  if (const std::string cache = hub_cache_text(path); !cache.empty())
    throw ModelError(fmt::format("{} has no config.json{}", path.string(), cache));
}

bool has_safetensors(const std::filesystem::path& directory) {
  return std::filesystem::exists(directory / "model.safetensors") ||
         std::filesystem::exists(directory / "model.safetensors.index.json");
}

std::unique_ptr<WeightSource> open_weights(const std::filesystem::path& directory) {
  require_model_directory(directory);
  const bool sharded = std::filesystem::exists(directory / "model.safetensors.index.json");
  std::error_code unreadable, ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, unreadable))
    if (entry.is_symlink(ignored) && entry.status(ignored).type() == std::filesystem::file_type::not_found)
      log_run_warn(
          fmt::format("{} is a dangling link: nothing is read from it, and nothing copied (rsync -L and cp -L copy "
                      "what the links of the Hugging Face Hub's cache lead to)",
                      entry.path().string()));
  // transformers looks for the single file first.
  if (std::filesystem::exists(directory / "model.safetensors")) {
    if (sharded)
      log_warn(
          fmt::format("{} has model.safetensors and model.safetensors.index.json: the single file is read, as by "
                      "transformers, and the index is not",
                      directory.string()));
    auto source = std::make_unique<SafetensorsWeights>();
    source->add(directory / "model.safetensors");
    source->take_all();
    return source;
  }
  if (sharded) return open_sharded(directory, directory / "model.safetensors.index.json");
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth") || name.ends_with(".ckpt"))
      throw ModelError(fmt::format("{} holds {}, a pickle, which could run code and is never opened: {}",
                                   directory.string(), name, pickle_advice(name)));
  }
  throw ModelError(fmt::format(
      "{} has no weights: expected model.safetensors, model.safetensors.index.json or a NeMo zarr directory "
      "(weights/); for a shape without weights set model.init: random{}",
      directory.string(), training_checkpoint_text(directory)));
}

bool equal_tensors(const WeightSource& source, const std::string& a, const std::string& b) {
  const auto first = source.find(a), second = source.find(b);
  if (first->dtype != second->dtype || first->shape != second->shape) return false;
  const int64_t count = element_count(first->shape);
  constexpr int64_t kPiece = 1 << 20;
  const auto bytes_of = [&](const std::string& name, int64_t begin) {
    std::string bytes;
    for (const ElementSpan& span : source.read(name, begin, std::min(count, begin + kPiece)))
      bytes.append(reinterpret_cast<const char*>(span.data),
                   static_cast<size_t>(span.count) * dtype_size(first->dtype));
    return bytes;
  };
  for (int64_t begin = 0; begin < count; begin += kPiece)
    if (bytes_of(a, begin) != bytes_of(b, begin)) return false;
  return true;
}

}  // namespace trireme
