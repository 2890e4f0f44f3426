#include <levin/core/base/child_process.h>

#include <levin/core/base/error.h>

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <system_error>
#include <utility>

namespace levin {
namespace {

/// This process's environment with some variables set.
std::vector<std::string> environment_with(const std::map<std::string, std::string>& settings) {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!settings.contains(text.substr(0, text.find('=')))) entries.push_back(text);
  }
  for (const auto& [name, value] : settings) entries.push_back(name + "=" + value);
  return entries;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (auto& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// What posix_spawn is to do between fork and exec.
class SpawnPlan {
 public:
  explicit SpawnPlan(const ChildProcessOptions& options) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (!options.output.empty()) {
      posix_spawn_file_actions_addopen(&actions_, STDOUT_FILENO, options.output.c_str(), O_WRONLY | O_CREAT | O_APPEND,
                                       0666);
      posix_spawn_file_actions_adddup2(&actions_, STDOUT_FILENO, STDERR_FILENO);
    }
    // A duplicate of itself only loses its close-on-exec flag, in the new process alone.
    for (const int descriptor : options.inherited) posix_spawn_file_actions_adddup2(&actions_, descriptor, descriptor);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_init(&attributes_);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setpgroup(&attributes_, 0);
    const int group = options.own_group ? POSIX_SPAWN_SETPGROUP : 0;
    posix_spawnattr_setflags(&attributes_, static_cast<int16_t>(POSIX_SPAWN_SETSIGMASK | group));
  }
  ~SpawnPlan() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;

  const posix_spawn_file_actions_t* actions() const { return &actions_; }
  const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

}  // namespace

pid_t start_process(const std::string& file, std::vector<std::string> words, const ChildProcessOptions& options) {
  std::vector<std::string> environment = environment_with(options.environment);
  const SpawnPlan plan(options);
  pid_t process = -1;
  const int error = posix_spawnp(&process, file.c_str(), plan.actions(), plan.attributes(), pointers_to(words).data(),
                                 pointers_to(environment).data());
  if (error != 0) throw std::system_error(error, std::generic_category());
  return process;
}

std::vector<std::string> own_command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(std::move(word));
  if (words.empty())
    throw Error("ranks",
                "cannot read /proc/self/cmdline, and so cannot start this program again for further ranks; "
                "hint: mount /proc, or use strategy ddp_spawn or ddp_threads");
  return words;
}

std::string own_program_file() {
  constexpr const char* kLink = "/proc/self/exe";
  std::string path(4096, '\0');
  const ssize_t size = readlink(kLink, path.data(), path.size());
  if (size <= 0) return kLink;
  path.resize(static_cast<size_t>(size));
  struct stat named {};
  struct stat running {};
  if (stat(path.c_str(), &named) != 0 || stat(kLink, &running) != 0) return kLink;
  return named.st_ino == running.st_ino && named.st_dev == running.st_dev ? path : kLink;
}

}  // namespace levin
