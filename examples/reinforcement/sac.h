#pragma once

#include "environments.h"

#include <levin/levin.h>

#include <memory>
#include <string>
#include <utility>

namespace reinforcement {

/// Options of Sac.
struct SacOptions {
  std::string environment = "pendulum";
  int64_t environments = 4;
  int64_t batch_size = 128;
  int64_t updates_an_epoch = 500;
  int64_t hidden = 64;
  double lr = 1e-3;
  double discount = 0.98;
  double target_rate = 0.01;
  int64_t capacity = 50'000;
  int64_t warm_up = 1000;
  double reward_scale = 0.1;
  double solved = 0;

  static void describe(levin::Schema<SacOptions>& schema);
};

/// Learns a policy that earns much and stays as random as it can afford (Haarnoja et al.: "Soft actor-critic algorithms
/// and applications", 2018). Actions are numbers. Three optimizers are stepped by hand: of the two estimates of values,
/// the policy, and the price of being predictable. Behind every update it takes one step in each environment.
class Sac : public levin::Module {
 public:
  using Options = SacOptions;
  explicit Sac(const Options& options);

  levin::DataLoader train_dataloader() override;
  void on_train_start() override;
  levin::StepOutput training_step(const levin::Batch& batch, int64_t batch_idx) override;
  void on_train_batch_end(const levin::StepOutput& output, const levin::Batch& batch, int64_t batch_idx) override;
  levin::OptimizerConfigs configure_optimizers() override;
  void on_save_checkpoint(levin::State& state) override;
  void on_load_checkpoint(const levin::State& state) override;

 private:
  /// Draws actions in (-1, 1) and returns them with the logarithms of their densities: [n] each.
  std::pair<torch::Tensor, torch::Tensor> act(const torch::Tensor& observation);
  /// Returns both estimates: [n] each.
  std::pair<torch::Tensor, torch::Tensor> values(levin::Sequential& first, levin::Sequential& second,
                                                 const torch::Tensor& observation, const torch::Tensor& action);
  void step(int64_t index, const torch::Tensor& loss);
  void play(bool at_random);

  Options options_;
  Environments environments_;
  std::shared_ptr<levin::data::ReplayBuffer> buffer_;
  levin::Sequential policy_;
  levin::Sequential first_, second_, first_target_, second_target_;
  torch::Tensor log_price_;  ///< [1]
};

}  // namespace reinforcement
