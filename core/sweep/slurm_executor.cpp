#include <levin/core/sweep/slurm_executor.h>

#include <levin/core/base/child_process.h>
#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>
#include <levin/core/base/process_end.h>

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>
#include <sstream>
#include <system_error>

namespace levin::sweep {
namespace {

constexpr std::chrono::seconds kQueueInterval{2};
constexpr int kMostMissing = 3;  ///< looks at the queue, since a file on another host appears some time later

// In a run's folder:
constexpr const char* kScript = "/run.sh";
constexpr const char* kJob = "/slurm_job";    ///< the task that runs it, "123_7"
constexpr const char* kEnd = "/exit_status";  ///< and the seconds that it took

/// Signals that ask for a clean end reach the shell too, which must live on to say how the run ended.
std::string run_script(const RunCommand& run) {
  std::string script = "#!/bin/sh\ntrap : INT TERM\n";
  script += fmt::format("cd {}\n", shell_command({std::filesystem::current_path().string()}));
  for (const auto& [name, value] : run.environment)
    script += fmt::format("export {}={}\n", name, shell_command({value}));
  script += fmt::format(
      "began=$(date +%s.%N)\n{} >> {} 2>&1\nstatus=$?\necho \"$status $began $(date +%s.%N)\" > {}.tmp && mv {}.tmp "
      "{}\n"
      "exit $status\n",
      shell_command(run.words), shell_command({run.folder + "/output.txt"}), shell_command({run.folder + kEnd}),
      shell_command({run.folder + kEnd}), shell_command({run.folder + kEnd}));
  return script;
}

}  // namespace

std::string array_indices(const std::vector<int64_t>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    text += (text.empty() ? "" : ",") + std::to_string(numbers[i]);
    if (end - i > 1) text += "-" + std::to_string(numbers[end - 1]);
    i = end;
  }
  return text;
}

std::string shell_command(const std::vector<std::string>& words) {
  std::string command;
  for (const std::string& word : words) {
    command += command.empty() ? "'" : " '";
    for (const char c : word) command += c == '\'' ? std::string("'\\''") : std::string(1, c);
    command += "'";
  }
  return command;
}

void SlurmExecutorOptions::describe(Schema<SlurmExecutorOptions>& schema) {
  schema.field("options", &SlurmExecutorOptions::options, "words for sbatch, such as --partition=gpu and --gpus=1");
}

void SlurmExecutor::begin(const ExecutorContext& context) {
  context_ = context;
  FileSystem::current().create_directories(context.folder + "/slurm");
}

/// Runs a client of SLURM and gives what it printed.
std::string SlurmExecutor::run_client(const std::vector<std::string>& words) const {
  const std::string output = context_.folder + "/slurm/client.txt";
  auto& files = FileSystem::current();
  files.remove_all(output);
  try {
    const auto how = ProcessEnd::wait(start_process(words.front(), words, {.output = output}));
    std::string text = files.read_file(output);
    if (!how.failed()) return text;
    std::replace(text.begin(), text.end(), '\n', ' ');
    throw Error("sweep", fmt::format("{} {}: {}", words.front(), how.describe(), text));
  } catch (const std::system_error& error) {
    throw Error("sweep", fmt::format("cannot start {}: {}; hint: the executor slurm needs SLURM's clients here",
                                     words.front(), error.code().message()));
  }
}

/// The tasks that wait or run, of all jobs of the sweep.
std::vector<std::string> SlurmExecutor::known_jobs() const {
  std::istringstream lines(run_client({"squeue", "--me", "--noheader", "--array", "--format=%i"}));
  std::vector<std::string> jobs;
  for (std::string job; lines >> job;) jobs.push_back(job);
  return jobs;
}

