#pragma once

#include <levin/core/interfaces/cluster_environment.h>

#include <string>
#include <utility>

namespace levin {

/// Environment without a launcher outside Levin: this process is the only rank, or ranks of this host that Levin itself
/// starts.
class LocalEnvironment : public ClusterEnvironment {
 public:
  LocalEnvironment() = default;
  LocalEnvironment(std::string name, ClusterPlace place) : name_(std::move(name)), place_(std::move(place)) {}

  std::string name() const override { return name_; }
  bool creates_processes_externally() const override { return false; }
  const ClusterPlace& place() const override { return place_; }

 private:
  const std::string name_ = "local";
  const ClusterPlace place_{};
};

}  // namespace levin
