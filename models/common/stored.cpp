#include "models/common/stored.h"

#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/formats/json.h"
#include "trireme/nn/init.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>

namespace trireme {

namespace {

constexpr int64_t kMaxFileBytes = 5'000'000'000;

/// The bytes of a whole tensor.
std::vector<std::byte> read_bytes(const WeightSource& source, const std::string& name, const TensorInfo& info) {
  std::vector<std::byte> bytes;
  for (const ElementSpan& span : source.read(name, 0, element_count(info.shape)))
    bytes.insert(bytes.end(), span.data, span.data + span.count * static_cast<int64_t>(dtype_size(info.dtype)));
  return bytes;
}

/// out [columns, rows] of in [rows, columns], elements of `size` bytes.
void transpose_elements(const std::byte* in, std::byte* out, int64_t rows, int64_t columns, int64_t size) {
  constexpr int64_t kTile = 64;  // both sides of a tile fit the cache
  for (int64_t row = 0; row < rows; row += kTile)
    for (int64_t column = 0; column < columns; column += kTile)
      for (int64_t r = row; r < std::min(rows, row + kTile); ++r)
        for (int64_t c = column; c < std::min(columns, column + kTile); ++c)
          std::memcpy(out + (c * rows + r) * size, in + (r * columns + c) * size, static_cast<size_t>(size));
}

}  // namespace

at::ScalarType to_scalar_type(DType dtype) {
  const std::optional<at::ScalarType> type = weight_scalar_type(dtype);
  if (!type) throw ModelError(std::string("weights must be F32, F16, BF16 or F64, not ") + dtype_name(dtype));
  return *type;
}

int64_t copy_elements(const std::vector<ElementSpan>& spans, at::ScalarType stored, const at::Tensor& flat) {
  int64_t next = 0;
  for (const ElementSpan& span : spans) {
    // The map is read-only and nothing writes to this tensor.
    flat.narrow(0, next, span.count)
        .copy_(at::from_blob(const_cast<std::byte*>(span.data), {span.count}, at::TensorOptions(stored)));
    next += span.count;
  }
  return next;
}

at::Tensor read_tensor(const WeightSource& source, const std::string& name) {
  const auto info = source.find(name);
  if (!info) throw ModelError(fmt::format("{} has no tensor {}", source.description(), name));
  const at::ScalarType dtype = to_scalar_type(weight_type(source, name, info->shape));
  at::Tensor tensor = at::empty(info->shape, at::TensorOptions(at::kFloat));
  const int64_t next = copy_elements(source.read(name, 0, tensor.numel()), dtype, tensor.view({-1}));
  TRIREME_CHECK(next == tensor.numel(), "read ", next, " of ", tensor.numel(), " elements of ", name);
  return tensor;
}

StoredWeights::StoredWeights(std::unique_ptr<WeightSource> source, Rules rules)
    : source_(std::move(source)), rules_(std::move(rules)) {}

void StoredWeights::replace_rows(const std::string& name, int64_t count,
                                 const std::map<int64_t, std::vector<std::byte>>& rows) {
  const auto info = find(name);
  TRIREME_CHECK(info && !info->shape.empty(), "no rows to replace under ", name);
  ReplacedRows& replaced = replaced_[stored(name)];
  replaced.columns = element_count({info->shape.begin() + 1, info->shape.end()});
  replaced.count = count;
  replaced.element = static_cast<int64_t>(dtype_size(info->dtype));
  for (const auto& [row, bytes] : rows) {
    replaced.ids.push_back(row);
    replaced.data.insert(replaced.data.end(), bytes.begin(), bytes.end());
  }
}

void StoredWeights::pad_rows(const std::string& name, int64_t stored, int64_t count) {
  const auto info = find(name);
  if (!info || info->shape.empty() || info->shape[0] == count) return;
  if (info->shape[0] != stored)
    throw ModelError(fmt::format("{} has {} rows in {}, its configuration says vocab_size {}", name, info->shape[0],
                                 description(), stored));
  const auto row_bytes = static_cast<size_t>(element_count(info->shape) / stored) * dtype_size(info->dtype);
  std::map<int64_t, std::vector<std::byte>> rows;
  for (int64_t row = stored; row < count; ++row) rows[row].resize(row_bytes);
  replace_rows(name, count, rows);
}

std::string StoredWeights::stored(const std::string& name) const {
  for (const std::string& spelling : rules_.spellings(name))
    if (source_->find(spelling)) return spelling;
  return name;
}

std::optional<TensorInfo> StoredWeights::find(const std::string& name) const {
  auto info = source_->find(stored(name));
  if (!info) return info;
  if (info->shape.size() == 2 && rules_.transposed(name)) std::swap(info->shape[0], info->shape[1]);
  if (const auto found = replaced_.find(stored(name)); found != replaced_.end()) info->shape[0] = found->second.count;
  return info;
}

std::vector<ElementSpan> StoredWeights::read_stored(const std::string& name, int64_t begin, int64_t end) const {
  const std::string in_file = stored(name);
  const auto info = source_->find(in_file);
  if (!info || info->shape.size() != 2 || !rules_.transposed(name)) return source_->read(in_file, begin, end);
  const auto size = static_cast<int64_t>(dtype_size(info->dtype));
  const std::lock_guard lock(mutex_);
  auto [found, fresh] = transposed_.try_emplace(name);
  if (fresh) {
    const std::vector<std::byte> in = read_bytes(*source_, in_file, *info);
    found->second.resize(in.size());
    transpose_elements(in.data(), found->second.data(), info->shape[0], info->shape[1], size);
  }
  return {{found->second.data() + begin * size, end - begin}};
}

std::vector<ElementSpan> StoredWeights::read(const std::string& name, int64_t begin, int64_t end) const {
  const auto found = replaced_.find(stored(name));
  if (found == replaced_.end()) return read_stored(name, begin, end);
  const auto& [ids, data, columns, count, element] = found->second;
  std::vector<ElementSpan> spans;
  while (begin < end) {
    const int64_t row = begin / columns;
    const auto next = std::lower_bound(ids.begin(), ids.end(), row);
    if (next == ids.end() || *next != row) {  // up to the next replaced row
      const int64_t stop = next == ids.end() ? end : std::min(end, *next * columns);
      const auto part = read_stored(name, begin, stop);
      spans.insert(spans.end(), part.begin(), part.end());
      begin = stop;
      continue;
    }
    const int64_t stop = std::min(end, (row + 1) * columns);
    const int64_t offset = (next - ids.begin()) * columns + begin - row * columns;
    spans.push_back({data.data() + offset * element, stop - begin});
    begin = stop;
  }
  return spans;
}

std::vector<StoredTensor> stored_tensors(const std::vector<UnitSpec>& units, DType dtype) {
  std::vector<StoredTensor> tensors;
  for (const UnitSpec& unit : units) {
    if (unit.replicated) continue;
    for (const ParameterSpec& parameter : unit.parameters)
      for (const ParameterPart& part : parameter.parts) {
        const bool padded = parameter.zero_rows_from >= 0;
        StoredTensor& tensor =
            tensors.emplace_back(StoredTensor{part.name, {dtype, parameter.shape}, parameter.transposed, padded});
        tensor.info.shape[0] = padded ? parameter.zero_rows_from : part.rows;
      }
  }
  return tensors;
}

ModelWriter::ModelWriter(std::filesystem::path directory, const std::vector<StoredTensor>& tensors)
    : staged_(std::move(directory)), tensors_(tensors) {
  for (const StoredTensor& tensor : tensors_) {
    TensorInfo& info = stored_.emplace_back(tensor.name, tensor.info).second;
    if (tensor.transposed) std::swap(info.shape.at(0), info.shape.at(1));
  }
  plan_ = plan_safetensors_shards(stored_, kMaxFileBytes);
}

ModelWriter::~ModelWriter() = default;

const StoredTensor& ModelWriter::begin_tensor(const std::string& name) {
  TRIREME_CHECK(file_ < plan_.files.size(), name, " comes after the last declared tensor");
  const auto& [file_name, members] = plan_.files[file_];
  if (!writer_) {
    std::vector<std::pair<std::string, TensorInfo>> mine;
    for (const size_t index : members) mine.push_back(stored_[index]);
    writer_ = std::make_unique<SafetensorsWriter>(path() / file_name, mine);
    in_file_ = 0;
  }
  const StoredTensor& due = tensors_[members[in_file_]];
  TRIREME_CHECK(due.name == name, "tensor ", name, " comes where ", due.name, " is due");
  return due;
}

void ModelWriter::end_tensor() {
  if (++in_file_ < plan_.files[file_].second.size()) return;
  writer_->commit();
  writer_.reset();
  ++file_;
}

void ModelWriter::append(const std::string& name, const at::Tensor& value) {
  const StoredTensor& due = begin_tensor(name);
  at::Tensor rows = value.detach();
  if (due.padded && rows.size(0) > due.info.shape[0]) rows = rows.narrow(0, 0, due.info.shape[0]);
  TRIREME_CHECK(rows.sizes() == due.info.shape, "tensor ", name, " is ", rows.sizes(), ", declared as ",
                at::IntArrayRef(due.info.shape));
  if (due.transposed) rows = rows.t();
  const at::ScalarType type = due.info.dtype == DType::kU8 ? at::kByte : to_scalar_type(due.info.dtype);
  const at::Tensor stored = rows.to(at::kCPU, type).contiguous();
  writer_->append(stored.const_data_ptr(), stored.nbytes());
  end_tensor();
}

void ModelWriter::append_initial(const std::vector<UnitSpec>& units, uint64_t seed) {
  for (const UnitSpec& unit : units)
    for (const ParameterSpec& spec : unit.parameters)
      for (const ParameterPart& part : spec.parts) {
        std::vector<int64_t> shape = spec.shape;
        shape[0] = part.rows;
        const at::Tensor value = at::empty(shape, at::TensorOptions(at::kFloat));
        draw_initial_values(spec, part, seed, 0, value.view({-1}));
        append(part.name, value);
      }
}

void ModelWriter::copy(const std::string& name, const WeightSource& source) {
  const StoredTensor& due = begin_tensor(name);
  const auto info = source.find(name);
  TRIREME_CHECK(info && info->dtype == due.info.dtype && info->shape == due.info.shape, name,
                " does not have the declared shape and type in ", source.description());
  const auto size = static_cast<int64_t>(dtype_size(info->dtype));
  if (due.transposed) {  // one matrix of a block: small enough to be made whole
    const std::vector<std::byte> in = read_bytes(source, name, *info);
    std::vector<std::byte> out(in.size());
    transpose_elements(in.data(), out.data(), info->shape[0], info->shape[1], size);
    writer_->append(out.data(), out.size());
  } else {
    for (const ElementSpan& span : source.read(name, 0, element_count(info->shape)))
      writer_->append(span.data, static_cast<size_t>(span.count * size));
  }
  end_tensor();
}

void ModelWriter::write_companion(const std::string& name, std::string_view content) {
  make_directories((path() / name).parent_path());
  write_file_atomic(path() / name, content);
}

void ModelWriter::write_config(const std::string& written, const std::filesystem::path& base,
                               std::set<std::string> without) {
  without.insert({"dtype", "quantization_config", "auto_map", "transformers_weights", "configuration_files"});
  auto json = nlohmann::json::parse(written);
  try {
    const auto from = read_json_if_there(base, ExitCode::kModel);
    for (const auto& [key, value] : from.items())
      if (!json.contains(key) && !without.contains(key)) json[key] = value;
  } catch (const Error& error) {
    log_warn(fmt::format("config.json is written without the other keys of the base's: {}", error.what()));
  }
  write_companion("config.json", json.dump(2) + "\n");
}

void ModelWriter::copy_files(const std::filesystem::path& from, std::span<const char* const> names, ExitCode code) {
  for (const char* name : names)
    if (std::filesystem::is_regular_file(from / name))
      write_companion(name, read_text_file(from / name, code, size_t{256} << 20));
}

void ModelWriter::seal() {
  TRIREME_CHECK(tensors_.empty() || file_ == plan_.files.size(), "only ", file_, " of ", plan_.files.size(),
                " weight files are written");
  if (plan_.files.size() > 1) write_companion("model.safetensors.index.json", safetensors_index_json(plan_, stored_));
}

}  // namespace trireme
