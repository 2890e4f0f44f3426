#include <levin/loggers/wandb_client.h>

#include <levin/core/base/child_process.h>
#include <levin/core/base/error.h>
#include <levin/core/base/process_end.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>
#include <thread>

namespace levin {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPoll{20};
constexpr std::chrono::seconds kTimeToEnd{5};

std::optional<ProcessEnd> wait_until(pid_t process, Clock::time_point end) {
  while (true) {
    if (auto ended = ProcessEnd::poll(process)) return ended;
    if (Clock::now() >= end) return std::nullopt;
    std::this_thread::sleep_for(kPoll);
  }
}

/// The last line with something in it.
std::string last_line(const std::string& path) {
  std::ifstream file(path);
  std::string last;
  for (std::string line; std::getline(file, line);)
    if (line.find_first_not_of(" \t\r") != std::string::npos) last = line;
  return last;
}

}  // namespace

bool WandbClient::is_found() const {
  const std::string& program = command_.front();
  if (program.find('/') != std::string::npos) return ::access(program.c_str(), X_OK) == 0;
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (::access((folder + "/" + program).c_str(), X_OK) == 0) return true;
  return false;
}

std::vector<std::string> WandbClient::words(const std::string& folder) const {
  std::vector<std::string> words = command_;
  words.insert(words.end(), {"sync", folder});
  return words;
}

std::string WandbClient::command_line(const std::string& folder) const {
  return fmt::format("{}", fmt::join(words(folder), " "));
}

void WandbClient::upload(const std::string& folder, std::chrono::milliseconds longest) const {
  const std::string output = folder + "/sync.log";
  const auto fail = [&](const std::string& what) {
    const std::string said = last_line(output);
    throw Error("wandb",
                fmt::format("the client {}{}; hint: `{}` uploads the run later", what,
                            said.empty() ? "" : fmt::format(", and said last: {}", said), command_line(folder)));
  };
  pid_t process = -1;
  try {
    process = start_process(command_.front(), words(folder), {.output = output, .own_group = true});
  } catch (const std::system_error& error) {
    fail(fmt::format("cannot be started ({})", error.code().message()));
  }
  std::optional<ProcessEnd> end = wait_until(process, Clock::now() + longest);
  if (!end) {
    ::kill(-process, SIGTERM);
    if (!wait_until(process, Clock::now() + kTimeToEnd)) {
      ::kill(-process, SIGKILL);
      ProcessEnd::wait(process);
    }
    fail(fmt::format("was ended after {:g} s", std::chrono::duration<double>(longest).count()));
  }
  if (end->failed()) fail(end->describe());
}

}  // namespace levin
