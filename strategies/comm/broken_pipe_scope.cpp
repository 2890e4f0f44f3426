#include <levin/strategies/comm/broken_pipe_scope.h>

#include <cerrno>
#include <ctime>

namespace levin {
namespace {

sigset_t broken_pipe() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGPIPE);
  return signals;
}

}  // namespace

BrokenPipeScope::BrokenPipeScope() {
  const sigset_t signals = broken_pipe();
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &signals, &before);
  was_blocked_ = sigismember(&before, SIGPIPE) == 1;
}

BrokenPipeScope::~BrokenPipeScope() {
  if (was_blocked_) return;
  const sigset_t signals = broken_pipe();
  // Takes what has come meanwhile, which would else come now.
  const timespec at_once{};
  while (sigtimedwait(&signals, nullptr, &at_once) == -1 && errno == EINTR) {
  }
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

}  // namespace levin
