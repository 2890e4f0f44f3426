#pragma once

#include <levin/core/trainer/rank_run.h>
#include <levin/core/trainer/trainer_components.h>

#include <atomic>
#include <exception>
#include <string>
#include <thread>

namespace levin {

/// Guards the calls of the steps of one rank: one thread at a time, each call in the scopes of the rank, and none after
/// the end or after a failure. Misuse throws levin::Error before anything has changed.
class RankCalls {
 public:
  /// `parts`: of the rank; outlives this object.
  explicit RankCalls(TrainerComponents& parts) : parts_(parts) {}
  virtual ~RankCalls() = default;
  RankCalls(const RankCalls&) = delete;
  RankCalls& operator=(const RankCalls&) = delete;

  TrainerComponents& parts() const { return parts_; }
  /// Whether the calling thread is inside of a call: in a hook, or in a step.
  bool is_inside() const { return user_.load() == std::this_thread::get_id(); }

  /// Runs a call that is made between steps. `name`: as users know it, a string literal. What `run` throws ends the
  /// rank; what `check` throws does not.
  template <class Check, class Run>
  auto run(const char* name, const Check& check, const Run& run) -> decltype(run()) {
    const Use use(*this, name);
    start(name);
    const RankScopes scopes(parts_, /*is_quiet=*/true);
    check();
    try {
      return run();
    } catch (...) {
      fail(std::current_exception());
    }
  }
  template <class Run>
  auto run(const char* name, const Run& run) -> decltype(run()) {
    return this->run(
        name, [] {}, run);
  }
  /// Runs a call that a step may make as well.
  template <class Run>
  auto run_anywhere(const char* name, const Run& run) -> decltype(run()) {
    return is_inside() ? run() : this->run(name, run);
  }

  /// Refuses calls from here on. `when`: how messages name the moment, such as "close()".
  void end(const std::string& when) { ended_by_ = when; }
  bool has_ended() const { return !ended_by_.empty(); }
  const std::exception_ptr& failure() const { return failure_; }
  /// Throws levin::Error where no call may be made any more.
  void require_open(const char* name) const;

 protected:
  /// Begins the steps, where they have not begun yet.
  virtual void start(const char* /*name*/) {}
  /// Ends the rank after an error; returns what is to be thrown on.
  virtual std::exception_ptr on_failure(const std::exception_ptr& error) { return error; }
  /// Notes the failure and throws it on.
  [[noreturn]] void fail(const std::exception_ptr& error);

 private:
  /// Holds the rank for the calling thread.
  class Use {
   public:
    Use(RankCalls& calls, const char* name);
    ~Use() { calls_.user_.store(std::thread::id()); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    RankCalls& calls_;
  };

  TrainerComponents& parts_;
  std::atomic<std::thread::id> user_{};
  std::atomic<const char*> under_way_{""};  ///< name of the call
  std::string ended_by_;
  std::exception_ptr failure_;
};

}  // namespace levin
