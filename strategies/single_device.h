#pragma once

#include <levin/core/interfaces/strategy.h>

#include <memory>

namespace levin {

/// One device, one process: every collective is the identity.
class SingleDevice : public Strategy {
 public:
  SingleDevice();
  ~SingleDevice() override;

  std::string name() const override { return "single_device"; }
  Launcher& launcher() override;
  ClusterEnvironment& environment() override;
  void setup_environment(const StrategySetup& setup) override;
  const at::Device& root_device() const override { return device_; }
  Collective& collective() override { return *collective_; }
  void setup_module(Module& module) override;
  GraphSupport graph_support() override { return make_graph_recorder(device_); }

 private:
  std::unique_ptr<Launcher> launcher_;
  std::unique_ptr<ClusterEnvironment> environment_;
  std::shared_ptr<Collective> collective_;
  at::Device device_{at::kCPU};
};

}  // namespace levin
