#include "trireme/formats/huggingface/staged_model.h"

#include "trireme/base/error.h"
#include "trireme/base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <vector>

namespace trireme {

namespace {

namespace fs = std::filesystem;

constexpr const char* kModelConfig = "config.json";
constexpr const char* kNames[] = {kModelConfig,
                                  "generation_config.json",
                                  "tokenizer.model",
                                  "tokenizer.json",
                                  "tokenizer_config.json",
                                  "special_tokens_map.json",
                                  "added_tokens.json",
                                  "chat_template.jinja",
                                  "chat_template.json",
                                  "additional_chat_templates",
                                  "vocab.txt",
                                  "vocab.json",
                                  "merges.txt"};

bool is_weights(const std::string& name) {
  return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") ||
         (name.starts_with("pytorch_model") && (name.ends_with(".bin") || name.ends_with(".bin.index.json")));
}

bool is_of_model(const std::string& name) {
  for (const char* known : kNames)
    if (name == known) return true;
  return is_weights(name);
}

void check(const std::error_code& error, const char* what, const fs::path& path) {
  if (error) throw WriteError(fmt::format("cannot {} {}: {}", what, path.string(), error.message()));
}

}  // namespace

std::string model_file_in(const fs::path& directory) {
  std::error_code error;
  if (fs::exists(directory / kModelConfig, error)) return kModelConfig;
  for (const auto& entry : fs::directory_iterator(directory, error))
    if (const std::string name = entry.path().filename().string(); is_weights(name)) return name;
  for (const char* name : kNames)
    if (fs::exists(directory / name, error)) return name;
  return "";
}

bool holds_model(const fs::path& directory) {
  const std::string file = model_file_in(directory);
  return file == kModelConfig || is_weights(file);
}

StagedModel::StagedModel(fs::path directory) : directory_(std::move(directory)), staging_(directory_ / kStagedModel) {
  created_ = !fs::exists(directory_);
  make_directories(directory_);
  lock_.file = open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock_.file >= 0 && flock(lock_.file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    throw WriteError(fmt::format("another process writes a model into {}: wait for it, or choose another directory",
                                 directory_.string()));
  std::error_code error;
  fs::remove_all(staging_, error);
  check(error, "remove what an interrupted program left in", staging_);
  make_directories(staging_);
}

StagedModel::Lock::~Lock() {
  if (file >= 0) close(file);
}

StagedModel::~StagedModel() {
  if (staging_.empty()) return;
  std::error_code ignored;
  fs::remove_all(staging_, ignored);
  if (created_) fs::remove(directory_, ignored);  // only when it is empty
}

void StagedModel::commit() {
  std::error_code error;
  // A directory without config.json holds no model: a process that is killed here never leaves a mixture of two models.
  fs::remove(directory_ / kModelConfig, error);
  check(error, "remove", directory_ / kModelConfig);
  for (const auto& entry : fs::directory_iterator(directory_, error)) {
    const std::string name = entry.path().filename().string();
    if (!is_of_model(name) || (entry.is_directory() && is_weights(name))) continue;
    std::error_code removed;
    fs::remove_all(entry.path(), removed);
    check(removed, "remove", entry.path());
  }
  check(error, "read", directory_);
  const auto move = [&](const fs::path& file) {
    std::error_code moved;
    fs::rename(file, directory_ / file.filename(), moved);
    check(moved, "write", directory_ / file.filename());
  };
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(staging_, error)) files.push_back(entry.path());
  check(error, "read", staging_);
  for (const fs::path& file : files)
    if (file.filename() != kModelConfig) move(file);
  const std::string config = read_text_file(staging_ / kModelConfig, ExitCode::kInternal);
  write_file_atomic(directory_ / kModelConfig,
                    config);  // its fsync of the directory also makes the renames above durable
  fs::remove_all(staging_, error);
  check(error, "remove", staging_);
  staging_.clear();
}

}  // namespace trireme
