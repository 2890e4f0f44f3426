#include <levin/strategies/launchers/fork_launcher.h>

#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/base/descriptor.h>
#include <levin/core/base/error.h>
#include <levin/core/base/lifeline.h>
#include <levin/core/base/process_end.h>
#include <levin/core/base/signals.h>
#include <levin/core/base/thread_generator.h>
#include <levin/strategies/launchers/core_share.h>
#include <levin/strategies/launchers/outcome_folder.h>
#include <levin/strategies/launchers/rank_report.h>
#include <levin/strategies/launchers/signal_relay.h>

#include <dlfcn.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <iostream>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace levin {
namespace {

using Clock = std::chrono::steady_clock;

/// Standard output and error alone: another thread that waits for input holds the lock of that stream.
void flush_standard_streams() {
  std::cout.flush();
  std::clog.flush();
  std::fflush(stdout);
  std::fflush(stderr);
}

void write_all(int descriptor, const std::string& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t count = write(descriptor, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno != EINTR) return;  // the parent has gone, and so has whom to tell
    if (count > 0) done += static_cast<size_t>(count);
  }
}

/// Blocks the signals that SignalRelay handles, on this thread, as long as it lives.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : end_signals()) sigaddset(&signals, signal);
    pthread_sigmask(SIG_BLOCK, &signals, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

/// A rank's process, seen from the parent.
struct Child {
  pid_t process = -1;
  Descriptor pipe;  ///< carries the report; closed once the child has ended its side
  std::string bytes;
  std::optional<RankReport> report;
  std::optional<ProcessEnd> end;
  StoppedTime stopped_time;
  bool was_stopped = false;  ///< and killed for it

  /// The pipe is through, so the child has reported or is dying.
  bool is_silent() const { return !pipe.is_open(); }
  bool failed() const {
    if (report) return report->kind != RankReport::Kind::kSuccess;
    return end.has_value();
  }

  /// Of several that failed, the cause is the first: one that died, then errors of their own, then those that only tell
  /// of another rank's. These say where a rank was that was stopped, and whose end does not.
  auto place_among_causes() const {
    if (report) return std::pair(report->consequence ? 2 : 1, report->time);
    return std::pair(was_stopped ? 3 : 0, decltype(report->time){});
  }

  /// Reads what has come.
  void read_report() {
    std::array<char, 4096> buffer;
    ssize_t count;
    do count = read(pipe.number(), buffer.data(), buffer.size());
    while (count < 0 && errno == EINTR);
    if (count > 0) {
      bytes.append(buffer.data(), static_cast<size_t>(count));
      report = RankReport::from_bytes(bytes);
    } else {
      pipe.close();
    }
  }
};

/// The ranks' processes of one call. Those that still run are killed with this object.
class RankProcesses {
 public:
  explicit RankProcesses(const ForkLauncherOptions& options) : options_(options) {}
  ~RankProcesses() {
    send(SIGKILL);
    for (Child& child : children_)
      if (!child.end) child.end = ProcessEnd::wait(child.process);
  }
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  void start(RankProgram& program, const OutcomeFolder& folder);
  /// Returns when all have ended; throws the failure of the first that failed.
  void wait();

 private:
  [[noreturn]] void run_child(int64_t local_rank, RankProgram& program, const OutcomeFolder& folder,
                              Descriptor pipe) noexcept;
  RankReport run_program(int64_t local_rank, RankProgram& program, const OutcomeFolder& folder) const;

  void read_news();
  void kill_if_stopped(Child& child) const;
  void find_failure();
  RankFailure failure() const;
  void end_others();
  void send(int signal) const;
  bool all_ended() const {
    return std::all_of(children_.begin(), children_.end(), [](const Child& child) { return child.end.has_value(); });
  }
  [[noreturn]] void throw_failure() const;

  const ForkLauncherOptions& options_;
  Lifeline lifeline_;
  SignalRelay signals_;
  std::vector<Child> children_;  ///< by local rank

  std::optional<size_t> failed_;                    ///< the local rank whose failure is the call's
  std::optional<Clock::time_point> patient_until_;  ///< a consequence is known, its cause is waited for until then
  std::optional<Clock::time_point> kill_at_;
};

void RankProcesses::start(RankProgram& program, const OutcomeFolder& folder) {
  const pid_t parent = getpid();
  children_.reserve(static_cast<size_t>(options_.num_ranks));
  flush_standard_streams();
  for (int64_t local_rank = 0; local_rank < options_.num_ranks; ++local_rank) {
    Pipe pipe = make_pipe();
    std::optional<BlockedSignals> blocked(std::in_place);
    const pid_t process = fork();
    if (process < 0)
      throw Error("ranks", fmt::format("cannot start the process of rank {} of {}: {}; hint: `ulimit -u` limits the "
                                       "processes of a user",
                                       local_rank, options_.num_ranks, std::generic_category().message(errno)));
    if (process == 0) {
      signals_.enter_child(parent);
      blocked.reset();
      pipe.read_end.close();
      run_child(local_rank, program, folder, std::move(pipe.write_end));
    }
    children_.push_back({.process = process, .pipe = std::move(pipe.read_end)});
    // The write end closes here, before the next rank could inherit it: the child alone holds the pipe open.
  }
  lifeline_.close_read_end();
}

void RankProcesses::run_child(int64_t local_rank, RankProgram& program, const OutcomeFolder& folder,
                              Descriptor pipe) noexcept {
  for (Child& sibling : children_) sibling.pipe.close();
  lifeline_.watch_in_child([&folder] { folder.remove(); });
  RankReport report;
  // OpenMP would wait for ever for the threads that this one had in the parent.
  std::thread([&, generator = default_cpu_generator()] {
    inherit_generator(generator);
    report = run_program(local_rank, program, folder);
  }).join();
  flush_standard_streams();
  write_all(pipe.number(), report.to_bytes());
  _exit(report.kind == RankReport::Kind::kSuccess ? 0 : 1);
}

RankReport RankProcesses::run_program(int64_t local_rank, RankProgram& program, const OutcomeFolder& folder) const {
  pthread_setname_np(pthread_self(), fmt::format("levin-rank-{}", local_rank % 10000).c_str());
  try {
    take_core_share(options_.num_ranks);
    program.run(local_rank);
    if (local_rank == 0) program.save_outcome(folder.path());
    return RankReport::success();
  } catch (...) {
    RankReport report = RankReport::of_current_exception();
    report.consequence = options_.is_consequence && options_.is_consequence(std::current_exception());
    return report;
  }
}

void RankProcesses::wait() {
  while (!all_ended()) {
    read_news();
    signals_.poll([this](int signal) { send(signal); });
    if (!failed_) find_failure();
    end_others();
  }
  if (!failed_) find_failure();
  if (failed_) throw_failure();
}

/// Waits a moment for something to happen.
void RankProcesses::read_news() {
  std::vector<pollfd> pipes;
  std::vector<Child*> owners;
  bool ending = false;
  for (Child& child : children_) {
    ending |= child.is_silent() && !child.end;
    if (child.is_silent()) continue;
    pipes.push_back({.fd = child.pipe.number(), .events = POLLIN});
    owners.push_back(&child);
  }
  // Signals and the deadlines below are looked at every so often; a child whose pipe is through ends within moments.
  constexpr int kLookAroundMs = 50;
  constexpr int kEndingMs = 1;
  ::poll(pipes.data(), pipes.size(), ending ? kEndingMs : kLookAroundMs);
  for (size_t i = 0; i < pipes.size(); ++i)
    if (pipes[i].revents != 0) owners[i]->read_report();
  for (Child& child : children_) {
    if (child.end) continue;
    child.end = ProcessEnd::poll(child.process);
    if (!child.end) kill_if_stopped(child);
    if (!child.end) continue;
    if (child.was_stopped) child.end->set_stopped_for(options_.stopped_limit);
    // What it wrote last is in the pipe still. Should somebody else hold the pipe open, there is no end of it to see.
    pollfd rest{.fd = child.pipe.number(), .events = POLLIN};
    while (child.pipe.is_open() && ::poll(&rest, 1, 0) > 0) child.read_report();
    child.pipe.close();
  }
}

void RankProcesses::kill_if_stopped(Child& child) const {
  const auto time = child.stopped_time.look(child.process);
  if (child.was_stopped || !time || *time < options_.stopped_limit) return;
  child.was_stopped = true;
  kill(child.process, SIGKILL);
}

/// Sets failed_ once the first failure is known for certain.
void RankProcesses::find_failure() {
  // A rank that was killed closes its pipe before its connections, and other ranks fail only when those break. So if
  // any failure is known at all, the pipe of a rank that caused it by dying has been closed; its end comes at once.
  const bool any = std::any_of(children_.begin(), children_.end(), [](const Child& child) { return child.failed(); });
  if (!any) return;
  const Child* first = nullptr;
  for (const Child& child : children_) {
    if (child.is_silent() && !child.report && !child.end) return;
    if (!child.failed()) continue;
    if (first == nullptr || child.place_among_causes() < first->place_among_causes()) first = &child;
  }
  if (first->report && first->report->consequence && !all_ended()) {
    if (!patient_until_) patient_until_ = Clock::now() + options_.grace;
    if (Clock::now() < *patient_until_) return;
  }
  failed_ = static_cast<size_t>(first - children_.data());
}

void RankProcesses::end_others() {
  if (!failed_) return;
  if (!kill_at_) {
    options_.on_failure ? options_.on_failure(failure()) : send(SIGTERM);
    kill_at_ = Clock::now() + options_.grace;
  } else if (Clock::now() >= *kill_at_) {
    send(SIGKILL);
  }
}

void RankProcesses::send(int signal) const {
  for (const Child& child : children_)
    if (!child.end) kill(child.process, signal);
}

RankFailure RankProcesses::failure() const {
  const Child& child = children_[*failed_];
  const int64_t rank = options_.first_rank + static_cast<int64_t>(*failed_);
  if (child.report) return {.rank = rank, .message = child.report->message};
  return {.rank = rank,
          .message = child.end->describe() + (child.end->signal() == 0 ? " before its work was done" : ""),
          .gone = true};
}

void RankProcesses::throw_failure() const {
  const Child& child = children_[*failed_];
  const RankFailure first = failure();
  if (child.report) child.report->raise(first.rank);
  throw Error("ranks", first.text() + child.end->hint());
}

}  // namespace

std::string started_accelerator() {
  for (const Accelerator* accelerator : AcceleratorRegistry::instance().all())
    if (accelerator->has_started()) return accelerator->name();
  return "";
}

ForkLauncher::ForkLauncher(ForkLauncherOptions options) : options_(std::move(options)) {
  LEVIN_CHECK(options_.num_ranks >= 1, "there is at least one rank");
}

void ForkLauncher::launch(RankProgram& program) {
  if (options_.num_ranks == 1) return program.run(0);
  if (const std::string started = options_.started_accelerator(); !started.empty())
    throw Error("ranks",
                fmt::format("cannot fork {} ranks: the driver of '{}' has been started in this process, and does not "
                            "work in its forks; hint: use strategy ddp or ddp_threads, or call the trainer before "
                            "anything uses its devices",
                            options_.num_ranks, started));
  const OutcomeFolder folder;
  {
    RankProcesses ranks(options_);
    ranks.start(program, folder);
    if (options_.after_fork) options_.after_fork();
    ranks.wait();
  }
  program.load_outcome(folder.path());
}

}  // namespace levin
