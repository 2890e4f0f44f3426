/// The cost of the loop: the same model, data and number of steps through trainer.fit and through loops written by
/// hand, in turn, on one thread, each in a process of its own (trainer.fit configures malloc, from which a loop in the
/// same process would gain as well). Prints the median time a step and the median of the ratios round by round.
///
///   build/bin/loop_benchmark [rounds] [steps]
///   build/bin/loop_benchmark --variant N [steps]      one variant, 0 to 8: prints its seconds

#include "measure.h"

#include <levin/levin.h>

#include <ATen/autocast_mode.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace {

namespace F = torch::nn::functional;
using levin::benchmarks::Clock;
using levin::benchmarks::median;
using levin::benchmarks::run_in_process;
using levin::benchmarks::seconds_since;

constexpr int64_t kBatchSize = 32;
constexpr int64_t kDefaultSteps = 3750;  // two epochs

class Mlp : public levin::Module {
 public:
  Mlp() {
    first_ = register_module("first", torch::nn::Linear(784, 128));
    second_ = register_module("second", torch::nn::Linear(128, 10));
  }
  torch::Tensor forward(const torch::Tensor& x) { return second_(first_(x).relu()); }

  levin::StepOutput training_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    auto loss = F::cross_entropy(forward(batch["x"]), batch["y"]);
    if (logs) log("train_loss", loss, {.prog_bar = true});
    return loss;
  }
  levin::OptimizerConfigs configure_optimizers() override {
    return std::make_shared<levin::optim::AdamW>(parameters(), levin::optim::AdamWOptions{.lr = 1e-3});
  }
  void on_train_start() override { started_ = Clock::now(); }
  void on_train_end() override { seconds = seconds_since(started_); }

  bool logs = true;
  double seconds = 0;

 private:
  torch::nn::Linear first_{nullptr};
  torch::nn::Linear second_{nullptr};
  Clock::time_point started_;
};

struct Data {
  torch::Tensor x;
  torch::Tensor y;
};

/// What both kinds of loop may do beside the bare step.
struct Extras {
  bool bfloat16 = false;  ///< forward under autocast
  bool clips = false;     ///< gradients, by norm
  bool watched = false;   ///< by every monitor and every logger, of which one has no server
};
constexpr double kClipNorm = 1.0;

/// The loop that people write, with any optimizer.
template <class MakeOptimizer>
double by_hand(const Data& data, int64_t steps, MakeOptimizer&& make_optimizer, Extras extras = {}) {
  torch::manual_seed(1);
  Mlp model;
  auto optimizer = make_optimizer(model.parameters());
  const int64_t batches = data.x.size(0) / kBatchSize;
  const auto started = Clock::now();
  for (int64_t step = 0; step < steps;) {
    const auto order = torch::randperm(data.x.size(0));
    for (int64_t batch = 0; batch < batches && step < steps; ++batch, ++step) {
      const auto indices = order.narrow(0, batch * kBatchSize, kBatchSize);
      const auto x = data.x.index_select(0, indices);
      const auto y = data.y.index_select(0, indices);
      optimizer.zero_grad();
      if (extras.bfloat16) {
        at::autocast::set_autocast_enabled(at::kCPU, true);
        at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
      }
      auto loss = F::cross_entropy(model.forward(x), y);
      if (extras.bfloat16) {
        at::autocast::clear_cache();
        at::autocast::set_autocast_enabled(at::kCPU, false);
      }
      loss.backward();
      if (extras.clips) torch::nn::utils::clip_grad_norm_(model.parameters(), kClipNorm);
      optimizer.step();
    }
  }
  return seconds_since(started);
}

double by_levin(const Data& data, int64_t steps, bool usual_callbacks, const std::string& root, Extras extras = {}) {
  torch::manual_seed(1);
  levin::seed_everything(1);
  auto module = std::make_shared<Mlp>();
  module->logs = usual_callbacks;
  auto dataset = std::make_shared<levin::data::TensorDataset>(levin::Batch{{"x", data.x}, {"y", data.y}});
  levin::TrainerOptions options;
  options.max_steps = steps;
  options.accelerator = "cpu";
  options.default_root_dir = root;
  options.enable_model_summary = false;
  if (extras.bfloat16) options.precision = "bf16-mixed";
  if (extras.clips) options.gradient_clip_val = kClipNorm;
  if (extras.watched) {
    options.logger = {levin::make<levin::CsvLogger>({}), levin::make<levin::TensorBoardLogger>({}),
                      levin::make<levin::WandbLogger>({}), levin::make<levin::ConsoleLogger>({}),
                      levin::make<levin::MlflowLogger>({.tracking_uri = "http://127.0.0.1:9", .finish_seconds = 1})};
    options.callbacks = {levin::make<levin::DeviceStatsMonitor>({}), levin::make<levin::ThroughputMonitor>({}),
                         levin::make<levin::LearningRateMonitor>({})};
  } else if (usual_callbacks)
    options.logger = {levin::make<levin::CsvLogger>({}), levin::make<levin::TensorBoardLogger>({})};
  else
    options.barebones = true;
  levin::Trainer trainer(options);
  trainer.fit(module, levin::DataLoader(dataset, {.batch_size = kBatchSize, .shuffle = true}));
  return module->seconds;
}

