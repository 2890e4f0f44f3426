/// Recorded steps on the CPU (`graph`): trainer.fit against a loop written by hand with the same fused optimizer, each
/// in a process of its own, in turns on one core. What counts is the processor time; recording and comparing with
/// ordinary steps are in it. Prints the median of the ratios and the time a step. Then fits on two ranks, with recorded
/// steps against without; forked ranks take no turns, and run one variant after the other.
///
///   build/bin/recorded_step_benchmark [rounds] [seconds] [words]   of processor time a run, about; works with such a
///   name build/bin/recorded_step_benchmark --variant N [steps]          one variant: prints its seconds of processor
///   time,
///                                                                  and its most memory on the error stream

#include "measure.h"
#include "run_in_turns.h"

#include <levin/levin.h>

#include <ATen/ops/scaled_dot_product_attention.h>

#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace F = torch::nn::functional;
using levin::benchmarks::median;
using levin::benchmarks::processor_seconds;
using levin::benchmarks::run_in_turns;

struct Data {
  torch::Tensor x;
  torch::Tensor y;
};

using Optimizers = std::vector<std::shared_ptr<levin::optim::AdamW>>;

std::shared_ptr<levin::optim::AdamW> adamw_of(const torch::nn::Module& module) {
  return std::make_shared<levin::optim::AdamW>(module.parameters(), levin::optim::AdamWOptions{.lr = 1e-3});
}

struct Model : levin::Module {
  virtual torch::Tensor loss(const torch::Tensor& /*x*/, const torch::Tensor& /*y*/) { return {}; }
  virtual Optimizers make_optimizers() { return {adamw_of(*this)}; }
  virtual void step_by_hand(const Data& batch, const Optimizers& optimizers) {
    optimizers.front()->zero_grad();
    loss(batch.x, batch.y).backward();
    optimizers.front()->step();
  }
  levin::StepOutput training_step(const levin::Batch& batch, int64_t) override {
    auto value = loss(batch["x"], batch["y"]);
    if (logs) log("train_loss", value, {.prog_bar = true});
    return value;
  }
  levin::OptimizerConfigs configure_optimizers() override {
    levin::OptimizerConfigs configs;
    for (const auto& optimizer : make_optimizers()) configs.push_back(levin::OptimizerConfig{.optimizer = optimizer});
    return configs;
  }
  void on_train_start() override { started = processor_seconds(); }
  void on_train_end() override { seconds = processor_seconds() - started; }
  bool logs = false;
  double started = 0;
  double seconds = 0;
};

struct MlpOptions {
  double dropout = 0;
  static void describe(levin::Schema<MlpOptions>& schema) {
    schema.field("dropout", &MlpOptions::dropout, "after the hidden layer");
  }
};

struct Mlp : Model {
  using Options = MlpOptions;
  explicit Mlp(const Options& options) : dropout_(register_module("dropout", torch::nn::Dropout(options.dropout))) {}
  torch::Tensor loss(const torch::Tensor& x, const torch::Tensor& y) override {
    auto hidden = first_(x).relu();
    if (dropout_->options.p() > 0) hidden = dropout_(hidden);
    return F::cross_entropy(second_(hidden), y);
  }
  torch::nn::Linear first_{register_module("first", torch::nn::Linear(784, 128))};
  torch::nn::Linear second_{register_module("second", torch::nn::Linear(128, 10))};
  torch::nn::Dropout dropout_;
};

