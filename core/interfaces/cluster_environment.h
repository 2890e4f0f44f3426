#pragma once

#include <cstdint>
#include <string>

namespace levin {

/// Who this process is among the ranks of a job, as the launcher that started it says.
class ClusterEnvironment {
 public:
  virtual ~ClusterEnvironment() = default;
  /// For messages: "torchrun", "SLURM".
  virtual std::string name() const = 0;
  /// Whether a launcher outside Levin started all ranks already.
  virtual bool creates_processes_externally() const = 0;
  virtual int64_t rank() const = 0;
  virtual int64_t local_rank() const = 0;
  virtual int64_t node_rank() const = 0;
  virtual int64_t world_size() const = 0;
  /// Host and port of the rendezvous.
  virtual std::string main_address() const = 0;
  virtual int64_t main_port() const = 0;
};

}  // namespace levin
