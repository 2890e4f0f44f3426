/// What cutting a model over two ranks gives and costs under `pipeline`, in 4 micro-batches.
///
///   build/bin/pipeline_benchmark [rounds] [steps]     time a step of 2 process ranks, against single_device
///   build/bin/pipeline_benchmark --variant N [steps]  one variant, as it lists them: prints the seconds of a step
///   build/bin/pipeline_benchmark --memory             peak bytes of each of 2 thread ranks, against single_device
///
/// Time: an embedding, 4 transformer blocks of width 256 and a linear layer, batch 8 x 128 tokens, AdamW. Each rank has
/// one thread. Variants are timed in turn, each in processes of its own; a time is rank 0's median.

#include <levin/core/devices/accounting_allocator.h>
#include "measure.h"
#include "transformer.h"

#include <levin/core/comm/pipeline_schedule.h>
#include <levin/levin.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace {

using levin::AccountingAllocator;
using levin::MemoryAccount;
using levin::benchmarks::Block;
using levin::benchmarks::Clock;
using levin::benchmarks::kBatch;
using levin::benchmarks::kLength;
using levin::benchmarks::kVocabulary;
using levin::benchmarks::kWidth;
using levin::benchmarks::median;
using levin::benchmarks::run_in_process;
using levin::benchmarks::seconds_since;

constexpr int64_t kBlocks = 4;
constexpr int64_t kRanks = 2;
constexpr int64_t kMicroBatches = 4;

/// The batch has "x" and "y"; cross-entropy of logits whose last dimension are the classes.
class Classifier : public levin::Module {
 public:
  levin::StepOutput training_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    const torch::Tensor logits = net_->forward(batch["x"]);
    return torch::nn::functional::cross_entropy(logits.reshape({-1, logits.size(-1)}), batch["y"].flatten());
  }
  levin::OptimizerConfigs configure_optimizers() override {
    return std::make_shared<levin::optim::AdamW>(parameters(), levin::optim::AdamWOptions{.lr = 1e-3});
  }

 protected:
  levin::Sequential net_{nullptr};
};

class LanguageModel : public Classifier {
 public:
  void configure_model() override {
    if (net_) return;
    levin::Sequential net(torch::nn::Embedding(kVocabulary, kWidth));
    for (int64_t i = 0; i < kBlocks; ++i) net->push_back(Block(/*dropout=*/0));
    net->push_back(torch::nn::Linear(kWidth, kVocabulary));
    net_ = register_module("net", net);
  }
};

/// For images of CIFAR-10: three pairs of convolutions with BatchNorm, each half as wide and high as the one before.
class ConvNet : public Classifier {
 public:
  void configure_model() override {
    if (net_) return;
    levin::Sequential net;
    int64_t channels = 3;
    for (const int64_t wider : {32, 64, 128}) {
      for (int64_t i = 0; i < 2; ++i) {
        net->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, wider, 3).padding(1).bias(false)));
        net->push_back(torch::nn::BatchNorm2d(wider));
        net->push_back([](const torch::Tensor& x) { return x.relu(); });
        channels = wider;
      }
      net->push_back([](const torch::Tensor& x) { return torch::max_pool2d(x, 2); });
    }
    net->push_back([](const torch::Tensor& x) { return x.mean({2, 3}); });
    net->push_back(torch::nn::Linear(channels, 10));
    net_ = register_module("net", net);
  }
};

levin::Batch tokens(int64_t batches) {
  const std::vector<int64_t> sizes = {kBatch * batches, kLength};
  return {{"x", torch::randint(kVocabulary, sizes)}, {"y", torch::randint(kVocabulary, sizes)}};
}

levin::Batch images(int64_t batches) {
  return {{"x", torch::randn({kBatch * batches, 3, 32, 32})}, {"y", torch::randint(10, {kBatch * batches})}};
}

