#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>

namespace levin {

/// The end of a child process.
class ProcessEnd {
 public:
  /// Unknown end of a child: the program ignores SIGCHLD, or code of the user waited for it.
  ProcessEnd() = default;

  /// Takes a child that has ended out of the system's table; nothing while it runs.
  static std::optional<ProcessEnd> poll(pid_t process);
  /// Waits for the end of a child and takes it out of the table.
  static ProcessEnd wait(pid_t process);
  /// Waits until the child has ended, which is true, or is stopped. Leaves it in the table, so that its number is not
  /// given to another process.
  static bool wait_without_taking(pid_t process);
  /// Whether the child has ended; leaves it in the table.
  static bool has_come(pid_t process);

  /// The signal that ended it, or 0.
  int signal() const;
  /// As shells have it: the exit status, or 128 + the signal's number; -1 where nobody can tell.
  int shell_status() const;
  /// Whether something went wrong: a signal, or an exit status other than 0. False where nobody can tell.
  bool failed() const;
  /// Describes the end for messages, after the name of the process: "was ended by signal 9 (Killed)", "ended with
  /// status 3".
  std::string describe() const;
  /// Returns "; hint: ..." or nothing, for the end of such a message.
  std::string hint() const;
  /// Notes that it was killed for having been stopped so long.
  void set_stopped_for(std::chrono::milliseconds time) { stopped_for_ = time; }

 private:
  explicit ProcessEnd(int wait_status) : wait_status_(wait_status) {}

  std::optional<int> wait_status_;
  std::chrono::milliseconds stopped_for_{};
};

}  // namespace levin
