// The files of a training checkpoint: finding, checking, reading.
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/hash.h"
#include "trireme/base/text.h"
#include "trireme/formats/checkpoint/training_checkpoint.h"
#include "trireme/formats/json.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <set>

namespace trireme {

namespace {

constexpr const char* kManifestNameV1 = "manifest.json";

/// StorageError where `error` says nothing of what is at `path`.
void check_storage(const char* what, const std::filesystem::path& path, const std::error_code& error) {
  if (is_storage_failure(error.value())) read_failed(ExitCode::kModel, what, path, error.value());
}

// Version 1: a file holds the complete shards of a rank under the same names; manifest.json holds the file's hash.
// Adapters are not sharded.
CheckpointManifest read_manifest_v1(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / kManifestNameV1;
  const std::string where = path.string();
  const nlohmann::json object = read_json(path, ExitCode::kModel, 64 << 20, /*max_depth=*/4);
  const auto integer = [&](const char* key) {
    if (!object.is_object() || !object.contains(key) || !object[key].is_number_unsigned() ||
        object[key].get<uint64_t>() > (1u << 30))
      throw ModelError(fmt::format("{} lacks {} as a number", where, key));
    return object[key].get<int64_t>();
  };
  CheckpointManifest m;
  m.version = static_cast<int>(integer("format_version"));
  if (m.version != 1)
    throw ModelError(
        fmt::format("{} has format version {}; a file of this name must have version 1", where, m.version));
  m.world_size = integer("world_size");
  m.shard_size = integer("shard_size");
  m.step = integer("completed_steps");
  m.evaluations = integer("evaluations");
  if (m.world_size < 1 || m.shard_size < 1 || m.shard_size > m.world_size || !object.contains("files") ||
      !object["files"].is_array() || object["files"].size() != static_cast<size_t>(m.world_size))
    throw ModelError(fmt::format("{} does not list the files of {} ranks", where, m.world_size));
  for (int64_t rank = 0; rank < m.world_size; ++rank) {
    const nlohmann::json& entry = object["files"][static_cast<size_t>(rank)];
    CheckpointFile file;
    file.name = fmt::format("rank-{:05}.safetensors", rank);
    if (!entry.is_object() || entry.value("name", nlohmann::json()) != file.name || !entry.contains("bytes") ||
        !entry["bytes"].is_number_unsigned() || !entry.contains("xxh3") || !entry["xxh3"].is_string())
      throw ModelError(fmt::format("{} does not describe {}", where, file.name));
    file.bytes = entry["bytes"].get<uint64_t>();
    file.xxh3 = parse_whole<uint64_t>(entry["xxh3"].get<std::string>(), 16).value_or(0);
    std::error_code error;
    if (rank < m.shard_size && std::filesystem::file_size(directory / file.name, error) == file.bytes && !error) {
      const SafetensorsFile shard(directory / file.name);
      for (const auto& [name, stored] : shard.entries()) {
        const size_t dot = name.find('.');
        const int64_t count =
            static_cast<int64_t>(stored.end - stored.begin) / static_cast<int64_t>(dtype_size(stored.info.dtype));
        CheckpointPiece piece{
            name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1), stored.info.dtype, 0, count, 0};
        const bool replicated = piece.unit.empty() || piece.unit == "adapters";
        if (replicated && rank > 0) continue;
        if (!replicated) piece.begin = rank * count;
        if (rank == 0 && piece.kind == "master")
          m.units.push_back({piece.unit, replicated ? count : count * m.shard_size, {}});
        file.pieces.push_back(std::move(piece));
      }
    }
    m.files.push_back(std::move(file));
  }
  return m;
}

}  // namespace

CheckpointManifest read_manifest(const std::filesystem::path& directory) {
  const auto exists = [&](const char* name) {
    std::error_code error;
    const bool there = std::filesystem::exists(directory / name, error);
    check_storage("look at", directory / name, error);
    return there;
  };
  if (!exists(kManifestName)) {
    if (exists(kManifestNameV1)) return read_manifest_v1(directory);
    throw ModelError(fmt::format("{} has no {}: it was never completed", directory.string(), kManifestName));
  }
  // Some 200 bytes for each vector of each unit and rank: 100 MB for 126 blocks on 1,024 ranks.
  constexpr size_t kMaxManifest = size_t{4} << 30;
  return parse_manifest(read_text_file(directory / kManifestName, ExitCode::kModel, kMaxManifest),
                        directory / kManifestName);
}

std::string checkpoint_name(int64_t step) { return fmt::format("step-{:08}", step); }

