#include "benchmarks/transformer.h"
#include "examples/resnet/resnet_v2.h"
#include "tests/gpu/gpu_device.h"

#include <levin/callbacks/lambda_callback.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>

/// Steps a second of three models, of which scripts/gpu-checks also times PyTorch's own (tests/gpu/eager_figures.py).
namespace levin::testing {
namespace {

/// LEVIN_FIGURES=small: a few steps of small models, to see that they run.
bool are_small() {
  const char* const size = std::getenv("LEVIN_FIGURES");
  return is_simulated() || (size != nullptr && std::string(size) == "small");
}

class MlpFigure : public Module {
 public:
  using Options = TinyOptions;
  explicit MlpFigure(const Options&) {
    net_ = register_module(
        "net", levin::Sequential(torch::nn::Linear(784, 1024), torch::nn::ReLU(), torch::nn::Linear(1024, 1024),
                                 torch::nn::ReLU(), torch::nn::Linear(1024, 10)));
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    return torch::nn::functional::cross_entropy(net_(batch["image"]), batch["label"]);
  }
  OptimizerConfigs configure_optimizers() override {
    return OptimizerConfig{.optimizer = std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 1e-3})};
  }

 private:
  levin::Sequential net_{nullptr};
};

class TransformerFigure : public Module {
 public:
  using Options = TinyOptions;
  explicit TransformerFigure(const Options&) {
    net_ = register_module("net", benchmarks::Transformer(are_small() ? 1 : 6, 0.0, are_small() ? 64 : 512));
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    return net_->loss(batch["tokens"], batch["targets"]);
  }
  OptimizerConfigs configure_optimizers() override {
    return OptimizerConfig{.optimizer = std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 1e-3})};
  }

 private:
  benchmarks::Transformer net_{nullptr};
};

class GpuFigures : public OnDevice {
 protected:
  /// Prints the line that scripts/gpu-checks reads: "figure NAME PRECISION PARAMETERS STEPS_PER_SECOND".
  void measure(const std::string& name, const std::shared_ptr<Module>& module, const Batch& batch, int64_t batch_size) {
    const int64_t warm_up = are_small() ? 1 : 20;
    const int64_t steps = are_small() ? 2 : 100;
    Batch examples;
    for (const auto& [key, tensor] : batch.items()) {
      std::vector<int64_t> times(static_cast<size_t>(tensor.dim()), 1);
      times[0] = warm_up + steps;
      examples.set(key, tensor.repeat(times));
    }
    for (const char* precision : {"32-true", "bf16-mixed"}) {
      using Clock = std::chrono::steady_clock;
      Clock::time_point begin;
      double seconds = 0;
      const auto time = [] {
        checked_accelerator().synchronize(checked_device());
        return Clock::now();
      };
      TrainerOptions options = on_device(1);
      options.precision = precision;
      options.log_every_n_steps = 1000;
      options.callbacks = {make<LambdaCallback>(
          {.on_train_epoch_end = [&](Trainer&,
                                     Module&) { seconds = std::chrono::duration<double>(time() - begin).count(); },
           .on_train_batch_start =
               [&](Trainer&, Module&, const Batch&, int64_t index) {
                 if (index == warm_up) begin = time();
               }})};
      Trainer trainer(options);
      trainer.fit(module, DataLoader(std::make_shared<data::TensorDataset>(examples),
                                     {.batch_size = batch_size, .num_workers = 1, .pin_memory = true}));
      int64_t parameters = 0;
      for (const at::Tensor& parameter : module->parameters()) parameters += parameter.numel();
      ASSERT_GT(seconds, 0);
      std::cout << "figure " << name << ' ' << precision << ' ' << parameters << ' '
                << static_cast<double>(steps) / seconds << std::endl;
    }
  }
};

TEST_F(GpuFigures, Mlp) {
  const int64_t size = are_small() ? 8 : 512;
  measure("mlp", make<MlpFigure>({}),
          {{"image", at::randn({size, 784})}, {"label", at::randint(0, 10, {size}, at::kLong)}}, size);
}

TEST_F(GpuFigures, Transformer) {
  const int64_t size = are_small() ? 2 : 16, length = are_small() ? 8 : 256;
  const at::Tensor tokens = at::randint(0, benchmarks::kVocabulary, {size, length}, at::kLong);
  measure("transformer", make<TransformerFigure>({}), {{"tokens", tokens}, {"targets", tokens}}, size);
}

TEST_F(GpuFigures, ResNet50) {
  const int64_t size = are_small() ? 2 : 64, pixels = are_small() ? 32 : 128;
  measure("resnet50", make<example::ResNet50V2>({.image_size = pixels}),
          {{"image", at::randn({size, 3, pixels, pixels})}, {"label", at::randint(0, 10, {size}, at::kLong)}}, size);
}

}  // namespace
}  // namespace levin::testing
