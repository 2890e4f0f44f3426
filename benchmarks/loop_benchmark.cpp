/// The cost of the loop: the same model, data and number of steps through trainer.fit and through loops written by
/// hand, each in a process of its own (trainer.fit configures malloc, from which a loop in the same process would gain
/// as well). A variant and the loop that it is compared with take turns on one core, and what counts is the processor
/// time, that of background threads included; waiting for a disk does not count. Prints the median time a step and the
/// median of the ratios round by round.
///
///   build/bin/loop_benchmark [rounds] [steps]
///   build/bin/loop_benchmark --variant N [steps]      one variant, 0 to 9: prints its seconds of processor time

#include "measure.h"
#include "run_in_turns.h"

#include <levin/levin.h>

#include <ATen/autocast_mode.h>

#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace {

namespace F = torch::nn::functional;
using levin::benchmarks::median;
using levin::benchmarks::processor_seconds;
using levin::benchmarks::run_in_turns;

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
  void on_train_start() override { started_ = processor_seconds(); }
  void on_train_end() override { seconds = processor_seconds() - started_; }

  bool logs = true;
  double seconds = 0;

 private:
  torch::nn::Linear first_{nullptr};
  torch::nn::Linear second_{nullptr};
  double started_ = 0;
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
  const double started = processor_seconds();
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
  return processor_seconds() - started;
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

/// The same steps without the trainer's loop.
double by_engine(const Data& data, int64_t steps, const std::string& root) {
  torch::manual_seed(1);
  levin::seed_everything(1);
  auto module = std::make_shared<Mlp>();
  module->logs = false;
  const levin::DataLoader loader(
      std::make_shared<levin::data::TensorDataset>(levin::Batch{{"x", data.x}, {"y", data.y}}),
      {.batch_size = kBatchSize, .shuffle = true});
  levin::TrainerOptions options;
  options.max_steps = steps;
  options.accelerator = "cpu";
  options.default_root_dir = root;
  options.barebones = true;
  levin::Engine engine(module, options);
  while (!engine.stop_requested()) {
    engine.epoch([&] {
      auto pass = loader.pass(engine.position(loader));
      while (auto batch = pass.next()) {
        engine.train_step(std::move(*batch), {.is_last = pass.remaining() == 0});
        batch.reset();  // its memory is the next one's
        if (engine.step() == steps) break;
      }
    });
  }
  engine.close();
  return module->seconds;
}

levin::optim::AdamW fused_adamw(std::vector<torch::Tensor> parameters) {
  return levin::optim::AdamW(std::move(parameters), levin::optim::AdamWOptions{.lr = 1e-3});
}

struct Variant {
  const char* name;
  std::function<double(const Data&, int64_t steps)> run;
};

/// Where the runs of trainer.fit write, each process for itself.
std::string run_root() {
  return (std::filesystem::temp_directory_path() / ("levin_loop_benchmark." + std::to_string(::getpid()))).string();
}

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
      {"Engine::train_step in a loop of the program's own, no callbacks",
       [](const Data& data, int64_t steps) { return by_engine(data, steps, run_root()); }},
  };
  return all;
}

/// Moves what is allocated after it to other places than in the last process: the matrix product of a step takes up to
/// a third longer where its operands' addresses happen to collide, which is nobody's merit.
std::vector<torch::Tensor> random_padding() {
  std::random_device random;
  std::vector<torch::Tensor> padding;
  for (int i = 0; i < 8; ++i) padding.push_back(torch::empty({1 + static_cast<int64_t>(random() % 50000)}));
  return padding;
}

double run_variant(size_t index, int64_t steps) {
  torch::set_num_threads(1);
  const auto padding = random_padding();
  torch::manual_seed(0);
  const Data data{torch::randn({60000, 784}), torch::randint(10, {60000})};
  variants().at(index).run(data, 200);  // warm-up
  const double seconds = variants().at(index).run(data, steps);
  std::filesystem::remove_all(run_root());
  return seconds;
}

struct Comparison {
  size_t of;
  size_t to;
  const char* target;
};

constexpr std::array<Comparison, 9> kComparisons{{{0, 0, "1, and how far it is off is the noise"},
                                                  {2, 0, "1.01"},
                                                  {3, 0, "1.03"},
                                                  {8, 0, "1.03"},
                                                  {3, 1, "0.6"},
                                                  {5, 4, "1.03"},
                                                  {7, 2, "an excess of 0.6 of the next one's"},
                                                  {6, 0, "none: what clipping adds by hand"},
                                                  {9, 2, "1"}}};

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "--variant") {
    std::printf("%.6f\n", run_variant(std::stoul(argv[2]), argc > 3 ? std::stoll(argv[3]) : kDefaultSteps));
    return 0;
  }
  const int64_t rounds = argc > 1 ? std::stoll(argv[1]) : 7;
  const int64_t steps = argc > 2 ? std::stoll(argv[2]) : kDefaultSteps;
  std::printf("MLP 784-128-10, batch 32, %lld steps a round, %lld rounds, processor time\n",
              static_cast<long long>(steps), static_cast<long long>(rounds));
  for (const auto& comparison : kComparisons) {
    std::array<std::vector<double>, 2> seconds;
    std::vector<double> ratios;
    for (int64_t round = 0; round < rounds; ++round) {
      const auto [of, to] = run_in_turns(argv[0], {comparison.of, comparison.to}, steps);
      seconds[0].push_back(of);
      seconds[1].push_back(to);
      ratios.push_back(of / to);
    }
    const auto microseconds = [&](size_t i) { return 1e6 * median(seconds.at(i)) / static_cast<double>(steps); };
    std::printf("%.3f (target %s)  %s: %.1f us a step / %s: %.1f us\n", median(ratios), comparison.target,
                variants()[comparison.of].name, microseconds(0), variants()[comparison.to].name, microseconds(1));
    std::fflush(stdout);
  }
  return 0;
}
