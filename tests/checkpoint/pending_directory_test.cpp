#include <levin/core/checkpoint/pending_directory.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>

#include "checkpoint_fixture.h"

#include <signal.h>
#include <sys/wait.h>

namespace levin {
namespace {

class PendingDirectoryTest : public testing::CheckpointTest {
 protected:
  std::vector<std::string> names() const { return FileSystem::current().list(folder_); }
};

/// Another process that has begun to write a folder, and lives until it is killed.
class Writer {
 public:
  explicit Writer(const std::string& path) {
    Pipe begun = make_pipe();
    process_ = ::fork();
    if (process_ == 0) {
      const PendingDirectory pending(path);
      std::filesystem::create_directories(pending.path() + "/deep");
      const ssize_t written = ::write(begun.write_end.number(), "", 1);
      while (written == 1) ::pause();
      ::_exit(1);
    }
    char byte = 1;
    EXPECT_EQ(::read(begun.read_end.number(), &byte, 1), 1);
  }
  ~Writer() { kill(); }
  void kill() {
    if (process_ > 0) {
      ::kill(process_, SIGKILL);
      ::waitpid(process_, nullptr, 0);
    }
    process_ = -1;
  }

 private:
  pid_t process_ = -1;
};

TEST_F(PendingDirectoryTest, AppearsOnlyWhenCommitted) {
  {
    PendingDirectory pending(path("a/b/last/"));
    EXPECT_TRUE(pending.path().starts_with(path("a/b/.last.tmp-"))) << pending.path();
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

TEST_F(PendingDirectoryTest, RemovesWhatDeadProcessesLeftAndNothingElse) {
  const std::string kept = ".last.tmp-1-0";
  std::filesystem::create_directory(path(kept));
  Writer alive(path("alive"));
  {
    Writer dead(path("dead"));
    EXPECT_EQ(names().size(), 3);
  }
  const PendingDirectory open(path("open"));
  const auto others = names();
  ASSERT_EQ(others.size(), 3) << "what the dead one left is gone";
  alive.kill();
  {
    PendingDirectory pending(path("last"));
    pending.commit();
  }
  std::vector<std::string> expected{kept, "last", std::filesystem::path(open.path()).filename().string()};
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(names(), expected);
}

TEST_F(PendingDirectoryTest, WhatOtherMachinesLeftIsRemovedAfterADayWithoutAChange) {
  const std::string old = ".last.tmp-00000000-5-0";
  const std::string written = ".last.tmp-00000000-5-1";
  const auto before = std::filesystem::file_time_type::clock::now() - std::chrono::hours(25);
  for (const auto& name : {old, written}) {
    std::filesystem::create_directory(path(name));
    testing::write_bytes(path(name + "/file"), "1");
    if (name == old) std::filesystem::last_write_time(path(name + "/file"), before);
    std::filesystem::last_write_time(path(name), before);
  }
  { const PendingDirectory pending(path("last")); }
  EXPECT_EQ(names(), std::vector<std::string>{written});
}

}  // namespace
}  // namespace levin
