#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/strategies/ranks/single_rank.h>

#include <memory>
#include <string>
#include <vector>

namespace levin {

class ReplicaGroup;

/// Options of DataParallel, explained in describe().
struct DataParallelOptions {
  std::string scale_lr = "none";  ///< by the number of replicas: linear, sqrt or none
  double hang_timeout = 600;

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
  Ranks& ranks() override { return rank_; }
  int64_t data_parallel_size(int64_t, int64_t) const override { return 1; }
  void setup_environment(const StrategySetup& setup) override;
  void setup_module(Module& module) override;
  StepOutput forward_backward(const Batch& batch, StepPhases& phases, const AccumulationWindow& window) override;
  StepOutput evaluate(const Batch& batch, StepPhases& phases) override;
  double learning_rate_scale() const override;
  void teardown() override;

 private:
  StepOutput forward(const Batch& batch, StepPhases& phases);

  const Options options_;
  SingleRank rank_;
  std::vector<at::Device> devices_{at::Device(at::kCPU)};
  std::unique_ptr<ReplicaGroup> replicas_;  ///< nullptr on one device
};

}  // namespace levin