/// `strategy` is YAML.
void fit(const std::shared_ptr<levin::Module>& module, const levin::Batch& examples, const std::string& strategy,
         int64_t ranks, int64_t steps, std::shared_ptr<levin::Callback> callback) {
  levin::TrainerOptions options;
  options.max_steps = steps;
  options.accelerator = "cpu";
  options.devices = static_cast<int>(ranks);
  options.strategy = levin::Spec<levin::Strategy>(levin::Config::parse(strategy, {}));
  options.logger = false;
  options.enable_checkpointing = options.enable_progress_bar = options.enable_model_summary = false;
  options.callbacks = {std::move(callback)};
  levin::Trainer trainer(options);
  trainer.fit(module, levin::DataLoader(std::make_shared<levin::data::TensorDataset>(examples),
                                        {.batch_size = examples.size() / steps}));
}

// ---- Time

struct Variant {
  std::string label;
  std::string strategy;
  int64_t ranks;
  std::string schedule;  ///< empty for one rank
};

const std::vector<Variant>& variants() {
  static const std::vector<Variant> all = [] {
    std::vector<Variant> made = {{"single_device", "{name: single_device}", 1, ""},
                                 {"pipeline, one rank", "{name: pipeline}", 1, ""}};
    for (const std::string backend : {"shared_memory", "gloo"})
      for (const std::string& schedule : levin::pipeline_schedule_names())
        made.push_back(
            {fmt::format("{}, {}", schedule, backend),
             fmt::format("{{name: pipeline, schedule: {}, micro_batches: {}, backend: {}, balance: {}}}", schedule,
                         kMicroBatches, backend, schedule == "interleaved" ? "[2, 1, 1, 2]" : "[3, 3]"),
             kRanks, schedule});
    return made;
  }();
  return all;
}

/// Of single_device's step, without any cost of the pipeline but its bubble.
double ideal_ratio(const Variant& variant) {
  if (variant.schedule.empty()) return 1;
  const double bubble = levin::theoretical_bubble(
      variant.schedule,
      {.stages = kRanks, .micro_batches = kMicroBatches, .chunks_per_rank = variant.schedule == "interleaved" ? 2 : 1});
  return 1 / (static_cast<double>(kRanks) * (1 - bubble));
}

/// Prints the median of rank 0's seconds from the beginning of a step to that of the next one, without the first ones.
class StepTimer : public levin::Callback {
 public:
  void on_train_batch_start(levin::Trainer& trainer, levin::Module&, const levin::Batch&, int64_t) override {
    if (trainer.global_step() > kWarmUp) seconds_.push_back(seconds_since(started_));
    started_ = Clock::now();
  }
  void on_train_end(levin::Trainer& trainer, levin::Module&) override {
    if (!trainer.is_global_zero()) return;
    std::printf("%.9f\n", median(seconds_));
    std::fflush(stdout);
  }

  static constexpr int64_t kWarmUp = 3;

 private:
  Clock::time_point started_;
  std::vector<double> seconds_;
};

void compare_times(const std::string& program, int64_t rounds, int64_t steps) {
  std::vector<std::vector<double>> seconds(variants().size());
  std::vector<std::vector<double>> ratios(variants().size());
  for (int64_t round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < variants().size(); ++i) seconds[i].push_back(run_in_process(program, i, steps));
    for (size_t i = 0; i < variants().size(); ++i) ratios[i].push_back(seconds[i].back() / seconds.front().back());
  }
  std::printf(
      "%d rounds of %d steps: ms a step, of single_device's the median of the rounds' ratios, and what it would be "
      "without any cost but the bubble\n",
      static_cast<int>(rounds), static_cast<int>(steps));
  for (size_t i = 0; i < variants().size(); ++i) {
    const auto [quickest, slowest] = std::minmax_element(seconds[i].begin(), seconds[i].end());
    std::printf("%-28s %8.1f  (%.1f to %.1f)  %6.3f  ideal %6.3f\n", variants()[i].label.c_str(),
                1e3 * median(seconds[i]), 1e3 * *quickest, 1e3 * *slowest, median(ratios[i]),
                ideal_ratio(variants()[i]));
  }
}

