// Which checkpoints stay in a folder, and what a save does beside those of other runs and of dead ones.
#include "checkpoint_folder.h"

#include "../base/base_testing.h"
#include "trireme/base/file.h"

#include <gtest/gtest.h>

#include <set>

namespace trireme {
namespace {

class CheckpointFolderTest : public DirectoryTest {
 protected:
  static void save(const CheckpointFolder& folder, const char* run, int64_t step) {
    CheckpointManifest manifest;
    manifest.run_id = run;
    manifest.step = step;
    folder.begin(step);
    folder.commit(manifest);
  }
  std::set<std::string> names() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) names.insert(entry.path().filename().string());
    return names;
  }

  const std::filesystem::path path_ = path("checkpoints");
};

TEST_F(CheckpointFolderTest, KeepsTheNewestOfItsOwnRun) {
  const CheckpointFolder other(path_, "ffff", 9), folder(path_, "0123", 2);
  other.open();
  save(other, "ffff", 1);
  for (const int64_t step : {2, 3, 4}) save(folder, "0123", step);
  EXPECT_EQ(names(), (std::set<std::string>{checkpoint_name(1), checkpoint_name(3), checkpoint_name(4), "LATEST"}));
  EXPECT_TRUE(folder.holds(4));
  EXPECT_FALSE(folder.holds(2));
  EXPECT_FALSE(folder.holds(1)) << "it is another run's";
  EXPECT_THROW(save(folder, "0123", 1), WriteError);
  EXPECT_TRUE(other.holds(1)) << "a refused save changed another run's checkpoint";
}

TEST_F(CheckpointFolderTest, ReplacesWhatIsNotWholeAndRemovesWhatDeadRunsLeft) {
  const CheckpointFolder folder(path_, "0123", 2);
  make_directories(path_ / checkpoint_name(5));  // no manifest
  make_directories(path_ / (checkpoint_name(6) + ".tmp-dead"));
  folder.open();
  EXPECT_EQ(names(), (std::set<std::string>{checkpoint_name(5)}));
  EXPECT_FALSE(folder.holds(5));
  save(folder, "0123", 5);
  EXPECT_TRUE(folder.holds(5));
  EXPECT_TRUE(names().contains(checkpoint_name(5) + ".damaged"));
  folder.begin(6);
  folder.discard(6);
  EXPECT_FALSE(std::filesystem::exists(folder.unfinished(6)));
}

TEST_F(CheckpointFolderTest, DoesNotMakeTheFolderOfARemovedRun) {
  const CheckpointFolder folder(path_, "0123", 2);
  EXPECT_THROW(folder.begin(1), WriteError);
  EXPECT_FALSE(std::filesystem::exists(path_));
}

}  // namespace
}  // namespace trireme