std::optional<int64_t> checkpoint_step(const std::filesystem::path& directory) {
  const std::string name = directory.filename().string();
  if (!name.starts_with("step-") || name.size() > 24) return std::nullopt;
  const auto step = parse_whole<int64_t>(std::string_view(name).substr(5));
  return step && *step >= 0 ? step : std::nullopt;
}

std::vector<std::pair<int64_t, std::filesystem::path>> list_checkpoints(const std::filesystem::path& checkpoints) {
  std::vector<std::pair<int64_t, std::filesystem::path>> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(checkpoints, error), end; !error && entry != end;
       entry.increment(error)) {
    const auto step = checkpoint_step(entry->path());
    if (!step) continue;
    std::error_code error_of_entry;
    if (entry->is_directory(error_of_entry)) found.emplace_back(*step, entry->path());
    check_storage("look at", entry->path(), error_of_entry);
  }
  check_storage("list", checkpoints, error);
  std::sort(found.rbegin(), found.rend());
  return found;
}

std::vector<std::string> check_checkpoint_layout(const std::filesystem::path& directory,
                                                 const CheckpointManifest& manifest) {
  std::vector<std::string> differences;
  if (const auto named = checkpoint_step(directory); named && *named != manifest.step)
    differences.push_back(fmt::format("its name says step {}, its manifest step {}", *named, manifest.step));
  std::set<std::string> expected = {manifest.version == 1 ? kManifestNameV1 : kManifestName};
  for (const CheckpointFile& file : manifest.files) {
    expected.insert(file.name);
    const std::filesystem::path path = directory / file.name;
    std::error_code error;
    const uint64_t size = std::filesystem::file_size(path, error);
    check_storage("look at", path, error);
    if (error || !std::filesystem::is_regular_file(path)) {
      differences.push_back(fmt::format("{} is missing", file.name));
      continue;
    }
    if (size != file.bytes) {
      differences.push_back(fmt::format("{} has {} bytes, the manifest says {}", file.name, size, file.bytes));
      continue;
    }
    if (manifest.version == 1) continue;  // it has only a hash of the whole file
    try {
      const SafetensorsFile shard(path);
      std::set<std::string> named;
      for (const CheckpointPiece& piece : file.pieces) {
        const std::string name = piece.tensor_name();
        named.insert(name);
        const auto found = shard.entries().find(name);
        if (found == shard.entries().end()) {
          differences.push_back(fmt::format("{} lacks tensor {}", file.name, name));
          continue;
        }
        const TensorInfo& info = found->second.info;
        if (info.dtype != piece.dtype)
          differences.push_back(fmt::format("{} has {} as {}, the manifest says {}", file.name, name,
                                            dtype_name(info.dtype), dtype_name(piece.dtype)));
        if (info.shape != std::vector<int64_t>{piece.count})
          differences.push_back(fmt::format("{} has {} with shape {}, the manifest says [{}]", file.name, name,
                                            shape_text(info.shape), piece.count));
      }
      for (const auto& [name, entry] : shard.entries())
        if (!named.contains(name))
          differences.push_back(fmt::format("{} has tensor {}, which the manifest lacks", file.name, name));
    } catch (const StorageError&) {
      throw;
    } catch (const Error& error_in_file) {
      differences.emplace_back(error_in_file.what());
    }
  }
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!expected.contains(name)) differences.push_back(fmt::format("{} is there, which the manifest lacks", name));
  }
  check_storage("list", directory, error);
  return differences;
}

std::vector<std::string> check_checkpoint_hashes(const std::filesystem::path& directory,
                                                 const CheckpointManifest& manifest, size_t file_index) {
  const CheckpointFile& file = manifest.files.at(file_index);
  const std::filesystem::path path = directory / file.name;
  if (file.xxh3) {
    const MappedFile whole(path, ExitCode::kModel);
    const uint64_t hash = xxh3_64(whole.bytes().data(), whole.bytes().size());
    if (hash == *file.xxh3) return {};
    return {fmt::format("{} has hash {}, the manifest says {}", file.name, hex64(hash), hex64(*file.xxh3))};
  }
  std::vector<std::string> differences;
  const SafetensorsFile shard(path);
  const uint64_t header = xxh3_64(shard.header().data(), shard.header().size());
  if (header != file.header_xxh3)
    differences.push_back(fmt::format("{}: the header has hash {}, the manifest says {}", file.name, hex64(header),
                                      hex64(file.header_xxh3)));
  for (const CheckpointPiece& piece : file.pieces) {
    const auto found = shard.entries().find(piece.tensor_name());
    if (found == shard.entries().end()) {
      differences.push_back(fmt::format("{} lacks tensor {}", file.name, piece.tensor_name()));
      continue;
    }
    const auto bytes = shard.bytes(found->second);
    madvise(const_cast<std::byte*>(bytes.data() - reinterpret_cast<uintptr_t>(bytes.data()) % 4096), bytes.size(),
            MADV_WILLNEED);
    const uint64_t hash = xxh3_64(bytes.data(), bytes.size());
    if (hash != piece.xxh3)
      differences.push_back(fmt::format("{}: tensor {} (elements {} to {}) has hash {}, the manifest says {}",
                                        file.name, piece.tensor_name(), piece.begin, piece.begin + piece.count,
                                        hex64(hash), hex64(piece.xxh3)));
  }
  return differences;
}

