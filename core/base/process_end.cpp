#include <levin/core/base/process_end.h>

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>

namespace levin {

std::optional<ProcessEnd> ProcessEnd::poll(pid_t process) {
  int status = 0;
  const pid_t ended = waitpid(process, &status, WNOHANG);
  if (ended == process) return ProcessEnd(status);
  if (ended < 0 && errno == ECHILD) return ProcessEnd();
  return std::nullopt;
}

ProcessEnd ProcessEnd::wait(pid_t process) {
  int status = 0;
  pid_t ended;
  do ended = waitpid(process, &status, 0);
  while (ended < 0 && errno == EINTR);
  return ended == process ? ProcessEnd(status) : ProcessEnd();
}

bool ProcessEnd::wait_without_taking(pid_t process) {
  siginfo_t info{};
  int result;
  do result = waitid(P_PID, static_cast<id_t>(process), &info, WEXITED | WSTOPPED | WNOWAIT);
  while (result != 0 && errno == EINTR);
  return result != 0 || info.si_code != CLD_STOPPED;
}

bool ProcessEnd::has_come(pid_t process) {
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(process), &info, WEXITED | WNOHANG | WNOWAIT) != 0) return errno == ECHILD;
  return info.si_pid == process;
}

int ProcessEnd::signal() const { return wait_status_ && WIFSIGNALED(*wait_status_) ? WTERMSIG(*wait_status_) : 0; }

int ProcessEnd::shell_status() const {
  if (!wait_status_) return -1;
  return signal() != 0 ? 128 + signal() : WEXITSTATUS(*wait_status_);
}

bool ProcessEnd::failed() const { return wait_status_.value_or(0) != 0; }

std::string ProcessEnd::describe() const {
  if (!wait_status_) return "ended in an unknown way (this program ignores SIGCHLD)";
  if (signal() == 0) return fmt::format("ended with status {}", WEXITSTATUS(*wait_status_));
  if (stopped_for_.count() > 0)
    return fmt::format("was killed: it had been stopped for {} s", std::chrono::duration<double>(stopped_for_).count());
  return fmt::format("was ended by signal {} ({})", signal(), strsignal(signal()));
}

std::string ProcessEnd::hint() const {
  if (signal() != SIGKILL || stopped_for_.count() > 0) return "";
  return "; hint: when nobody sent the signal, memory ran out (`dmesg` then names the process)";
}

}  // namespace levin
