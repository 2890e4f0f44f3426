#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/base/state.h>
#include <levin/core/comm/collective.h>
#include <levin/core/interfaces/divided_model.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace levin {

/// What replicas exchange.
enum class ReplicaSync {
  kGradients,  ///< gradients, in every step
  kLocalSgd,   ///< weights, after several steps
  kDiloco      ///< what the weights have changed by, which an outer optimizer steps with
};

/// Options `outer` of replicas with `sync: diloco`, explained in describe().
struct OuterOptimizerOptions {
  std::string name = "sgd";
  double lr = 0.7;
  double momentum = 0.9;
  bool nesterov = true;

  static void describe(Schema<OuterOptimizerOptions>& schema);
};

/// Replicas that step alone and agree on weights every few steps: local SGD (Stich, "Local SGD converges fast and
/// communicates little", 2019) and DiLoCo (Douillard et al., "DiLoCo: distributed low-communication training of
/// language models", 2023). Optimizers keep their state across the agreements.
///
/// 1. All ranks take as many steps, and at the end of a window (`every` steps) have the same weights.
/// 2. What is evaluated, saved as `model` and left behind inside of a window is the mean of the ranks' weights. The
/// next
///    step goes on from each rank's own.
/// 3. `state_dict` has what each rank has of its own: inside of a window its weights, and always its optimizers.
class LocalSteps final : public DividedModel {
 public:
  struct Options {
    ReplicaSync sync = ReplicaSync::kLocalSgd;
    int64_t every = 64;
    OuterOptimizerOptions outer = {};
    bool average_buffers = true;  ///< floating-point ones, when the weights are agreed on
  };

  explicit LocalSteps(const Options& options) : options_(options) {}

  /// Takes the module of a call. `replicas`: nullptr where there is one rank, or steps are not to be counted.
  void begin(Module& module, std::shared_ptr<Collective> replicas);
  /// Forgets what earlier steps left. `replicas`: as in begin.
  void restart(std::shared_ptr<Collective> replicas);
  void end();
  /// Called before a step, which starts from the rank's own weights.
  void begin_step();
  /// Takes the optimizers of the call, and what load_state_dict has read for them. Collective.
  void set_optimizers(const std::vector<std::shared_ptr<torch::optim::Optimizer>>& optimizers);

  /// Puts the mean of the ranks' weights into the module, until the next step. Collective.
  void show_mean();

  State state_dict() const;
  void load_state_dict(const State& state);

  // ---- DividedModel

  void check_optimizer(const torch::optim::Optimizer& optimizer) override;
  /// Counts a step; at the end of a window the ranks agree on weights.
  void finish_step() override;
  State module_state(Module& module) override;
  void release_module() override { show_mean(); }

 private:
  /// A parameter that is or was trained.
  struct Weight {
    std::string name;
    at::Tensor parameter;
    at::Tensor agreed;    ///< where the window began; diloco alone, as the next
    at::Tensor velocity;  ///< of the outer optimizer
  };

  /// Puts this rank's own weights back.
  void show_own();
  void agree();
  /// Replaces tensors, which are alike in type, by their mean over the ranks. Collective.
  std::vector<at::Tensor> mean_of(const std::vector<at::Tensor>& tensors) const;
  std::vector<at::Tensor> parameters() const;
  Weight* find(const std::string& name);
  void restore(const State& state);

  const Options options_;
  Module* module_ = nullptr;
  std::shared_ptr<Collective> replicas_;
  std::vector<std::pair<std::string, at::Tensor>> all_;      ///< parameters of the module
  std::vector<std::pair<std::string, at::Tensor>> buffers_;  ///< that are averaged
  std::vector<Weight> weights_;
  std::vector<uint8_t> is_weight_;  ///< of each of `all_`
  std::vector<std::shared_ptr<torch::optim::Optimizer>> optimizers_;
  int64_t steps_ = 0;            ///< of the window under way
  std::vector<at::Tensor> own_;  ///< weights and buffers while the module has their mean
  State to_restore_;             ///< read before there were optimizers
};

}  // namespace levin
