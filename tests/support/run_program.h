#pragma once

#include <gtest/gtest.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

/// Runs programs as users do, in processes of their own.
namespace levin::testing {

inline std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

struct ProgramResult {
  int status = -1;  ///< exit status; -1 when a signal ended the program
  int signal = 0;   ///< that signal, or 0
  std::string out;
  std::string err;
};

struct ProgramOptions {
  std::map<std::string, std::string> environment;  ///< set beside the variables of this process
  std::string folder;                              ///< to run in; empty: that of this process
  std::chrono::seconds timeout{300};  ///< only a hang takes so long: the program is killed and the test fails
};

/// A program under way. One that nobody waited for is killed.
class RunningProgram {
 public:
  /// `words`: the program's path and its arguments.
  explicit RunningProgram(std::vector<std::string> words, ProgramOptions options = {})
      : words_(std::move(words)), options_(std::move(options)), deadline_(Clock::now() + options_.timeout) {
    std::string name = ::testing::TempDir() + "levin_output_XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a folder in " + ::testing::TempDir());
    output_folder_ = name;
    // Everything that allocates comes before fork.
    std::vector<char*> argv;
    for (auto& word : words_) argv.push_back(word.data());
    argv.push_back(nullptr);
    std::vector<std::string> settings;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string setting = *entry;
      if (!options_.environment.contains(setting.substr(0, setting.find('=')))) settings.push_back(setting);
    }
    for (const auto& [key, value] : options_.environment) settings.push_back(key + "=" + value);
    std::vector<char*> environment;
    for (auto& setting : settings) environment.push_back(setting.data());
    environment.push_back(nullptr);
    const std::string out = out_path();
    const std::string err = err_path();

    process_ = fork();
    if (process_ != 0) return;
    redirect("/dev/null", O_RDONLY, STDIN_FILENO);
    redirect(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, STDOUT_FILENO);
    redirect(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, STDERR_FILENO);
    if (options_.folder.empty() || chdir(options_.folder.c_str()) == 0)
      execve(argv.front(), argv.data(), environment.data());
    _exit(127);
  }

  ~RunningProgram() {
    if (!finished_) {
      kill(process_, SIGKILL);
      waitpid(process_, nullptr, 0);
    }
    std::error_code ignored;
    std::filesystem::remove_all(output_folder_, ignored);
  }
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;

  void send(int signal) const { kill(process_, signal); }
  pid_t process() const { return process_; }
  /// What it wrote so far.
  std::string out() const { return read_text(out_path()); }
  std::string err() const { return read_text(err_path()); }

  /// Waits until a condition holds; false when the program ended or its time was over before.
  bool wait_until(const std::function<bool()>& condition) {
    while (!condition()) {
      if (poll() || Clock::now() > deadline_) return condition();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
  }

  /// Waits for its end.
  ProgramResult wait() {
    while (!poll()) {
      if (Clock::now() > deadline_) {
        ADD_FAILURE() << words_.front() << " was killed after " << options_.timeout.count() << " s\n" << err();
        send(SIGKILL);
        waitpid(process_, &wait_status_, 0);
        finished_ = true;
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    ProgramResult result{.out = out(), .err = err()};
    if (WIFEXITED(wait_status_)) result.status = WEXITSTATUS(wait_status_);
    if (WIFSIGNALED(wait_status_)) result.signal = WTERMSIG(wait_status_);
    return result;
  }

 private:
  using Clock = std::chrono::steady_clock;

  static void redirect(const char* path, int flags, int descriptor) {
    const int file = open(path, flags, 0600);
    dup2(file, descriptor);
    close(file);
  }

  std::string out_path() const { return output_folder_ + "/out"; }
  std::string err_path() const { return output_folder_ + "/err"; }

  /// Whether it has ended.
  bool poll() {
    if (!finished_) finished_ = waitpid(process_, &wait_status_, WNOHANG) == process_;
    return finished_;
  }

  std::vector<std::string> words_;
  const ProgramOptions options_;
  const Clock::time_point deadline_;
  std::string output_folder_;
  pid_t process_ = -1;
  int wait_status_ = 0;
  bool finished_ = false;
};

inline ProgramResult run_program(std::vector<std::string> words, ProgramOptions options = {}) {
  return RunningProgram(std::move(words), std::move(options)).wait();
}

}  // namespace levin::testing
