/// Milliseconds a training step takes on several ranks, each with one thread, by strategy: the peer of
/// benchmarks/peers/ddp_gloo.py.
///
///   build/bin/strategy_benchmark [strategy] [ranks] [small|large] [steps]
///
/// small: an MLP 784-128-10; large: 784-3072-2432-10 (10 million parameters); batch 32 on each rank.

#include "measure.h"

#include <levin/levin.h>

#include <cstdio>
#include <string>

namespace {

namespace F = torch::nn::functional;
using levin::benchmarks::Clock;
using levin::benchmarks::seconds_since;

struct NetOptions {
  bool large = false;
  static void describe(levin::Schema<NetOptions>& schema) {
    schema.field("large", &NetOptions::large, "10 million parameters");
  }
};

class Net : public levin::Module {
 public:
  using Options = NetOptions;
  explicit Net(const Options& options) {
    if (options.large)
      net_ = levin::Sequential(torch::nn::Linear(784, 3072), torch::nn::ReLU(), torch::nn::Linear(3072, 2432),
                               torch::nn::ReLU(), torch::nn::Linear(2432, 10));
    else
      net_ = levin::Sequential(torch::nn::Linear(784, 128), torch::nn::ReLU(), torch::nn::Linear(128, 10));
    register_module("net", net_);
  }
  levin::StepOutput training_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    return F::cross_entropy(net_(batch["image"]), batch["label"]);
  }
  levin::OptimizerConfigs configure_optimizers() override {
    return levin::OptimizerConfig{
        .optimizer = std::make_shared<levin::optim::SGD>(parameters(), levin::optim::SGDOptions{.lr = 0.01})};
  }

 private:
  levin::Sequential net_{nullptr};
};

/// Rank 0's steps, without the first ones.
class StepTimer : public levin::Callback {
 public:
  void on_train_batch_start(levin::Trainer& trainer, levin::Module&, const levin::Batch&, int64_t) override {
    if (trainer.global_step() == kWarmUp) started_ = Clock::now();
  }
  void on_train_end(levin::Trainer& trainer, levin::Module&) override {
    if (!trainer.is_global_zero()) return;
    const double seconds = seconds_since(started_);
    std::printf("%-14s %d ranks  %8.3f ms a step\n", trainer.strategy().name().c_str(),
                static_cast<int>(trainer.world_size()),
                1000 * seconds / static_cast<double>(trainer.global_step() - kWarmUp));
    std::fflush(stdout);
  }

 private:
  static constexpr int64_t kWarmUp = 50;
  Clock::time_point started_;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string strategy = argc > 1 ? argv[1] : "ddp_threads";
  const int ranks = argc > 2 ? std::stoi(argv[2]) : 2;
  const bool large = argc > 3 && std::string(argv[3]) == "large";
  const int64_t steps = argc > 4 ? std::stoll(argv[4]) : large ? 150 : 2000;
  torch::set_num_threads(1);
  levin::seed_everything(1);
  // dp splits the batch that it is given; the others have one each.
  const int64_t batch = 32 * (strategy == "dp" ? ranks : 1);
  auto data = std::make_shared<levin::data::TensorDataset>(
      levin::Batch{{"image", torch::randn({64 * 64, 784})}, {"label", torch::randint(0, 10, {64 * 64})}});
  levin::TrainerOptions options;
  options.max_steps = steps;
  options.accelerator = "cpu";
  options.devices = ranks;
  options.strategy = levin::Spec<levin::Strategy>(strategy);
  options.logger = false;
  options.enable_checkpointing = false;
  options.enable_progress_bar = false;
  options.enable_model_summary = false;
  options.callbacks = {levin::make<StepTimer>()};
  levin::Trainer trainer(options);
  trainer.fit(levin::make<Net>({.large = large}), levin::DataLoader(data, {.batch_size = batch}));
  return 0;
}
