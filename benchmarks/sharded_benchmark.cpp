/// What dividing a model over ranks gives and costs: a transformer of 4 blocks of width 256, batch 8 x 128 tokens a
/// rank, AdamW, under `sharded` by stage.
///
///   build/bin/sharded_benchmark [rounds] [steps]      time a step of 2 process ranks, against ddp
///   build/bin/sharded_benchmark --variant N [steps]   one variant, as it lists them: prints the seconds of a step
///   build/bin/sharded_benchmark --memory [ranks] [precision]
///                                                     bytes a rank of 2 and of 4 thread ranks, against the formulas
///
/// Each rank has one thread. Variants are timed in turn, each in processes of its own; a time is rank 0's median.

#include <levin/core/devices/accounting_allocator.h>
#include "measure.h"
#include "transformer.h"

#include <levin/levin.h>

#include <ATen/autocast_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace {

using levin::AccountingAllocator;
using levin::MemoryAccount;
using levin::benchmarks::Clock;
using levin::benchmarks::kBatch;
using levin::benchmarks::kLength;
using levin::benchmarks::kVocabulary;
using levin::benchmarks::median;
using levin::benchmarks::run_in_process;
using levin::benchmarks::seconds_since;
using levin::benchmarks::Transformer;

constexpr int64_t kBlocks = 4;

class LanguageModel : public levin::Module {
 public:
  void configure_model() override {
    if (!net_) net_ = register_module("net", Transformer(kBlocks));
  }
  levin::StepOutput training_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    return net_->loss(batch["tokens"], batch["targets"]);
  }
  levin::OptimizerConfigs configure_optimizers() override {
    return std::make_shared<levin::optim::AdamW>(parameters(), levin::optim::AdamWOptions{.lr = 1e-3});
  }

 private:
  Transformer net_{nullptr};
};

/// `strategy` is YAML.
void fit(const std::string& strategy, int64_t ranks, const std::string& precision, int64_t steps,
         std::shared_ptr<levin::Callback> callback) {
  const int64_t rows = kBatch * ranks * steps;
  const auto data = std::make_shared<levin::data::TensorDataset>(
      levin::Batch{{"tokens", torch::randint(kVocabulary, {rows, kLength})},
                   {"targets", torch::randint(kVocabulary, {rows, kLength})}});
  levin::TrainerOptions options;
  options.max_steps = steps;
  options.accelerator = "cpu";
  options.devices = static_cast<int>(ranks);
  options.strategy = levin::Spec<levin::Strategy>(levin::Config::parse(strategy, {}));
  options.precision = precision;
  options.logger = false;
  options.enable_checkpointing = options.enable_progress_bar = options.enable_model_summary = false;
  options.callbacks = {std::move(callback)};
  levin::Trainer trainer(options);
  trainer.fit(levin::make<LanguageModel>(), levin::DataLoader(data, {.batch_size = kBatch}));
}

// ---- Time

struct Variant {
  std::string label;
  std::string strategy;
  int64_t ranks;
  size_t baseline;  ///< the ddp that it is compared with
};

const std::vector<Variant>& variants() {
  static const std::vector<Variant> all = {
      {"single_device", "{name: single_device}", 1, 1},
      {"ddp, shared memory", "{name: ddp}", 2, 1},
      {"sharded 1, shared memory", "{name: sharded, stage: 1}", 2, 1},
      {"sharded 2, shared memory", "{name: sharded, stage: 2}", 2, 1},
      {"sharded 3, shared memory", "{name: sharded, stage: 3}", 2, 1},
      {"ddp, gloo", "{name: ddp, backend: gloo}", 2, 5},
      {"sharded 1, gloo", "{name: sharded, stage: 1, backend: gloo}", 2, 5},
      {"sharded 2, gloo", "{name: sharded, stage: 2, backend: gloo}", 2, 5},
      {"sharded 3, gloo", "{name: sharded, stage: 3, backend: gloo}", 2, 5},
  };
  return all;
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
    for (size_t i = 0; i < variants().size(); ++i)
      ratios[i].push_back(seconds[i].back() / seconds[variants()[i].baseline].back());
  }
  std::printf("%d rounds of %d steps: ms a step, and of its ddp the median of the rounds' ratios\n",
              static_cast<int>(rounds), static_cast<int>(steps));
  for (size_t i = 0; i < variants().size(); ++i) {
    const auto [quickest, slowest] = std::minmax_element(seconds[i].begin(), seconds[i].end());
    std::printf("%-26s %8.1f  (%.1f to %.1f)  %6.3f\n", variants()[i].label.c_str(), 1e3 * median(seconds[i]),
                1e3 * *quickest, 1e3 * *slowest, median(ratios[i]));
  }
}

