#include "trireme/base/file.h"
#include "base_testing.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

namespace trireme {
namespace {

namespace fs = std::filesystem;

class FileTest : public DirectoryTest {
 protected:
  size_t entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(root_), fs::directory_iterator()));
  }
  std::string text(const fs::path& path) { return read_text_file(path, ExitCode::kData); }
};

TEST_F(FileTest, CommitReplacesWholeAndLeavesNothingElse) {
  const fs::path path = root_ / "a.bin";
  write_file_atomic(path, "old");
  {
    AtomicFile file(path);
    file.write("12345678");
    EXPECT_EQ(file.size(), 8U);
    EXPECT_EQ(text(path), "old");  // readers see the old file until commit
    file.commit();
  }
  EXPECT_EQ(text(path), "12345678");
  EXPECT_EQ(entries(), 1U);
  EXPECT_EQ(fs::status(path).permissions() & fs::perms::others_write, fs::perms::none);
}

TEST_F(FileTest, WithoutCommitNothingStays) {
  write_file_atomic(root_ / "a", "old");
  {
    AtomicFile file(root_ / "a");
    file.write("half");
  }
  EXPECT_EQ(text(root_ / "a"), "old");
  EXPECT_EQ(entries(), 1U);
}

TEST_F(FileTest, MissingDirectoryAndTakenNameAreWriteErrors) {
  const std::string missing = failure(ExitCode::kCannotWrite, [&] { write_file_atomic(root_ / "none" / "a", "x"); });
  EXPECT_TRUE(contains(missing, (root_ / "none" / "a").string()));
  EXPECT_TRUE(contains(missing, "No such file"));
  fs::create_directory(root_ / "taken");
  failure(ExitCode::kCannotWrite, [&] { write_file_atomic(root_ / "taken", "x"); });
  EXPECT_EQ(entries(), 1U);  // no temporary file remains
  write_file_atomic(root_ / "file", "x");
  failure(ExitCode::kCannotWrite, [&] { trireme::make_directories(root_ / "file" / "sub"); });
  failure(ExitCode::kCannotWrite, [&] { trireme::make_directories(root_ / "file"); });
  trireme::make_directories(root_ / "x" / "y");
  trireme::make_directories(root_ / "x" / "y");
  EXPECT_TRUE(fs::is_directory(root_ / "x" / "y"));
}

// The write that crosses the limit is short, the next one fails: this covers both paths.
TEST_F(FileTest, ShortWritesAreRetriedAndTheLimitReported) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, 1000};
    setrlimit(RLIMIT_FSIZE, &limit);
    try {
      AtomicFile file(root_ / "big");
      file.write(std::string(1500, 'a'));
      _exit(1);
    } catch (const WriteError& error) {
      _exit(std::strstr(error.what(), "File too large") != nullptr ? 0 : 2);
    }
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(entries(), 0U);
}

