#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/interfaces/strategy.h>

#include <memory>
#include <string>
#include <vector>

namespace levin {

class ReplicaGroup;

struct DataParallelOptions {
  std::string scale_lr = "none";  ///< by the number of replicas: linear, sqrt or none

  static void describe(Schema<DataParallelOptions>& schema);
};

/// One process, several devices: each batch is split over replicas of the module that run in parallel, and what they
/// give is one output and one gradient, as if one device had the whole batch. On the CPU `devices: n` runs n replicas.
/// BatchNorm takes its statistics from each part, and the running ones from the first.
class DataParallel : public Strategy {
 public:
  using Options = DataParallelOptions;
  explicit DataParallel(const Options& options = {});
  ~DataParallel() override;

  std::string name() const override { return "dp"; }
  StrategyCapabilities capabilities() const override;
  Launcher& launcher() override;
  ClusterEnvironment& environment() override;
  void setup_environment(const StrategySetup& setup) override;
  const at::Device& root_device() const override { return devices_.front(); }
  Collective& collective() override { return *collective_; }
  void setup_module(Module& module) override;
  StepOutput forward_backward(const Batch& batch, StepPhases& phases, const StepWindow& window) override;
  StepOutput evaluate(const Batch& batch, StepPhases& phases) override;
  double learning_rate_scale() const override;
  void teardown() override;

 private:
  StepOutput forward(const Batch& batch, StepPhases& phases);

  const Options options_;
  std::unique_ptr<Launcher> launcher_;
  std::unique_ptr<ClusterEnvironment> environment_;
  std::shared_ptr<Collective> collective_;
  std::vector<at::Device> devices_{at::Device(at::kCPU)};
  std::unique_ptr<ReplicaGroup> replicas_;  ///< nullptr on one device
};

}  // namespace levin
