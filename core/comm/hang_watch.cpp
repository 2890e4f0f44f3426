#include <levin/core/comm/hang_watch.h>

#include <levin/core/comm/control_plane_options.h>
#include <levin/core/comm/heartbeat_monitor.h>
#include <levin/core/comm/memory_store.h>

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace levin {

HangWatch::HangWatch(const RankStatus& rank_status, std::chrono::milliseconds hang_after,
                     std::function<void(const std::string& reason)> give_up)
    : rank_status_(rank_status), hang_after_(hang_after), give_up_(std::move(give_up)) {
  // Signals are for the thread that trains, which knows how to end a step.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { watch(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

HangWatch::~HangWatch() {
  {
    const MutexLock lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void HangWatch::watch() {
  pthread_setname_np(pthread_self(), "levin-watch");
  const ControlPlaneOptions options{.hang_after = hang_after_};
  const auto store = make_memory_store();
  HeartbeatMonitor monitor(options);
  MutexLock lock(mutex_);
  while (!over_) {
    monitor.observe(rank_status_, HeartbeatMonitor::Clock::now());
    if (const auto hang = monitor.look_for_hang(*store)) {
      lock.unlock();
      give_up_(hang->text() + "; hint: the strategy's hang_timeout says how long that may take");
      return;
    }
    changed_.wait_for(lock, HeartbeatMonitor::interval(options), [this]() LEVIN_REQUIRES(mutex_) { return over_; });
  }
}

std::unique_ptr<HangWatch> make_hang_watch(const RankStatus* rank_status, double hang_timeout) {
  if (rank_status == nullptr || hang_timeout == 0) return nullptr;
  const auto after = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(hang_timeout));
  return std::make_unique<HangWatch>(*rank_status, after);
}

}  // namespace levin
