#pragma once

#include <levin/core/interfaces/divided_model.h>
#include <levin/core/interfaces/independent_steps.h>
#include <levin/strategies/ranks/ranked_strategy.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin {

class ServedParameters;
class UpdateServer;

struct ParameterServerOptions {
  std::string mode = "sync";                  ///< sync or async
  int64_t servers = 1;                        ///< ranks, the first ones, that serve parameters beside their worker
  std::optional<int64_t> max_staleness = {};  ///< async: batches that a worker may be ahead of the slowest one
  double delay_compensation = 0;              ///< async: the factor of Zheng et al. (2017); 0: none
  std::string update_log = "";                ///< async: folder of the servers' logs of updates; empty: none
  bool broadcast_buffers = true;              ///< sync: rank 0's buffers go to all ranks before each step
  StartMethod start_method = StartMethod::kSubprocess;  ///< of ranks: processes, forks or threads
  std::string backend = "auto";                         ///< auto, gloo, nccl or shared_memory
  double timeout = 1800;                                ///< seconds that a rank waits for the others in a collective
  double start_timeout = 120;                           ///< seconds that ranks wait for each other at the start
  double stall_report = 60;   ///< seconds in one collective after which where ranks are is printed
  double hang_timeout = 600;  ///< seconds in one part of a step after which the job ends; 0: never

  static void describe(Schema<ParameterServerOptions>& schema);
};

/// A parameter server (Li et al., "Scaling Distributed Machine Learning with the Parameter Server", 2014): every rank
/// is a worker, which computes gradients, and the first ranks are servers as well, which divide the parameters over
/// them, run the optimizer and send the new values back. With one rank it is as single_device.
///
/// mode sync: the mean of the gradients of all workers is a step, as in ddp. mode async: each worker's gradients are a
/// step, whenever they come, with values that others may have changed since; workers meet at the end of each epoch.
/// There the optimizer that the trainer knows has the module's parameters, their gradients and the learning rates, and
/// a second one, from configure_optimizers as well, steps at the server.
class ParameterServer : public RankedStrategy, public DividedModel, public IndependentSteps {
 public:
  using Options = ParameterServerOptions;
  explicit ParameterServer(const Options& options = {});
  ~ParameterServer() override;

  StrategyCapabilities capabilities() const override;
  DividedModel& divided_model() override { return *this; }
  void prepare(const StrategySetup& setup) override;
  int64_t data_parallel_size(int64_t devices_of_host, int64_t hosts) const override {
    return is_async() ? 1 : devices_of_host * hosts;  // a step of each worker's batch
  }
  void setup_environment(const StrategySetup& setup) override;
  void setup_module(Module& module) override;
  StepOutput forward_backward(const Batch& batch, StepPhases& phases, const AccumulationWindow& window) override;
  std::optional<WindowTotals> window_totals() override { return totals_; }
  StepOutput manual_step(const Batch& batch, StepPhases& phases) override;
  void manual_backward(const at::Tensor& loss, const BackwardOptions& options) override;
  void prepare_evaluation(Module& module) override { send_buffers(module); }
  void restart_steps(bool alone) override;
  void teardown() override;

  bool are_steps_independent() override { return is_async() && is_divided(); }
  void begin_batches(int64_t epoch, int64_t first, int64_t end) override;
  std::optional<int64_t> take_batch() override;
  void take_step(OptimizerHandle& optimizer, int64_t batch) override;
  int64_t meet(int64_t done, bool stopped) override;

  void check_optimizer(const torch::optim::Optimizer& optimizer) override;
  void finish_step() override;
  void shards_changed() override;

  /// Whole: every rank has all values.
  State module_state(Module& module) override { return ParallelModel().module_state(module); }
  void load_module_state(Module& module, const State& state) override;
  bool divides_state() const override { return is_divided(); }
  bool keeps_gradients_back() const override { return keeps_gradients_back_; }
  void drop_kept_gradients(const std::vector<at::Tensor>& but_of) override;
  void combine_kept_gradients() override;
  State place_optimizer_state(State state) const override;
  State own_optimizer_state(const State& saved) const override;

 private:
  bool is_server() const;
  bool is_async() const { return options_.mode == "async"; }
  /// Whether there were several ranks at first: one that is left over goes on as their server.
  bool is_divided() const { return rank_group().launched_world_size() > 1; }
  /// The server of this rank, made when it is first needed.
  UpdateServer& server();
  /// What steps the shards, likewise. Ranks that serve nothing have it too, without elements: state that is divided has
  /// the same form on all ranks.
  const std::shared_ptr<torch::optim::Optimizer>& stepping_optimizer() const;
  void send_buffers(Module& module);
  /// All ranks: gradients go to the servers, which average them. `skipped`: this rank has none, which counts as zero.
  void push(bool skipped);
  /// All ranks: the servers' values come to the workers.
  void pull();
  /// Some were killed.
  void leave_out_workers();

  const Options options_;
  std::unique_ptr<ServedParameters> served_;
  ParallelModel served_parts_;             ///< of the optimizer that steps what this rank serves
  using Packet = std::vector<at::Tensor>;  ///< see ServedParameters
  std::vector<Packet> outgoing_;           ///< gradients for each server
  std::vector<Packet> incoming_;           ///< of each other worker
  std::vector<Packet> values_;             ///< of each server
  std::optional<WindowTotals> totals_;
  Module* module_ = nullptr;

  // ---- mode async
  std::shared_ptr<Collective> exchange_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<UpdateServer> server_;
  mutable std::shared_ptr<torch::optim::Optimizer> stepping_optimizer_;
  bool keeps_gradients_back_ = false;
  const torch::optim::Optimizer* known_ = nullptr;  ///< the trainer's
  int64_t rounds_ = 0;                              ///< of independent steps, alike on all ranks
  std::string counter_;                             ///< the key that counts batches taken
  int64_t epoch_ = 0;
  int64_t first_batch_ = 0;
  int64_t end_batch_ = 0;
  bool in_round_ = false;

  bool has_buffers_ = false;
  bool sync_batchnorm_ = false;
};

}  // namespace levin
