#pragma once

#include <levin/core/base/stopped_time.h>
#include <levin/core/comm/rank_failure.h>
#include <levin/core/interfaces/launcher.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>

namespace levin {

/// Returns the name of an accelerator whose driver this process has started, or nothing; asking starts none.
std::string started_accelerator();

struct ForkLauncherOptions {
  int64_t num_ranks = 1;
  int64_t first_rank = 0;  ///< rank, in the whole job, of local rank 0; for messages
  /// Time that a rank may take to end after another has failed, before it is killed.
  std::chrono::milliseconds grace{5000};
  /// A rank that was stopped (SIGSTOP) and that nobody continued for so long is killed.
  std::chrono::milliseconds stopped_limit = kStoppedLimit;
  /// Called in this process once all ranks are forked. A thread that is started before may hold a lock at that moment,
  /// which the ranks would then wait for for ever.
  std::function<void()> after_fork = {};
  /// Called in this process with the first failure, so that the other ranks learn of it and end by themselves. Without
  /// it they get SIGTERM.
  std::function<void(const RankFailure& failure)> on_failure = {};
  /// Whether an error only tells of another rank's: it is thrown only when there is no other within `grace`. Asked in
  /// the rank's process.
  std::function<bool(const std::exception_ptr& error)> is_consequence = {};
  /// Tests replace it.
  std::function<std::string()> started_accelerator = levin::started_accelerator;
};

/// Starts local ranks as forked processes; this process waits for them. A single rank runs in this process.
///
/// A rank begins with everything that this process holds, and runs on a fresh thread: thread pools that were started
/// before the fork are rebuilt there. What it changes in memory ends with it, except for what local rank 0 saves with
/// RankProgram::save_outcome. Its end runs no destructors and no atexit handlers; standard output and error are
/// flushed, other files must have been when the program returns.
class ForkLauncher : public Launcher {
 public:
  explicit ForkLauncher(ForkLauncherOptions options);

  /// Throws the first failure as levin::Error that names the rank. Ranks end when this process dies, kill -9 included;
  /// SIGINT and SIGTERM are passed on to them when this process handles them.
  void launch(RankProgram& program) override;

 private:
  const ForkLauncherOptions options_;
};

}  // namespace levin
