#pragma once

#include "../support/eventually.h"
#include "../support/run_program.h"

#include <levin/core/interfaces/launcher.h>

#include <gtest/gtest.h>

#include <signal.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace levin::testing {

/// A rank program made of functions.
class FunctionProgram : public RankProgram {
 public:
  explicit FunctionProgram(std::function<void(int64_t)> run) : run_(std::move(run)) {}

  void run(int64_t local_rank) override { run_(local_rank); }
  void save_outcome(const std::string& directory) override {
    if (save) save(directory);
  }
  void load_outcome(const std::string& directory) override {
    if (load) load(directory);
  }

  std::function<void(const std::string&)> save;
  std::function<void(const std::string&)> load;

 private:
  const std::function<void(int64_t)> run_;
};

inline void launch(Launcher& launcher, std::function<void(int64_t)> run) {
  FunctionProgram program(std::move(run));
  launcher.launch(program);
}

/// Blocks for ever, as a rank does whose partner has gone.
[[noreturn]] inline void hang() {
  for (;;) pause();
}

/// A new folder, removed with this object.
class Folder {
 public:
  Folder() : path_(::testing::TempDir() + "levin_launcher_XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error("cannot make a folder in " + ::testing::TempDir());
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Ranks leave words for each other, and for the test, in files: whole ones, since they appear by renaming.
class Board {
 public:
  explicit Board(std::string folder) : folder_(std::move(folder)) {}

  void write(const std::string& name, const std::string& text) const {
    const std::string draft = folder_ + "/." + name + std::to_string(getpid());
    std::ofstream(draft) << text;
    std::filesystem::rename(draft, folder_ + "/" + name);
  }
  bool has(const std::string& name) const { return std::filesystem::exists(folder_ + "/" + name); }
  bool wait_for(const std::string& name) const {
    return eventually([&] { return has(name); });
  }
  std::string read(const std::string& name) const { return read_text(folder_ + "/" + name); }

  void write_process(const std::string& name) const { write(name, std::to_string(getpid())); }
  /// Of a process that called write_process. Throws when none does.
  pid_t process(const std::string& name) const {
    if (!wait_for(name)) throw std::runtime_error("nobody wrote " + name);
    return static_cast<pid_t>(std::stol(read(name)));
  }

 private:
  const std::string folder_;
};

/// Whether a process runs no more; one that waits to be fetched by its parent does not run.
inline bool is_gone(pid_t process) {
  const std::string status = read_text("/proc/" + std::to_string(process) + "/stat");
  if (status.empty()) return true;
  return status.at(status.rfind(')') + 2) == 'Z';
}

/// Whether this process has no children, dead ones that nobody has fetched included.
inline bool has_no_children() { return waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD; }

/// Folders for results that the process has made and not removed.
inline bool has_outcome_folders(pid_t process) {
  const std::string start = "levin-outcome-" + std::to_string(process) + "-";
  for (const std::string& parent : {std::string("/dev/shm"), std::filesystem::temp_directory_path().string()})
    for (const auto& entry : std::filesystem::directory_iterator(parent))
      if (entry.path().filename().string().starts_with(start)) return true;
  return false;
}

/// A variable of this process's environment, as it was again with this object's end.
class ScopedVariable {
 public:
  ScopedVariable(std::string name, const char* value) : name_(std::move(name)) {
    if (const char* before = std::getenv(name_.c_str())) before_ = before;
    set(value);
  }
  ~ScopedVariable() { set(before_ ? before_->c_str() : nullptr); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  void set(const char* value) const {
    if (value != nullptr)
      setenv(name_.c_str(), value, 1);
    else
      unsetenv(name_.c_str());
  }

  const std::string name_;
  std::optional<std::string> before_;
};

/// The message of the E that `body` throws; empty, with a failure, when it throws none.
template <class E>
std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

/// What tells a whole program where it and its test leave words for each other.
inline std::map<std::string, std::string> environment_with(const Folder& folder) {
  return {{"LEVIN_TEST_BOARD", folder.path()}};
}
inline Board board_of_program() { return Board(std::getenv("LEVIN_TEST_BOARD")); }

}  // namespace levin::testing
