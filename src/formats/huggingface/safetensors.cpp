#include "trireme/formats/huggingface/safetensors.h"

#include "trireme/base/error.h"
#include "trireme/base/rounding.h"
#include "trireme/base/text.h"
#include "trireme/formats/json.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace trireme {

namespace {

constexpr uint64_t kMaxHeader = 100'000'000;

/// For a file that is no safetensors file: recognises common others by their first bytes, with advice; empty for
/// anything else. The first bytes of a safetensors file are the length of its header, which can be any of these.
std::string describe_other_file(std::span<const std::byte> bytes) {
  const std::string_view head = as_text(bytes.first(std::min<size_t>(bytes.size(), 64)));
  const bool pickle = head.size() >= 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5;
  if (pickle || head.starts_with("PK\x03\x04"))
    return "is a PyTorch checkpoint (a pickle), which could run code and is never opened: convert it once, where its "
           "source is trusted, "
           "with safetensors.torch.save_file or transformers' save_pretrained(path, safe_serialization=True)";
  return "";
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path, ExitCode::kModel) {
  const auto fail = [&](const std::string& what) -> void {
    throw ModelError(fmt::format("{}: {}", path.string(), what));
  };
  const auto bytes = file_.bytes();
  const uint64_t length = bytes.size() >= sizeof(uint64_t) ? value_at<uint64_t>(bytes.data()) : 0;
  const bool begins_a_header =
      bytes.size() > sizeof length && length <= kMaxHeader && bytes[sizeof length] == std::byte{'{'};
  if (!begins_a_header)
    if (const std::string other = describe_other_file(bytes); !other.empty()) fail(other);
  if (bytes.size() < sizeof length)
    fail(fmt::format("is not a safetensors file: it has {} bytes, the header length alone takes 8", bytes.size()));
  if (length > kMaxHeader)
    fail(fmt::format("is not a safetensors file: its header would have {} bytes, at most {} are allowed", length,
                     kMaxHeader));
  if (length > bytes.size() - sizeof length)
    fail(fmt::format("is truncated: the header should have {} bytes and the file has {}", length, bytes.size()));
  data_begin_ = sizeof length + length;
  const std::string_view text = as_text(bytes.subspan(sizeof length, length));
  if (!text.starts_with('{')) fail("is not a safetensors file: the header does not start with '{'");
  if (!is_valid_utf8(text)) fail("the header is not valid UTF-8");
  const nlohmann::json header = parse_json(text, path.string(), ExitCode::kModel, /*max_depth=*/4);

  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) fail("__metadata__ is not an object");
      for (const auto& [key, entry] : value.items()) {
        if (!entry.is_string()) fail(fmt::format("__metadata__ '{}' is not a string", key));
        metadata_[key] = entry.get<std::string>();
      }
      continue;
    }
    const auto bad = [&, &name = name](const std::string& what) { fail(fmt::format("tensor '{}' {}", name, what)); };
    if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") || !value.contains("data_offsets"))
      bad("lacks dtype, shape or data_offsets");
    if (!value["dtype"].is_string()) bad("has a dtype that is not a string");
    Entry entry;
    const auto dtype = parse_dtype(value["dtype"].get<std::string>());
    if (!dtype) bad(fmt::format("has dtype '{}', which this reader does not know", value["dtype"].get<std::string>()));
    entry.info.dtype = *dtype;
    if (!value["shape"].is_array()) bad("has a shape that is not a list");
    for (const auto& extent : value["shape"]) {
      if (!extent.is_number_unsigned() || extent.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
        bad(fmt::format("has extent {} in its shape", extent.dump()));
      entry.info.shape.push_back(extent.get<int64_t>());
    }
    const auto& offsets = value["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
        !offsets[1].is_number_unsigned())
      bad("has data_offsets that are not two non-negative integers");
    entry.begin = offsets[0].get<uint64_t>();
    entry.end = offsets[1].get<uint64_t>();
    if (entry.begin > entry.end) bad(fmt::format("ends at {} before it begins at {}", entry.end, entry.begin));
    bool ok = false;
    int64_t size = checked_elements(entry.info.shape, ok);
    ok = ok && !__builtin_mul_overflow(size, static_cast<int64_t>(dtype_size(entry.info.dtype)), &size);
    if (!ok) bad("has a shape whose size overflows");
    if (static_cast<uint64_t>(size) != entry.end - entry.begin)
      bad(fmt::format("takes {} bytes by its shape and type, but {} by its offsets", size, entry.end - entry.begin));
    entries_.emplace(name, std::move(entry));
  }

  std::vector<const std::pair<const std::string, Entry>*> order;
  for (const auto& entry : entries_) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  uint64_t next = 0;
  for (const auto* entry : order) {
    if (entry->second.begin != next)
      fail(fmt::format("tensor '{}' begins at {}, expected {}: tensors {}", entry->first, entry->second.begin, next,
                       entry->second.begin < next ? "overlap" : "leave a gap"));
    next = entry->second.end;
  }
  if (next != bytes.size() - data_begin_)
    fail(fmt::format("{}: its tensors take {} bytes and {} are there",
                     next > bytes.size() - data_begin_ ? "is truncated" : "has trailing bytes", next,
                     bytes.size() - data_begin_));
}

std::span<const std::byte> SafetensorsFile::bytes(const Entry& entry) const {
  return file_.bytes().subspan(data_begin_ + entry.begin, entry.end - entry.begin);
}

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
  text.resize(round_up(text.size(), 8), ' ');
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
