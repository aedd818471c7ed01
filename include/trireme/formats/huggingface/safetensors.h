#pragma once
// safetensors: strict reader of a mapped file, streaming writer. Source: huggingface/safetensors, README, section
// Format.

#include "trireme/base/file.h"
#include "trireme/formats/huggingface/weight_source.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

/// One file, validated when opened: header length, JSON, no duplicate names, offsets without gaps or overlaps that end
/// at the file's end, shape x dtype = bytes. ModelError otherwise.
class SafetensorsFile {
 public:
  struct Entry {
    TensorInfo info;
    uint64_t begin, end;  // bytes, relative to the data section
  };
  explicit SafetensorsFile(const std::filesystem::path& path);
  const std::map<std::string, Entry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  std::span<const std::byte> bytes(const Entry& entry) const;
  /// With its length.
  std::span<const std::byte> header() const { return file_.bytes().first(data_begin_); }
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  MappedFile file_;
  uint64_t data_begin_ = 0;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

/// Writes one file atomically; tensors are declared first, then their bytes are appended in the declared order and may
/// come in pieces. `__metadata__` is {"format": "pt"}, which transformers and peft require, and `metadata`.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<std::pair<std::string, TensorInfo>>& tensors,
                    const std::map<std::string, std::string>& metadata = {});
  ~SafetensorsWriter();
  void append(const void* data, size_t size);
  void commit();  // InternalError unless exactly the declared bytes were appended

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct ShardPlan {
  std::vector<std::pair<std::string, std::vector<size_t>>> files;  // name, and the numbers of the tensors it holds
  int64_t total_bytes = 0;
};
/// Splits tensors over files of at most `max_file_bytes` as transformers does (model-0000i-of-0000n.safetensors +
/// index) or into one model.safetensors, in the given order.
ShardPlan plan_safetensors_shards(const std::vector<std::pair<std::string, TensorInfo>>& tensors,
                                  int64_t max_file_bytes);
/// model.safetensors.index.json of a plan with several files.
std::string safetensors_index_json(const ShardPlan& plan,
                                   const std::vector<std::pair<std::string, TensorInfo>>& tensors);

}  // namespace trireme
