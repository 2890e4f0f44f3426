#pragma once

#include <levin/core/interfaces/divided_examples.h>
#include <levin/core/interfaces/divided_layers.h>
#include <levin/core/interfaces/divided_model.h>
#include <levin/strategies/ranks/ranked_strategy.h>
#include <levin/strategies/sharded/sharded_build.h>

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace levin {

class ContextCut;
class ShardedModel;
class TensorModel;
struct ShardedModelOptions;

/// Options of Sharded, explained in describe().
struct ShardedOptions {
  int64_t stage = 3;
  std::vector<std::string> units = {};
  int64_t min_unit_parameters = 0;
  int64_t prefetch = 1;
  double bucket_cap_mb = 25;
  bool offload = false;
  std::string shard_group = "all";
  int64_t tensor_group = 1;
  std::map<std::string, std::string> tensor_plan = {};
  bool tensor_sequence_parallel = false;
  int64_t context_group = 1;
  int64_t context_dimension = 1;
  std::vector<std::string> context_tensors = {};
  std::string context_method = "all_to_all";
  std::string reduce_type = "same";
  bool find_unused_parameters = false;
  bool keep_window_gradients = false;
  bool gather_after_fit = true;
  bool broadcast_buffers = true;
  StartMethod start_method = StartMethod::kSubprocess;
  std::string backend = "auto";
  double timeout = 1800;
  double start_timeout = 120;
  double stall_report = 60;
  double hang_timeout = 600;

  static void describe(Schema<ShardedOptions>& schema);
};

/// Data parallel training in which the ranks divide what each of them need not have: the optimizer's state (stage 1),
/// gradients too (2), parameters too (3), after Rajbhandari et al., "ZeRO: Memory optimizations toward training
/// trillion parameter models", 2020 (arXiv:1910.02054). Ranks of a tensor group, which see the same examples, divide
/// the layers before that (see TensorParallel); those of a context group divide the sequences of their examples (see
/// ContextParallel), and hold the same parts of the model. The module's code stays as it is. With one rank it is as
/// single_device.
class Sharded : public RankedStrategy, public DividedModel, public DividedLayers, public DividedExamples {
 public:
  using Options = ShardedOptions;
  explicit Sharded(const Options& options = {});
  ~Sharded() override;

  DividedModel& divided_model() override { return *this; }
  void setup_environment(const StrategySetup& setup) override;
  DataParallelRank data_parallel_rank() override;
  int64_t data_parallel_size(int64_t devices_of_host, int64_t hosts) const override;
  std::shared_ptr<void> build_scope(std::function<void(torch::nn::Module&)> prepare) override;
  void setup_module(Module& module) override;
  bool loads_weights_before_setup() const override { return rank_group().world_size() == 1; }
  State module_state(Module& module) override;
  void load_module_state(Module& module, const State& state) override;
  State place_optimizer_state(State state) const override;
  State own_optimizer_state(const State& saved) const override;
  bool divides_state() const override { return rank_group().world_size() > 1; }
  bool divides_layers() const override { return options_.stage == 3 || options_.tensor_group > 1; }
  bool keeps_gradients_back() const override;
  void drop_kept_gradients(const std::vector<at::Tensor>& but_of) override;
  void combine_kept_gradients() override;
  void check_optimizer(const torch::optim::Optimizer& optimizer) override;
  StepOutput forward_backward(const Batch& batch, StepPhases& phases, const AccumulationWindow& window) override;
  std::optional<WindowTotals> window_totals() override { return totals_; }
  StepOutput manual_step(const Batch& batch, StepPhases& phases) override;
  void manual_backward(const at::Tensor& loss, const BackwardOptions& options) override;
  void prepare_evaluation(Module& module) override { send_buffers(module); }
  StepOutput evaluate(const Batch& batch, StepPhases& phases) override;
  bool forwards_together() const override { return rank_group().world_size() > 1 && options_.stage == 3; }
  std::shared_ptr<void> forward_scope() override;
  std::shared_ptr<void> full_parameters(const torch::nn::Module& module) override;
  bool owns_outputs() const override;
  bool outputs_everywhere() const override { return tensor_group_ == nullptr && context_group_ == nullptr; }
  void prepare_step() override;
  void finish_step() override;
  void shards_changed() override;
  void release_module() override;
  /// Throws ConfigError where steps are to be of one rank alone: that has parts only.
  void restart_steps(bool alone) override;
  void teardown() override;

  Batch part_of(const Batch& batch) override;
  Batch whole_of(const Batch& prediction) override;
  bool is_first() override;
  DataParallelRank loss_rank() override;

 protected:
  DeviceMesh make_mesh() override;

 private:
  ShardedModelOptions model_options() const;
  void send_buffers(Module& module);
  void hold_shards(bool divide_tensors);
  void look_at_step();
  void require_weights() const;
  std::shared_ptr<void> layer_scope() const;
  Batch own_part(const Batch& batch) const;
  StepOutput training_forward(const Batch& batch, StepPhases& phases);

  const Options options_;
  std::vector<ShardedBuild::Part> built_;      ///< by configure_model, and not yet in model_
  std::unique_ptr<TensorModel> tensor_;        ///< nullptr where no layers are cut; outlives what divides its shares
  std::unique_ptr<ShardedModel> model_;        ///< nullptr with one rank
  std::unique_ptr<ContextCut> context_;        ///< nullptr where no sequences are cut
  std::shared_ptr<Collective> loss_group_;     ///< ranks with losses of their own; nullptr: this one alone
  std::shared_ptr<Collective> context_group_;  ///< ranks with other positions of the same examples; nullptr: none
  std::shared_ptr<Collective> tensor_group_;   ///< ranks with other shares of the layers; nullptr: none
  std::shared_ptr<Collective> parts_group_;    ///< ranks with other parts of the parameters
  bool has_checked_gradients_ = false;         ///< of the first window of a call, where layers are cut
  std::shared_ptr<Collective> shard_group_;    ///< the ranks that hold one copy
  std::shared_ptr<Collective> replica_group_;  ///< those that hold the same part of it; nullptr where there is one copy
  std::optional<at::ScalarType> mixed_type_;
  std::string absent_;  ///< message of a parameter that an earlier call left without values; empty: none
  bool has_buffers_ = false;
  bool sync_batchnorm_ = false;
  std::optional<WindowTotals> totals_;
  bool looks_at_steps_ = false;  ///< until the user's own optimizer has been seen to change the local shards
  int64_t idle_steps_ = 0;       ///< that changed nothing
  std::vector<std::pair<at::Tensor, at::Tensor>> before_step_;  ///< parts of local shards, with what they held
};

}  // namespace levin