// ---- Memory

/// Bytes of the rank that has the most.
struct RankMemory {
  int64_t after_backward = 0;
  int64_t before_optimizer = 0;
  int64_t after_step = 0;
  int64_t peak = 0;  ///< of a whole step
};

/// What the model needs on the thread of each rank, beyond what was there before it was built.
class MemoryMeter : public levin::Callback {
 public:
  /// Of all ranks of the fit that runs.
  static RankMemory result;

  void setup(levin::Trainer&, levin::Module&, levin::Stage) override {
    account_ = &AccountingAllocator::of_this_thread();
    before_ = account_->in_use();
  }
  void on_train_batch_start(levin::Trainer&, levin::Module&, const levin::Batch& batch, int64_t) override {
    batch_ = static_cast<int64_t>(batch["tokens"].nbytes() + batch["targets"].nbytes());
    account_->restart_peak();
  }
  void on_after_backward(levin::Trainer& trainer, levin::Module&) override {
    note(trainer, &RankMemory::after_backward, account_->in_use());
  }
  void on_before_optimizer_step(levin::Trainer& trainer, levin::Module&, levin::OptimizerHandle&) override {
    note(trainer, &RankMemory::before_optimizer, account_->in_use());
  }
  void on_train_batch_end(levin::Trainer& trainer, levin::Module&, const levin::StepOutput&, const levin::Batch&,
                          int64_t) override {
    note(trainer, &RankMemory::after_step, account_->in_use());
    note(trainer, &RankMemory::peak, account_->peak());
  }

 private:
  /// The optimizer has its state after the first step.
  void note(levin::Trainer& trainer, int64_t RankMemory::*moment, int64_t bytes) {
    if (trainer.global_step() < 2) return;
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    result.*moment = std::max(result.*moment, bytes - before_ - batch_);
  }

  MemoryAccount* account_ = nullptr;
  int64_t before_ = 0;
  int64_t batch_ = 0;
};

RankMemory MemoryMeter::result;

/// What forward and backward of one batch need on one device beyond parameters and gradients of a type.
int64_t activation_bytes(at::ScalarType type) {
  Transformer model(kBlocks);
  model->to(type);
  const torch::Tensor tokens = torch::randint(kVocabulary, {kBatch, kLength});
  const auto step = [&] {
    torch::Tensor loss;
    {
      at::autocast::set_autocast_enabled(at::kCPU, type != at::kFloat);
      at::autocast::set_autocast_dtype(at::kCPU, type);
      loss = model->loss(tokens, tokens);
      at::autocast::set_autocast_enabled(at::kCPU, false);
      at::autocast::clear_cache();
    }
    loss.backward();
  };
  step();  // gives the parameters gradients, which are there from here on
  return AccountingAllocator::of_this_thread().peak_of(step);
}

/// Bytes of a parameter, of its gradient and of what the optimizer keeps for it.
struct BytesEach {
  double parameter;
  double gradient;
  double optimizer;
};

