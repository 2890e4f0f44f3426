#pragma once

#include <levin/core/interfaces/divided_examples.h>
#include <levin/core/interfaces/divided_model.h>
#include <levin/strategies/ddp/ddp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace levin {

class ContextCut;

/// Options of ContextParallel, explained in describe().
struct ContextParallelOptions {
  std::string context_group = "all";
  int64_t dimension = 1;
  std::vector<std::string> tensors = {};
  std::string method = "all_to_all";
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

  static void describe(Schema<ContextParallelOptions>& schema);
};

/// Ranks of a group divide the sequences of the same examples: each has a part of the positions, and attention sees all
/// of them (see cut_context). Groups see different examples. Gradients are averaged over all ranks as Ddp does, by the
/// weights of the losses of their parts. With one rank a group it is Ddp.
class ContextParallel : public Ddp, public DividedModel, public DividedExamples {
 public:
  using Options = ContextParallelOptions;
  explicit ContextParallel(const Options& options = {});
  ~ContextParallel() override;

  DividedModel& divided_model() override { return *this; }
  void setup_environment(const StrategySetup& setup) override;
  DataParallelRank data_parallel_rank() override;
  int64_t data_parallel_size(int64_t devices_of_host, int64_t hosts) const override;
  void setup_module(Module& module) override;
  StepOutput manual_step(const Batch& batch, StepPhases& phases) override;
  StepOutput evaluate(const Batch& batch, StepPhases& phases) override;
  std::shared_ptr<void> forward_scope() override;
  /// What is logged is of all positions.
  bool outputs_everywhere() const override { return !is_divided(); }
  GraphSupport graph_support() override;
  /// Throws ConfigError where steps are to be of one rank alone.
  void restart_steps(bool alone) override;
  void teardown() override;

  Batch part_of(const Batch& batch) override;
  Batch whole_of(const Batch& prediction) override;
  bool is_first() override;
  DataParallelRank loss_rank() override;

 protected:
  DeviceMesh make_mesh() override;
  StepOutput forward(const Batch& batch, StepPhases& phases) override;
  double loss_share() const override;

 private:
  bool is_divided() const { return rank_group().mesh().size(DeviceMesh::kContext) > 1; }

  const Options options_;
  std::shared_ptr<Collective> group_;  ///< ranks with other positions of the same examples; nullptr: none
  std::unique_ptr<ContextCut> cut_;    ///< nullptr where sequences are not divided
};

}  // namespace levin
