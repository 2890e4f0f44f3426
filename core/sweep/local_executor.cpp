#include <levin/core/sweep/local_executor.h>

#include <levin/core/base/child_process.h>
#include <levin/core/base/error.h>
#include <levin/core/base/process_end.h>

#include <fmt/format.h>
#include <signal.h>

#include <system_error>

namespace levin::sweep {

LocalExecutor::~LocalExecutor() {
  for (const auto& [number, child] : children_) kill(-child.process, SIGKILL);
  for (const auto& [number, child] : children_) ProcessEnd::wait(child.process);
}

void LocalExecutor::start(const std::vector<RunCommand>& runs) {
  for (const RunCommand& run : runs) {
    // A group of its own: Ctrl-C comes from here, once, and reaches the ranks that the run has started too.
    ChildProcessOptions options{.environment = run.environment,
                                .inherited = {lifeline_.read_end()},
                                .output = run.folder + "/output.txt",
                                .own_group = true};
    options.environment[Lifeline::kVariable] = lifeline_.variable_value();
    if (lock_ >= 0) options.inherited.push_back(lock_);
    try {
      children_[run.number] = {.process = start_process(run.words.front(), run.words, options),
                               .began = std::chrono::steady_clock::now()};
    } catch (const std::system_error& error) {
      throw Error("sweep", fmt::format("cannot start {}: {}; hint: sweep.command is put before each run's command line",
                                       run.words.front(), error.code().message()));
    }
  }
}

std::vector<RunEnd> LocalExecutor::poll() {
  std::vector<RunEnd> ends;
  for (auto entry = children_.begin(); entry != children_.end();) {
    const auto& [number, child] = *entry;
    const auto how = ProcessEnd::poll(child.process);
    if (!how) {
      ++entry;
      continue;
    }
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - child.began;
    ends.push_back({.number = number,
                    .status = how->shell_status(),
                    .how = how->signal() != 0 ? how->describe() + how->hint() : "",
                    .seconds = time.count()});
    entry = children_.erase(entry);
  }
  return ends;
}

void LocalExecutor::interrupt(int signal) {
  for (const auto& [number, child] : children_) kill(-child.process, signal);
}

}  // namespace levin::sweep
