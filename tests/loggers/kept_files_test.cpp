#include <levin/loggers/kept_files.h>

#include <levin/core/base/error.h>

#include <gtest/gtest.h>
#include "../support/run_program.h"
#include "../support/tiny.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace levin {
namespace {

namespace fs = std::filesystem;

void write_tree(const std::string& folder) {
  fs::create_directories(folder + "/part");
  std::ofstream(folder + "/b") << "bytes of b";
  std::ofstream(folder + "/part/a") << "bytes of a";
}

TEST(KeptFiles, StayWhenTheFirstAreRemoved) {
  const std::string folder = testing::fresh_folder("kept_files");
  write_tree(folder + "/from");
  EXPECT_EQ(keep_files(folder + "/from", folder + "/to"), (std::vector<std::string>{"b", "part/a"}));
  EXPECT_EQ(fs::hard_link_count(folder + "/to/part/a"), 2u);
  EXPECT_EQ(keep_files(folder + "/from/b", folder + "/one"), std::vector<std::string>{"b"});
  fs::remove_all(folder + "/from");
  EXPECT_EQ(testing::read_text(folder + "/to/part/a"), "bytes of a");
  EXPECT_EQ(testing::read_text(folder + "/one/b"), "bytes of b");
  EXPECT_THROW(keep_files(folder + "/from", folder + "/to"), Error);
  EXPECT_THROW(keep_files(folder + "/from/b", folder + "/to"), Error);
}

/// Links between two disks.
TEST(KeptFiles, OfAnotherDiskAreNotCopied) {
  const std::string folder = testing::fresh_folder("kept_files");
  const std::string other = "/dev/shm/levin_kept_files_" + std::to_string(::getpid());
  std::error_code error;
  fs::create_directories(other, error);
  struct stat here {
  }, there{};
  if (error || ::stat(folder.c_str(), &here) != 0 || ::stat(other.c_str(), &there) != 0 || here.st_dev == there.st_dev)
    GTEST_SKIP() << "/dev/shm is not another disk than " << folder;
  write_tree(other + "/from");
  // Relative, as the trainer's folder may be: a link must lead to it from anywhere.
  const std::string relative = fs::relative(other + "/from");
  EXPECT_EQ(keep_files(relative, folder + "/to"), (std::vector<std::string>{"b", "part/a"}));
  EXPECT_TRUE(fs::is_symlink(folder + "/to/part/a"));
  EXPECT_EQ(testing::read_text(folder + "/to/part/a"), "bytes of a");
  fs::remove_all(other);
  EXPECT_FALSE(fs::exists(folder + "/to/part/a"));
}

}  // namespace
}  // namespace levin
