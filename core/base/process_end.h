#pragma once

#include <sys/types.h>

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
  /// Waits for the end and leaves the child in the table, so that its number is not given to another process.
  static void wait_without_taking(pid_t process);
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

 private:
  explicit ProcessEnd(int wait_status) : wait_status_(wait_status) {}

  std::optional<int> wait_status_;
};

}  // namespace levin