TEST_F(FileTest, FullAndReadOnlyFileSystems) {
  const fs::path mount_point = root_ / "small";
  fs::create_directory(mount_point);
  if (mount("tmpfs", mount_point.c_str(), "tmpfs", 0, "size=64k") != 0)
    GTEST_SKIP() << "mounting a small tmpfs needs root: " << std::strerror(errno);
  write_file_atomic(mount_point / "kept", "kept");
  const std::string full =
      failure(ExitCode::kCannotWrite, [&] { write_file_atomic(mount_point / "big", std::string(200'000, 'x')); });
  EXPECT_TRUE(contains(full, "No space left"));
  EXPECT_TRUE(contains(full, "free some space"));
  EXPECT_EQ(text(mount_point / "kept"), "kept");
  EXPECT_FALSE(fs::exists(mount_point / "big"));
  EXPECT_EQ(std::distance(fs::directory_iterator(mount_point), fs::directory_iterator()), 1);
  EXPECT_EQ(mount("", mount_point.c_str(), "", MS_REMOUNT | MS_RDONLY, "size=64k"), 0);
  const std::string read_only =
      failure(ExitCode::kCannotWrite, [&] { write_file_atomic(mount_point / "kept", "new"); });
  EXPECT_TRUE(contains(read_only, "Read-only"));
  failure(ExitCode::kCannotWrite, [&] { trireme::make_directories(mount_point / "sub"); });
  EXPECT_EQ(umount(mount_point.c_str()), 0);
}

TEST_F(FileTest, MapsFilesAndNamesWhatCannotBeMapped) {
  write_file_atomic(root_ / "a", "hello");
  write_file_atomic(root_ / "empty", "");
  MappedFile first(root_ / "a", ExitCode::kData);
  ASSERT_EQ(first.bytes().size(), 5U);
  MappedFile second = std::move(first);
  EXPECT_EQ(std::memcmp(second.bytes().data(), "hello", 5), 0);
  EXPECT_TRUE(MappedFile(root_ / "empty", ExitCode::kData).bytes().empty());
  second = MappedFile(root_ / "empty", ExitCode::kData);
  EXPECT_TRUE(second.bytes().empty());

  const std::string missing = failure(ExitCode::kModel, [&] { MappedFile(root_ / "no", ExitCode::kModel); });
  EXPECT_TRUE(contains(missing, "No such file"));
  const std::string folder = failure(ExitCode::kData, [&] { MappedFile(root_, ExitCode::kData); });
  EXPECT_TRUE(contains(folder, "directory"));
  ASSERT_EQ(mkfifo((root_ / "fifo").c_str(), 0600), 0);
  failure(ExitCode::kData, [&] { MappedFile(root_ / "fifo", ExitCode::kData); });
  EXPECT_EQ(file_head(root_ / "fifo", 3), "");
  EXPECT_EQ(file_head(root_ / "a", 3) + file_head(root_ / "a", 9), "helhello");
}

TEST_F(FileTest, ReadTextFileBoundsTheSize) {
  write_file_atomic(root_ / "a", std::string(100, 'x'));
  EXPECT_EQ(read_text_file(root_ / "a", ExitCode::kModel, 100).size(), 100U);
  const std::string text = failure(ExitCode::kModel, [&] { read_text_file(root_ / "a", ExitCode::kModel, 99); });
  EXPECT_TRUE(contains(text, "100 bytes"));
}

TEST_F(FileTest, SafeJoinStaysUnderItsRoot) {
  const auto join = [&](std::string_view name) { return safe_join(root_, name, ExitCode::kModel); };
  write_file_atomic(root_ / "a", "x");
  fs::create_directory(root_ / "sub");
  EXPECT_EQ(join("a"), root_ / "a");
  EXPECT_EQ(join("sub/../a"), root_ / "a");
  EXPECT_EQ(join("not/yet/there"), root_ / "not" / "yet" / "there");
  EXPECT_EQ(join("..a"), root_ / "..a");

  for (const std::string& name : {std::string(), std::string("../x"), std::string("sub/../../x"), std::string(".."),
                                  std::string("/etc/passwd"), std::string("a\0b", 3), std::string(5000, 'a')})
    failure(ExitCode::kModel, [&] { join(name); });

  fs::create_symlink("/etc", root_ / "out");
  fs::create_symlink("/etc/hostname", root_ / "file_out");
  fs::create_symlink("a", root_ / "within");
  fs::create_symlink("loop", root_ / "loop");
  failure(ExitCode::kModel, [&] { join("out/passwd"); });
  failure(ExitCode::kModel, [&] { join("file_out"); });
  failure(ExitCode::kModel, [&] { join("loop"); });
  EXPECT_EQ(join("within"), root_ / "within");
}

TEST_F(FileTest, DotsBehindALinkMeanTheParentOfItsTarget) {
  fs::create_directories(root_ / "deep" / "er");
  write_file_atomic(root_ / "a", "beside the link");
  write_file_atomic(root_ / "deep" / "a", "above the link's target");
  fs::create_symlink("deep/er", root_ / "link");
  EXPECT_EQ(text(safe_join(root_, "link/../a", ExitCode::kModel)), "above the link's target");
  EXPECT_EQ(text(tidy_path(root_ / "link" / ".." / "a")), "above the link's target");
  EXPECT_EQ(tidy_path(root_ / "deep" / ".." / "a"), root_ / "a");
  EXPECT_EQ(tidy_path(root_ / "not" / "." / "there"), root_ / "not" / "there");
  // Two levels up from the link's target are still inside; three are not.
  EXPECT_EQ(text(safe_join(root_, "deep/er/../../link/../../a", ExitCode::kModel)), "beside the link");
  failure(ExitCode::kModel, [&] { safe_join(root_ / "deep", "er/../../a", ExitCode::kModel); });
}

TEST_F(FileTest, SafeJoinFollowsHuggingFaceCacheLinksOnly) {
  const fs::path model = root_ / "models--x", snapshot = model / "snapshots" / "0123";
  fs::create_directories(snapshot);
  fs::create_directories(model / "blobs");
  write_file_atomic(model / "blobs" / "hash", "weights");
  write_file_atomic(model / "secret", "secret");
  fs::create_symlink("../../blobs/hash", snapshot / "model.safetensors");
  fs::create_symlink("../../secret", snapshot / "stolen.safetensors");
  EXPECT_EQ(text(safe_join(snapshot, "model.safetensors", ExitCode::kModel)), "weights");
  failure(ExitCode::kModel, [&] { safe_join(snapshot, "stolen.safetensors", ExitCode::kModel); });
}

}  // namespace
}  // namespace trireme
