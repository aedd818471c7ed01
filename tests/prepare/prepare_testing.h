#pragma once
// Scratch directories, a tokenizer trained once per program, and Python programs as references.

#include "../base/base_testing.h"
#include "data/prepare/sentencepiece_train.h"
#include "data/tokenizer/tokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>

namespace trireme {

/// What a process left.
struct Outcome {
  int code;
  std::string out, err;
};

/// A directory of the running test, empty at its start and removed at its end.
class Scratch : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    directory_ = std::filesystem::temp_directory_path() /
                 fmt::format("trireme_{}_{}_{}", info->test_suite_name(), info->name(), getpid());
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::filesystem::path path(const std::string& name) const { return directory_ / name; }
  std::filesystem::path write(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }

  /// Runs a Python program with `arguments`; returns its output, or fails the test with its stderr.
  std::string python(const std::string& program, const std::string& arguments = "") const {
    write("program.py", program);
    const std::string command = fmt::format("'{}' '{}' {} >'{}' 2>'{}'", TRIREME_PYTHON, path("program.py").string(),
                                            arguments, path("python.out").string(), path("python.err").string());
    if (std::system(command.c_str()) != 0) ADD_FAILURE() << slurp("python.err");
    return slurp("python.out");
  }
  std::string slurp(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(path(name), std::ios::binary).rdbuf();
    return text.str();
  }

  std::filesystem::path directory_;
};

/// Each list of packages is tried once: an import takes half a second.
inline bool python_has(const std::string& packages) {
  static std::map<std::string, bool> known;
  const auto [at, is_new] = known.try_emplace(packages);
  if (is_new)
    at->second = std::system(fmt::format("'{}' -c 'import {}' >/dev/null 2>&1", TRIREME_PYTHON, packages).c_str()) == 0;
  return at->second;
}

/// A directory that a Python program fills once for all tests of the process: it gets the directory as its argument.
class MadeOnce {
 public:
  ~MadeOnce() {
    std::error_code ignored;
    if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
  }
  void copy_to(const std::filesystem::path& target, const std::function<void(const std::filesystem::path&)>& make) {
    if (directory_.empty()) {
      static int number = 0;
      directory_ = std::filesystem::temp_directory_path() / fmt::format("trireme_made_{}_{}", getpid(), number++);
      std::filesystem::remove_all(directory_);
      std::filesystem::create_directories(directory_);
      make(directory_);
    }
    std::filesystem::copy(directory_, target, std::filesystem::copy_options::recursive);
  }

 private:
  std::filesystem::path directory_;
};

/// Enough sentences for a few hundred pieces.
inline std::string training_text() {
  const char* subjects[] = {"The trireme", "A merchant ship", "Every oarsman", "The old harbour", "Athens", "A storm"};
  const char* verbs[] = {"crossed", "carried", "remembered", "guarded", "left behind", "followed"};
  const char* objects[] = {"the narrow strait", "170 rowers",       "olive oil and wine",
                           "the winter of 480", "a naïve stranger", "the long walls"};
  std::string text;
  for (const char* subject : subjects)
    for (const char* verb : verbs)
      for (const char* object : objects)
        text += fmt::format("{} {} {}, and nobody asked why.\n", subject, verb, object);
  return text;
}

/// A BPE model of 400 pieces on training_text(), trained once.
inline const std::string& small_model() {
  static const std::string model = [] {
    const auto file = std::filesystem::temp_directory_path() / fmt::format("trireme_training_text_{}", getpid());
    std::ofstream(file) << training_text();
    TokenizerTraining training;
    training.inputs = {file};
    training.vocab_size = 400;
    std::string result = train_tokenizer(training).serialized_model;
    std::filesystem::remove(file);
    return result;
  }();
  return model;
}

inline Tokenizer small_tokenizer() { return Tokenizer(small_model(), "small.model"); }

/// The path of Llama 2's tokenizer, outside of the repository; it may not exist.
inline std::filesystem::path llama2_model() {
  return std::filesystem::path(TRIREME_SOURCE_DIR) / "../shared/data/llama2/tokenizer.model";
}

}  // namespace trireme
