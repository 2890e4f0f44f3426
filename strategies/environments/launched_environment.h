#pragma once

#include <levin/core/interfaces/cluster_environment.h>

#include <string>
#include <utility>

namespace levin {

/// Environment of a process that a launcher has started, as it has all ranks.
class LaunchedEnvironment : public ClusterEnvironment {
 public:
  LaunchedEnvironment(std::string launcher, ClusterPlace place)
      : launcher_(std::move(launcher)), place_(std::move(place)) {}

  std::string name() const override { return launcher_; }
  bool creates_processes_externally() const override { return true; }
  const ClusterPlace& place() const override { return place_; }

 private:
  const std::string launcher_;
  const ClusterPlace place_;
};

}  // namespace levin
