#include "trireme/formats/nemo/zarr_checkpoint.h"

#include "trireme/base/file.h"
#include "trireme/base/text.h"
#include "trireme/formats/json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <mutex>

namespace trireme {

namespace {

using Json = nlohmann::json;

constexpr const char* kQkv = "decoder.layers.self_attention.linear_qkv.weight";

/// The array's directory; empty if there is no such array.
std::filesystem::path array_directory(const std::filesystem::path& root, const std::string& name) {
  for (const char* prefix : {"module.", "model.", ""})
    if (std::filesystem::exists(root / (prefix + name) / ".zarray")) return root / (prefix + name);
  return {};
}

/// NeMo 2 keeps arrays in weights/, NeMo 1 in model_weights/.
std::filesystem::path weights_root(const std::filesystem::path& directory) {
  for (const char* name : {"weights", "model_weights"})
    if (std::filesystem::is_directory(directory / name)) return directory / name;
  return directory;
}

std::vector<int64_t> extents(const Json& json, const std::string& path) {
  std::vector<int64_t> values;
  if (!json.is_array()) throw ModelError(fmt::format("{}: shape and chunks must be lists", path));
  for (const Json& value : json) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() == 0 || value.get<uint64_t>() > (uint64_t{1} << 40))
      throw ModelError(fmt::format("{}: extent {}", path, value.dump()));
    values.push_back(value.get<int64_t>());
  }
  return values;
}

/// One uncompressed zarr v2 array: chunks are files of raw little-endian elements in C order, mapped at first use.
class ZarrArray {
 public:
  explicit ZarrArray(std::filesystem::path directory) : directory_(std::move(directory)) {
    const auto path = directory_ / ".zarray";
    const Json json = read_json(path, ExitCode::kModel, 1 << 20);
    const auto fail = [&](const std::string& what) { throw ModelError(fmt::format("{}: {}", path.string(), what)); };
    if (member(json, "zarr_format") != Json(2)) fail("is not zarr format 2");
    if (!member(json, "compressor").is_null()) fail("is compressed; only uncompressed arrays are read");
    if (!member(json, "filters").is_null()) fail("has filters; only plain arrays are read");
    if (member(json, "order") != Json("C")) fail("is not in C order");
    const Json type = member(json, "dtype"), separator = member(json, "dimension_separator");
    const std::string dtype = type.is_string() ? type.get<std::string>() : "";
    if (dtype == "bfloat16")
      dtype_ = DType::kBF16;
    else if (dtype == "<f2")
      dtype_ = DType::kF16;
    else if (dtype == "<f4")
      dtype_ = DType::kF32;
    else
      fail(fmt::format("has dtype '{}'; weights must be bfloat16, <f2 or <f4", dtype));
    shape_ = extents(member(json, "shape"), path.string());
    chunks_ = extents(member(json, "chunks"), path.string());
    if (shape_.size() != chunks_.size() || shape_.empty()) fail("shape and chunks differ in rank");
    if (shape_.size() > 3) fail("has more than three axes");
    bool fits = false;
    chunk_bytes_ = checked_elements(chunks_, fits);
    if (!fits || __builtin_mul_overflow(chunk_bytes_, static_cast<int64_t>(dtype_size(dtype_)), &chunk_bytes_))
      fail("has chunks whose size overflows");
    separator_ = separator == Json("/") ? "/" : ".";
    if (!separator.is_null() && separator != Json(separator_))
      fail(fmt::format("has dimension separator {}", separator.dump().substr(0, 80)));
  }

  DType dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  const std::filesystem::path& directory() const { return directory_; }

  /// Elements [begin, end) of the matrix at `index` of axis 0 (index 0 and the whole array when `stacked` is false):
  /// one run per chunk of complete rows, or one per row if tensor parallelism divided the columns.
  void append(bool stacked, int64_t index, int64_t begin, int64_t end, std::vector<ElementSpan>& out) const {
    const size_t row_axis = stacked ? 1 : 0;
    const bool matrix = row_axis + 1 < shape_.size();
    const int64_t columns = matrix ? shape_.back() : 1, chunk_columns = matrix ? std::min(chunks_.back(), columns) : 1;
    const int64_t stored_columns = matrix ? chunks_.back() : 1;  // zarr stores chunks at the edge in full size
    const int64_t chunk_rows = row_axis < chunks_.size() ? chunks_[row_axis] : 1;
    const auto element = static_cast<int64_t>(dtype_size(dtype_));
    while (begin < end) {
      const int64_t row = begin / columns, column = begin % columns;
      const int64_t stop =
          stored_columns == columns
              ? std::min(end, (row / chunk_rows + 1) * chunk_rows * columns)
              : std::min({end, (row + 1) * columns, row * columns + (column / chunk_columns + 1) * chunk_columns});
      std::vector<int64_t> coordinates(shape_.size(), 0);
      if (stacked) coordinates[0] = index / chunks_[0];
      coordinates[row_axis] = row / chunk_rows;
      if (matrix) coordinates.back() = column / chunk_columns;
      const MappedFile& chunk = map_chunk(coordinates);
      const int64_t layer = stacked ? index % chunks_[0] : 0;
      const int64_t offset = (layer * chunk_rows + row % chunk_rows) * stored_columns + column % chunk_columns;
      out.push_back({chunk.bytes().data() + offset * element, stop - begin});
      begin = stop;
    }
  }