double predicted_bytes(const BytesEach& bytes, int64_t stage, double elements, double ranks) {
  return elements * (bytes.parameter / (stage >= 3 ? ranks : 1) + bytes.gradient / (stage >= 2 ? ranks : 1) +
                     bytes.optimizer / ranks);
}

int64_t count_elements(const torch::nn::Module& module) {
  int64_t elements = 0;
  for (const auto& parameter : module.parameters()) elements += parameter.numel();
  return elements;
}

void compare_memory(const std::vector<int64_t>& all_ranks, const std::vector<std::string>& precisions) {
  AccountingAllocator::install();
  constexpr int64_t kSteps = 3;
  const Transformer model(kBlocks);
  const auto elements = static_cast<double>(count_elements(*model));
  const auto unit_elements = static_cast<double>(count_elements(*model->blocks->children().front()));
  const auto megabytes = [](auto bytes) { return static_cast<double>(bytes) / 1e6; };
  std::printf(
      "MB a rank; %.2f million parameters, the largest unit %.2f. Bound of the peak: predicted + two units' parameters "
      "and gradients + activations\n",
      elements / 1e6, unit_elements / 1e6);
  std::printf(
      "precision   ranks stage  predicted  after backward      before optimizer    after step     peak   bound\n");
  for (const std::string& precision : precisions) {
    const bool is_half = precision == "bf16-mixed";
    const BytesEach bytes = is_half ? BytesEach{2, 2, 12} : BytesEach{4, 4, 8};
    const int64_t activations = activation_bytes(is_half ? at::kBFloat16 : at::kFloat);
    for (const int64_t ranks : all_ranks) {
      for (const int64_t stage : {1, 2, 3}) {
        MemoryMeter::result = {};
        // Stages 1 and 2 average a unit's gradients at once, too.
        const double bucket_mb = unit_elements * 4 / 1048576;
        fit(fmt::format("{{name: sharded_threads, stage: {}, bucket_cap_mb: {}}}", stage, bucket_mb), ranks, precision,
            kSteps, levin::make<MemoryMeter>());
        const RankMemory& measured = MemoryMeter::result;
        const double predicted = predicted_bytes(bytes, stage, elements, static_cast<double>(ranks));
        const double bound =
            predicted + 2 * unit_elements * (bytes.parameter + bytes.gradient) + static_cast<double>(activations);
        const auto deviation = [&](int64_t value) { return 100 * (static_cast<double>(value) / predicted - 1); };
        std::printf("%-11s %5d %5d  %9.2f  %8.2f (%+6.2f %%)  %8.2f (%+6.2f %%)  %8.2f  %8.2f %8.2f\n",
                    precision.c_str(), static_cast<int>(ranks), static_cast<int>(stage), megabytes(predicted),
                    megabytes(measured.after_backward), deviation(measured.after_backward),
                    megabytes(measured.before_optimizer), deviation(measured.before_optimizer),
                    megabytes(measured.after_step), megabytes(measured.peak), megabytes(bound));
        std::fflush(stdout);
      }
    }
    std::printf("activations of a batch, %s: %.2f MB\n", precision.c_str(), megabytes(activations));
  }
}

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  levin::seed_everything(1);
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == "--memory") {
    compare_memory(argc > 2 ? std::vector<int64_t>{std::stoll(argv[2])} : std::vector<int64_t>{2, 4},
                   argc > 3 ? std::vector<std::string>{argv[3]} : std::vector<std::string>{"32-true", "bf16-mixed"});
  } else if (first == "--variant" && argc > 2) {
    const Variant& variant = variants().at(std::stoul(argv[2]));
    const int64_t steps = argc > 3 ? std::stoll(argv[3]) : 20;
    fit(variant.strategy, variant.ranks, "32-true", steps + StepTimer::kWarmUp, levin::make<StepTimer>());
  } else {
    compare_times(argv[0], argc > 1 ? std::stoll(argv[1]) : 5, argc > 2 ? std::stoll(argv[2]) : 20);
  }
  return 0;
}
