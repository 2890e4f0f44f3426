#pragma once

#include <levin/core/interfaces/divided_layers.h>
#include <levin/core/interfaces/divided_model.h>
#include <levin/strategies/ddp/ddp.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace levin {

class TensorModel;

/// Options of TensorParallel, explained in describe().
struct TensorParallelOptions {
  std::string tensor_group = "all";
  std::map<std::string, std::string> plan = {};
  bool sequence_parallel = false;
  double bucket_cap_mb = 25;
  bool find_unused_parameters = false;
  bool broadcast_buffers = true;
  std::string gradient_compression = "none";
  StartMethod start_method = StartMethod::kSubprocess;
  std::string backend = "auto";
  double timeout = 1800;
  double start_timeout = 120;
  double stall_report = 60;
  double hang_timeout = 600;

  static void describe(Schema<TensorParallelOptions>& schema);
};

/// Ranks of a group divide the layers of a module, as its parts' plans say, and see the same examples (Shoeybi et al.,
/// "Megatron-LM", 2019, arXiv:1909.08053); groups see different ones, and average gradients as Ddp. The module's code
/// stays as it is. With one rank a group it is Ddp.
class TensorParallel : public Ddp, public DividedModel, public DividedLayers {
 public:
  using Options = TensorParallelOptions;
  explicit TensorParallel(const Options& options = {});
  ~TensorParallel() override;

  DividedModel& divided_model() override { return *this; }
  void setup_environment(const StrategySetup& setup) override;
  DataParallelRank data_parallel_rank() override;
  int64_t data_parallel_size(int64_t devices_of_host, int64_t hosts) const override;
  void setup_module(Module& module) override;
  State module_state(Module& module) override;
  bool divides_state() const override { return is_divided(); }
  bool divides_layers() const override { return true; }
  void check_optimizer(const torch::optim::Optimizer& optimizer) override;
  StepOutput forward_backward(const Batch& batch, StepPhases& phases, const AccumulationWindow& window) override;
  StepOutput manual_step(const Batch& batch, StepPhases& phases) override;
  StepOutput evaluate(const Batch& batch, StepPhases& phases) override;
  std::shared_ptr<void> forward_scope() override;
  std::shared_ptr<void> full_parameters(const torch::nn::Module& module) override;
  GraphSupport graph_support() override;
  bool owns_outputs() const override { return group_ == nullptr || group_->rank() == 0; }
  bool outputs_everywhere() const override { return !is_divided(); }
  void release_module() override;
  /// Throws ConfigError where steps are to be of one rank alone.
  void restart_steps(bool alone) override;
  void teardown() override;

 protected:
  DeviceMesh make_mesh() override;
  StepOutput forward(const Batch& batch, StepPhases& phases) override;

 private:
  bool is_divided() const { return rank_group().mesh().size(DeviceMesh::kTensor) > 1; }

  const Options options_;
  std::shared_ptr<Collective> group_;  ///< ranks with other shares of the layers; nullptr: none
  std::unique_ptr<TensorModel> model_;
  bool has_checked_gradients_ = false;  ///< of the first window of a call
};

}  // namespace levin
