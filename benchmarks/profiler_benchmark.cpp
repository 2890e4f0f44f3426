/// What profilers cost: the same model, data and number of steps through trainer.fit without and with each of them, in
/// turn, on one thread. Prints the median processor time a step (nothing here waits, and other programs disturb it less
/// than time on the wall) and the median of the ratios round by round; the first variant runs twice a round, so that
/// one sees how far the ratio of two equal things is from 1.
///
///   build/bin/profiler_benchmark [rounds] [steps]

#include "measure.h"

#include <levin/levin.h>

#include <cstdio>
#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

namespace {

namespace F = torch::nn::functional;
using levin::benchmarks::median;

constexpr int64_t kBatchSize = 32;
constexpr int64_t kDefaultSteps = 1875;  // an epoch

class LayerImpl : public torch::nn::Module {
 public:
  LayerImpl(int64_t in, int64_t out) { linear_ = register_module("linear", torch::nn::Linear(in, out)); }
  torch::Tensor forward(torch::Tensor x) { return linear_(x).relu(); }

 private:
  torch::nn::Linear linear_{nullptr};
};
LEVIN_UNIT(Layer);

/// 784-128-128-10, its hidden layers units.
class Mlp : public levin::Module {
 public:
  Mlp() {
    first_ = register_module("first", Layer(784, 128));
    second_ = register_module("second", Layer(128, 128));
    third_ = register_module("third", torch::nn::Linear(128, 10));
  }
  levin::StepOutput training_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    auto loss = F::cross_entropy(third_(second_(first_(batch["x"]))), batch["y"]);
    log("train_loss", loss);
    return loss;
  }
  levin::OptimizerConfigs configure_optimizers() override {
    return std::make_shared<levin::optim::AdamW>(parameters(), levin::optim::AdamWOptions{.lr = 1e-3});
  }
  void on_train_start() override { started_ = std::clock(); }
  void on_train_end() override { seconds = static_cast<double>(std::clock() - started_) / CLOCKS_PER_SEC; }

  double seconds = 0;

 private:
  Layer first_{nullptr};
  Layer second_{nullptr};
  torch::nn::Linear third_{nullptr};
  std::clock_t started_ = 0;
};

std::string run_root() { return (std::filesystem::temp_directory_path() / "levin_profiler_benchmark").string(); }

double seconds_of_fit(const levin::DataLoader& loader, int64_t steps, const levin::Spec<levin::Profiler>& profiler) {
  levin::seed_everything(1);
  auto module = std::make_shared<Mlp>();
  levin::TrainerOptions options;
  options.max_steps = steps;
  options.accelerator = "cpu";
  options.default_root_dir = run_root();
  options.enable_model_summary = false;
  options.enable_progress_bar = false;
  options.logger = levin::LoggerSpecs("csv");
  options.profiler = profiler;
  levin::Trainer(options).fit(module, loader);
  return module->seconds;
}

struct Variant {
  const char* name;
  levin::Spec<levin::Profiler> profiler;
  double target;  ///< of the ratio to the first; 0: none
};

}  // namespace

int main(int argc, char** argv) {
  const int64_t rounds = argc > 1 ? std::stoll(argv[1]) : 7;
  const int64_t steps = argc > 2 ? std::stoll(argv[2]) : kDefaultSteps;
  torch::set_num_threads(1);
  torch::manual_seed(0);
  levin::log::set_sink([](const std::string&) {});
  auto dataset = std::make_shared<levin::data::TensorDataset>(
      levin::Batch{{"x", torch::randn({60000, 784})}, {"y", torch::randint(10, {60000})}});
  const levin::DataLoader loader(dataset, {.batch_size = kBatchSize, .shuffle = true});
  const auto outside = [](levin::ProfilerSchedule schedule) {
    return levin::Spec<levin::Profiler>(levin::make<levin::PyTorchProfiler>({.schedule = schedule}));
  };
  const std::vector<Variant> variants = {
      {"none", {}, 0},
      {"none once more", {}, 0},
      {"simple", "simple", 1.05},
      {"pytorch, before its window", outside({.wait = steps, .warmup = 0}), 1.01},
      {"pytorch, its window included", outside({.wait = 10, .warmup = 2, .active = 3}), 0},
      {"nvtx, outside of nsys", "nvtx", 0},
  };
  std::vector<std::vector<double>> seconds(variants.size());
  for (const Variant& variant : variants) seconds_of_fit(loader, 200, variant.profiler);  // warm-up
  for (int64_t round = 0; round < rounds; ++round)
    for (size_t i = 0; i < variants.size(); ++i)
      seconds[i].push_back(seconds_of_fit(loader, steps, variants[i].profiler));
  std::filesystem::remove_all(run_root());

  std::printf("MLP 784-128-128-10, batch %lld, %lld steps a round, %lld rounds, one thread\n",
              static_cast<long long>(kBatchSize), static_cast<long long>(steps), static_cast<long long>(rounds));
  for (size_t i = 0; i < variants.size(); ++i) {
    std::vector<double> ratios;
    for (size_t round = 0; round < seconds[i].size(); ++round) ratios.push_back(seconds[i][round] / seconds[0][round]);
    std::printf("%-32s %8.1f us a step, %.3f of none", variants[i].name,
                1e6 * median(seconds[i]) / static_cast<double>(steps), median(ratios));
    if (variants[i].target > 0) std::printf("   (target %.2f)", variants[i].target);
    std::printf("\n");
  }
  return 0;
}
