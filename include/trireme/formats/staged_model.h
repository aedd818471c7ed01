#pragma once
// Replacing the model in a directory whole.

#include <filesystem>

namespace trireme {

/// Whether `directory` holds a model or parts of one: config.json, weights, or an index of weights.
bool holds_model(const std::filesystem::path& directory);

/// A model on its way into `directory`. Its files are written under path(), a directory inside; commit() removes every
/// file of a model that `directory` held (configuration, weights of every format, tokenizer), moves the new ones in,
/// and config.json last: a directory with config.json holds one model and nothing of another. What is no file of a
/// model stays. Without commit() `directory` is as it was. WriteError names the path and the reason.
class StagedModel {
 public:
  /// Creates the directory; what an interrupted process staged there is removed.
  explicit StagedModel(std::filesystem::path directory);
  ~StagedModel();
  StagedModel(const StagedModel&) = delete;
  StagedModel& operator=(const StagedModel&) = delete;
  const std::filesystem::path& path() const { return staging_; }
  void commit();

 private:
  std::filesystem::path directory_, staging_;
  bool created_ = false;  // `directory` was not there
};

}  // namespace trireme
