#include "checkpoint.h"

#include "agree.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/hash.h"
#include "trireme/base/log.h"
#include "trireme/formats/safetensors.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <charconv>

namespace trireme {

namespace {

constexpr int kFormatVersion = 1;
constexpr const char* kManifest = "manifest.json";

std::string rank_file(int rank) { return fmt::format("rank-{:05}.safetensors", rank); }

DType stored_dtype(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat: return DType::kF32;
    case at::kBFloat16: return DType::kBF16;
    case at::kHalf: return DType::kF16;
    case at::kInt: return DType::kI32;
    case at::kLong: return DType::kI64;
    default: TRIREME_CHECK(false, "no file type for ", c10::toString(tensor.scalar_type())); return DType::kF32;
  }
}

uint64_t hash_file(const std::filesystem::path& path) {
  const MappedFile file(path, ExitCode::kModel);
  return xxh3_64(file.bytes().data(), file.bytes().size());
}

nlohmann::json read_manifest(const std::filesystem::path& directory) {
  const auto path = directory / kManifest;
  const auto manifest = nlohmann::json::parse(read_text_file(path, ExitCode::kModel), nullptr, /*allow_exceptions=*/false);
  if (!manifest.is_object() || !manifest.contains("format_version") || !manifest.contains("files") || !manifest["files"].is_array())
    throw ModelError(fmt::format("{} is not a checkpoint manifest", path.string()));
  if (manifest["format_version"] != kFormatVersion)
    throw ModelError(fmt::format("{} has format version {}, this build reads {}", path.string(), manifest["format_version"].dump(),
                                 kFormatVersion));
  return manifest;
}

void sync_directory(const std::filesystem::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  (void)fsync(fd);
  close(fd);
}

std::optional<int64_t> step_of(const std::filesystem::path& directory) {
  const std::string name = directory.filename().string();
  if (!name.starts_with("step-")) return std::nullopt;
  int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data() + 5, name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return step;
}

std::vector<std::pair<int64_t, std::filesystem::path>> list_newest_first(const std::filesystem::path& checkpoints) {
  std::vector<std::pair<int64_t, std::filesystem::path>> found;
  if (std::filesystem::is_directory(checkpoints))
    for (const auto& entry : std::filesystem::directory_iterator(checkpoints))
      if (const auto step = step_of(entry.path())) found.emplace_back(*step, entry.path());
  std::sort(found.rbegin(), found.rend());
  return found;
}

}  // namespace

void save_checkpoint_state(const std::filesystem::path& directory, Communicator& comm, const NamedTensors& tensors,
                           const LoopState& loop, int shard_size, int keep) {
  const std::filesystem::path temporary = directory.string() + ".tmp";
  agree(comm, [&] {
    if (comm.rank() != 0) return;
    std::error_code ignored;
    std::filesystem::remove_all(temporary, ignored);
    make_directories(temporary);
  });
  agree(comm, [&] {
    std::vector<std::pair<std::string, TensorInfo>> declared;
    for (const auto& [name, tensor] : tensors) declared.emplace_back(name, TensorInfo{stored_dtype(tensor), tensor.sizes().vec()});
    SafetensorsWriter writer(temporary / rank_file(comm.rank()), declared);
    for (const auto& [name, tensor] : tensors) {
      const at::Tensor host = tensor.detach().to(at::kCPU).contiguous();
      writer.append(host.const_data_ptr(), host.nbytes());
    }
    writer.commit();
  });
  const auto path = temporary / rank_file(comm.rank());
  const auto descriptions =
      comm.all_gather_host(fmt::format("{} {}", std::filesystem::file_size(path), hex64(hash_file(path))));
  agree(comm, [&] {
    if (comm.rank() != 0) return;
    nlohmann::json manifest = {{"format_version", kFormatVersion}, {"world_size", comm.size()}, {"shard_size", shard_size},
                               {"completed_steps", loop.completed_steps}, {"evaluations", loop.evaluations},
                               {"files", nlohmann::json::array()}};
    for (int rank = 0; rank < comm.size(); ++rank) {
      const size_t space = descriptions[rank].find(' ');
      manifest["files"].push_back({{"name", rank_file(rank)},
                                   {"bytes", std::stoll(descriptions[rank].substr(0, space))},
                                   {"xxh3", descriptions[rank].substr(space + 1)}});
    }
    write_file_atomic(temporary / kManifest, manifest.dump(2) + "\n");
    std::error_code error;
    std::filesystem::remove_all(directory, error);
    std::filesystem::rename(temporary, directory, error);
    if (error) throw WriteError(fmt::format("cannot rename {} to {}: {}", temporary.string(), directory.string(), error.message()));
    sync_directory(directory.parent_path());
    int kept = 0;
    for (const auto& [step, old] : list_newest_first(directory.parent_path()))
      if (++kept > keep) std::filesystem::remove_all(old, error);
  });
}

