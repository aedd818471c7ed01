// Lines that cannot be written for a while. The limit on the size of files stands for a full disk: the write that
// crosses it is cut short, the next is refused.
#include "../base/base_testing.h"
#include "mlperf.h"
#include "trireme/base/append_file.h"
#include "trireme/base/file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <memory>
#include <vector>

namespace trireme {
namespace {

class LineFileTest : public DirectoryTest {
 protected:
  void SetUp() override {
    getrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, SIG_IGN);
  }
  void TearDown() override { limit(before_.rlim_cur); }
  void limit(rlim_t bytes) const {
    const rlimit limit{bytes, before_.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  std::vector<std::string> lines() const {
    std::vector<std::string> found;
    std::ifstream in(path_);
    for (std::string line; std::getline(in, line);) found.push_back(line);
    return found;
  }

  const std::filesystem::path path_ = path("metrics.jsonl");
  rlimit before_{};
};

TEST_F(LineFileTest, LinesWaitWhileThereIsNoRoomAndComeInOrder) {
  std::vector<std::string> written;
  LineFile file;
  file.open(path_, /*append=*/false);
  const auto write = [&](int n) {
    written.emplace_back(20, static_cast<char>('a' + n));
    file.write(written.back());
  };
  for (int n = 0; n < 3; ++n) write(n);
  limit(70);  // three lines of 21 bytes, and a third of the fourth
  for (int n = 3; n < 8; ++n) write(n);
  EXPECT_EQ(file.waiting(), 5U);
  EXPECT_EQ(lines(), std::vector<std::string>(written.begin(), written.begin() + 3)) << "no part of a line stays";
  limit(before_.rlim_cur);
  write(8);
  EXPECT_EQ(file.waiting(), 0U);
  EXPECT_EQ(lines(), written);
}

TEST_F(LineFileTest, TheLastLinesAreTriedAtTheEnd) {
  auto file = std::make_unique<LineFile>();
  file->open(path_, /*append=*/false);
  limit(5);
  file->write("first");
  EXPECT_EQ(file->waiting(), 1U);
  limit(before_.rlim_cur);
  file.reset();
  EXPECT_EQ(lines(), std::vector<std::string>{"first"});
}

TEST_F(LineFileTest, AFileThatIsMovedOrRemovedIsMadeAgain) {
  LineFile file;
  file.open(path_, /*append=*/false);
  file.write("one");
  const std::filesystem::path moved = path_.string() + ".1";
  std::filesystem::rename(path_, moved);
  file.write("two");
  EXPECT_EQ(lines(), std::vector<std::string>{"two"});
  EXPECT_EQ(read_text_file(moved, ExitCode::kData), "one\n");
  std::filesystem::remove(path_);
  file.write("three");
  file.write("four");
  EXPECT_EQ(lines(), (std::vector<std::string>{"three", "four"}));
  std::filesystem::remove(moved);
  LineFile headed(/*headed=*/true);
  headed.open(path_, /*append=*/false);
  for (const char* line : {"head", "five"}) headed.write(line);
  std::filesystem::remove(path_);
  headed.write("six");
  EXPECT_EQ(lines(), (std::vector<std::string>{"head", "six"}));
  std::filesystem::resize_file(path_, 0);  // as logrotate's copytruncate
  headed.write("seven");
  EXPECT_EQ(lines(), (std::vector<std::string>{"head", "seven"}));
  write_file_atomic(path_, "head\n");  // as sed -i
  testing::internal::CaptureStderr();
  headed.write("eight");
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(contains(told, "was replaced"));
  EXPECT_EQ(lines(), (std::vector<std::string>{"head", "eight"}));
}

TEST_F(LineFileTest, AnMlperfLogThatLosesLinesIsNoResult) {
  MlperfLog log(path_, /*append=*/false);
  log.event("seed", "1");
  EXPECT_NO_THROW(log.check_whole());
  std::filesystem::remove(path_);
  log.event("seed", "2");
  EXPECT_THROW(log.check_whole(), WriteError);
}

TEST_F(LineFileTest, AppendingCutsALineThatAKilledProcessLeftHalf) {
  std::ofstream(path_) << "whole\nhal";
  {
    LineFile file;
    file.open(path_, /*append=*/true);
    file.write("next");
  }
  EXPECT_EQ(lines(), (std::vector<std::string>{"whole", "next"}));
  std::ofstream(path_) << std::string(10000, 'x');
  {
    LineFile file;
    file.open(path_, /*append=*/true);
    file.write("next");
  }
  EXPECT_EQ(lines(), std::vector<std::string>{"next"});
  LineFile none;
  EXPECT_THROW(none.open(path_.parent_path() / "none" / "a", false), WriteError);
}

}  // namespace
}  // namespace trireme
