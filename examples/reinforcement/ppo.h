#pragma once

#include "environments.h"

#include <levin/levin.h>

#include <memory>
#include <string>

namespace reinforcement {

/// Options of Ppo.
struct PpoOptions {
  std::string environment = "cart_pole";
  int64_t environments = 8;
  int64_t steps = 128;
  int64_t passes = 10;
  int64_t batch_size = 128;
  int64_t hidden = 64;
  double lr = 1e-3;
  double discount = 0.99;
  double gae = 0.95;
  double clip = 0.2;
  double entropy = 0.0;
  double value = 0.5;
  double reward_scale = 1;
  double solved = 0;

  static void describe(levin::Schema<PpoOptions>& schema);
};

/// Improves a policy by what its last episodes brought (Schulman et al.: "Proximal policy optimization algorithms",
/// 2017), with generalised advantages (2016). Steps are played when an epoch begins, which is `passes` passes over
/// them. Actions are chosen from, or a number drawn from a normal distribution.
class Ppo : public levin::Module {
 public:
  using Options = PpoOptions;
  explicit Ppo(const Options& options);

  levin::DataLoader train_dataloader() override;
  void on_train_epoch_start() override;
  void on_train_epoch_end() override;
  levin::StepOutput training_step(const levin::Batch& batch, int64_t batch_idx) override;
  levin::OptimizerConfigs configure_optimizers() override;
  void on_save_checkpoint(levin::State& state) override;
  void on_load_checkpoint(const levin::State& state) override;

 private:
  /// Returns the logarithms of the densities of actions, and the entropies of their distributions: [n] each.
  std::pair<torch::Tensor, torch::Tensor> judge(const torch::Tensor& observation, const torch::Tensor& action);
  /// Draws actions, and returns them with the logarithms of their densities: [n] each.
  std::pair<torch::Tensor, torch::Tensor> choose(const torch::Tensor& observation);
  torch::Tensor value_of(const torch::Tensor& observation);
  void play();

  Options options_;
  Environments environments_;
  levin::Batch played_;  ///< [steps * environments, ...]; the loader's data set has the same tensors
  levin::Sequential policy_;
  levin::Sequential value_;
  torch::Tensor log_deviation_;  ///< [1], where an action is a number
};

}  // namespace reinforcement
