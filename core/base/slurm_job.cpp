#include <levin/core/base/slurm_job.h>

#include <levin/core/base/child_process.h>
#include <levin/core/base/error.h>
#include <levin/core/base/process_end.h>

#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <system_error>

namespace levin {
namespace {

/// As SLURM's clients take it; the number alone would mean the whole array for one of its tasks.
std::string job_name() {
  const char* const array = std::getenv("SLURM_ARRAY_JOB_ID");
  const char* const task = std::getenv("SLURM_ARRAY_TASK_ID");
  if (array != nullptr && task != nullptr) return fmt::format("{}_{}", array, task);
  const char* const job = std::getenv("SLURM_JOB_ID");
  LEVIN_CHECK(job != nullptr, "a job is requeued from inside");
  return job;
}

}  // namespace

bool in_slurm_job() { return std::getenv("SLURM_JOB_ID") != nullptr; }

void requeue_slurm_job() {
  const std::string job = job_name();
  std::string how;
  try {
    const ProcessEnd end = ProcessEnd::wait(start_process("scontrol", {"scontrol", "requeue", job}, {}));
    if (!end.failed()) return;
    how = " " + end.describe();
  } catch (const std::system_error& error) {
    how = ": " + error.code().message();
  }
  throw Error("slurm", fmt::format("job {} is not requeued: scontrol{}; hint: it must be submitted with --requeue, and "
                                   "hosts must have SLURM's clients",
                                   job, how));
}

}  // namespace levin
