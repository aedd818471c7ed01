#pragma once
// Scratch directories, a tokenizer trained once per program, and Python programs as references.

#include "../base/base_testing.h"
#include "data/prepare/sentencepiece_train.h"
#include "data/tokenizer/tokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

namespace trireme {

/// What a process left.
struct Outcome {
  int code;
  std::string out, err;
};

/// Tests that run Python programs.
class Scratch : public DirectoryTest {
 protected:
  /// Runs a Python program with `arguments`; returns its output, or fails the test with its stderr.
  std::string python(const std::string& program, const std::string& arguments = "") const {
    write("program.py", program);
    const std::string command = fmt::format("'{}' '{}' {} >'{}' 2>'{}'", TRIREME_PYTHON, path("program.py").string(),
                                            arguments, path("python.out").string(), path("python.err").string());
    if (std::system(command.c_str()) != 0) ADD_FAILURE() << slurp("python.err");
    return slurp("python.out");
  }
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
  void copy_to(const std::filesystem::path& target, const std::function<void(const std::filesystem::path&)>& make) {
    if (!directory_) make(directory_.emplace().root());
    std::filesystem::copy(directory_->root(), target, std::filesystem::copy_options::recursive);
  }

 private:
  std::optional<TemporaryDirectory> directory_;
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
    const TemporaryDirectory directory;
    TokenizerTraining training;
    training.inputs = {directory.write("text.txt", training_text())};
    training.vocab_size = 400;
    return train_tokenizer(training).serialized_model;
  }();
  return model;
}

inline Tokenizer small_tokenizer() { return Tokenizer(small_model(), "small.model"); }

/// The path of Llama 2's tokenizer, outside of the repository; it may not exist.
inline std::filesystem::path llama2_model() {
  return std::filesystem::path(TRIREME_SOURCE_DIR) / "../shared/data/llama2/tokenizer.model";
}

}  // namespace trireme
