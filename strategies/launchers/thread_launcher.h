#pragma once

#include <levin/core/interfaces/launcher.h>

#include <cstdint>
#include <exception>
#include <functional>

namespace levin {

struct ThreadLauncherOptions {
  int64_t num_ranks = 1;
  /// Called for the first rank that throws, on its thread, so that the other ranks' collectives can be aborted: a rank
  /// that waits for the failed one must be woken, since launch() waits for all. Must not throw.
  std::function<void(int64_t local_rank, const std::exception_ptr& error)> on_error = {};
  /// Whether an error only tells of another rank's: it is thrown only when there is no other.
  std::function<bool(const std::exception_ptr& error)> is_consequence = {};
};

/// Starts local ranks as threads of this process; rank 0 is the calling thread, whichever that is. Each rank gets an
/// equal part of the cores.
class ThreadLauncher : public Launcher {
 public:
  explicit ThreadLauncher(ThreadLauncherOptions options);

  /// Returns when all ranks have ended. The error that came first in time is thrown as it is; others are dropped.
  void launch(RankProgram& program) override;

 private:
  const ThreadLauncherOptions options_;
};

}  // namespace levin
