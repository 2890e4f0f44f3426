#include "examples/models/gpt2.h"
#include "examples/models/resnet.h"
#include "tests/gpu/gpu_device.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/core/options/registries.h>

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <utility>

/// Times of three models' steps, of which scripts/gpu-checks also times PyTorch's own (tests/gpu/eager_figures.py).
namespace levin::testing {
namespace {

/// LEVIN_FIGURES=small: a few steps of small models, to see that they run.
bool are_small() {
  const char* const size = std::getenv("LEVIN_FIGURES");
  return is_simulated() || (size != nullptr && std::string(size) == "small");
}

class Figure : public Module {
 public:
  using Options = TinyOptions;
  explicit Figure(const Options&) {}
  StepOutput training_step(const Batch& batch, int64_t) override {
    const at::Tensor logits = forward(batch["input"]);
    return torch::nn::functional::cross_entropy(logits.flatten(0, -2), batch["label"].flatten());
  }
  OptimizerConfigs configure_optimizers() override {
    return OptimizerConfig{.optimizer = std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 1e-4})};
  }
  virtual at::Tensor forward(const at::Tensor& input) = 0;
};

class Mlp : public Figure {
 public:
  using Figure::Figure;
  void configure_model() override {
    if (net_) return;
    net_ = register_module(
        "net", levin::Sequential(torch::nn::Linear(784, 1024), torch::nn::ReLU(), torch::nn::Linear(1024, 1024),
                                 torch::nn::ReLU(), torch::nn::Linear(1024, 10)));
  }
  at::Tensor forward(const at::Tensor& input) override { return net_(input); }

 private:
  levin::Sequential net_{nullptr};
};

class Gpt2 : public Figure {
 public:
  using Figure::Figure;
  void configure_model() override {
    if (net_) return;
    example::models::Gpt2Options options{.dropout = 0};
    if (are_small()) options = {.vocab_size = 128, .n_embd = 64, .n_layer = 1, .n_head = 1, .dropout = 0};
    net_ = register_module("net", example::models::Gpt2(options));
  }
  at::Tensor forward(const at::Tensor& input) override { return net_(input); }

 private:
  example::models::Gpt2 net_{nullptr};
};

class ResNet50 : public Figure {
 public:
  using Figure::Figure;
  void configure_model() override {
    if (net_) return;
    net_ = register_module("net", example::models::ResNet(example::models::resnet50()));
  }
  at::Tensor forward(const at::Tensor& input) override { return net_(input); }

 private:
  example::models::ResNet net_{nullptr};
};

struct Length {
  int64_t warm_up;
  int64_t steps;
};

class GpuFigures : public OnDevice {
 protected:
  /// Prints what scripts/gpu-checks reads, for ordinary and recorded steps: the model's size, milliseconds a step, the
  /// peak of memory and where a trace of a few steps is. Batches come from page-locked memory, fetched ahead.
  template <class Model>
  void measure(const std::string& name, const Batch& batch, Length length) {
    if (are_small()) length = {1, 2};
    const int64_t size = batch["input"].size(0);
    Batch examples;
    for (const auto& [key, tensor] : batch.items()) {
      std::vector<int64_t> times(static_cast<size_t>(tensor.dim()), 1);
      times[0] = length.warm_up + length.steps;
      examples.set(key, tensor.repeat(times));
    }
    const DataLoader loader(std::make_shared<data::TensorDataset>(examples),
                            {.batch_size = size, .num_workers = 2, .pin_memory = true});
    for (const bool is_recorded : {false, true}) {
      TrainerOptions options = on_device(1);
      options.precision = "bf16-mixed";
      options.graph = is_recorded;
      options.log_every_n_steps = 1000;
      const auto module = make<Model>({});
      const auto [seconds, peak] = timed(module, loader, options, length.warm_up);
      const std::string trace = is_simulated() ? "" : traced(module, loader, options);
      int64_t parameters = 0;
      for (const at::Tensor& parameter : module->parameters()) parameters += parameter.numel();
      const auto rate = checked_accelerator().peak_tflops(checked_device(), MatrixFormat::kHalf);
      std::cout << fmt::format(
                       R"(figure {{"who": "Levin{}", "model": "{}", "parameters": {}, "examples": {}, "ms": {}, )"
                       R"("peak_mib": {}, "trace": "{}", "tflops": {}}})",
                       is_recorded ? ", recorded" : "", name, parameters, size,
                       1000 * seconds / static_cast<double>(length.steps), static_cast<double>(peak) / (1 << 20), trace,
                       rate.value_or(0))
                << std::endl;
    }
  }

 private:
  /// Seconds of the steps after the first ones, and the most bytes that tensors took in them.
  static std::pair<double, int64_t> timed(const std::shared_ptr<Module>& module, const DataLoader& loader,
                                          TrainerOptions options, int64_t warm_up) {
    using Clock = std::chrono::steady_clock;
    const auto time = [] {
      checked_accelerator().synchronize(checked_device());
      return Clock::now();
    };
    Clock::time_point begin;
    double seconds = 0;
    options.callbacks = {make<LambdaCallback>(
        {.on_train_epoch_end = [&](Trainer&,
                                   Module&) { seconds = std::chrono::duration<double>(time() - begin).count(); },
         .on_train_batch_start =
             [&](Trainer&, Module&, const Batch&, int64_t index) {
               if (index != warm_up) return;
               checked_accelerator().restart_peak(checked_device());
               begin = time();
             }})};
    Trainer(options).fit(module, loader);
    EXPECT_GT(seconds, 0);
    return {seconds, checked_accelerator().memory_stats(checked_device()).peak};
  }
  /// The file with a trace of four steps.
  static std::string traced(const std::shared_ptr<Module>& module, const DataLoader& loader, TrainerOptions options) {
    const std::string folder = fresh_trace_folder();
    options.profiler = Spec<Profiler>(Config::parse(
        "{name: pytorch, units: false, dirpath: " + folder + ", schedule: {wait: 4, warmup: 2, active: 4, repeat: 1}}",
        {}));
    options.max_steps = 12;
    Trainer(options).fit(module, loader);
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      if (entry.path().extension() == ".json") return entry.path().string();
    return "";
  }
  /// Kept after this program ends.
  static std::string fresh_trace_folder() {
    std::string folder = ::testing::TempDir() + "levin_traces_XXXXXX";
    if (::mkdtemp(folder.data()) == nullptr) throw Error("gpu", "no folder for traces could be made");
    return folder;
  }
};

TEST_F(GpuFigures, Mlp) {
  const int64_t size = are_small() ? 8 : 512;
  measure<Mlp>("MLP", {{"input", at::randn({size, 784})}, {"label", at::randint(0, 10, {size}, at::kLong)}}, {20, 300});
}

TEST_F(GpuFigures, Gpt2) {
  const int64_t size = are_small() ? 2 : 8, length = are_small() ? 8 : 1024;
  const at::Tensor tokens = at::randint(0, are_small() ? 128 : 50257, {size, length}, at::kLong);
  measure<levin::testing::Gpt2>("GPT-2", {{"input", tokens}, {"label", tokens}}, {12, 40});
}

TEST_F(GpuFigures, ResNet50) {
  const int64_t size = are_small() ? 2 : 64, pixels = are_small() ? 32 : 224;
  measure<levin::testing::ResNet50>(
      "ResNet-50",
      {{"input", at::randn({size, 3, pixels, pixels})}, {"label", at::randint(0, 1000, {size}, at::kLong)}}, {12, 40});
}

}  // namespace
}  // namespace levin::testing
