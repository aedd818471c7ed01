// Temporary files of several processes: names, and the removal of files of dead processes.
#include "base_testing.h"
#include "trireme/base/file.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <thread>
#include <vector>

namespace trireme {
namespace {

namespace fs = std::filesystem;

class TemporaryFileTest : public DirectoryTest {
 protected:
  std::set<std::string> names() const {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(root_)) found.insert(entry.path().filename().string());
    return found;
  }
  void put(const std::string& name) const { std::ofstream(root_ / name) << "half"; }
};

/// Runs `body` in a child process; returns the status from waitpid().
int in_child(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    try {
      body();
    } catch (...) {
      _exit(1);
    }
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

void half_written(const fs::path& path) {
  AtomicFile file(path);
  file.write("half");
  raise(SIGKILL);
}

// The process of a container always has ID 1, so names must not depend on the process ID.
TEST_F(TemporaryFileTest, WhatAnEarlierLifeLeftNeverBlocksTheNext) {
  for (int n = 0; n < 200; ++n) put(fmt::format("model.tmp-{}-{}", getpid(), n));
  for (int n = 0; n < 10; ++n) write_file_atomic(root_ / "model", "whole");
  EXPECT_EQ(read_text_file(root_ / "model", ExitCode::kModel), "whole");
}

TEST_F(TemporaryFileTest, TheDeadAreRemovedByTheNextWriterOfTheSameFile) {
  for (int life = 0; life < 3; ++life)
    EXPECT_TRUE(WIFSIGNALED(in_child([&] { half_written(root_ / "model"); }))) << life;
  EXPECT_EQ(names().size(), 1U) << "each process removes what the one before left";
  EXPECT_TRUE(WIFSIGNALED(in_child([&] { half_written(root_ / "other"); })));
  write_file_atomic(root_ / "model", "whole");
  EXPECT_EQ(names().size(), 2U) << "temporary files of another target are kept";
  EXPECT_TRUE(names().contains("model"));
  EXPECT_EQ(remove_dead_temporaries(root_), 1U);
  EXPECT_EQ(names(), std::set<std::string>{"model"});
}

TEST_F(TemporaryFileTest, TheLivingKeepTheirs) {
  int ready[2], go[2];
  ASSERT_EQ(pipe(ready) + pipe(go), 0);
  const pid_t child = fork();
  if (child == 0) {
    try {
      char byte = 0;
      AtomicFile file(root_ / "model");
      file.write("theirs");
      if (::write(ready[1], &byte, 1) != 1 || read(go[0], &byte, 1) != 1) _exit(2);
      file.commit();
    } catch (...) {
      _exit(1);
    }
    _exit(0);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  {
    const AtomicFile mine(root_ / "model");  // of this process
    write_file_atomic(root_ / "model", "ours");
    EXPECT_EQ(remove_dead_temporaries(root_), 0U);
    EXPECT_EQ(names().size(), 3U) << "the other process's, this process's, and the file";
  }
  ASSERT_EQ(::write(go[1], &byte, 1), 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "the other writer's commit failed";
  EXPECT_EQ(read_text_file(root_ / "model", ExitCode::kModel), "theirs");
  EXPECT_EQ(names(), std::set<std::string>{"model"});
}

TEST_F(TemporaryFileTest, OnlyTemporariesOfOursAreRemoved) {
  const std::set<std::string> others = {
      "model.tmp-0123", "model.tmp-0123456789ABCDEF", "model.tmp-0123456789abcdef0", ".tmp-0123456789abcdef",
      "model.tmp-",     "model0123456789abcdef"};
  for (const std::string& name : others) put(name);
  fs::create_directory(root_ / "model.tmp-1111111111111111");
  fs::create_symlink(root_ / "model.tmp-0123", root_ / "model.tmp-2222222222222222");
  const auto before = names();
  EXPECT_EQ(remove_dead_temporaries(root_), 0U);
  EXPECT_EQ(remove_dead_temporaries(root_, "model"), 0U);
  EXPECT_EQ(names(), before);
  EXPECT_EQ(remove_dead_temporaries(root_ / "none"), 0U);
}

TEST_F(TemporaryFileTest, WritersOfOneFileDoNotDisturbEachOther) {
  std::vector<std::thread> writers;
  std::atomic<int> failed = 0;
  for (int writer = 0; writer < 4; ++writer)
    writers.emplace_back([&] {
      for (int n = 0; n < 100; ++n) try {
          write_file_atomic(root_ / "model", "whole");
        } catch (const Error&) {
          ++failed;
        }
    });
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(names(), std::set<std::string>{"model"});
}

TEST_F(TemporaryFileTest, OnlyFilesAreReplacedDevicesAndPipesAreWrittenTo) {
  const auto content = [](const fs::path& path) {
    std::ifstream in(path);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  // A device: what it is stays, and its refusal is a WriteError.
  write_file_atomic("/dev/null", "gone");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_THROW(write_file_atomic("/dev/full", "text"), WriteError);
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
  // A pipe with more than it holds at a time.
  const fs::path pipe = root_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::string large(300'000, 'x');
  std::string read;
  std::thread reader([&] { read = content(pipe); });
  write_file_atomic(pipe, large);
  reader.join();
  EXPECT_EQ(read, large);
  EXPECT_TRUE(fs::is_fifo(pipe));
  // A link stays, and what it stands for is replaced, or made.
  put("old");
  fs::create_directory(root_ / "links");
  fs::create_symlink("../old", root_ / "links/one");
  fs::create_symlink("one", root_ / "links/two");
  fs::create_symlink("made", root_ / "links/dangling");
  fs::create_symlink("/dev/null", root_ / "links/null");
  for (const char* link : {"two", "dangling", "null"}) write_file_atomic(root_ / "links" / link, "new");
  EXPECT_TRUE(fs::is_symlink(root_ / "links/two") && fs::is_symlink(root_ / "links/one"));
  EXPECT_TRUE(fs::is_symlink(root_ / "links/null") && fs::is_character_file("/dev/null"));
  EXPECT_EQ(content(root_ / "old") + content(root_ / "links/made"), "newnew");
  // A descriptor goes on where it is: its file has no name of its own.
  EXPECT_EQ(in_child([&] {
              if (std::freopen((root_ / "stdout").c_str(), "w", stdout) == nullptr) _exit(2);
              std::printf("first, ");
              std::fflush(stdout);
              write_file_atomic("/dev/stdout", "second");
              write_file_atomic("/dev/fd/1", ", third");
            }),
            0);
  EXPECT_EQ(content(root_ / "stdout"), "first, second, third");
  EXPECT_TRUE(fs::is_symlink("/dev/stdout"));
  EXPECT_EQ(names(), (std::set<std::string>{"old", "links", "pipe", "stdout"}));
}

}  // namespace
}  // namespace trireme
