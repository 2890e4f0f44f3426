#include <levin/loggers/background_worker.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/loggers/record_spool.h>

#include <fmt/format.h>

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
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

size_t cost(const std::string& record) { return record.size() + sizeof record; }

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
  void run();
  /// One call of the sink; false when it failed.
  bool send_some();
  void failed(const std::string& message);
  bool fetch();
  /// Moves what waits in memory to the spool; false when that cannot take it.
  bool spill();
  void save_in_flight();
  void spool_failed(const Error& error);
  void report();
  void pop_spool();
  /// Under mutex_. One record has room whatever its size.
  bool has_room(size_t size) const { return memory_.empty() || memory_bytes_ + size <= options_.memory_bytes; }

  const BackgroundWorkerOptions options_;
  const std::unique_ptr<RecordSink> sink_;
  const pid_t process_ = ::getpid();

  // Of the thread alone until it has ended.
  std::vector<std::string> in_flight_;  ///< the oldest records, those of the call in progress
  size_t in_flight_sent_ = 0;           ///< of in_flight_, from the first
  bool in_flight_in_spool_ = false;     ///< they are the first file of the spool as well
  bool warned_ = false;
  std::chrono::milliseconds pause_{0};

  std::mutex spool_mutex_;  ///< taken before mutex_
  std::optional<RecordSpool> spool_;
  bool spool_failing_ = false;
  bool spool_warned_ = false;
  Clock::time_point next_spool_try_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable ended_;
  std::vector<std::string> memory_;
  size_t memory_bytes_ = 0;
  int64_t in_flight_count_ = 0;  ///< records that are in in_flight_ and nowhere else
  int64_t lost_ = 0;
  bool finishing_ = false;
  bool has_ended_ = false;

  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

BackgroundWorker::State::State(BackgroundWorkerOptions options, std::unique_ptr<RecordSink> sink)
    : options_(std::move(options)), sink_(std::move(sink)) {
  if (!options_.spool.empty()) spool_.emplace(options_.spool);
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
    const std::lock_guard lock(mutex_);
    if (finishing_) {
      ++lost_;
      return;
    }
    if (has_room(size)) {
      memory_bytes_ += size;
      memory_.push_back(std::move(record));
      if (memory_.size() == 1) wake_.notify_one();
      return;
    }
  }
  const bool spilled = spill();
  const std::lock_guard lock(mutex_);
  if (!spilled && !has_room(size)) {
    ++lost_;
    return;
  }
  memory_bytes_ += size;
  memory_.push_back(std::move(record));
  wake_.notify_one();
}

void BackgroundWorker::State::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const bool last_try = finishing_;
    lock.unlock();
    const bool has_work = fetch();
    const bool sent = has_work && send_some();
    lock.lock();
    if (has_work && sent) {
      pause_ = {};
      continue;
    }
    if (!has_work) {
      if (finishing_ && memory_.empty()) break;
      if (memory_.empty()) wake_.wait(lock, [this] { return finishing_ || stop_ || !memory_.empty(); });
      continue;
    }
    // It failed. Once finish() was called there is one more try.
    if (last_try) break;
    pause_ = std::clamp(pause_ * 2, options_.first_pause, options_.longest_pause);
    const auto next_try = Clock::now() + pause_;
    while (!finishing_ && !stop_ && Clock::now() < next_try) {
      lock.unlock();
      save_in_flight();
      spill();
      lock.lock();
      const auto next_look = std::min(next_try, Clock::now() + std::chrono::seconds(1));
      wake_.wait_until(lock, next_look, [this] { return finishing_ || stop_.load(); });
    }
  }
  has_ended_ = true;
  ended_.notify_all();
}

/// Makes in_flight_ hold what is to be sent next; false when there is nothing.
bool BackgroundWorker::State::fetch() {
  if (in_flight_sent_ < in_flight_.size()) return true;
  const std::lock_guard spool_lock(spool_mutex_);
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
  const std::lock_guard lock(mutex_);
  in_flight_.swap(memory_);
  memory_bytes_ = 0;
  in_flight_count_ = static_cast<int64_t>(in_flight_.size());
  return !in_flight_.empty();
}

