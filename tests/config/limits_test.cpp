// Hostile files: refused within a second and 200 MB, whatever they hold.
#include <sys/resource.h>
#include <sys/wait.h>

#include "config_testing.h"

namespace trireme {
namespace {

constexpr double kMaxSeconds = 1.0;
constexpr long kMaxKilobytes = 200 * 1024;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMeasured = false;  // sanitizers multiply both figures
#else
constexpr bool kMeasured = true;
#endif

std::string repeat(const std::string& piece, size_t bytes) {
  std::string text;
  text.reserve(bytes + piece.size());
  while (text.size() + piece.size() <= bytes) text += piece;
  return text;
}

// Loads in a child, so that its peak memory is its own; true if it was refused as a configuration error.
void expect_refused_cheaply(const std::string& name, const std::string& content) {
  const TextFile file(content);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(problems_of(file.path()).empty() ? 1 : 0);
  int status = 0;
  rusage usage{};
  ASSERT_EQ(wait4(child, &status, 0, &usage), child);
  // Processor time: the wall clock also counts whatever else the machine does.
  const double seconds = static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << name << ": status " << status;
  if (kMeasured) {
    EXPECT_LT(seconds, kMaxSeconds) << name;
    EXPECT_LT(usage.ru_maxrss, kMaxKilobytes) << name;
  }
}

TEST(Limits, NestingOfAHundredThousandLevels) {
  expect_refused_cheaply("lists", "a: " + repeat("[", 100'000) + repeat("]", 100'000));
  expect_refused_cheaply("mappings", "a: " + repeat("{", 100'000));
  expect_refused_cheaply("lists over lines", "a:\n" + repeat(" [\n", 300'000));
  expect_refused_cheaply("block lists", repeat("- ", 200'000) + "x\n");
  expect_refused_cheaply("explicit keys", repeat("? ", 200'000) + "x\n");
}

TEST(Limits, AMebibyteOfTheSame) {
  constexpr size_t kBytes = (1 << 20) - 16;
  for (const char* piece :
       {"[", "{", "- ",   "a: ",   "&a ",   "*a ", "!",   "!a ", "\"", "'",      "#",  "|\n", ",",
        ":", "%", "%A\n", "---\n", "...\n", "a ",  "a\n", "\n",  " ",  "a: 1\n", "[:", "\\",  "<<: "})
    expect_refused_cheaply(piece, repeat(piece, kBytes));
  expect_refused_cheaply("list", "a: [" + repeat("a, ", kBytes - 16) + "]");
  expect_refused_cheaply("nulls", "[" + repeat(",", kBytes - 16) + "]");
  expect_refused_cheaply("mapping", "{" + repeat("a: 1, ", kBytes - 16) + "}");
  expect_refused_cheaply("quoted", "a: \"" + repeat("\\x41", kBytes - 16) + "\"");
  expect_refused_cheaply("open quote", "a: \"" + repeat("b", kBytes - 16));
  expect_refused_cheaply("long key", "model:\n  " + repeat("a", kBytes - 16) + ": 1");
  std::string keys;
  for (int i = 0; keys.size() < kBytes - 32; ++i) keys += "key_" + std::to_string(i) + ": 1\n";
  expect_refused_cheaply("keys", keys);
}

TEST(Limits, FilesOverOneMebibyteAreNotRead) {
  const TextFile file(repeat("# comment\n", 10 << 20));
  const auto lines = problems_of(file.path());
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_TRUE(contains(lines[0], ":1:1: the file has 10485760 bytes"));
}

TEST(Limits, ProblemsPastTheHundredthAreCounted) {
  std::string text = std::string(kMinimal) + "optimizer:\n";
  for (int i = 0; i < 1000; ++i) text += "  zebra_" + std::to_string(i) + ": 1\n";
  const TextFile file(text);
  const auto lines = problems_of(file.path());
  ASSERT_EQ(lines.size(), 102U);
  EXPECT_EQ(lines[100], "… and 900 more");
  EXPECT_TRUE(contains(lines[101], "has 1000 problems"));
}

TEST(Limits, LongValuesAreCutInMessages) {
  const TextFile file(std::string(kMinimal) + "train: {loss: " + repeat("x", 5000) + "}\n");
  const auto lines = problems_of(file.path());
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_LT(lines[0].size(), 300U);
}

TEST(Limits, PathsOver4096BytesAreRefused) {
  const TextFile file("model: {path: " + repeat("x", 5000) + "}\ndata: {train: t, seq_length: 8}\n" +
                      "output: {dir: /o}\n");
  const auto lines = problems_of(file.path());
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_TRUE(contains(lines[0], "longer than 4096 bytes"));
}

TEST(Limits, MissingAndUnreadableFilesAreNamed) {
  const auto missing = problems_of("/nowhere/lora.yaml");
  ASSERT_EQ(missing.size(), 1U);
  EXPECT_EQ(missing[0], "cannot open /nowhere/lora.yaml: No such file or directory");
  EXPECT_EQ(problems_of("/").size(), 1U);
}

}  // namespace
}  // namespace trireme