struct Cnn : Model {
  torch::Tensor loss(const torch::Tensor& x, const torch::Tensor& y) override {
    auto h = F::max_pool2d(first_(x).relu(), F::MaxPool2dFuncOptions(2));
    h = F::max_pool2d(second_(h).relu(), F::MaxPool2dFuncOptions(2));
    return F::cross_entropy(head_(h.flatten(1)), y);
  }
  torch::nn::Conv2d first_{register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 3).padding(1)))};
  torch::nn::Conv2d second_{
      register_module("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 32, 3).padding(1)))};
  torch::nn::Linear head_{register_module("head", torch::nn::Linear(32 * 49, 10))};
};

struct CharacterLstm : Model {
  torch::Tensor loss(const torch::Tensor& x, const torch::Tensor& y) override {
    return F::cross_entropy(head_(std::get<0>(lstm_(embedding_(x)))).view({-1, 64}), y.view({-1}));
  }
  torch::nn::Embedding embedding_{register_module("embedding", torch::nn::Embedding(64, 32))};
  torch::nn::LSTM lstm_{register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(32, 64).batch_first(true)))};
  torch::nn::Linear head_{register_module("head", torch::nn::Linear(64, 64))};
};

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width)
      : first_norm(register_module("first_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        second_norm(register_module("second_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        projections(register_module("projections", torch::nn::Linear(width, 3 * width))),
        output(register_module("output", torch::nn::Linear(width, width))),
        widen(register_module("widen", torch::nn::Linear(width, 4 * width))),
        narrow(register_module("narrow", torch::nn::Linear(4 * width, width))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    const int64_t batch = x.size(0), length = x.size(1), width = x.size(2);
    const auto parts = projections(first_norm(x)).view({batch, length, 3, 4, width / 4}).permute({2, 0, 3, 1, 4});
    const auto mixed = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    const auto y = x + output(mixed.transpose(1, 2).reshape({batch, length, width}));
    return y + narrow(torch::gelu(widen(second_norm(y))));
  }
  torch::nn::LayerNorm first_norm, second_norm;
  torch::nn::Linear projections, output, widen, narrow;
};
TORCH_MODULE(Block);

struct Transformer : Model {
  Transformer(int64_t layers, int64_t width, int64_t length)
      : embedding_(register_module("embedding", torch::nn::Embedding(128, width))),
        positions_(register_module("positions", torch::nn::Embedding(length, width))),
        norm_(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        head_(register_module("head", torch::nn::Linear(width, 128))),
        places_(torch::arange(length)) {
    for (int64_t i = 0; i < layers; ++i) blocks_.push_back(register_module("block" + std::to_string(i), Block(width)));
  }
  torch::Tensor loss(const torch::Tensor& x, const torch::Tensor& y) override {
    auto h = embedding_(x) + positions_(places_);
    for (auto& block : blocks_) h = block(h);
    return F::cross_entropy(head_(norm_(h)).view({-1, 128}), y.view({-1}));
  }
  torch::nn::Embedding embedding_, positions_;
  torch::nn::LayerNorm norm_;
  torch::nn::Linear head_;
  torch::Tensor places_;
  std::vector<Block> blocks_;
};

/// A generator and a critic of images, each with an optimizer of its own.
struct Gan : Model {
  Gan() { automatic_optimization = false; }
  Optimizers make_optimizers() override { return {adamw_of(*generator_), adamw_of(*critic_)}; }
  levin::StepOutput training_step(const levin::Batch& batch, int64_t) override {
    const auto loss = step(batch["x"], optimizer(0), optimizer(1), [this](const auto& of) { manual_backward(of); });
    if (logs) log("train_loss", loss, {.prog_bar = true});
    return {};
  }
  void step_by_hand(const Data& batch, const Optimizers& optimizers) override {
    step(batch.x, *optimizers[0], *optimizers[1], [](const auto& of) { of.backward(); });
  }
  template <class Optimizer, class Backward>
  torch::Tensor step(const torch::Tensor& real, Optimizer& of_generator, Optimizer& of_critic,
                     const Backward& backward) {
    const auto made = generator_->forward(torch::randn({real.size(0), 32}));
    of_critic.zero_grad();
    const auto loss =
        torch::softplus(critic_->forward(made.detach())).mean() + torch::softplus(-critic_->forward(real)).mean();
    backward(loss);
    of_critic.step();
    of_generator.zero_grad();
    backward(torch::softplus(-critic_->forward(made)).mean());
    of_generator.step();
    return loss;
  }
  torch::nn::Sequential generator_{register_module(
      "generator", torch::nn::Sequential(torch::nn::Linear(32, 128), torch::nn::ReLU(), torch::nn::Linear(128, 784)))};
  torch::nn::Sequential critic_{register_module(
      "critic", torch::nn::Sequential(torch::nn::Linear(784, 128), torch::nn::ReLU(), torch::nn::Linear(128, 1)))};
};

struct Work {
  const char* name;
  int64_t batch_size;
  double step_seconds;  ///< by hand, about: how many steps a run takes
  std::function<std::shared_ptr<Model>()> make;
  std::function<Data()> data;
  const char* target;
};

Data images(int64_t examples, std::vector<int64_t> shape) {
  shape.insert(shape.begin(), examples);
  return {torch::randn(shape), torch::randint(10, {examples})};
}
Data tokens(int64_t rows, int64_t length) {
  return {torch::randint(64, {rows, length}), torch::randint(64, {rows, length})};
}

const std::vector<Work>& works() {
  const auto mlp = [](double dropout) { return [dropout] { return levin::make<Mlp>({.dropout = dropout}); }; };
  const auto transformer = [](int64_t layers, int64_t width, int64_t length) {
    return [=] { return std::make_shared<Transformer>(layers, width, length); };
  };
  static const std::vector<Work> all = {
      {"MLP 784-128-10, batch 32", 32, 330e-6, mlp(0), [] { return images(60000, {784}); }, "0.75"},
      {"MLP 784-128-10, batch 64", 64, 480e-6, mlp(0), [] { return images(60000, {784}); }, "0.83"},
      {"MLP with dropout, batch 32", 32, 370e-6, mlp(0.3), [] { return images(60000, {784}); }, "0.75"},
      {"transformer 2x64, batch 4x32", 4, 1e-3, transformer(2, 64, 32), [] { return tokens(2048, 32); }, "0.72"},
      {"transformer 4x256, batch 8x128", 8, 130e-3, transformer(4, 256, 128), [] { return tokens(4096, 128); }, "0.97"},
      {"LSTM 64, batch 32x32", 32, 8e-3, [] { return std::make_shared<CharacterLstm>(); },
       [] { return tokens(16384, 32); }, "0.95"},
      {"CNN 16-32, batch 64", 64, 15e-3, [] { return std::make_shared<Cnn>(); },
       [] {
         return images(2048, {1, 28, 28});
       },
       "0.65"},
      {"GAN 32-128-784, batch 32", 32, 1.2e-3, [] { return std::make_shared<Gan>(); },
       [] { return images(60000, {784}); }, "none"},
  };
  return all;
}

enum class How { kByHand, kOrdinary, kRecorded, kAuto, kRecordedWatched };
constexpr std::array<const char*, 5> kHow = {"by hand", "fit", "fit, graph: true", "fit, graph: auto",
                                             "fit, graph: true, csv + tensorboard + bar + checkpoint + log"};
constexpr size_t kHows = kHow.size();

double by_hand(const Work& work, const Data& data, int64_t steps) {
  const auto model = work.make();
  const Optimizers optimizers = model->make_optimizers();
  const int64_t batches = data.x.size(0) / work.batch_size;
  const double started = processor_seconds();
  for (int64_t step = 0; step < steps;) {
    const auto order = torch::randperm(data.x.size(0));
    for (int64_t batch = 0; batch < batches && step < steps; ++batch, ++step) {
      const auto indices = order.narrow(0, batch * work.batch_size, work.batch_size);
      model->step_by_hand({data.x.index_select(0, indices), data.y.index_select(0, indices)}, optimizers);
    }
  }
  return processor_seconds() - started;
}

double by_fit(const Work& work, const Data& data, int64_t steps, How how) {
  const auto module = work.make();
  const bool watched = how == How::kRecordedWatched;
  const std::string root =
      (std::filesystem::temp_directory_path() / ("levin_recorded_benchmark." + std::to_string(::getpid()))).string();
  module->logs = watched;
  levin::TrainerOptions options;
  // Those of each optimizer count.
  options.max_steps = steps * static_cast<int64_t>(module->make_optimizers().size());
  options.accelerator = "cpu";
  options.default_root_dir = root;
  options.enable_model_summary = false;
  options.graph = how == How::kAuto ? levin::GraphMode("auto") : levin::GraphMode(how != How::kOrdinary);
  if (watched)
    options.logger = {levin::make<levin::CsvLogger>({}), levin::make<levin::TensorBoardLogger>({})};
  else
    options.barebones = true;
  const auto dataset = std::make_shared<levin::data::TensorDataset>(levin::Batch{{"x", data.x}, {"y", data.y}});
  levin::Trainer trainer(options);
  trainer.fit(module, levin::DataLoader(dataset, {.batch_size = work.batch_size, .shuffle = true, .drop_last = true}));
  std::filesystem::remove_all(root);
  return module->seconds;
}

double run_variant(size_t variant, int64_t steps) {
  torch::set_num_threads(1);
  torch::manual_seed(0);
  levin::seed_everything(1);
  const Work& work = works().at(variant / kHows);
  const auto how = static_cast<How>(variant % kHows);
  const Data data = work.data();
  const auto run = [&](int64_t count) {
    return how == How::kByHand ? by_hand(work, data, count) : by_fit(work, data, count, how);
  };
  run(20);  // warm-up
  const double seconds = run(steps);
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  std::fprintf(stderr, "%s, %s: %.1f us a step, at most %.0f MB\n", work.name, kHow[variant % kHows],
               1e6 * seconds / static_cast<double>(steps), static_cast<double>(used.ru_maxrss) / 1024);
  return seconds;
}

// ---- Two ranks.

/// Seconds of processor time of this process, all threads together, and of its children that have ended.
double processor_seconds_of_all() {
  double seconds = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    getrusage(who, &usage);
    for (const timeval& time : {usage.ru_utime, usage.ru_stime})
      seconds += static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  }
  return seconds;
}

constexpr std::array<const char*, 2> kStrategies = {"ddp_threads", "ddp_spawn"};
constexpr int64_t kRankSteps = 3000;

/// The MLP on two ranks, batch 32 each: seconds of both. Variants after those of the works: of each strategy without
/// and with recorded steps.
double run_ranks(size_t variant, int64_t steps) {
  torch::set_num_threads(1);
  levin::seed_everything(1);
  const auto dataset = std::make_shared<levin::data::TensorDataset>(
      levin::Batch{{"x", torch::randn({8192, 784})}, {"y", torch::randint(10, {8192})}});
  const auto run = [&](int64_t count) {
    levin::TrainerOptions options;
    options.max_steps = count;
    options.accelerator = "cpu";
    options.devices = 2;
    options.strategy = kStrategies.at(variant / 2);
    options.barebones = true;
    options.graph = variant % 2 == 1;
    levin::Trainer trainer(options);
    const double started = processor_seconds_of_all();
    trainer.fit(levin::make<Mlp>({}), levin::DataLoader(dataset, {.batch_size = 32, .shuffle = true}));
    return processor_seconds_of_all() - started;
  };
  const double start_up = run(20);
  return run(steps + 20) - start_up;
}

void compare_ranks(const std::string& program, int64_t rounds) {
  for (size_t i = 0; i < kStrategies.size(); ++i) {
    std::vector<double> ratios;
    std::vector<double> seconds;
    const size_t first = works().size() * kHows + 2 * i;
    for (int64_t round = 0; round < rounds; ++round) {
      const bool forks = kStrategies[i] == std::string("ddp_spawn");
      const auto [of, to] = forks ? std::array{levin::benchmarks::run_in_process(program, first + 1, kRankSteps),
                                               levin::benchmarks::run_in_process(program, first, kRankSteps)}
                                  : run_in_turns(program, {first + 1, first}, kRankSteps);
      ratios.push_back(of / to);
      seconds.push_back(of);
    }
    std::printf("%.3f  MLP on 2 ranks of %s, graph: true / without (target 0.75): %.1f us a step of both\n",
                median(ratios), kStrategies[i], 1e6 * median(seconds) / static_cast<double>(kRankSteps));
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "--variant") {
    const size_t variant = std::stoul(argv[2]);
    const int64_t steps = argc > 3 ? std::stoll(argv[3]) : 1000;
    const size_t of_works = works().size() * kHows;
    std::printf("%.6f\n", variant < of_works ? run_variant(variant, steps) : run_ranks(variant - of_works, steps));
    return 0;
  }
  const int64_t rounds = argc > 1 ? std::stoll(argv[1]) : 5;
  const double budget = argc > 2 ? std::stod(argv[2]) : 2;
  const std::string words = argc > 3 ? argv[3] : "";
  for (size_t index = 0; index < works().size(); ++index) {
    const Work& work = works()[index];
    if (std::string(work.name).find(words) == std::string::npos) continue;
    // Fewer would be comparisons above all: three after the recording, and one an epoch.
    const auto steps = std::max<int64_t>(300, static_cast<int64_t>(budget / work.step_seconds));
    std::printf("%s, %lld steps a run (target %s)\n", work.name, static_cast<long long>(steps), work.target);
    for (const How how : {How::kOrdinary, How::kRecorded, How::kAuto, How::kRecordedWatched}) {
      std::vector<double> ratios;
      std::vector<double> seconds;
      for (int64_t round = 0; round < rounds; ++round) {
        const auto [of, to] = run_in_turns(argv[0], {index * kHows + static_cast<size_t>(how), index * kHows}, steps);
        ratios.push_back(of / to);
        seconds.push_back(of);
      }
      std::printf("  %.3f  %s: %.1f us a step\n", median(ratios), kHow[static_cast<size_t>(how)],
                  1e6 * median(seconds) / static_cast<double>(steps));
      std::fflush(stdout);
    }
  }
  if (std::string("ranks").find(words) != std::string::npos) compare_ranks(argv[0], rounds);
  return 0;
}
