#include <levin/core/comm/control_plane.h>

#include <levin/core/base/end_process.h>
#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/base/mutex.h>
#include <levin/core/comm/heartbeat_monitor.h>
#include <levin/core/comm/stop_agreement.h>

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace levin {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/// A store that answers so many ranks each `poll_interval` has enough to do: more of them ask less often, but not less
/// than they send heartbeats.
constexpr int64_t kRanksAtFullPace = 64;

/// For the messenger to notice that `grace` is over, before the rank leaves without it.
constexpr milliseconds kLastLook{1000};

std::string host_name() {
  std::array<char, 256> host{};
  return gethostname(host.data(), host.size() - 1) == 0 && host[0] != '\0' ? host.data() : "this host";
}

ControlPlaneOptions checked(ControlPlaneOptions options) {
  LEVIN_CHECK(options.rank >= 0 && options.rank < options.world_size, "the rank is one of the world");
  LEVIN_CHECK(options.poll_interval.count() > 0 && options.heartbeat_timeout >= milliseconds(8),
              "the control plane's times are positive");
  const milliseconds slower = options.poll_interval * std::max<int64_t>(1, options.world_size / kRanksAtFullPace);
  options.poll_interval = std::max(options.poll_interval, std::min(slower, options.heartbeat_timeout / 8));
  if (!options.give_up) options.give_up = end_process;
  return options;
}

}  // namespace

/// Two threads serve a rank. The messenger talks to the store and may be held up by it for any time. The guard never
/// talks to anything: it notices a messenger that is held up, has the collectives aborted, and ends a rank that is
/// stuck. What the messenger uses is kept alive by it, since a messenger that is held up is left behind.
struct ControlPlane::Impl {
  Impl(std::unique_ptr<Store> connection, ControlPlaneOptions given, const RankStatus& rank_whereabouts)
      : options(checked(std::move(given))),
        store(std::move(connection)),
        monitor(options),
        agreement(options.prefix, options.rank, options.world_size),
        rank_status(&rank_whereabouts) {}

  // --- messenger ---

  void carry();
  /// One look at the store; false when it was the last.
  bool exchange();
  void exchange_heartbeats(Clock::time_point now);
  /// Does what a rank that is gone has not done itself.
  void leave_for(int64_t rank, const std::string& how);
  /// Whether this rank, which has left, must go on serving the store.
  bool is_needed();
  void pause();

  // --- guard ---

  void guard();
  void abort_collectives(const std::string& reason);

  // --- any thread ---

  void wake();
  void record(RankFailure first);
  void record_locked(RankFailure first) LEVIN_REQUIRES(mutex);
  RankFailure lost_store(const std::string& how) const;
  bool reported_here() const LEVIN_REQUIRES(mutex) { return failure->rank == options.rank && !failure->gone; }

  const ControlPlaneOptions options;

  const std::unique_ptr<Store> store;  ///< the messenger's
  HeartbeatMonitor monitor;            ///< the messenger's, as the next two
  Clock::time_point last_beat{};
  bool said_goodbye = false;

  StopAgreement agreement;
  std::atomic<bool> failed{false};  ///< whether `failure` is there

  Mutex mutex;
  ConditionVariable changed;
  const RankStatus* rank_status LEVIN_GUARDED_BY(mutex);  ///< nullptr once the rank has gone
  std::string place LEVIN_GUARDED_BY(mutex);              ///< where the rank was when last observed
  std::optional<RankFailure> failure LEVIN_GUARDED_BY(mutex);
  Clock::time_point deadline LEVIN_GUARDED_BY(mutex){};        ///< for the rank to end, after a failure
  std::optional<RankFailure> report LEVIN_GUARDED_BY(mutex);   ///< a failure that this rank knows of, not yet published
  std::function<void(Store&)> errand LEVIN_GUARDED_BY(mutex);  ///< not yet done
  /// Ranks that are gone, and how; not yet told.
  std::vector<std::pair<int64_t, std::string>> left_out LEVIN_GUARDED_BY(mutex);
  int64_t looks LEVIN_GUARDED_BY(mutex) = 0;  ///< that the messenger has begun
  bool woken LEVIN_GUARDED_BY(mutex) = false;
  bool leaving LEVIN_GUARDED_BY(mutex) = false;
  bool messenger_ended LEVIN_GUARDED_BY(mutex) = false;
  bool store_silent LEVIN_GUARDED_BY(mutex) = false;
  bool aborting LEVIN_GUARDED_BY(mutex) = false;
  bool over LEVIN_GUARDED_BY(mutex) = false;

