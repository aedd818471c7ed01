#pragma once
// Replaces all files of the model in a directory together.

#include <filesystem>
#include <string>

namespace trireme {

/// Where the files of a model are written before they replace those of its directory.
inline constexpr const char* kStagedModel = ".incomplete";

/// Whether `directory` contains config.json, weights, or an index of weights.
bool holds_model(const std::filesystem::path& directory);
/// A file of `directory` that commit() removes or replaces, one of holds_model() first; empty: none is there.
std::string model_file_in(const std::filesystem::path& directory);

/// A model that is written for `directory`. Its files are written under path(), a subdirectory. commit() removes every
/// model file in `directory` (configuration, weights of every format, tokenizer), moves the new files in, and writes
/// config.json last: a directory with config.json never contains files of two models. Other files stay. Without
/// commit() `directory` does not change. WriteError names the path and the reason.
class StagedModel {
 public:
  /// Creates the directory; removes files that an interrupted process staged there. WriteError where another process
  /// writes a model there.
  explicit StagedModel(std::filesystem::path directory);
  ~StagedModel();
  StagedModel(const StagedModel&) = delete;
  StagedModel& operator=(const StagedModel&) = delete;
  const std::filesystem::path& path() const { return staging_; }
  void commit();

 private:
  std::filesystem::path directory_, staging_;
  bool created_ = false;  // `directory` did not exist
  struct Lock {
    int file = -1;  // without effect where the file system has no locks of directories, as NFS
    ~Lock();
  } lock_;  // of `directory`
};

}  // namespace trireme
