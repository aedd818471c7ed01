#pragma once
// What the configuration tests share.

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "../base/base_testing.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/config/config.h"

namespace trireme {

inline const std::filesystem::path kFixtures =
    std::filesystem::path(TRIREME_SOURCE_DIR) / "tests" / "config" / "fixtures";

/// A file that goes away with the object.
class TextFile {
 public:
  explicit TextFile(const std::string& content) {
    std::string pattern = (std::filesystem::temp_directory_path() / "trireme-config-XXXXXX").string();
    const int fd = mkstemp(pattern.data());
    if (fd >= 0) close(fd);
    path_ = pattern;
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~TextFile() { std::filesystem::remove(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// The lines of the ConfigError; empty if there was none.
inline std::vector<std::string> problems_of(const std::filesystem::path& file,
                                            const std::vector<std::string>& overrides = {},
                                            const ProgramKeys& program = {}, std::optional<int64_t> ranks = {}) {
  const std::string message = message_of<ConfigError>([&] { load_config(file, overrides, program, ranks); });
  return message.empty() ? std::vector<std::string>() : split(message, '\n');
}

inline Config load_text(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const TextFile file(text);
  return load_config(file.path(), overrides);
}

inline constexpr const char* kMinimal =
    "model: {path: /m}\ndata: {train: /t.npy, seq_length: 128}\noutput: {dir: /o}\n";

}  // namespace trireme