  std::thread messenger_thread;
  std::thread guard_thread;
};

void ControlPlane::Impl::wake() {
  {
    const MutexLock lock(mutex);
    woken = true;
  }
  changed.notify_all();
}

void ControlPlane::Impl::record(RankFailure first) {
  const MutexLock lock(mutex);
  record_locked(std::move(first));
}

void ControlPlane::Impl::record_locked(RankFailure first) {
  if (failure) return;
  failure = std::move(first);
  if (failure->gone && failure->rank >= 0 && options.role_of) failure->message += options.role_of(failure->rank);
  deadline = Clock::now() + options.grace;
  failed.store(true, std::memory_order_release);
  agreement.interrupt();
  changed.notify_all();
}

RankFailure ControlPlane::Impl::lost_store(const std::string& how) const {
  const char* const whose = options.store_rank < 0 ? "the launcher's" : "its";
  return {options.store_rank, fmt::format("is gone: {} store {}", whose, how), true};
}

void ControlPlane::Impl::carry() {
  const log::RankScope scope(options.rank, options.world_size);
  std::string error;
  try {
    while (exchange()) pause();
  } catch (const std::exception& lost) {
    error = lost.what();
  }
  const MutexLock lock(mutex);
  messenger_ended = true;
  if (!error.empty() && !leaving) record_locked(lost_store("cannot be reached any more; got '" + error + "'"));
  changed.notify_all();
}

bool ControlPlane::Impl::exchange() {
  const Clock::time_point now = Clock::now();
  std::optional<RankFailure> own_failure;
  std::function<void(Store&)> own_errand;
  std::vector<std::pair<int64_t, std::string>> gone;
  bool last = false;
  {
    const MutexLock lock(mutex);
    gone.swap(left_out);
    ++looks;
    last = leaving;
    own_failure = report;
    own_errand = errand;
    if (rank_status != nullptr) monitor.observe(*rank_status, now);
    place = monitor.own().place();
  }
  for (const auto& [rank, how] : gone) leave_for(rank, how);
  if (own_errand) {
    own_errand(*store);
    const MutexLock lock(mutex);
    errand = nullptr;
    changed.notify_all();
  }
  if (!failed) {
    if (own_failure) {
      if (own_failure->gone) own_failure->message += monitor.last_seen(*store, own_failure->rank);
      record(publish_failure(*store, options.prefix, *own_failure));
    } else if (auto first = find_failure(*store, options.prefix)) {
      record(std::move(*first));
    }
  }
  if (own_failure) {
    const MutexLock lock(mutex);
    report.reset();
    changed.notify_all();
  }
  if (!failed) {
    agreement.step(*store);
    if (now - last_beat >= HeartbeatMonitor::interval(options)) exchange_heartbeats(now);
  }
  if (!last) return true;
  if (!said_goodbye) {
    agreement.leave(*store);
    monitor.leave(*store);
    store->add(options.prefix + "/left", 1);
    said_goodbye = true;
  }
  return is_needed();
}

void ControlPlane::Impl::leave_for(int64_t rank, const std::string& how) {
  if (!how.empty())
    log::warning(fmt::format("rank {} on {} {}{}; the others go on without it", rank, host_name(), how,
                             monitor.last_seen(*store, rank)));
  monitor.leave_for(*store, rank);
  agreement.leave_out(rank);
  store->add(options.prefix + "/left", 1);
}

void ControlPlane::Impl::exchange_heartbeats(Clock::time_point now) {
  last_beat = now;
  if (!said_goodbye) monitor.beat(*store, now);
  if (const auto gone = monitor.look(*store, now)) record(publish_failure(*store, options.prefix, *gone));
  if (said_goodbye) return;
  monitor.report_stall(*store, now);
  if (failed) return;
  if (const auto hang = monitor.look_for_hang(*store)) record(publish_failure(*store, options.prefix, *hang));
}

