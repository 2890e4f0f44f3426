#include <levin/core/sweep/executor_registry.h>

#include <levin/core/sweep/local_executor.h>
#include <levin/core/sweep/slurm_executor.h>

namespace levin::sweep {

Registry<Executor>& executor_registry() {
  static auto* registry = [] {
    auto* made = new Registry<Executor>("executor");
    made->add<LocalExecutor>("local", "processes on this machine");
    made->add<SlurmExecutor>("slurm", "an array job of SLURM, with sbatch");
    return made;
  }();
  return *registry;
}

}  // namespace levin::sweep
