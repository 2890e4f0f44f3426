#include <levin/loggers/background_worker.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/base/mutex.h>
#include <levin/loggers/record_spool.h>

#include <fmt/format.h>

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <iterator>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace levin {
namespace {

using Clock = std::chrono::steady_clock;

/// A disk that failed is tried again no sooner.
constexpr std::chrono::seconds kSpoolPause(2);
/// What one call of the sink gets at most.
constexpr size_t kBatchRecords = 4096;
/// The end waits so long without a word.
constexpr std::chrono::seconds kMoment(1);
/// More would overflow a clock.
constexpr std::chrono::hours kLongestPatience(24 * 365);
/// How long a sink without a spool may take for what is left after the end.
constexpr std::chrono::seconds kLastCalls(2);

size_t cost(const std::string& record) { return record.size() + sizeof(std::string); }

/// "1.4 MiB"
std::string size_text(int64_t bytes) {
  return bytes < 1 << 20 ? fmt::format("{:.1f} KiB", static_cast<double>(bytes) / (1 << 10))
                         : fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

}  // namespace

class BackgroundWorker::State {
 public:
  State(BackgroundWorkerOptions options, std::unique_ptr<RecordSink> sink);

  bool of_this_process() const { return process_ == ::getpid(); }
  void push(std::string record);
  void finish(std::chrono::milliseconds patience);
  int64_t waiting();

 private:
  enum class Outcome { kNothingToDo, kSent, kFailed };

  void run();
  /// One call of the sink, when there is something for it. Whatever is thrown is its failure.
  Outcome work() noexcept;
  bool fetch();
  void send_some();
  void failed(const char* message) noexcept;
  /// Puts everything that waits into the spool; false when that cannot take it.
  bool keep_all() noexcept;
  bool keep_in_flight();
  bool spill();
  void spool_failed(const char* message) noexcept LEVIN_REQUIRES(spool_mutex_);
  void pop_spool() LEVIN_REQUIRES(spool_mutex_);
  void announce_wait(std::chrono::milliseconds patience, bool is_kept) noexcept;
  void report();
  bool spool_rests() const LEVIN_REQUIRES(spool_mutex_) { return spool_failing_ && Clock::now() < next_spool_try_; }
  /// One record has room whatever its size.
  bool has_room(size_t size) const LEVIN_REQUIRES(mutex_) {
    return memory_.empty() || memory_bytes_ + size <= options_.memory_bytes;
  }
  void put_in_memory(std::string record, size_t size) LEVIN_REQUIRES(mutex_);
  /// The number of records that wait outside of the spool.
  int64_t unkept() const LEVIN_REQUIRES(mutex_) { return in_flight_count_ + static_cast<int64_t>(memory_.size()); }
  bool has_spool() const { return !spool_directory_.empty(); }
  /// Lets the next records have their try, whatever the disk did before.
  void forget_spool_failure();
  /// What is in flight and was not sent. Not checked: the thread, which alone changes it, reads it without the mutex;
  /// others hold spool_mutex_.
  std::span<const std::string> unsent() const LEVIN_NO_THREAD_SAFETY_ANALYSIS {
    return std::span(in_flight_).subspan(in_flight_sent_);
  }

  const BackgroundWorkerOptions options_;
  const std::unique_ptr<RecordSink> sink_;
  const pid_t process_ = ::getpid();

  // Of the thread alone, until it has ended.
  bool warned_ = false;
  std::chrono::milliseconds pause_{0};

  std::string spool_directory_;  ///< empty without a spool
  Mutex spool_mutex_ LEVIN_ACQUIRED_BEFORE(mutex_);
  std::optional<RecordSpool> spool_ LEVIN_GUARDED_BY(spool_mutex_);
  bool spool_failing_ LEVIN_GUARDED_BY(spool_mutex_) = false;
  bool spool_warned_ LEVIN_GUARDED_BY(spool_mutex_) = false;
  bool warned_of_unreadable_ LEVIN_GUARDED_BY(spool_mutex_) = false;
  Clock::time_point next_spool_try_ LEVIN_GUARDED_BY(spool_mutex_);
  // Changed by the thread alone, with the mutex; others read them with it. See unsent.
  /// The oldest records, those of the call in progress.
  std::vector<std::string> in_flight_ LEVIN_GUARDED_BY(spool_mutex_);
  size_t in_flight_sent_ LEVIN_GUARDED_BY(spool_mutex_) = 0;  ///< of in_flight_, from the first
  // Of any thread.
  /// What was not sent when it was put there is the first file of the spool as well.
  bool in_flight_in_spool_ LEVIN_GUARDED_BY(spool_mutex_) = false;

  Mutex mutex_;
  ConditionVariable wake_;
  ConditionVariable ended_;
  std::vector<std::string> memory_ LEVIN_GUARDED_BY(mutex_);
  size_t memory_bytes_ LEVIN_GUARDED_BY(mutex_) = 0;
  bool has_news_ LEVIN_GUARDED_BY(mutex_) = false;        ///< something was pushed since memory was fetched from
  int64_t in_flight_count_ LEVIN_GUARDED_BY(mutex_) = 0;  ///< records that are in in_flight_ and nowhere else
  int64_t lost_ LEVIN_GUARDED_BY(mutex_) = 0;
  bool finishing_ LEVIN_GUARDED_BY(mutex_) = false;
  bool has_ended_ LEVIN_GUARDED_BY(mutex_) = false;

  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

BackgroundWorker::State::State(BackgroundWorkerOptions options, std::unique_ptr<RecordSink> sink)
    : options_(std::move(options)), sink_(std::move(sink)) {
  if (!options_.spool.empty()) {
    spool_.emplace(options_.spool, options_.spool_must_be_free);
    spool_directory_ = spool_->directory();
  }
  // Signals are for the program's own threads.
  sigset_t all;
  sigset_t former;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &former);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &former, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &former, nullptr);
}

void BackgroundWorker::State::push(std::string record) {
  const size_t size = cost(record);
  {
    const MutexLock lock(mutex_);
    if (finishing_) {
      ++lost_;
      return;
    }
    if (has_room(size)) {
      put_in_memory(std::move(record), size);
      return;
    }
  }
  const bool spilled = spill();
  const MutexLock lock(mutex_);
  if (spilled || has_room(size))
    put_in_memory(std::move(record), size);
  else
    ++lost_;
}

void BackgroundWorker::State::put_in_memory(std::string record, size_t size) {
  memory_.push_back(std::move(record));
  memory_bytes_ += size;
  if (!std::exchange(has_news_, true)) wake_.notify_one();
}

void BackgroundWorker::State::run() {
  MutexLock lock(mutex_);
  while (!stop_) {
    const bool last_try = finishing_;
    lock.unlock();
    const Outcome outcome = work();
    lock.lock();
    if (outcome == Outcome::kSent) {
      pause_ = {};
      continue;
    }
    if (outcome == Outcome::kNothingToDo) {
      if (!has_news_ && finishing_) break;
      wake_.wait(lock, [this]() LEVIN_REQUIRES(mutex_) { return finishing_ || stop_ || has_news_; });
      continue;
    }
    // It failed. Once finish() was called there is one more try.
    if (last_try) break;
    pause_ = std::clamp(pause_ * 2, options_.first_pause, options_.longest_pause);
    const auto next_try = Clock::now() + pause_;
    while (!finishing_ && !stop_ && Clock::now() < next_try) {
      lock.unlock();
      keep_all();
      lock.lock();
      const auto next_look = std::min(next_try, Clock::now() + std::chrono::seconds(1));
      wake_.wait_until(lock, next_look, [this]() LEVIN_REQUIRES(mutex_) { return finishing_ || stop_.load(); });
    }
  }
  has_ended_ = true;
  ended_.notify_all();
}

BackgroundWorker::State::Outcome BackgroundWorker::State::work() noexcept {
  try {
    if (!fetch()) return Outcome::kNothingToDo;
    send_some();
    return Outcome::kSent;
  } catch (const std::exception& error) {
    if (!stop_) failed(error.what());
    return Outcome::kFailed;
  }
}

/// Makes in_flight_ hold what is to be sent next; false when there is nothing.
bool BackgroundWorker::State::fetch() {
  if (!unsent().empty()) return true;
  const MutexLock spool_lock(spool_mutex_);
  in_flight_.clear();
  in_flight_sent_ = 0;
  in_flight_in_spool_ = false;
  while (spool_ && !spool_->empty()) {
    try {
      in_flight_ = spool_->front();
    } catch (const Error& error) {
      failed(error.what());
      spool_->skip_front();
      continue;
    }
    in_flight_in_spool_ = !in_flight_.empty();
    if (in_flight_in_spool_) return true;
    pop_spool();
  }
  const MutexLock lock(mutex_);
  in_flight_.swap(memory_);
  memory_bytes_ = 0;
  has_news_ = false;
  in_flight_count_ = static_cast<int64_t>(in_flight_.size());
  return !in_flight_.empty();
}

void BackgroundWorker::State::send_some() {
  const auto rest = unsent();
  const size_t taken = sink_->send(rest.first(std::min(rest.size(), kBatchRecords)), stop_);
  const bool is_unknown = taken == 0;
  const size_t done = is_unknown ? 1 : taken;
  const MutexLock spool_lock(spool_mutex_);
  in_flight_sent_ += done;
  if (in_flight_in_spool_) {
    if (is_unknown) spool_->set_front_aside();
    if (in_flight_sent_ >= in_flight_.size()) pop_spool();
    return;
  }
  const MutexLock lock(mutex_);
  in_flight_count_ -= static_cast<int64_t>(done);
  if (is_unknown) ++lost_;
}

void BackgroundWorker::State::pop_spool() {
  try {
    const std::string aside = spool_->pop_front();
    if (aside.empty() || std::exchange(warned_of_unreadable_, true)) return;
    log::warning(
        fmt::format("{}: a part of what waited in {} cannot be read (a crash, a failing disk, another version of this "
                    "program); it is set aside as {}, and the rest is sent",
                    options_.name, spool_directory_, aside));
  } catch (const Error&) {
    // The file stays, and what it holds is sent again by a later process.
  }
}

void BackgroundWorker::State::failed(const char* message) noexcept {
  if (std::exchange(warned_, true)) return;
  try {
    const std::string kept = has_spool() ? fmt::format("is kept in {}", spool_directory_) : "waits in memory";
    log::warning(fmt::format("{}: {}; training goes on; what cannot be sent {} and is tried again", options_.name,
                             message, kept));
  } catch (const std::exception&) {
    warned_ = false;
  }
}

bool BackgroundWorker::State::keep_all() noexcept {
  try {
    const bool in_flight_is_kept = keep_in_flight();
    return spill() && in_flight_is_kept;
  } catch (const std::exception&) {
    return false;  // no memory; it is tried again
  }
}

/// Puts what is in flight into the spool as well; false when that cannot take it.
bool BackgroundWorker::State::keep_in_flight() {
  const MutexLock spool_lock(spool_mutex_);
  if (in_flight_in_spool_ || unsent().empty()) return true;
  if (!spool_ || spool_rests()) return false;
  try {
    spool_->prepend(unsent());
  } catch (const std::exception& error) {
    spool_failed(error.what());
    return false;
  }
  in_flight_in_spool_ = true;
  const MutexLock lock(mutex_);
  in_flight_count_ = 0;
  return true;
}

/// Moves what waits in memory to the spool; false when that cannot take it.
bool BackgroundWorker::State::spill() {
  const MutexLock spool_lock(spool_mutex_);
  if (!spool_ || spool_rests()) return false;
  std::vector<std::string> taken;
  size_t taken_bytes = 0;
  {
    const MutexLock lock(mutex_);
    taken.swap(memory_);
    taken_bytes = std::exchange(memory_bytes_, 0);
  }
  try {
    spool_->append(taken);
    spool_failing_ = false;
    return true;
  } catch (const std::exception& error) {
    spool_failed(error.what());
  }
  const MutexLock lock(mutex_);
  taken.insert(taken.end(), std::make_move_iterator(memory_.begin()), std::make_move_iterator(memory_.end()));
  memory_ = std::move(taken);
  memory_bytes_ += taken_bytes;
  return false;
}

void BackgroundWorker::State::spool_failed(const char* message) noexcept {
  spool_failing_ = true;
  next_spool_try_ = Clock::now() + kSpoolPause;
  if (std::exchange(spool_warned_, true)) return;
  try {
    log::warning(fmt::format("{}: {}; training goes on; what cannot be sent waits in memory, up to {}", options_.name,
                             message, size_text(static_cast<int64_t>(options_.memory_bytes))));
  } catch (const std::exception&) {
    spool_warned_ = false;
  }
}

void BackgroundWorker::State::finish(std::chrono::milliseconds patience) {
  if (!thread_.joinable()) return;
  patience = std::clamp(patience, std::chrono::milliseconds(0), std::chrono::milliseconds(kLongestPatience));
  const auto begin = Clock::now();
  const auto wait_for_end = [&](MutexLock& lock, std::chrono::milliseconds time) {
    return ended_.wait_until(lock, begin + time, [this]() LEVIN_REQUIRES(mutex_) { return has_ended_; });
  };
  {
    MutexLock lock(mutex_);
    finishing_ = true;
    wake_.notify_all();
    if (!wait_for_end(lock, std::min<std::chrono::milliseconds>(patience, kMoment)) && patience > kMoment) {
      lock.unlock();
      announce_wait(patience, keep_all());
      lock.lock();
      wait_for_end(lock, patience);
    }
    stop_ = true;
    wake_.notify_all();
  }
  thread_.join();
  if (has_spool()) {
    forget_spool_failure();
    keep_in_flight();
    forget_spool_failure();
    spill();
  } else {
    const auto end = Clock::now() + kLastCalls;
    while (work() == Outcome::kSent && Clock::now() < end) continue;
  }
  report();
}

void BackgroundWorker::State::forget_spool_failure() {
  const MutexLock spool_lock(spool_mutex_);
  spool_failing_ = false;
}

void BackgroundWorker::State::announce_wait(std::chrono::milliseconds patience, bool is_kept) noexcept {
  try {
    const std::string how_long = patience < kLongestPatience
                                     ? fmt::format(" up to {:g} s", std::chrono::duration<double>(patience).count())
                                     : "";
    const std::string kept = is_kept ? fmt::format("; until then they are kept in {}", spool_directory_) : "";
    log::info(fmt::format("{}: waits{} for {} records{}", options_.name, how_long, waiting(), kept));
  } catch (const std::exception&) {
    // No memory for a message.
  }
}

void BackgroundWorker::State::report() {
  int64_t kept = 0;
  int64_t kept_bytes = 0;
  int64_t lost = 0;
  {
    const MutexLock spool_lock(spool_mutex_);
    const MutexLock lock(mutex_);
    if (spool_) {
      kept = spool_->records();
      kept_bytes = spool_->bytes();
    }
    lost = lost_ + unkept();
  }
  if (kept > 0)
    log::warning(fmt::format("{}: {} records ({}) were not sent and are kept in {}; {}", options_.name, kept,
                             size_text(kept_bytes), spool_directory_, options_.later));
  if (lost > 0)
    log::warning(
        fmt::format("{}: {} records could be neither sent nor kept on disk and are lost", options_.name, lost));
}

int64_t BackgroundWorker::State::waiting() {
  const MutexLock spool_lock(spool_mutex_);
  const MutexLock lock(mutex_);
  return (spool_ ? spool_->records() : 0) + unkept();
}

BackgroundWorker::BackgroundWorker(BackgroundWorkerOptions options, std::unique_ptr<RecordSink> sink)
    : state_(std::make_unique<State>(std::move(options), std::move(sink))) {}

BackgroundWorker::~BackgroundWorker() {
  if (state_->of_this_process())
    finish({});
  else
    // The thread is not here, and what it held when the process was forked is held forever.
    static_cast<void>(state_.release());
}

void BackgroundWorker::push(std::string record) noexcept {
  try {
    if (state_->of_this_process()) state_->push(std::move(record));
  } catch (const std::exception& error) {
    log::warning_once(fmt::format("a logger dropped a value: {}", error.what()));
  }
}

void BackgroundWorker::finish(std::chrono::milliseconds patience) noexcept {
  try {
    if (state_->of_this_process()) state_->finish(patience);
  } catch (const std::exception& error) {
    log::warning_once(fmt::format("a logger could not be ended: {}", error.what()));
  }
}

int64_t BackgroundWorker::waiting() const { return state_->of_this_process() ? state_->waiting() : 0; }

}  // namespace levin
