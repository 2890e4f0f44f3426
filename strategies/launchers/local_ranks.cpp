#include <levin/strategies/launchers/local_ranks.h>

#include <levin/core/base/child_process.h>
#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/base/signals.h>
#include <levin/core/devices/cpu_cores.h>
#include <levin/strategies/comm/job_secret.h>

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <system_error>
#include <thread>
#include <utility>

namespace levin {

LocalRanks& LocalRanks::instance() {
  static auto* instance = new LocalRanks;  // outlives every static object; finish() is its end
  return *instance;
}

void LocalRanks::start(const ClusterPlace& first) {
  LEVIN_CHECK(first.local_rank == 0, "local rank 0 starts the others");
  const MutexLock calls_lock(calls_mutex_);
  const MutexLock lock(mutex_);
  if (local_world_size_) {
    if (*local_world_size_ == first.local_world_size) return;
    throw Error("ranks", fmt::format("this program runs as {} local rank(s) since its first call of a trainer, and "
                                     "cannot change to {}; hint: give all trainers of a program the same devices, or "
                                     "use strategy ddp_spawn or ddp_threads",
                                     *local_world_size_, first.local_world_size));
  }
  if (first.local_world_size > 1) {
    owner_ = getpid();
    lifeline_.emplace();
    try {
      for (int64_t local_rank = 1; local_rank < first.local_world_size; ++local_rank) {
        ClusterPlace place = first;
        place.rank += local_rank;
        place.local_rank = local_rank;
        ranks_.push_back({.rank = place.rank, .process = spawn(place)});
      }
    } catch (...) {
      kill_all();
      ranks_.clear();
      throw;
    }
    lifeline_->close_read_end();
    for (Rank& rank : ranks_) std::thread([this, &rank] { supervise(rank); }).detach();
    std::atexit([] { instance().finish(); });
  }
  local_world_size_ = first.local_world_size;
}

pid_t LocalRanks::spawn(const ClusterPlace& place) const {
  std::map<std::string, std::string> settings = {
      {"LEVIN_RANK", std::to_string(place.rank)},
      {"LEVIN_WORLD_SIZE", std::to_string(place.world_size)},
      {"LEVIN_LOCAL_RANK", std::to_string(place.local_rank)},
      {"LEVIN_LOCAL_WORLD_SIZE", std::to_string(place.local_world_size)},
      {"LEVIN_NODE_RANK", std::to_string(place.node_rank)},
      {"LEVIN_MAIN_ADDRESS", place.main_address},
      {"LEVIN_MAIN_PORT", std::to_string(place.main_port)},
      {"LEVIN_RUN_ID", place.run_id},
      {kJobSecretVariable, make_job_secret()},
      {Lifeline::kVariable, lifeline_->variable_value()},
  };
  if (const int64_t threads = threads_of_rank(place.local_world_size))
    settings["OMP_NUM_THREADS"] = std::to_string(threads);

  const std::string file = own_program_file();
  try {
    return start_process(file, own_command_line(), {.environment = settings, .inherited = {lifeline_->read_end()}});
  } catch (const std::system_error& error) {
    throw Error("ranks", fmt::format("cannot start {} as rank {}: {}; hint: `ulimit -u` limits the processes of a user",
                                     file, place.rank, error.code().message()));
  }
}

void LocalRanks::kill_all() {
  for (const Rank& rank : ranks_)
    if (!rank.end) kill(rank.process, SIGKILL);
  for (Rank& rank : ranks_)
    if (!rank.end) rank.end = ProcessEnd::wait(rank.process);
}

void LocalRanks::supervise(Rank& rank) {
  pthread_setname_np(pthread_self(), "levin-ranks");
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  const bool was_stopped = wait_for_end(rank.process);
  ProcessEnd how;
  {
    // Whoever sends signals does so under the mutex, and so to no process that took over the number.
    const MutexLock lock(mutex_);
    how = ProcessEnd::wait(rank.process);
    if (was_stopped) how.set_stopped_for(stopped_limit_);
    rank.end = how;
    ended_.notify_all();
  }
  const MutexLock calls_lock(calls_mutex_);
  for (const OnEnd& on_end : calls_) {
    if (!on_end || !on_end(rank.rank, how)) continue;
    const MutexLock lock(mutex_);
    rank.left_out = true;
  }
}

bool LocalRanks::wait_for_end(pid_t process) const {
  StoppedTime stopped_time;
  bool was_stopped = false;
  while (!ProcessEnd::wait_without_taking(process)) {
    while (!ProcessEnd::has_come(process)) {
      const auto time = stopped_time.look(process);
      if (!time) break;  // it was continued
      if (*time >= stopped_limit_.load()) {
        was_stopped = true;
        kill(process, SIGKILL);
      }
      constexpr std::chrono::milliseconds kLookAround{50};
      std::this_thread::sleep_for(kLookAround);
    }
  }
  return was_stopped;
}

bool LocalRanks::all_ended() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.end.has_value(); });
}

