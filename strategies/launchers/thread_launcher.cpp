#include <levin/strategies/launchers/thread_launcher.h>

#include <levin/core/base/error.h>
#include <levin/core/base/mutex.h>
#include <levin/strategies/launchers/core_share.h>

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>

#include <future>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace levin {
namespace {

/// Collects what ranks throw.
class RankErrors {
 public:
  explicit RankErrors(const ThreadLauncherOptions& options) : options_(options) {}

  /// Called in a handler.
  void add(int64_t local_rank) {
    const std::exception_ptr error = std::current_exception();
    const bool consequence = options_.is_consequence && options_.is_consequence(error);
    bool first;
    {
      const MutexLock lock(mutex_);
      first = !cause_ && !consequence_;
      std::exception_ptr& place = consequence ? consequence_ : cause_;
      if (!place) place = error;
    }
    if (first && options_.on_error) options_.on_error(local_rank, error);
  }

  void rethrow() {
    const MutexLock lock(mutex_);
    if (cause_) std::rethrow_exception(cause_);
    if (consequence_) std::rethrow_exception(consequence_);
  }

 private:
  const ThreadLauncherOptions& options_;
  Mutex mutex_;
  std::exception_ptr cause_ LEVIN_GUARDED_BY(mutex_);        ///< the first error that is no consequence
  std::exception_ptr consequence_ LEVIN_GUARDED_BY(mutex_);  ///< the first that is
};

/// Signals are for the calling thread, which knows how to end a step.
void block_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

}  // namespace

ThreadLauncher::ThreadLauncher(ThreadLauncherOptions options) : options_(std::move(options)) {
  LEVIN_CHECK(options_.num_ranks >= 1, "there is at least one rank");
}

void ThreadLauncher::launch(RankProgram& program) {
  const int64_t num_ranks = options_.num_ranks;
  if (num_ranks == 1) return program.run(0);

  RankErrors errors(options_);
  const auto run = [&](int64_t local_rank) {
    try {
      program.run(local_rank);
    } catch (...) {
      errors.add(local_rank);
    }
  };

  const CoreShare share(num_ranks);
  // No rank begins before all threads exist: it would wait for one that cannot be started.
  std::promise<bool> go;
  const std::shared_future<bool> all_started = go.get_future().share();
  std::vector<std::thread> threads;
  const auto join_all = [&] {
    for (auto& thread : threads) thread.join();
  };
  try {
    threads.reserve(static_cast<size_t>(num_ranks - 1));
    for (int64_t local_rank = 1; local_rank < num_ranks; ++local_rank) {
      threads.emplace_back([&, local_rank] {
        pthread_setname_np(pthread_self(), fmt::format("levin-rank-{}", local_rank % 10000).c_str());
        block_signals();
        take_core_share(num_ranks);
        if (all_started.get()) run(local_rank);
      });
    }
  } catch (const std::system_error& error) {
    go.set_value(false);
    join_all();
    throw Error("ranks", fmt::format("cannot start the thread of rank {} of {}: {}; hint: `ulimit -u` limits the "
                                     "threads of a user",
                                     threads.size() + 1, num_ranks, error.what()));
  }
  go.set_value(true);
  run(0);
  join_all();
  errors.rethrow();
}

}  // namespace levin