void SlurmExecutor::start(const std::vector<RunCommand>& runs) {
  auto& files = FileSystem::current();
  std::vector<RunCommand> fresh;
  std::vector<std::string> known;
  const auto was_submitted = [&](const RunCommand& run) { return files.exists(run.folder + kJob); };
  if (std::any_of(runs.begin(), runs.end(), was_submitted)) known = known_jobs();
  for (const RunCommand& run : runs) {
    if (was_submitted(run)) {
      // By a sweep that was killed: the task waits, runs, or has ended meanwhile.
      const std::string job = files.read_file(run.folder + kJob);
      if (files.exists(run.folder + kEnd) || std::find(known.begin(), known.end(), job) != known.end()) {
        tasks_[run.number] = {.folder = run.folder, .job = job};
        continue;
      }
    }
    fresh.push_back(run);
  }
  if (!fresh.empty()) submit(fresh);
}

void SlurmExecutor::submit(const std::vector<RunCommand>& runs) {
  auto& files = FileSystem::current();
  std::vector<int64_t> numbers;
  for (const RunCommand& run : runs) {
    files.remove_all(run.folder + kEnd);
    FileSystem::current().replace_file(run.folder + kScript, run_script(run));
    numbers.push_back(run.number);
  }
  std::sort(numbers.begin(), numbers.end());
  const std::string script = context_.folder + "/slurm/array.sh";
  FileSystem::current().replace_file(script,
                                     fmt::format("#!/bin/sh\nexec sh {}/$(printf %04d \"$SLURM_ARRAY_TASK_ID\"){}\n",
                                                 shell_command({context_.folder}), kScript));
  std::vector<std::string> words = {"sbatch", "--parsable", "--job-name=levin-sweep",
                                    fmt::format("--array={}%{}", array_indices(numbers), context_.parallel),
                                    "--output=" + context_.folder + "/slurm/%A_%a.txt"};
  words.insert(words.end(), options_.options.begin(), options_.options.end());
  words.push_back(script);
  std::string job = run_client(words);
  job = job.substr(0, job.find_first_of(";\n"));
  log::info(fmt::format("SLURM has {} run(s) as job {}", runs.size(), job));
  for (const RunCommand& run : runs) {
    Task& task = tasks_[run.number] = {.folder = run.folder, .job = fmt::format("{}_{}", job, run.number)};
    FileSystem::current().replace_file(run.folder + kJob, task.job);
  }
}

std::vector<RunEnd> SlurmExecutor::poll() {
  auto& files = FileSystem::current();
  std::set<int64_t> lost;
  if (const auto now = std::chrono::steady_clock::now(); !tasks_.empty() && now - looked_at_queue_ > kQueueInterval) {
    looked_at_queue_ = now;
    try {
      const auto known = known_jobs();
      for (auto& [number, task] : tasks_) {
        task.missing = std::find(known.begin(), known.end(), task.job) == known.end() ? task.missing + 1 : 0;
        if (task.missing >= kMostMissing) lost.insert(number);
      }
    } catch (const Error& error) {  // SLURM's controller may be away for a while
      log::warning_once(error.what());
    }
  }
  std::vector<RunEnd> ends;
  for (auto entry = tasks_.begin(); entry != tasks_.end();) {
    const auto& [number, task] = *entry;
    RunEnd end{.number = number};
    if (files.exists(task.folder + kEnd)) {
      double began = 0;
      double ended = 0;
      std::istringstream(files.read_file(task.folder + kEnd)) >> end.status >> began >> ended;
      end.seconds = ended - began;
    } else if (lost.contains(number)) {
      end.status = 1;
      end.how = fmt::format("was ended by SLURM; hint: sacct -j {}; {}/slurm/{}.txt has its words", task.job,
                            context_.folder, task.job);
    } else {
      ++entry;
      continue;
    }
    files.remove_all(task.folder + kJob);
    files.remove_all(task.folder + kEnd);
    ends.push_back(std::move(end));
    entry = tasks_.erase(entry);
  }
  return ends;
}

void SlurmExecutor::interrupt(int signal) {
  std::set<std::string> jobs;
  for (const auto& [number, task] : tasks_) jobs.insert(task.job.substr(0, task.job.find('_')));
  for (const std::string& job : jobs) {
    try {
      run_client({"scancel", "--state=PENDING", job});
      run_client({"scancel", "--full", fmt::format("--signal={}", signal), job});
    } catch (const Error& error) {
      log::warning(error.what());
    }
  }
}

}  // namespace levin::sweep
