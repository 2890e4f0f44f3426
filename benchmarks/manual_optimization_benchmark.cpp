/// The cost of manual optimization: a small generator and discriminator with an optimizer each, through trainer.fit and
/// through a loop written by hand with the same fused optimizers, in turn, on one thread, each in a process of its own
/// (trainer.fit configures malloc, from which a loop in the same process would gain as well). Prints the median time a
/// batch and the median of the ratios round by round.
///
///   build/bin/manual_optimization_benchmark [rounds] [batches]
///   build/bin/manual_optimization_benchmark --variant N [batches]      one variant, 0 or 1: prints its seconds

#include "measure.h"

#include <levin/levin.h>

#include <cstdio>
#include <string>
#include <vector>

namespace {

namespace F = torch::nn::functional;
using levin::benchmarks::Clock;
using levin::benchmarks::median;
using levin::benchmarks::run_in_process;
using levin::benchmarks::seconds_since;

constexpr int64_t kBatchSize = 32;
constexpr int64_t kLatent = 32;
constexpr int64_t kDefaultBatches = 2000;
const levin::optim::AdamOptions kAdam{.lr = 2e-4, .betas = {0.5, 0.999}};

torch::nn::Sequential layers(int64_t in, int64_t out) {
  return torch::nn::Sequential(torch::nn::Linear(in, 128), torch::nn::ReLU(), torch::nn::Linear(128, out));
}

/// The networks and their losses, which both variants share.
class Gan : public levin::Module {
 public:
  Gan()
      : generator_(register_module("generator", layers(kLatent, 784))),
        discriminator_(register_module("discriminator", layers(784, 1))) {
    automatic_optimization = false;
  }

  torch::Tensor generator_loss(int64_t images) { return loss_of(generator_->forward(noise(images)), true); }
  torch::Tensor discriminator_loss(const torch::Tensor& images) {
    return loss_of(images, true) + loss_of(generator_->forward(noise(images.size(0))), false);
  }
  std::vector<torch::Tensor> generator_parameters() const { return generator_->parameters(); }
  std::vector<torch::Tensor> discriminator_parameters() const { return discriminator_->parameters(); }

  levin::StepOutput training_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    auto& generator = optimizer(0);
    auto& discriminator = optimizer(1);
    {
      auto toggled = toggle_optimizer(generator);
      generator.zero_grad();
      manual_backward(generator_loss(batch.size()));
      generator.step();
    }
    {
      auto toggled = toggle_optimizer(discriminator);
      discriminator.zero_grad();
      manual_backward(discriminator_loss(batch["x"]));
      discriminator.step();
    }
    return {};
  }
  levin::OptimizerConfigs configure_optimizers() override {
    return {std::make_shared<levin::optim::Adam>(generator_parameters(), kAdam),
            std::make_shared<levin::optim::Adam>(discriminator_parameters(), kAdam)};
  }
  void on_train_start() override { started_ = Clock::now(); }
  void on_train_end() override { seconds = seconds_since(started_); }

  double seconds = 0;

 private:
  static torch::Tensor noise(int64_t images) { return torch::randn({images, kLatent}); }
  torch::Tensor loss_of(const torch::Tensor& images, bool are_real) {
    const auto logits = discriminator_->forward(images);
    return F::binary_cross_entropy_with_logits(logits, torch::full_like(logits, are_real ? 1.0 : 0.0));
  }

  torch::nn::Sequential generator_{nullptr};
  torch::nn::Sequential discriminator_{nullptr};
  Clock::time_point started_;
};

void require_grad(const std::vector<torch::Tensor>& parameters, bool required) {
  for (auto parameter : parameters) parameter.set_requires_grad(required);
}

/// The loop that people write: gradients of the other network are switched off as well.
double by_hand(const torch::Tensor& images, int64_t batches) {
  torch::manual_seed(1);
  Gan model;
  const auto of_generator = model.generator_parameters();
  const auto of_discriminator = model.discriminator_parameters();
  levin::optim::Adam generator(of_generator, kAdam);
  levin::optim::Adam discriminator(of_discriminator, kAdam);
  const int64_t batches_an_epoch = images.size(0) / kBatchSize;
  const auto started = Clock::now();
  for (int64_t done = 0; done < batches;) {
    const auto order = torch::randperm(images.size(0));
    for (int64_t batch = 0; batch < batches_an_epoch && done < batches; ++batch, ++done) {
      const auto x = images.index_select(0, order.narrow(0, batch * kBatchSize, kBatchSize));
      require_grad(of_discriminator, false);
      generator.zero_grad();
      model.generator_loss(x.size(0)).backward();
      generator.step();
      require_grad(of_discriminator, true);
      require_grad(of_generator, false);
      discriminator.zero_grad();
      model.discriminator_loss(x).backward();
      discriminator.step();
      require_grad(of_generator, true);
    }
  }
  return seconds_since(started);
}

double by_levin(const torch::Tensor& images, int64_t batches) {
  levin::seed_everything(1);
  const auto module = std::make_shared<Gan>();
  levin::TrainerOptions options;
  options.max_steps = 2 * batches;
  options.accelerator = "cpu";
  options.barebones = true;
  levin::Trainer trainer(options);
  const auto dataset = std::make_shared<levin::data::TensorDataset>(levin::Batch{{"x", images}});
  trainer.fit(module, levin::DataLoader(dataset, {.batch_size = kBatchSize, .shuffle = true}));
  return module->seconds;
}

double run_variant(int64_t index, int64_t batches) {
  torch::set_num_threads(1);
  torch::manual_seed(0);
  const auto images = torch::randn({20000, 784});
  const auto run = index == 0 ? by_hand : by_levin;
  run(images, 100);  // warm-up
  return run(images, batches);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "--variant") {
    std::printf("%.6f\n", run_variant(std::stoll(argv[2]), argc > 3 ? std::stoll(argv[3]) : kDefaultBatches));
    return 0;
  }
  const int64_t rounds = argc > 1 ? std::stoll(argv[1]) : 9;
  const int64_t batches = argc > 2 ? std::stoll(argv[2]) : kDefaultBatches;
  std::vector<double> hand;
  std::vector<double> levin;
  std::vector<double> ratios;
  for (int64_t round = 0; round < rounds; ++round) {
    // Each goes first in turn: what runs second finds a warmer processor.
    const bool hand_first = round % 2 == 0;
    const double first = run_in_process(argv[0], hand_first ? 0 : 1, batches);
    const double second = run_in_process(argv[0], hand_first ? 1 : 0, batches);
    hand.push_back(hand_first ? first : second);
    levin.push_back(hand_first ? second : first);
    ratios.push_back(levin.back() / hand.back());
  }
  std::printf(
      "generator 32-128-784, discriminator 784-128-1, batch %lld, %lld batches a round, %lld rounds, one thread\n",
      static_cast<long long>(kBatchSize), static_cast<long long>(batches), static_cast<long long>(rounds));
  std::printf("%-48s %8.1f us a batch\n", "by hand, two fused Adam", 1e6 * median(hand) / static_cast<double>(batches));
  std::printf("%-48s %8.1f us a batch\n", "trainer.fit, manual optimization",
              1e6 * median(levin) / static_cast<double>(batches));
  std::printf("fit / hand: %.3f   (target 1.02)\n", median(ratios));
  return 0;
}
