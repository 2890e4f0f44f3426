#pragma once

#include <levin/strategies/ddp/ddp.h>

#include <memory>
#include <string>

namespace levin {

class ReplicaGroup;

/// One process a host: replicas of the model on its devices share each batch, as with `dp`, and the processes average
/// their gradients, as with `ddp`. The effective batch is the batch times the number of hosts. On one host it is `dp`.
class Ddp2 : public Ddp {
 public:
  explicit Ddp2(const Options& options = {});
  ~Ddp2() override;

  std::string name() const override { return "ddp2"; }
  StrategyCapabilities capabilities() const override;
  int64_t data_parallel_size(int64_t, int64_t hosts) const override { return hosts; }
  void prepare(const StrategySetup& setup) override;
  void setup_environment(const StrategySetup& setup) override;
  void setup_module(Module& module) override;
  StepOutput forward_backward(const Batch& batch, StepPhases& phases, const AccumulationWindow& window) override;
  StepOutput evaluate(const Batch& batch, StepPhases& phases) override;
  GraphSupport graph_support() override { return Strategy::graph_support(); }
  void teardown() override;

 protected:
  StepOutput forward(const Batch& batch, StepPhases& phases) override;
  double loss_share() const override;

 private:
  std::vector<at::Device> devices_;
  std::unique_ptr<ReplicaGroup> replicas_;  ///< nullptr on one device
};

}  // namespace levin