bool BackgroundWorker::State::send_some() {
  try {
    const auto rest = std::span<const std::string>(in_flight_).subspan(in_flight_sent_);
    const size_t done = sink_->send(rest.first(std::min(rest.size(), kBatchRecords)), stop_);
    if (done == 0) throw Error("logger", "what is to be sent was not taken");
    in_flight_sent_ += done;
    const std::lock_guard spool_lock(spool_mutex_);
    if (in_flight_in_spool_) {
      if (in_flight_sent_ >= in_flight_.size()) pop_spool();
    } else {
      const std::lock_guard lock(mutex_);
      in_flight_count_ -= static_cast<int64_t>(done);
    }
    return true;
  } catch (const std::exception& error) {
    if (!stop_) failed(error.what());
    return false;
  }
}

void BackgroundWorker::State::pop_spool() {
  try {
    spool_->pop_front();
  } catch (const Error&) {
    // The file stays, and what it holds is sent again by a later process.
  }
}

void BackgroundWorker::State::failed(const std::string& message) {
  if (warned_) return;
  warned_ = true;
  const std::string kept = spool_ ? fmt::format("is kept in {}", spool_->directory()) : "waits in memory";
  log::warning(
      fmt::format("{}: {}; training goes on; what cannot be sent {} and is tried again", options_.name, message, kept));
}

void BackgroundWorker::State::save_in_flight() {
  const std::lock_guard spool_lock(spool_mutex_);
  if (!spool_ || in_flight_in_spool_ || in_flight_sent_ >= in_flight_.size()) return;
  if (spool_failing_ && Clock::now() < next_spool_try_) return;
  in_flight_.erase(in_flight_.begin(), in_flight_.begin() + static_cast<std::ptrdiff_t>(in_flight_sent_));
  in_flight_sent_ = 0;
  try {
    spool_->prepend(in_flight_);
  } catch (const Error& error) {
    spool_failed(error);
    return;
  }
  in_flight_.clear();
  const std::lock_guard lock(mutex_);
  in_flight_count_ = 0;
}

void BackgroundWorker::State::spool_failed(const Error& error) {
  spool_failing_ = true;
  next_spool_try_ = Clock::now() + kSpoolPause;
  if (std::exchange(spool_warned_, true)) return;
  log::warning(fmt::format("{}: {}; training goes on; what cannot be sent waits in memory, up to {}", options_.name,
                           error.what(), size_text(static_cast<int64_t>(options_.memory_bytes))));
}

bool BackgroundWorker::State::spill() {
  const std::lock_guard spool_lock(spool_mutex_);
  if (!spool_ || (spool_failing_ && Clock::now() < next_spool_try_)) return false;
  std::vector<std::string> taken;
  size_t taken_bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    taken.swap(memory_);
    taken_bytes = std::exchange(memory_bytes_, 0);
  }
  try {
    spool_->append(taken);
    spool_failing_ = false;
    return true;
  } catch (const Error& error) {
    spool_failed(error);
  }
  const std::lock_guard lock(mutex_);
  taken.insert(taken.end(), std::make_move_iterator(memory_.begin()), std::make_move_iterator(memory_.end()));
  memory_ = std::move(taken);
  memory_bytes_ += taken_bytes;
  return false;
}

void BackgroundWorker::State::finish(std::chrono::milliseconds patience) {
  if (!thread_.joinable()) return;
  {
    std::unique_lock lock(mutex_);
    finishing_ = true;
    wake_.notify_all();
    ended_.wait_for(lock, patience, [this] { return has_ended_; });
    stop_ = true;
    wake_.notify_all();
  }
  thread_.join();
  next_spool_try_ = {};
  save_in_flight();
  next_spool_try_ = {};
  spill();
  report();
}

void BackgroundWorker::State::report() {
  const int64_t kept = spool_ ? spool_->records() : 0;
  const int64_t lost = waiting() - kept + lost_;
  if (kept > 0)
    log::warning(fmt::format("{}: {} records ({}) were not sent and are kept in {}; {}", options_.name, kept,
                             size_text(spool_->bytes()), spool_->directory(), options_.later));
  if (lost > 0)
    log::warning(
        fmt::format("{}: {} records could be neither sent nor kept on disk and are lost", options_.name, lost));
}

int64_t BackgroundWorker::State::waiting() {
  const std::lock_guard spool_lock(spool_mutex_);
  const std::lock_guard lock(mutex_);
  return (spool_ ? spool_->records() : 0) + in_flight_count_ + static_cast<int64_t>(memory_.size());
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
