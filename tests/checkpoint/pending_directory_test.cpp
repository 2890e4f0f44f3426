#include <levin/core/checkpoint/pending_directory.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>

#include "checkpoint_fixture.h"

#include <sys/wait.h>

namespace levin {
namespace {

class PendingDirectoryTest : public testing::CheckpointTest {
 protected:
  std::vector<std::string> names() const { return FileSystem::current().list(folder_); }
};

/// The id of a process that is no more.
pid_t dead_process() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  return child;
}

TEST_F(PendingDirectoryTest, AppearsOnlyWhenCommitted) {
  {
    PendingDirectory pending(path("a/b/last/"));
    EXPECT_TRUE(pending.path().starts_with(path("a/b/.last.tmp-" + std::to_string(::getpid()) + "-")))
        << pending.path();
    testing::write_bytes(pending.path() + "/file", "1");
    EXPECT_FALSE(std::filesystem::exists(path("a/b/last")));
    pending.commit();
  }
  EXPECT_EQ(testing::read_bytes(path("a/b/last/file")), "1");
  EXPECT_EQ(FileSystem::current().list(path("a/b")), std::vector<std::string>{"last"});
}

TEST_F(PendingDirectoryTest, IsRemovedWhenNotCommitted) {
  testing::write_bytes(path("other"), "");
  {
    PendingDirectory pending(path("last"));
    testing::write_bytes(pending.path() + "/file", "1");
  }
  EXPECT_EQ(names(), std::vector<std::string>{"other"});
}

TEST_F(PendingDirectoryTest, RelativePathWithoutAFolder) {
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder_);
  {
    PendingDirectory pending("last");
    pending.commit();
  }
  std::filesystem::current_path(before);
  EXPECT_EQ(names(), std::vector<std::string>{"last"});
}

TEST_F(PendingDirectoryTest, RefusesAPathWithoutAName) {
  for (const char* bad : {"/", "..", ".", "a/.."}) EXPECT_THROW({ PendingDirectory pending(bad); }, Error) << bad;
}

TEST_F(PendingDirectoryTest, RemovesWhatDeadProcessesLeft) {
  const std::string dead = std::to_string(dead_process());
  const std::string mine = std::to_string(::getpid());
  const std::vector<std::string> kept{".last.tmp-1-0", ".last.tmp-x-0", ".last.tmp-" + dead, "last.tmp-" + dead + "-0"};
  for (const auto& name : kept) std::filesystem::create_directory(path(name));
  std::filesystem::create_directories(path(".other.tmp-" + dead + "-12/deep"));
  // A process that ran before under the id that this one has now.
  std::filesystem::create_directory(path(".last.tmp-" + mine + "-999999"));
  PendingDirectory open(path("open"));
  {
    PendingDirectory pending(path("last"));
    pending.commit();
  }
  EXPECT_TRUE(std::filesystem::exists(open.path()));
  std::vector<std::string> expected = kept;
  expected.push_back("last");
  expected.push_back(std::filesystem::path(open.path()).filename().string());
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(names(), expected);
}

}  // namespace
}  // namespace levin