void LocalRanks::set_patience(std::chrono::milliseconds after_success, std::chrono::milliseconds after_failure) {
  const MutexLock lock(mutex_);
  patience_ = after_success;
  patience_after_failure_ = after_failure;
}

void LocalRanks::finish() {
  if (getpid() != owner_) return;  // a fork that ends by exit()
  MutexLock lock(mutex_);
  const auto patience = failed_ ? patience_after_failure_ : patience_;
  const bool ended = ended_.wait_for(lock, patience, [this]() LEVIN_REQUIRES(mutex_) { return all_ended(); });
  // Ranks that a signal has ended have its status, as this one.
  const int signal = SignalScope::received();
  const int status_of_signal = signal == 0 ? 0 : 128 + signal;
  for (Rank& rank : ranks_) {
    if (!ended && !rank.end) {
      log::warning(fmt::format("rank {} is killed: it went on for {} s after the end of this program", rank.rank,
                               std::chrono::duration<double>(patience).count()));
      kill(rank.process, SIGKILL);
    } else if (!failed_ && rank.end->failed() && !rank.left_out && rank.end->shell_status() != status_of_signal) {
      log::warning(fmt::format("rank {} {} when the last call of a trainer was done", rank.rank, rank.end->describe()));
    }
  }
  constexpr std::chrono::seconds kKilledPatience{5};  // the kernel may keep one that waits for a device
  ended_.wait_for(lock, kKilledPatience, [this]() LEVIN_REQUIRES(mutex_) { return all_ended(); });
}

LocalRanks::Call::Call(LocalRanks& ranks, OnEnd on_end, bool may_lack_ranks) : ranks_(ranks) {
  const MutexLock calls_lock(ranks.calls_mutex_);
  {
    MutexLock lock(ranks.mutex_);
    for (Rank& rank : ranks.ranks_) {
      if (!rank.end && !ProcessEnd::has_come(rank.process)) continue;
      if (rank.left_out && may_lack_ranks) continue;
      ranks.ended_.wait(lock, [&] { return rank.end.has_value(); });  // its supervisor is about to notice
      ranks.failed_ = true;
      throw Error("ranks",
                  fmt::format("rank {} {} before this call of the trainer; hint: every rank must make the same "
                              "calls, in the same order",
                              rank.rank, rank.end->describe()));
    }
  }
  on_end_ = ranks.calls_.insert(ranks.calls_.end(), std::move(on_end));
}

LocalRanks::Call::~Call() {
  const MutexLock calls_lock(ranks_.calls_mutex_);
  ranks_.calls_.erase(on_end_);
}

std::optional<LocalRanks::End> LocalRanks::Call::fail(std::chrono::milliseconds patience) {
  MutexLock lock(ranks_.mutex_);
  ranks_.failed_ = true;
  // A rank whose error nobody catches aborts: that is as often the effect of this rank's failure as its cause. Ctrl-C
  // and the like go to all ranks.
  const auto violent = [](const Rank& rank) {
    const int signal = rank.end && !rank.left_out ? rank.end->signal() : 0;
    const auto ends = end_signals();
    return signal != 0 && signal != SIGABRT && std::find(ends.begin(), ends.end(), signal) == ends.end();
  };
  const Rank* found = nullptr;
  ranks_.ended_.wait_for(lock, patience, [&]() LEVIN_REQUIRES(ranks_.mutex_) {
    const auto first = std::find_if(ranks_.ranks_.begin(), ranks_.ranks_.end(), violent);
    found = first == ranks_.ranks_.end() ? nullptr : &*first;
    return found != nullptr || ranks_.all_ended();
  });
  if (found == nullptr) return std::nullopt;
  return End{found->rank, *found->end};
}

}  // namespace levin