bool ControlPlane::Impl::is_needed() {
  if (options.store_rank != options.rank) return false;
  const int64_t left = std::stoll(store->get(options.prefix + "/left", kAnswerTime));
  const MutexLock lock(mutex);
  const bool one_is_gone = failure && failure->gone && failure->rank >= 0;
  if (left >= options.world_size - (one_is_gone ? 1 : 0)) return false;
  return !failure || Clock::now() < deadline;
}

void ControlPlane::Impl::pause() {
  // While the rank's own thread waits for the others, news are worth more than a quiet store.
  const auto interval =
      agreement.is_awaited() ? std::max(options.poll_interval / 10, milliseconds(1)) : options.poll_interval;
  MutexLock lock(mutex);
  changed.wait_for(lock, interval, [this]() LEVIN_REQUIRES(mutex) { return woken; });
  woken = false;
}

void ControlPlane::Impl::guard() {
  const Clock::duration tick = HeartbeatMonitor::interval(options);
  Clock::duration silence{};
  Clock::time_point last = Clock::now();
  int64_t looks_seen = 0;
  bool gave_up = false;
  std::thread abort_thread;
  MutexLock lock(mutex);
  while (!over) {
    Clock::time_point now = Clock::now();
    Clock::time_point next = now + tick;
    // A longer time than the tick means that this process did not run.
    silence += std::min(now - last, 2 * tick);
    last = now;
    if (looks != looks_seen || messenger_ended) silence = {};
    looks_seen = looks;
    if (silence >= options.heartbeat_timeout && !store_silent) {
      store_silent = true;
      record_locked(lost_store("has not answered for " + duration_text(options.heartbeat_timeout)));
      changed.notify_all();
    }
    if (failure) {
      if (!leaving && !abort_thread.joinable() && options.abort && !reported_here()) {
        aborting = true;
        abort_thread = std::thread([this, reason = failure->text()] { abort_collectives(reason); });
      }
      const bool stuck = !leaving || aborting;
      if (stuck && !gave_up && now >= deadline) {
        gave_up = true;
        const std::string reason = fmt::format("rank {} (last seen {}) did not end within {} after this failure: {}",
                                               options.rank, place, duration_text(options.grace), failure->text());
        lock.unlock();
        options.give_up(reason);
        lock.lock();
        continue;
      }
      if (now < deadline) next = std::min(next, deadline);
    }
    changed.wait_until(lock, next);
  }
  lock.unlock();
  if (abort_thread.joinable()) abort_thread.join();
}

void ControlPlane::Impl::abort_collectives(const std::string& reason) {
  const log::RankScope scope(options.rank, options.world_size);
  try {
    options.abort(reason);
  } catch (const std::exception& error) {
    log::warning(fmt::format("rank {} could not abort its collectives; got '{}'", options.rank, error.what()));
  }
  const MutexLock lock(mutex);
  aborting = false;
  changed.notify_all();
}

ControlPlane::ControlPlane(std::unique_ptr<Store> store, ControlPlaneOptions options, const RankStatus& rank_status)
    : impl_(std::make_shared<Impl>(std::move(store), std::move(options), rank_status)) {
  impl_->guard_thread = std::thread([impl = impl_.get()] { impl->guard(); });
  impl_->messenger_thread = std::thread([impl = impl_] { impl->carry(); });
}

void ControlPlane::leave() {
  MutexLock lock(impl_->mutex);
  impl_->leaving = impl_->woken = true;
  impl_->changed.notify_all();
  while (!impl_->messenger_ended && !impl_->store_silent) {
    if (!impl_->failure) {
      impl_->changed.wait(lock);
    } else if (impl_->changed.wait_until(lock, impl_->deadline + kLastLook) == std::cv_status::timeout) {
      break;
    }
  }
  impl_->changed.wait(lock, [this]() LEVIN_REQUIRES(impl_->mutex) { return !impl_->aborting; });
}