std::string summarise_differences(const std::vector<std::string>& differences) {
  constexpr size_t kShown = 5;
  std::string text;
  for (size_t i = 0; i < std::min(kShown, differences.size()); ++i) text += (i > 0 ? "; " : "") + differences[i];
  if (differences.size() > kShown) text += fmt::format("; and {} more", differences.size() - kShown);
  return text;
}

CheckpointReader::CheckpointReader(std::filesystem::path directory, CheckpointManifest manifest)
    : directory_(std::move(directory)), manifest_(std::move(manifest)), files_(manifest_.files.size()) {
  for (size_t f = 0; f < manifest_.files.size(); ++f)
    for (size_t p = 0; p < manifest_.files[f].pieces.size(); ++p)
      pieces_[manifest_.files[f].pieces[p].tensor_name()].emplace_back(f, p);
  for (auto& [name, places] : pieces_)
    std::sort(places.begin(), places.end(), [&](const auto& a, const auto& b) {
      return manifest_.files[a.first].pieces[a.second].begin < manifest_.files[b.first].pieces[b.second].begin;
    });
}

const SafetensorsFile& CheckpointReader::open(size_t file) {
  if (!files_[file]) files_[file] = std::make_unique<SafetensorsFile>(directory_ / manifest_.files[file].name);
  return *files_[file];
}

DType CheckpointReader::dtype(const std::string& kind, const std::string& unit) const {
  const std::string name = checkpoint_tensor_name(kind, unit);
  const auto found = pieces_.find(name);
  if (found == pieces_.end()) throw ModelError(fmt::format("{} has no {}", directory_.string(), name));
  const auto [file, piece] = found->second.front();
  return manifest_.files[file].pieces[piece].dtype;
}

std::vector<ElementSpan> CheckpointReader::read(const std::string& kind, const std::string& unit, int64_t begin,
                                                int64_t end) {
  const std::string name = checkpoint_tensor_name(kind, unit);
  std::vector<ElementSpan> spans;
  int64_t next = begin;
  if (const auto found = pieces_.find(name); found != pieces_.end()) {
    // The pieces follow each other: a rank finds its pieces without a search through earlier ones.
    const auto piece_of = [&](const std::pair<size_t, size_t>& place) -> const CheckpointPiece& {
      return manifest_.files[place.first].pieces[place.second];
    };
    const auto first = std::partition_point(found->second.begin(), found->second.end(), [&](const auto& place) {
      return piece_of(place).begin + piece_of(place).count <= begin;
    });
    for (auto place = first; place != found->second.end() && next < end; ++place) {
      const auto& [f, p] = *place;
      const CheckpointPiece& piece = piece_of(*place);
      const int64_t from = std::max(next, piece.begin), to = std::min(end, piece.begin + piece.count);
      if (from >= to || from != next) continue;
      const SafetensorsFile& file = open(f);
      const auto entry = file.entries().find(name);
      const size_t element = dtype_size(piece.dtype);
      if (entry == file.entries().end() || entry->second.info.dtype != piece.dtype ||
          entry->second.end - entry->second.begin != static_cast<uint64_t>(piece.count) * element)
        throw ModelError(fmt::format("{} does not hold {} as the manifest says", file.path().string(), name));
      spans.push_back(
          {file.bytes(entry->second).data() + static_cast<size_t>(from - piece.begin) * element, to - from});
      next = to;
    }
  }
  if (next < end)
    throw ModelError(fmt::format("{} has no elements {} to {} of {}", directory_.string(), next, end, name));
  return spans;
}

std::string fingerprint_file(const std::filesystem::path& path, ExitCode code, size_t blocks) {
  constexpr size_t kBlock = size_t{1} << 20;
  TRIREME_CHECK(blocks >= 2, "a fingerprint of ", blocks, " blocks");
  const MappedFile file(path, code);
  const auto bytes = file.bytes();
  if (bytes.size() <= blocks * kBlock) return hex64(xxh3_64(bytes.data(), bytes.size(), bytes.size()));
  uint64_t hash = bytes.size();
  for (size_t block = 0; block < blocks; ++block) {
    const size_t at = (bytes.size() - kBlock) / (blocks - 1) * block;
    hash = xxh3_64(bytes.data() + (block + 1 == blocks ? bytes.size() - kBlock : at), kBlock, hash);
  }
  return hex64(hash);
}

