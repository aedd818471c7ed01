#include "trireme/formats/huggingface/safetensors.h"

#include "trireme/base/error.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace trireme {

namespace {

int64_t byte_size(const TensorInfo& info) {
  bool ok = false;
  const int64_t elements = checked_elements(info.shape, ok);
  TRIREME_CHECK(ok, "a tensor's shape overflows");
  return elements * static_cast<int64_t>(dtype_size(info.dtype));
}

}  // namespace

struct SafetensorsWriter::State {
  explicit State(const std::filesystem::path& path) : file(path) {}
  AtomicFile file;
  uint64_t declared = 0, appended = 0;
};

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     const std::vector<std::pair<std::string, TensorInfo>>& tensors,
                                     const std::map<std::string, std::string>& metadata)
    : state_(std::make_unique<State>(path)) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  for (const auto& [key, value] : metadata) header["__metadata__"][key] = value;
  for (const auto& [name, info] : tensors) {
    TRIREME_CHECK(!header.contains(name), "tensor ", name, " is declared twice");
    const uint64_t begin = state_->declared;
    state_->declared += static_cast<uint64_t>(byte_size(info));
    header[name] = {
        {"dtype", dtype_name(info.dtype)}, {"shape", info.shape}, {"data_offsets", {begin, state_->declared}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  state_->file.write(&length, sizeof length);
  state_->file.write(text);
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::append(const void* data, size_t size) {
  state_->file.write(data, size);
  state_->appended += size;
}

void SafetensorsWriter::commit() {
  TRIREME_CHECK(state_->appended == state_->declared, "appended ", state_->appended, " bytes of ", state_->declared,
                " declared");
  state_->file.commit();
}

ShardPlan plan_safetensors_shards(const std::vector<std::pair<std::string, TensorInfo>>& tensors,
                                  int64_t max_file_bytes) {
  ShardPlan plan;
  int64_t in_file = 0;
  plan.files.emplace_back();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t size = byte_size(tensors[i].second);
    if (in_file > 0 && in_file + size > max_file_bytes) {
      plan.files.emplace_back();
      in_file = 0;
    }
    plan.files.back().second.push_back(i);
    in_file += size;
    plan.total_bytes += size;
  }
  for (size_t f = 0; f < plan.files.size(); ++f)
    plan.files[f].first = plan.files.size() == 1
                              ? "model.safetensors"
                              : fmt::format("model-{:05}-of-{:05}.safetensors", f + 1, plan.files.size());
  return plan;
}

std::string safetensors_index_json(const ShardPlan& plan,
                                   const std::vector<std::pair<std::string, TensorInfo>>& tensors) {
  nlohmann::ordered_json index;
  index["metadata"] = {{"total_size", plan.total_bytes}};
  for (const auto& [file, members] : plan.files)
    for (const size_t i : members) index["weight_map"][tensors[i].first] = file;
  return index.dump(2) + "\n";
}

}  // namespace trireme
