#pragma once
// Between a model's tensors, [out, in] under the names of its units, and the files of model directories.

#include "trireme/formats/huggingface/safetensors.h"
#include "trireme/formats/huggingface/staged_model.h"
#include "trireme/formats/huggingface/weight_source.h"
#include "trireme/nn/scalar_type.h"
#include "trireme/nn/unit.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// weight_scalar_type(); ModelError for a type in which weights are not stored.
at::ScalarType to_scalar_type(DType dtype);

/// One checkpoint tensor as an fp32 CPU tensor. ModelError when it is missing or not floating.
at::Tensor read_tensor(const WeightSource& source, const std::string& name);
/// Copies elements of a file, of type `stored`, to the begin of `flat`. Returns their number.
int64_t copy_elements(const std::vector<ElementSpan>& spans, at::ScalarType stored, const at::Tensor& flat);

/// Files' tensors under the model's names and in its layout. A matrix that is transposed is read whole and stays in
/// memory until the source is destroyed.
class StoredWeights : public WeightSource {
 public:
  struct Rules {
    /// Names under which files may have a tensor; the first that exists is used.
    std::function<std::vector<std::string>(const std::string& name)> spellings;
    /// Whether the file keeps this matrix [in, out].
    std::function<bool(const std::string& name)> transposed;
  };
  StoredWeights(std::unique_ptr<WeightSource> source, Rules rules);

  /// The tensor gets `count` rows, of which `rows` (by index, each in the file's type) replace the file's or are new.
  void replace_rows(const std::string& name, int64_t count, const std::map<int64_t, std::vector<std::byte>>& rows);
  /// The tensor's `stored` rows get zeros behind them, up to `count` rows. A file that has all of them stays as it is.
  /// ModelError for another number of rows.
  void pad_rows(const std::string& name, int64_t stored, int64_t count);

  /// The name of a tensor in the file; its own where the file does not have it.
  std::string stored(const std::string& name) const;
  std::vector<std::string> names() const override { return source_->names(); }  // in the files
  std::optional<TensorInfo> find(const std::string& name) const override;
  std::vector<ElementSpan> read(const std::string& name, int64_t begin, int64_t end) const override;
  std::string place(const std::string& name) const override { return source_->place(stored(name)); }
  std::string description() const override { return source_->description(); }

 private:
  struct ReplacedRows {
    std::vector<int64_t> ids;  // ascending
    std::vector<std::byte> data;
    int64_t columns = 0, count = 0, element = 0;
  };
  std::vector<ElementSpan> read_stored(const std::string& name, int64_t begin, int64_t end) const;

  std::unique_ptr<WeightSource> source_;
  Rules rules_;
  std::map<std::string, ReplacedRows> replaced_;  // by the name in the file
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::vector<std::byte>> transposed_;
};

/// A tensor of a model directory: shape as the model has it, without the padding of a vocabulary.
struct StoredTensor {
  std::string name;
  TensorInfo info;
  bool transposed = false;  // the file keeps it [in, out]
  bool padded = false;      // the model has more rows
};

/// The base model's tensors in the order of its units.
std::vector<StoredTensor> stored_tensors(const std::vector<UnitSpec>& units, DType dtype);

/// Writes a model directory tensor by tensor: model.safetensors, or files of at most 5 GB with an index. The model
/// appears in the directory whole, and takes the place of the one that was there (StagedModel). WriteError.
class ModelWriter {
 public:
  ModelWriter(std::filesystem::path directory, const std::vector<StoredTensor>& tensors);
  ~ModelWriter();
  /// The next tensor in the declared order, of any floating type, or bytes, and device; its padding is omitted.
  void append(const std::string& name, const at::Tensor& value);
  /// All tensors, of these units, with their random initial values.
  void append_initial(const std::vector<UnitSpec>& units, uint64_t seed);
  /// The next tensor in the declared order, bit for bit: `source` has it in the declared type.
  void copy(const std::string& name, const WeightSource& source);
  void write_companion(const std::string& name, std::string_view content);
  /// config.json: `written`, and the keys that the file `base` has beside it, but those that describe the base's own
  /// weights and code, and those of `without`. No file `base`: `written` alone.
  void write_config(const std::string& written, const std::filesystem::path& base, std::set<std::string> without = {});
  /// Copies the files of these names that the directory `from` has. `code`: of an error when one cannot be read.
  void copy_files(const std::filesystem::path& from, std::span<const char* const> names, ExitCode code);
  /// After the last tensor: writes the index. The directory has the old model still; the new one is at path().
  void seal();
  const std::filesystem::path& path() const { return staged_.path(); }
  void commit() { staged_.commit(); }

 private:
  /// Returns the declared tensor that is due, which must be `name`, with its file open.
  const StoredTensor& begin_tensor(const std::string& name);
  void end_tensor();

  StagedModel staged_;
  std::vector<StoredTensor> tensors_;
  std::vector<std::pair<std::string, TensorInfo>> stored_;  // as the files have them
  ShardPlan plan_;
  std::unique_ptr<SafetensorsWriter> writer_;
  size_t file_ = 0, in_file_ = 0;
};

}  // namespace trireme
