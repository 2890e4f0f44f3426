#include <levin/strategies/launchers/outcome_folder.h>

#include <gtest/gtest.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>

namespace levin {
namespace {

TEST(OutcomeFolderTest, WhatAKilledProgramLeftIsRemovedByTheNextOne) {
  Pipe pipe = make_pipe();
  const pid_t process = ::fork();
  if (process == 0) {
    const OutcomeFolder folder;
    const std::string& path = folder.path();
    const auto written = ::write(pipe.write_end.number(), path.data(), path.size());
    while (written > 0) ::pause();
    ::_exit(1);
  }
  std::string path(4096, '\0');
  const auto size = ::read(pipe.read_end.number(), path.data(), path.size());
  ASSERT_GT(size, 0);
  path.resize(static_cast<size_t>(size));

  std::optional<OutcomeFolder> first(std::in_place);
  EXPECT_TRUE(std::filesystem::exists(path)) << "its owner lives";
  ::kill(process, SIGKILL);
  ::waitpid(process, nullptr, 0);
  const OutcomeFolder second;
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE(std::filesystem::exists(first->path()));
  const std::string removed = first->path();
  first.reset();
  EXPECT_FALSE(std::filesystem::exists(removed));
}

}  // namespace
}  // namespace levin