// ---- Memory

/// The most that a step needs on the thread of each rank, beyond what was there before the model was built and the
/// batch.
class MemoryMeter : public levin::Callback {
 public:
  /// By rank, of the fit that runs.
  static std::map<int64_t, int64_t> peaks;

  void setup(levin::Trainer&, levin::Module&, levin::Stage) override {
    account_ = &AccountingAllocator::of_this_thread();
    before_ = account_->in_use();
  }
  void on_train_batch_start(levin::Trainer&, levin::Module&, const levin::Batch& batch, int64_t) override {
    batch_ = static_cast<int64_t>(batch["x"].nbytes() + batch["y"].nbytes());
    account_->restart_peak();
  }
  void on_train_batch_end(levin::Trainer& trainer, levin::Module&, const levin::StepOutput&, const levin::Batch&,
                          int64_t) override {
    // The optimizer has its state after the first step.
    if (trainer.global_step() < 2) return;
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    int64_t& peak = peaks[trainer.global_rank()];
    peak = std::max(peak, account_->peak() - before_ - batch_);
  }

 private:
  MemoryAccount* account_ = nullptr;
  int64_t before_ = 0;
  int64_t batch_ = 0;
};

std::map<int64_t, int64_t> MemoryMeter::peaks;

struct Workload {
  std::string label;
  std::function<std::shared_ptr<levin::Module>()> model;
  std::function<levin::Batch(int64_t batches)> examples;
  int64_t batches_in_one;  ///< a step's batch is so many of the usual size
};

void compare_memory() {
  AccountingAllocator::install();
  constexpr int64_t kSteps = 3;
  const std::vector<Workload> workloads = {
      {"conv net, 128 images of 3 x 32 x 32", [] { return levin::make<ConvNet>(); }, images, 128 / kBatch},
      {"transformer, 8 x 128 tokens", [] { return levin::make<LanguageModel>(); }, tokens, 1}};
  for (const Workload& workload : workloads) {
    std::printf("%s: peak MB of each rank\n", workload.label.c_str());
    const auto measure = [&](const std::string& label, const std::string& strategy, int64_t ranks) {
      MemoryMeter::peaks.clear();
      fit(workload.model(), workload.examples(kSteps * workload.batches_in_one), strategy, ranks, kSteps,
          levin::make<MemoryMeter>());
      std::printf("  %-56s", label.c_str());
      for (const auto& [rank, peak] : MemoryMeter::peaks) std::printf(" %8.2f", static_cast<double>(peak) / 1e6);
      std::printf("\n");
      std::fflush(stdout);
    };
    measure("single_device", "{name: single_device}", 1);
    for (const std::string schedule : {"gpipe", "1f1b"})
      for (const std::string checkpoint : {"never", "always"})
        for (const std::string by : {"time", "memory"})
          measure(
              fmt::format("{}, balanced by {}, checkpoint: {}", schedule, by, checkpoint),
              fmt::format("{{name: pipeline_threads, schedule: {}, micro_batches: {}, balance_by: {}, checkpoint: {}}}",
                          schedule, kMicroBatches, by, checkpoint),
              kRanks);
  }
}

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  levin::seed_everything(1);
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == "--memory") {
    compare_memory();
  } else if (first == "--variant" && argc > 2) {
    const Variant& variant = variants().at(std::stoul(argv[2]));
    const int64_t steps = (argc > 3 ? std::stoll(argv[3]) : 20) + StepTimer::kWarmUp;
    fit(levin::make<LanguageModel>(), tokens(steps), variant.strategy, variant.ranks, steps, levin::make<StepTimer>());
  } else {
    compare_times(argv[0], argc > 1 ? std::stoll(argv[1]) : 5, argc > 2 ? std::stoll(argv[2]) : 20);
  }
  return 0;
}
