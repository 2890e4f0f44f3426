#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/sweep/executor.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace levin::sweep {

struct SlurmExecutorOptions {
  std::vector<std::string> options = {};  ///< words for sbatch, such as --partition=gpu and --gpus=1
  static void describe(Schema<SlurmExecutorOptions>& schema);
};

/// Runs are the tasks of array jobs of SLURM, submitted by sbatch; at most `parallel` of them run at a time. The
/// sweep's folder must be one that all nodes see. When this process ends, jobs go on; a sweep that is started again
/// takes them over.
class SlurmExecutor final : public Executor {
 public:
  using Options = SlurmExecutorOptions;
  explicit SlurmExecutor(const Options& options = {}) : options_(options) {}

  void begin(const ExecutorContext& context) override;
  bool is_local() const override { return false; }
  bool has_queue() const override { return true; }
  void start(const std::vector<RunCommand>& runs) override;
  std::vector<RunEnd> poll() override;
  void interrupt(int signal) override;

 private:
  struct Task {
    std::string folder;
    std::string job;  ///< "123_7"
    int missing = 0;  ///< how often in a row squeue did not know it, though it had not ended
  };

  void submit(const std::vector<RunCommand>& runs);
  std::string run_client(const std::vector<std::string>& words) const;
  std::vector<std::string> known_jobs() const;

  const Options options_;
  ExecutorContext context_;
  std::map<int64_t, Task> tasks_;  ///< by the run's number
  std::chrono::steady_clock::time_point looked_at_queue_ = {};
};

/// "0-3,7" for 0, 1, 2, 3, 7, as sbatch has it.
std::string array_indices(const std::vector<int64_t>& numbers);
/// The words of a command for a shell, each in quotation marks.
std::string shell_command(const std::vector<std::string>& words);

}  // namespace levin::sweep