std::vector<Fingerprint> fingerprint_files(const std::vector<std::filesystem::path>& paths, ExitCode code,
                                           size_t blocks) {
  std::vector<Fingerprint> prints;
  for (const std::filesystem::path& path : paths)
    prints.push_back({path.string(), fingerprint_file(path, code, blocks)});
  return prints;
}

std::string fingerprint_names(const std::filesystem::path& directory) {
  std::vector<std::string> entries;
  std::error_code error;
  std::filesystem::recursive_directory_iterator entry(
      directory, std::filesystem::directory_options::follow_directory_symlink, error);
  for (; !error && entry != std::filesystem::recursive_directory_iterator(); entry.increment(error))
    if (entry->is_regular_file(error))
      entries.push_back(
          fmt::format("{} {}", entry->path().lexically_relative(directory).string(), entry->file_size(error)));
  if (error) return "";
  std::sort(entries.begin(), entries.end());
  uint64_t hash = entries.size();
  for (const std::string& text : entries) hash = xxh3_64(text.data(), text.size(), hash);
  return hex64(hash);
}

namespace {

/// Of a NeMo zarr checkpoint: its descriptions, and with weights the first chunk of each array.
std::vector<std::filesystem::path> zarr_files(const std::filesystem::path& directory, bool with_weights) {
  std::vector<std::filesystem::path> files;
  std::map<std::filesystem::path, std::filesystem::path> first_chunks;  // by array
  std::error_code error;
  for (const std::filesystem::path& folder : {directory, directory.parent_path()})
    for (const char* name : {"context/model.yaml", "model_config.yaml"})
      if (std::filesystem::is_regular_file(folder / name, error)) files.push_back(folder / name);
  for (std::filesystem::recursive_directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::filesystem::path& file = entry->path();
    if (!entry->is_regular_file(error)) continue;
    if (file.filename() == ".zarray") {
      files.push_back(file);
    } else if (with_weights && std::filesystem::exists(file.parent_path() / ".zarray", error)) {
      const auto found = first_chunks.try_emplace(file.parent_path(), file).first;
      found->second = std::min(found->second, file);
    }
  }
  for (const auto& [array, chunk] : first_chunks) files.push_back(chunk);
  return files;
}

/// Of a JSON file as `change` leaves it, without its layout.
template <class Change>
Fingerprint fingerprint_json(const std::filesystem::path& path, const Change& change) {
  nlohmann::json json = read_json(path, ExitCode::kModel);
  if (json.is_object()) change(json);
  const std::string text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return {path.string(), hex64(xxh3_64(text.data(), text.size()))};
}

}  // namespace

std::vector<Fingerprint> fingerprint_model(const std::filesystem::path& path, bool with_weights) {
  constexpr size_t kBlocks = 16;
  std::vector<std::filesystem::path> files;
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) files.push_back(path);
  for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    const std::filesystem::path& file = entry->path();
    if (file.filename() == "config.json" || (with_weights && file.extension() == ".safetensors")) files.push_back(file);
  }
  if (files.empty()) files = zarr_files(path, with_weights);
  std::sort(files.begin(), files.end());
  return fingerprint_files(files, ExitCode::kModel, kBlocks);
}

Fingerprint fingerprint_configuration(const std::filesystem::path& path) {
  return fingerprint_json(path, [](nlohmann::json& json) {
    for (const char* key : {"transformers_version", "_name_or_path"}) json.erase(key);  // decide nothing
  });
}

Fingerprint fingerprint_tokenizer(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  if (name != "tokenizer_config.json" && name != "special_tokens_map.json")
    return {path.string(), fingerprint_file(path, ExitCode::kModel)};
  const auto of = [&](std::initializer_list<const char*> keys, bool empty_ones) {
    return fingerprint_json(path, [&](nlohmann::json& json) {
      nlohmann::json read = nlohmann::json::object();
      for (const char* key : keys)
        if (json.contains(key) && (empty_ones || !json[key].empty())) read[key] = json[key];
      json = std::move(read);
    });
  };
  // What the tokenizer reads there; earlier versions hashed the first keys alone.
  Fingerprint print =
      of({"tokenizer_class", "legacy", "add_prefix_space", "added_tokens_decoder", "bos_token", "eos_token"}, true);
  print.hash += '+' + of({"unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "extra_special_tokens",
                          "additional_special_tokens"},
                         false)
                          .hash;
  return print;
}

}  // namespace trireme