levin::optim::AdamW fused_adamw(std::vector<torch::Tensor> parameters) {
  return levin::optim::AdamW(std::move(parameters), levin::optim::AdamWOptions{.lr = 1e-3});
}

struct Variant {
  const char* name;
  std::function<double(const Data&, int64_t steps)> run;
};

/// Where the runs of trainer.fit write.
std::string run_root() { return (std::filesystem::temp_directory_path() / "levin_loop_benchmark").string(); }

const std::vector<Variant>& variants() {
  static const std::vector<Variant> all = {
      {"by hand, levin::optim::AdamW (fused)",
       [](const Data& data, int64_t steps) { return by_hand(data, steps, fused_adamw); }},
      {"by hand, torch::optim::AdamW",
       [](const Data& data, int64_t steps) {
         return by_hand(data, steps, [](std::vector<torch::Tensor> parameters) {
           return torch::optim::AdamW(std::move(parameters), torch::optim::AdamWOptions(1e-3));
         });
       }},
      {"trainer.fit, no callbacks",
       [](const Data& data, int64_t steps) { return by_levin(data, steps, false, run_root()); }},
      {"trainer.fit, csv + tensorboard + bar + checkpoint + log",
       [](const Data& data, int64_t steps) { return by_levin(data, steps, true, run_root()); }},
      {"by hand (fused), bfloat16 by autocast",
       [](const Data& data, int64_t steps) { return by_hand(data, steps, fused_adamw, {.bfloat16 = true}); }},
      {"trainer.fit, no callbacks, bf16-mixed",
       [](const Data& data, int64_t steps) { return by_levin(data, steps, false, run_root(), {.bfloat16 = true}); }},
      {"by hand (fused), clip_grad_norm_",
       [](const Data& data, int64_t steps) { return by_hand(data, steps, fused_adamw, {.clips = true}); }},
      {"trainer.fit, no callbacks, clipping by norm",
       [](const Data& data, int64_t steps) { return by_levin(data, steps, false, run_root(), {.clips = true}); }},
      {"trainer.fit, device stats, throughput, all loggers, bar",
       [](const Data& data, int64_t steps) { return by_levin(data, steps, true, run_root(), {.watched = true}); }},
  };
  return all;
}

double run_variant(size_t index, int64_t steps) {
  torch::set_num_threads(1);
  torch::manual_seed(0);
  const Data data{torch::randn({60000, 784}), torch::randint(10, {60000})};
  variants().at(index).run(data, 200);  // warm-up
  const double seconds = variants().at(index).run(data, steps);
  std::filesystem::remove_all(run_root());
  return seconds;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "--variant") {
    std::printf("%.6f\n", run_variant(std::stoul(argv[2]), argc > 3 ? std::stoll(argv[3]) : kDefaultSteps));
    return 0;
  }
  const int64_t rounds = argc > 1 ? std::stoll(argv[1]) : 7;
  const int64_t steps = argc > 2 ? std::stoll(argv[2]) : kDefaultSteps;
  std::vector<std::vector<double>> seconds(variants().size());
  for (int64_t round = 0; round < rounds; ++round)
    for (size_t i = 0; i < variants().size(); ++i) seconds[i].push_back(run_in_process(argv[0], i, steps));

  const auto ratio = [&](size_t of, size_t to) {
    std::vector<double> ratios;
    for (size_t i = 0; i < seconds[of].size(); ++i) ratios.push_back(seconds[of][i] / seconds[to][i]);
    return median(ratios);
  };
  std::printf("MLP 784-128-10, batch %lld, %lld steps a round, %lld rounds, one thread\n",
              static_cast<long long>(kBatchSize), static_cast<long long>(steps), static_cast<long long>(rounds));
  for (size_t i = 0; i < variants().size(); ++i)
    std::printf("%-58s %8.1f us a step\n", variants()[i].name, 1e6 * median(seconds[i]) / static_cast<double>(steps));
  std::printf("fit (no callbacks)   / hand (fused): %.3f   (target 1.01)\n", ratio(2, 0));
  std::printf("fit (usual callbacks)/ hand (fused): %.3f   (target 1.03)\n", ratio(3, 0));
  std::printf("fit (usual callbacks)/ hand (torch): %.3f   (target 0.6)\n", ratio(3, 1));
  std::printf("bf16-mixed           / hand, bf16  : %.3f   (target 1.03)\n", ratio(5, 4));
  std::printf("fit (all watched)    / hand (fused): %.3f   (target 1.03)\n", ratio(8, 0));
  std::vector<double> clipping;
  for (size_t i = 0; i < seconds[0].size(); ++i)
    clipping.push_back((seconds[7][i] - seconds[2][i]) / (seconds[6][i] - seconds[0][i]));
  std::printf("what clipping adds   / clip_grad_norm_: %.2f   (target 0.60)\n", median(clipping));
  return 0;
}
