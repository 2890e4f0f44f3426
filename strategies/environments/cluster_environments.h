#pragma once

#include <levin/core/interfaces/cluster_environment.h>

#include <cstdint>
#include <memory>
#include <string>

namespace levin {

class EnvironmentVariables;

/// Finds the launcher that has started this process as one of the ranks of a job, and the process's place in it;
/// nullptr where there is none. Launchers are looked for in this order. One that may start another comes after that
/// other: when srun starts torchrun, the variables of SLURM are there too.
///
///   Levin            LEVIN_RANK: this program started itself again
///   torchrun         TORCHELASTIC_RUN_ID, or RANK with LOCAL_RANK as the predecessor of torchrun sets them
///   Horovod          HOROVOD_RANK
///   LSF              JSM_NAMESPACE_RANK with LSB_JOBID: jsrun
///   Open MPI         OMPI_COMM_WORLD_RANK: mpirun
///   SLURM            SLURM_STEP_ID with SLURM_PROCID: srun, but not a shell that srun or salloc opened
///   plain variables  RANK or WORLD_SIZE, one rank on each host, as Kubeflow sets them
///
/// Throws levin::Error naming the variable that is missing or wrong.
std::unique_ptr<ClusterEnvironment> detect_environment(const EnvironmentVariables& variables);

/// Looks in the variables of this process, unless GivenRanks says more.
std::unique_ptr<ClusterEnvironment> detect_environment();

/// Scope in which detect_environment() on this thread gives a place that the program knows, such as that in an MPI
/// communicator, and looks in no variables.
class [[nodiscard]] GivenRanks {
 public:
  /// `by`: who has started the ranks, for messages.
  GivenRanks(std::string by, ClusterPlace place);
  ~GivenRanks();
  GivenRanks(const GivenRanks&) = delete;
  GivenRanks& operator=(const GivenRanks&) = delete;

  const std::string& by() const { return by_; }
  const ClusterPlace& place() const { return place_; }

 private:
  const std::string by_;
  const ClusterPlace place_;
  const GivenRanks* const former_;
};

/// Throws ConfigError, with both numbers, unless `num_nodes` hosts with `devices` ranks each are what was started.
void check_agreement(const ClusterEnvironment& environment, int64_t num_nodes, int64_t devices);

}  // namespace levin
