#pragma once

#include <levin/core/interfaces/divided_model.h>
#include <levin/strategies/pipeline/stage_parameters.h>
#include <levin/strategies/ranks/ranked_strategy.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin {

class PipelineEngine;
class SequentialImpl;
class ShardedModel;
class StageRing;
class TensorModel;
struct ChainUnit;

/// Elements of the sequential for each stage (for each chunk, in the model's order, with several chunks a rank); empty:
/// found out. In YAML `auto` or a list.
struct PipelineBalance {
  std::vector<int64_t> elements = {};
};

template <>
struct ConfigCodec<PipelineBalance> {
  static std::string type_name() { return "auto, or list of integers"; }
  static PipelineBalance parse(const Config& node, const std::string& path);
  static Config dump(const PipelineBalance& value);
};

/// Options of Pipeline, explained in describe().
struct PipelineOptions {
  PipelineBalance balance = {};
  std::string balance_by = "time";
  std::string schedule = "1f1b";
  int64_t micro_batches = 8;
  int64_t chunks_per_rank = 0;
  std::string checkpoint = "never";
  int64_t data_parallel = 1;
  bool shard_optimizer = false;
  std::string shard_group = "all";
  int64_t shard_stage = 1;
  int64_t shard_prefetch = 1;
  double shard_bucket_cap_mb = 25;
  bool shard_keep_window_gradients = false;
  int64_t tensor_group = 1;
  std::map<std::string, std::string> tensor_plan = {};
  bool tensor_sequence_parallel = false;
  std::string sequential = {};
  std::string trace = {};
  int64_t trace_batch = 10;
  bool gather_after_fit = true;
  StartMethod start_method = StartMethod::kSubprocess;
  std::string backend = "auto";
  double timeout = 1800;
  double start_timeout = 120;
  double stall_report = 60;
  double hang_timeout = 600;

  static void describe(Schema<PipelineOptions>& schema);
};

/// Cuts a levin::Sequential of the module into stages, one on each rank, through which micro-batches run one after the
/// other (Huang et al., "GPipe", 2019, arXiv:1811.06965). Ranks of a tensor group divide the layers of their stage (see
/// TensorParallel). The module's code stays as it is. With one rank it is as single_device.
class Pipeline : public RankedStrategy, public DividedModel {
 public:
  using Options = PipelineOptions;
  explicit Pipeline(const Options& options = {});
  ~Pipeline() override;

  StrategyCapabilities capabilities() const override;
  DividedModel& divided_model() override { return *this; }
  void setup_environment(const StrategySetup& setup) override;
  DataParallelRank data_parallel_rank() override;
  int64_t data_parallel_size(int64_t devices_of_host, int64_t hosts) const override;
  void set_sample(std::function<Batch()> sample) override { sample_ = std::move(sample); }
  void setup_module(Module& module) override;
  bool loads_weights_before_setup() const override { return rank_group().world_size() == 1; }
  State module_state(Module& module) override;
  void load_module_state(Module& module, const State& state) override;
  State place_optimizer_state(State state) const override;
  State own_optimizer_state(const State& saved) const override;
  bool keeps_gradients_back() const override;
  void drop_kept_gradients(const std::vector<at::Tensor>& but_of) override;
  void combine_kept_gradients() override;
  bool divides_state() const override { return rank_group().world_size() > 1; }
  void check_optimizer(const torch::optim::Optimizer& optimizer) override;
  StepOutput forward_backward(const Batch& batch, StepPhases& phases, const AccumulationWindow& window) override;
  std::optional<WindowTotals> window_totals() override { return totals_; }
  StepOutput evaluate(const Batch& batch, StepPhases& phases) override;
  bool forwards_together() const override { return rank_group().world_size() > 1; }
  bool owns_outputs() const override;
  bool outputs_everywhere() const override { return rank_group().world_size() == 1 || stages() == 1; }
  std::shared_ptr<void> forward_scope() override;
  std::shared_ptr<void> full_parameters(const torch::nn::Module& module) override;
  void prepare_step() override;
  void finish_step() override;
  void shards_changed() override;
  void release_module() override;
  /// Throws ConfigError where steps are to be of one rank alone.
  void restart_steps(bool alone) override;
  void teardown() override;
  /// Engine that runs this rank's steps, for measurements and traces; nullptr with one rank, and outside of the
  /// trainer's calls.
  const PipelineEngine* engine() const { return engine_.get(); }

 protected:
  DeviceMesh make_mesh() override;

 private:
  void connect();
  int64_t stages() const { return rank_group().mesh().size(DeviceMesh::kPipeline); }
  int64_t chunks_per_rank() const;
  void shard_chunks(Module& module);
  void hold_shards(bool divide_tensors);
  void require_weights() const;
  bool shares_are_divided() const { return tensor_ != nullptr && groups_.shards != nullptr; }
  std::shared_ptr<void> tensor_scope() const;
  SequentialImpl& find_sequential(Module& module);
  std::vector<int64_t> balance(Module& module, SequentialImpl& sequential);
  void measure(Module& module, SequentialImpl& sequential, std::vector<ChainUnit>& units) const;
  void write_trace();

  const Options options_;
  std::string sequential_path_;
  std::function<Batch()> sample_;
  // nullptr with one rank.
  std::unique_ptr<TensorModel> tensor_;  ///< nullptr where no layers are cut; outlives what divides its shares
  std::unique_ptr<StageParameters> parameters_;
  std::map<int64_t, std::unique_ptr<ShardedModel>> sharded_;  ///< by chunk, where gradients or parameters are divided
  std::unique_ptr<PipelineEngine> engine_;
  std::shared_ptr<Collective> stages_;      ///< of the ranks of one pipeline
  std::unique_ptr<StageRing> activations_;  ///< of the same ranks
  std::unique_ptr<StageRing> gradients_;
  StageGroups groups_;                        ///< of the ranks with the same stage
  std::shared_ptr<Collective> tensor_group_;  ///< ranks with other shares of the same layers; nullptr: none
  std::shared_ptr<Collective> parts_;         ///< of the ranks with different parts of the gradients
  std::optional<at::ScalarType> mixed_type_;
  std::string absent_;                  ///< message of a parameter that an earlier call left without values
  int64_t batches_ = 0;                 ///< of this call
  bool has_checked_gradients_ = false;  ///< of the first window of a call, where layers are cut
  std::optional<WindowTotals> totals_;
};

}  // namespace levin
