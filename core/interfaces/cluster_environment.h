#pragma once

#include <cstdint>
#include <string>

namespace levin {

/// Place of a process among the ranks of a job.
struct ClusterPlace {
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_rank = 0;        ///< number of the rank among those of this host
  int64_t local_world_size = 1;  ///< ranks of this host
  int64_t node_rank = 0;
  std::string main_address = "127.0.0.1";  ///< host of the rendezvous
  int64_t main_port = 0;                   ///< 0: none is known yet
  /// Whether something outside the job (the launcher's agent) serves the store at main_address; else rank 0 does.
  bool external_store = false;
  /// Whether that store still holds what earlier attempts of the job wrote, so that the ranks must agree on a name for
  /// this attempt.
  bool store_outlives_attempts = false;
  /// Makes the keys of this job different from those of others in the same store.
  std::string run_id = {};
};

/// Tells this process its place among the ranks of a job, as the launcher that started it says.
class ClusterEnvironment {
 public:
  virtual ~ClusterEnvironment() = default;
  /// Name for messages: "torchrun", "SLURM".
  virtual std::string name() const = 0;
  /// Whether a launcher outside this process started all ranks already.
  virtual bool creates_processes_externally() const = 0;
  virtual const ClusterPlace& place() const = 0;

  int64_t rank() const { return place().rank; }
  int64_t local_rank() const { return place().local_rank; }
  int64_t node_rank() const { return place().node_rank; }
  int64_t world_size() const { return place().world_size; }
  int64_t local_world_size() const { return place().local_world_size; }
};

}  // namespace levin
