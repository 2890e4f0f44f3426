#include <levin/strategies/comm/broken_pipe_scope.h>

#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <thread>

namespace levin {
namespace {

int error_of_writing_to_nobody() {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  close(ends[0]);
  const int error = write(ends[1], "x", 1) == 1 ? 0 : errno;
  close(ends[1]);
  return error;
}

TEST(BrokenPipeScope, WritesToNobodyAreErrors) {
  const BrokenPipeScope outer;
  {
    const BrokenPipeScope scope;
    EXPECT_EQ(error_of_writing_to_nobody(), EPIPE);
  }
  EXPECT_EQ(error_of_writing_to_nobody(), EPIPE);
}

TEST(BrokenPipeScope, ThreadsStartedInItKeepIt) {
  std::thread thread;
  std::atomic<bool> is_over = false;
  {
    const BrokenPipeScope scope;
    thread = std::thread([&] {
      while (!is_over) std::this_thread::yield();
      EXPECT_EQ(error_of_writing_to_nobody(), EPIPE);
    });
  }
  is_over = true;
  thread.join();
}

TEST(BrokenPipeScopeDeathTest, TheSignalIsAsBeforeAfterIt) {
  {
    const BrokenPipeScope scope;
    EXPECT_EQ(error_of_writing_to_nobody(), EPIPE);
  }
  EXPECT_EXIT(error_of_writing_to_nobody(), ::testing::KilledBySignal(SIGPIPE), "");
}

}  // namespace
}  // namespace levin
