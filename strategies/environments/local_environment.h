#pragma once

#include <levin/core/interfaces/cluster_environment.h>

namespace levin {

/// No launcher outside Levin: this process is rank 0 of a job on this host.
class LocalEnvironment : public ClusterEnvironment {
 public:
  std::string name() const override { return "local"; }
  bool creates_processes_externally() const override { return false; }
  int64_t rank() const override { return 0; }
  int64_t local_rank() const override { return 0; }
  int64_t node_rank() const override { return 0; }
  int64_t world_size() const override { return 1; }
  std::string main_address() const override { return "127.0.0.1"; }
  int64_t main_port() const override { return 0; }
};

}  // namespace levin
