#pragma once

#include "environments.h"

#include <levin/levin.h>

#include <memory>
#include <string>

namespace reinforcement {

/// Options of Dqn.
struct DqnOptions {
  std::string environment = "cart_pole";
  int64_t environments = 4;
  int64_t batch_size = 64;
  int64_t updates_an_epoch = 500;
  int64_t hidden = 128;
  double lr = 1e-3;
  double discount = 0.99;
  int64_t n_step = 3;
  bool prioritized = false;
  bool double_estimate = true;
  int64_t capacity = 50'000;
  int64_t warm_up = 1000;
  int64_t exploration = 10'000;
  double least_exploration = 0.01;
  int64_t target_update = 200;
  double solved = 0;

  static void describe(levin::Schema<DqnOptions>& schema);
};

/// Learns what each action is worth from a replay buffer (Mnih et al.: "Human-level control through deep reinforcement
/// learning", 2015), with the double estimate of van Hasselt et al. (2016) if wanted. Behind every update it takes one
/// step in each environment.
class Dqn : public levin::Module {
 public:
  using Options = DqnOptions;
  explicit Dqn(const Options& options);

  levin::DataLoader train_dataloader() override;
  void on_train_start() override;
  levin::StepOutput training_step(const levin::Batch& batch, int64_t batch_idx) override;
  void on_train_batch_end(const levin::StepOutput& output, const levin::Batch& batch, int64_t batch_idx) override;
  levin::OptimizerConfigs configure_optimizers() override;
  void on_save_checkpoint(levin::State& state) override;
  void on_load_checkpoint(const levin::State& state) override;

 private:
  /// Takes one step in each environment: at random, or by the values with some chance of a random one.
  void play();
  void update_target();

  Options options_;
  Environments environments_;
  std::shared_ptr<levin::data::ReplayBuffer> buffer_;
  levin::Sequential values_;
  levin::Sequential target_;
};

}  // namespace reinforcement