LoopState load_checkpoint_state(const std::filesystem::path& directory, Communicator& comm, const NamedTensors& tensors,
                                int shard_size) {
  LoopState loop;
  agree(comm, [&] {
    const auto manifest = read_manifest(directory);
    const int world = manifest.value("world_size", 0), shards = manifest.value("shard_size", 0);
    if (world != comm.size() || shards != shard_size)
      throw ModelError(fmt::format("checkpoint {} was written by {} ranks with shard size {}; this run has {} ranks with shard size {}: "
                                   "start it with the same layout", directory.string(), world, shards, comm.size(), shard_size));
    const auto& entry = manifest["files"].at(comm.rank());
    const auto path = directory / rank_file(comm.rank());
    if (entry.value("name", "") != rank_file(comm.rank()) || entry.value("xxh3", "") != hex64(hash_file(path)))
      throw ModelError(fmt::format("{} does not match the hash in its manifest: the file is damaged", path.string()));
    const SafetensorsFile file(path);
    at::NoGradGuard no_grad;
    for (const auto& [name, tensor] : tensors) {
      const auto found = file.entries().find(name);
      if (found == file.entries().end() || found->second.info.shape != tensor.sizes().vec() ||
          found->second.info.dtype != stored_dtype(tensor))
        throw ModelError(fmt::format("{} lacks {} with the expected shape and type", path.string(), name));
      const auto bytes = file.bytes(found->second);
      tensor.copy_(at::from_blob(const_cast<std::byte*>(bytes.data()), tensor.sizes(),
                                 at::TensorOptions().dtype(tensor.scalar_type())));
    }
    loop.completed_steps = manifest.value("completed_steps", int64_t{0});
    loop.evaluations = manifest.value("evaluations", int64_t{0});
  });
  return loop;
}

std::optional<int64_t> newest_checkpoint(const std::filesystem::path& checkpoints) {
  const auto candidates = list_newest_first(checkpoints);
  for (const auto& [step, directory] : candidates) {
    try {
      const auto manifest = read_manifest(directory);
      for (const auto& file : manifest["files"]) {
        const auto path = safe_join(directory, file.value("name", ""), ExitCode::kModel);
        std::error_code error;
        const auto size = std::filesystem::file_size(path, error);
        if (error || size != file.value("bytes", uint64_t{0}))
          throw ModelError(fmt::format("{} has {} bytes, its manifest says {}", path.string(), error ? 0 : size,
                                       file.value("bytes", uint64_t{0})));
      }
      return step;
    } catch (const Error& error) {
      log_warn(fmt::format("checkpoint {} is passed over: {}", directory.string(), error.what()));
    }
  }
  if (!candidates.empty())
    throw ModelError(fmt::format("none of the {} checkpoints in {} is whole: remove them to start afresh", candidates.size(),
                                 checkpoints.string()));
  return std::nullopt;
}

}  // namespace trireme