ControlPlane::~ControlPlane() {
  leave();
  bool messenger_ended = false;
  {
    const MutexLock lock(impl_->mutex);
    impl_->rank_status = nullptr;
    impl_->over = true;
    messenger_ended = impl_->messenger_ended;
    impl_->changed.notify_all();
  }
  impl_->guard_thread.join();
  if (messenger_ended) {
    impl_->messenger_thread.join();
  } else {
    impl_->messenger_thread.detach();
  }
}

bool ControlPlane::begin_batch(int64_t batch) {
  if (impl_->agreement.may_begin(batch)) return false;
  impl_->wake();
  const bool stops = impl_->agreement.stops_before(batch);
  throw_if_failed();
  return stops;
}

bool ControlPlane::end_batches(int64_t batch, const std::string& reason) {
  request_stop(reason);
  const bool stop = impl_->agreement.all_stop_before(batch);
  throw_if_failed();
  return stop;
}

void ControlPlane::request_stop(const std::string& reason) {
  impl_->agreement.request(reason);
  impl_->wake();
}

std::string ControlPlane::stop_reason() const { return impl_->agreement.reason(); }

void ControlPlane::forget_stop() { impl_->agreement.forget(); }

void ControlPlane::report_failure(const std::string& message) { report({impl_->options.rank, message}); }

void ControlPlane::report_gone(int64_t rank, const std::string& how) { report({rank, how, /*gone=*/true}); }

void ControlPlane::leave_out(int64_t rank, const std::string& how) {
  {
    const MutexLock lock(impl_->mutex);
    impl_->left_out.emplace_back(rank, how);
  }
  impl_->wake();
}

void ControlPlane::report(const RankFailure& failure) {
  MutexLock lock(impl_->mutex);
  if (impl_->failure) return;
  impl_->report = failure;
  impl_->woken = true;
  impl_->changed.notify_all();
  impl_->changed.wait_for(lock, kAnswerTime,
                          [this]() LEVIN_REQUIRES(impl_->mutex) { return !impl_->report || impl_->messenger_ended; });
}

bool ControlPlane::run_errand(std::function<void(Store&)> errand) {
  MutexLock lock(impl_->mutex);
  impl_->errand = std::move(errand);
  impl_->woken = true;
  impl_->changed.notify_all();
  impl_->changed.wait_for(lock, kAnswerTime,
                          [this]() LEVIN_REQUIRES(impl_->mutex) { return !impl_->errand || impl_->messenger_ended; });
  return !impl_->errand;
}

void ControlPlane::note_early_end(int64_t epoch, int64_t batch) {
  run_errand([key = fmt::format("{}/early_end/{}", impl_->options.prefix, impl_->options.rank),
              text = fmt::format("{} {}", epoch, batch)](Store& store) { store.set(key, text); });
}

std::vector<ControlPlane::EarlyEnd> ControlPlane::early_ends() {
  const auto found = std::make_shared<std::vector<EarlyEnd>>();
  const bool is_read = run_errand([&options = impl_->options, found](Store& store) {
    for (int64_t rank = 0; rank < options.world_size; ++rank) {
      const std::string key = fmt::format("{}/early_end/{}", options.prefix, rank);
      if (!store.contains(key)) continue;
      std::istringstream words(store.get(key, kAnswerTime));
      EarlyEnd end{.rank = rank};
      words >> end.epoch >> end.batch;
      found->push_back(end);
    }
  });
  return is_read ? std::move(*found) : std::vector<EarlyEnd>();
}

std::optional<RankFailure> ControlPlane::failure_of_other(milliseconds patience) {
  MutexLock lock(impl_->mutex);
  impl_->changed.wait_for(lock, patience,
                          [this]() LEVIN_REQUIRES(impl_->mutex) { return impl_->failure || impl_->messenger_ended; });
  if (!impl_->failure || impl_->reported_here()) return std::nullopt;
  return impl_->failure;
}

void ControlPlane::throw_if_failed() {
  if (!impl_->failed.load(std::memory_order_relaxed)) return;
  const MutexLock lock(impl_->mutex);
  throw RankFailedError(*impl_->failure);
}

}  // namespace levin
