#include "trireme/base/log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <string>

#include "base_testing.h"

namespace trireme {
namespace {

struct Outcome {
  int code;
  std::string text;
};

Outcome run(const std::function<int()>& body, const std::function<void(const std::string&)>& on_error = {}) {
  testing::internal::CaptureStderr();
  const int code = run_main("prog", body, on_error);
  return {code, testing::internal::GetCapturedStderr()};
}

TEST(RunMain, MapsEveryErrorToItsExitCode) {
  EXPECT_EQ(run([] { return 75; }).code, 75);
  EXPECT_EQ(run([]() -> int { throw ConfigError("c"); }).code, 2);
  EXPECT_EQ(run([]() -> int { throw DataError("c"); }).code, 3);
  EXPECT_EQ(run([]() -> int { throw ModelError("c"); }).code, 4);
  EXPECT_EQ(run([]() -> int { throw WriteError("c"); }).code, 73);
  EXPECT_EQ(run([]() -> int { throw Error(ExitCode::kHang, "c"); }).code, 71);
  EXPECT_EQ(run([]() -> int { throw std::out_of_range("index"); }).code, 70);
  EXPECT_EQ(run([]() -> int { throw 5; }).code, 70);
}

TEST(RunMain, EndsWithOneSentence) {
  EXPECT_EQ(run([]() -> int { throw DataError("row 3 is short"); }).text, "prog: row 3 is short\n");
  EXPECT_EQ(run([] { return 0; }).text, "");
  EXPECT_TRUE(contains(run([]() -> int { throw std::bad_alloc(); }).text, "prog: internal error: "));
}

TEST(RunMain, PutsALibrarysStackBeforeTheSentence) {
  const Outcome outcome = run([]() -> int {
    throw std::runtime_error("reset by peer\nException raised from recv at Utils.hpp:679:\nframe #0: main\n");
  });
  EXPECT_EQ(outcome.text,
            "Exception raised from recv at Utils.hpp:679:\nframe #0: main\n\nprog: internal error: reset by peer\n");
}

TEST(RunMain, LeavesListsReadableForEditors) {
  EXPECT_EQ(run([]() -> int { throw ConfigError("a.yaml:1:2: x\na.yaml:3:4: y\n2 problems\n"); }).text,
            "a.yaml:1:2: x\na.yaml:3:4: y\nprog: 2 problems\n");
}

TEST(RunMain, TellsTheOthersBeforeTheLastLine) {
  std::string heard;
  const Outcome outcome = run([]() -> int { throw DataError("bad"); },
                              [&](const std::string& message) {
                                heard = message;
                                log_warn("bringing down");
                              });
  EXPECT_EQ(heard, "bad");
  EXPECT_TRUE(outcome.text.ends_with("bringing down\nprog: bad\n")) << outcome.text;
}

TEST(Log, OnlyRankZeroInformsAndOthersWarnWithTheirRank) {
  set_log_rank(3, 4);
  testing::internal::CaptureStderr();
  log_info("hidden");
  log_warn("disk {} is slow");
  set_log_rank(0, 1);
  log_info("shown");
  log_warn("alone");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_FALSE(contains(text, "hidden"));
  EXPECT_TRUE(contains(text, " rank 3: warning: disk {} is slow\n"));
  EXPECT_TRUE(contains(text, " shown\n"));
  EXPECT_TRUE(contains(text, " warning: alone\n"));
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

TEST(Check, CarriesPlaceConditionAndValues) {
  const int have = 3, want = 4;
  const std::string text = message_of<InternalError>(
      [&] { TRIREME_CHECK(have == want, "shard has ", have, " elements, unit expects ", want); });
  EXPECT_EQ(text.find("log_test.cpp:"), 0U) << text;
  EXPECT_TRUE(contains(text, "shard has 3 elements, unit expects 4"));
  EXPECT_TRUE(contains(text, "have == want"));
}

/// Status of a child that runs run_main() with descriptor 1 or 2 on `path`.
int run_on(int descriptor, const char* path, const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    const int file = open(path, O_WRONLY);
    dup2(file, descriptor);
    if (descriptor == STDOUT_FILENO) close(STDERR_FILENO);
    _exit(run_main("prog", body));
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(RunMain, OutputThatCannotBeWrittenIsNoSuccess) {
  const auto print = [](size_t size) {
    return [size] {
      std::fputs(std::string(size, 'x').c_str(), stdout);
      return 0;
    };
  };
  for (const size_t size : {1, 100'000}) {
    EXPECT_EQ(run_on(STDOUT_FILENO, "/dev/full", print(size)), 73) << size;
    EXPECT_EQ(run_on(STDOUT_FILENO, "/dev/null", print(size)), 0) << size;
  }
  // fmt::print() throws at the first block that cannot be written.
  EXPECT_EQ(run_on(STDOUT_FILENO, "/dev/full",
                   [] {
                     for (int line = 0; line < 100'000; ++line) fmt::print("line {}\n", line);
                     return 0;
                   }),
            73);
  EXPECT_EQ(run_on(STDOUT_FILENO, "/dev/full", [] { return std::printf("x") + 74; }), 75);
  EXPECT_EQ(run_on(STDERR_FILENO, "/dev/full", []() -> int { throw DataError("c"); }), 3);
}

}  // namespace
}  // namespace trireme