 private:
  const MappedFile& map_chunk(const std::vector<int64_t>& coordinates) const {
    std::string name;
    for (const int64_t coordinate : coordinates) name += (name.empty() ? "" : separator_) + std::to_string(coordinate);
    const std::lock_guard lock(mutex_);
    const auto found = mapped_.find(name);
    if (found != mapped_.end()) return found->second;
    MappedFile file(directory_ / name, ExitCode::kModel);
    if (static_cast<int64_t>(file.bytes().size()) != chunk_bytes_)
      throw ModelError(fmt::format("{} has {} bytes, its .zarray says {}", (directory_ / name).string(),
                                   file.bytes().size(), chunk_bytes_));
    return mapped_.emplace(name, std::move(file)).first->second;
  }

  std::filesystem::path directory_;
  DType dtype_ = DType::kBF16;
  std::vector<int64_t> shape_, chunks_;
  int64_t chunk_bytes_ = 0;
  std::string separator_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, MappedFile> mapped_;
};

class ZarrCheckpoint final : public WeightSource {
 public:
  ZarrCheckpoint(const std::filesystem::path& directory, const std::vector<ZarrTensor>& tensors)
      : root_(weights_root(directory)) {
    for (const ZarrTensor& tensor : tensors) tensors_[tensor.name] = {tensor, open(tensor.array, tensor.array_shape)};
  }

  std::vector<std::string> names() const override { return keys_of(tensors_); }
  std::optional<TensorInfo> find(const std::string& name) const override {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) return std::nullopt;
    return TensorInfo{found->second.second->dtype(), found->second.first.shape};
  }
  std::vector<ElementSpan> read(const std::string& name, int64_t begin, int64_t end) const override {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) throw ModelError(fmt::format("{} has no tensor {}", description(), name));
    const auto& [tensor, array] = found->second;
    const int64_t columns = tensor.shape.size() > 1 ? tensor.shape[1] : 1, group_elements = tensor.rows * columns;
    std::vector<ElementSpan> spans;
    while (begin < end) {
      const int64_t group = begin / group_elements, stop = std::min(end, (group + 1) * group_elements);
      const int64_t stored = (tensor.row_begin + group * tensor.stride) * columns - group * group_elements;
      array->append(tensor.layer >= 0, std::max<int64_t>(0, tensor.layer), stored + begin, stored + stop, spans);
      begin = stop;
    }
    return spans;
  }
  std::string place(const std::string& name) const override {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? "" : found->second.second->directory().string();
  }
  std::string description() const override { return fmt::format("NeMo zarr, {} arrays", arrays_.size()); }

 private:
  const ZarrArray* open(const std::string& name, const std::vector<int64_t>& shape) {
    std::unique_ptr<ZarrArray>& array = arrays_[name];
    if (array) return array.get();
    const std::filesystem::path path = array_directory(root_, name);
    if (path.empty()) throw ModelError(fmt::format("array module.{} is missing in {}", name, root_.string()));
    array = std::make_unique<ZarrArray>(path);
    if (array->shape() != shape)
      throw ModelError(fmt::format("array {} has shape [{}], the configuration asks for [{}]", path.string(),
                                   fmt::join(array->shape(), ", "), fmt::join(shape, ", ")));
    return array.get();
  }

  std::filesystem::path root_;
  std::map<std::string, std::unique_ptr<ZarrArray>> arrays_;
  std::map<std::string, std::pair<ZarrTensor, const ZarrArray*>> tensors_;
};

}  // namespace

bool is_zarr_checkpoint(const std::filesystem::path& directory) {
  return !array_directory(weights_root(directory), kQkv).empty();
}

std::filesystem::path zarr_array(const std::filesystem::path& directory, const std::string& name) {
  return array_directory(weights_root(directory), name);
}

std::unique_ptr<WeightSource> open_zarr_checkpoint(const std::filesystem::path& directory,
                                                   const std::vector<ZarrTensor>& tensors) {
  return std::make_unique<ZarrCheckpoint>(directory, tensors);
}

}  // namespace trireme
