/// How large a model and how large a batch a given memory of each rank allows: a GPT-like transformer under `ddp` and
/// `sharded` by stage, with and without activation checkpointing, AdamW, 32-true.
///
///   build/bin/sharded_capacity [MB of a rank: 192] [GiB of a device: 80] [GiB of its host for each device: 256]
///
/// First 2 thread ranks of this machine, whose budget stands for a device's memory: measured, beside what the planner
/// predicts. Then devices that are not here, as the planner works them out, with offload too. It takes four minutes;
/// the first part takes longer with more memory.

#include <levin/core/devices/accounting_allocator.h>
#include "transformer.h"

#include <levin/core/planning/memory_planner.h>
#include <levin/levin.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using levin::AccountingAllocator;
using levin::MemoryAccount;
using levin::PlanRow;
using levin::TrainingNeeds;
using levin::benchmarks::kBatch;
using levin::benchmarks::kLength;
using levin::benchmarks::kVocabulary;
using levin::benchmarks::kWidth;
using levin::benchmarks::Transformer;

/// What is trained.
struct Shape {
  int64_t blocks = 1;
  int64_t batch = kBatch;  ///< examples of a rank
  int64_t width = kWidth;
  int64_t length = kLength;  ///< tokens in an example
};

/// A strategy, as the planner tells them apart.
struct Way {
  int64_t stage = 0;  ///< of sharded; 0: ddp
  bool offload = false;
  bool checkpoints = false;

  std::string label() const {
    return (stage == 0 ? "ddp" : fmt::format("sharded, stage {}", stage)) + (offload ? ", offload" : "") +
           (checkpoints ? " + checkpointing" : "");
  }
};

std::vector<Way> all_ways(bool with_offload) {
  std::vector<Way> ways;
  for (const bool checkpoints : {false, true}) {
    for (int64_t stage = 0; stage <= 3; ++stage) ways.push_back({.stage = stage, .checkpoints = checkpoints});
    if (with_offload) ways.push_back({.stage = 3, .offload = true, .checkpoints = checkpoints});
  }
  return ways;
}

/// The largest number from 1 on that fits, where all below it do too; 0: none.
int64_t largest(const std::function<bool(int64_t)>& fits) {
  int64_t too_large = 1;
  while (fits(too_large)) too_large *= 2;
  int64_t fitting = too_large / 2;
  while (too_large - fitting > 1) {
    const int64_t middle = fitting + (too_large - fitting) / 2;
    (fits(middle) ? fitting : too_large) = middle;
  }
  return fitting;
}

/// The same of what takes long to measure: looks at `guess` first and goes on to where the budget would be reached if
/// each more took `bytes_each`, inside of what is known already.
int64_t largest_measured(int64_t guess, double bytes_each, int64_t budget,
                         const std::function<int64_t(int64_t)>& bytes_of) {
  int64_t fitting = 0;
  int64_t too_large = std::numeric_limits<int64_t>::max();
  for (int64_t next = std::max<int64_t>(guess, 1); too_large - fitting > 1;) {
    const int64_t left = budget - bytes_of(next);
    (left >= 0 ? fitting : too_large) = next;
    next += static_cast<int64_t>(std::floor(static_cast<double>(left) / bytes_each));
    next = std::max(std::min(next, too_large - 1), fitting + 1);
  }
  return fitting;
}

// ---- Training

class LanguageModel : public levin::Module {
 public:
  using Options = Shape;
  explicit LanguageModel(const Shape& shape) : shape_(shape) {}

  void configure_model() override {
    if (!net_) net_ = register_module("net", Transformer(shape_.blocks, /*dropout=*/0.0, shape_.width));
  }
  levin::StepOutput training_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    return net_->loss(batch["tokens"], batch["targets"]);
  }
  levin::OptimizerConfigs configure_optimizers() override {
    return std::make_shared<levin::optim::AdamW>(parameters(), levin::optim::AdamWOptions{.lr = 1e-3});
  }

 private:
  const Shape shape_;
  Transformer net_{nullptr};
};

levin::DataLoader loader(const Shape& shape, int64_t batches) {
  const std::vector<int64_t> sizes = {shape.batch * batches, shape.length};
  return {std::make_shared<levin::data::TensorDataset>(levin::Batch{{"tokens", torch::randint(kVocabulary, sizes)},
                                                                    {"targets", torch::randint(kVocabulary, sizes)}}),
          {.batch_size = shape.batch}};
}

levin::TrainerOptions quiet_options() {
  levin::TrainerOptions options;
  options.accelerator = "cpu";
  options.logger = false;
  options.enable_checkpointing = options.enable_progress_bar = options.enable_model_summary = false;
  return options;
}

// ---- Measured

/// The most that a rank's thread has in use from before its model is built to the end of training.
class PeakMeter : public levin::Callback {
 public:
  /// Of the rank that has the most, since it was last set to 0.
  static int64_t peak;

  void setup(levin::Trainer&, levin::Module&, levin::Stage) override {
    account_ = &AccountingAllocator::of_this_thread();
    before_ = account_->in_use();
    account_->restart_peak();
  }
  void on_train_end(levin::Trainer&, levin::Module&) override {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    peak = std::max(peak, account_->peak() - before_);
  }

 private:
  MemoryAccount* account_ = nullptr;
  int64_t before_ = 0;
};

int64_t PeakMeter::peak = 0;

/// Bytes of the rank that has the most.
int64_t measured_peak(const Way& way, const Shape& shape) {
  constexpr int64_t kRanks = 2;
  constexpr int64_t kSteps = 2;  // the second has the optimizer's state; a later one has one batch of tokens more
  levin::TrainerOptions options = quiet_options();
  options.max_steps = kSteps;
  options.devices = static_cast<int>(kRanks);
  const std::string strategy =
      way.stage == 0 ? "{name: ddp_threads}"
                     : fmt::format("{{name: sharded_threads, stage: {}, gather_after_fit: false}}", way.stage);
  options.strategy = levin::Spec<levin::Strategy>(levin::Config::parse(strategy, {}));
  if (way.checkpoints) options.activation_checkpointing.units = {"*"};
  options.callbacks = {levin::make<PeakMeter>()};
  PeakMeter::peak = 0;
  levin::Trainer trainer(options);
  trainer.fit(levin::make<LanguageModel>(shape), loader(shape, kRanks * kSteps));
  return PeakMeter::peak;
}

// ---- Predicted

/// What a shape needs, measured on one device with its batch and half of it.
TrainingNeeds measured_needs(const Shape& shape) {
  const levin::TrainerOptions options = quiet_options();
  const auto planner = std::make_shared<levin::MemoryPlanner>(levin::PlanOptions{}, options);
  levin::Trainer trainer(planning_options(options, planner));
  trainer.tune(levin::make<LanguageModel>(shape), loader(shape, 2));
  return planner->needs();
}

/// What models of any number of blocks need, from two that were measured: every block adds the same.
class NeedsByBlocks {
 public:
  NeedsByBlocks(const Shape& few, const Shape& more)
      : few_blocks_(few.blocks), more_blocks_(more.blocks), few_(measured_needs(few)), more_(measured_needs(more)) {}

  TrainingNeeds of(int64_t blocks, int64_t batch, bool is_on_host) const {
    TrainingNeeds needs = few_;
    needs.units.assign(static_cast<size_t>(blocks), few_.units.front());
    needs.weights = few_.outside;
    for (const levin::WeightNeeds& unit : needs.units) needs.weights += unit;
    extend(&TrainingNeeds::optimizer_state, blocks, needs);
    extend(&TrainingNeeds::counters, blocks, needs);
    for (const auto member : {&TrainingNeeds::activations, &TrainingNeeds::kept}) {
      levin::BatchBytes& bytes = (needs.*member).bytes;
      bytes.fixed = extended((few_.*member).bytes.fixed, (more_.*member).bytes.fixed, blocks);
      bytes.per_example = extended((few_.*member).bytes.per_example, (more_.*member).bytes.per_example, blocks);
    }
    needs.batch_size = batch;
    needs.is_on_host = is_on_host;
    return needs;
  }

 private:
  double extended(double few, double more, int64_t blocks) const {
    return few +
           (more - few) * static_cast<double>(blocks - few_blocks_) / static_cast<double>(more_blocks_ - few_blocks_);
  }
  void extend(int64_t TrainingNeeds::*member, int64_t blocks, TrainingNeeds& needs) const {
    needs.*member =
        std::llround(extended(static_cast<double>(few_.*member), static_cast<double>(more_.*member), blocks));
  }

  int64_t few_blocks_;
  int64_t more_blocks_;
  TrainingNeeds few_;
  TrainingNeeds more_;
};

PlanRow row_of(const levin::MemoryPlan& plan, const Way& way) {
  for (const PlanRow& row : plan.rows)
    if (row.dimensions() <= 1 && row.pipeline == 1 && row.stage == way.stage && row.offload == way.offload &&
        row.checkpoints == way.checkpoints)
      return row;
  throw std::logic_error("the plan has no row for " + way.label());
}

/// Of so many devices, each with its share of its host's memory.
struct Machine {
  int64_t devices;
  int64_t memory;
  int64_t host_memory;
  bool is_on_host;  ///< the device's memory is the host's
};

/// What the planner says of a machine.
class Prediction {
 public:
  Prediction(const NeedsByBlocks& needs, const Machine& machine) : needs_(needs), machine_(machine) {}

  PlanRow row(const Way& way, int64_t blocks, int64_t batch) const {
    return row_of(plan_memory(needs_.of(blocks, batch, machine_.is_on_host), machine_.devices, machine_.memory), way);
  }
  int64_t largest_model(const Way& way, int64_t batch) const {
    return largest([&](int64_t blocks) {
      const PlanRow planned = row(way, blocks, batch);
      return planned.fits && planned.host <= machine_.host_memory;
    });
  }
  int64_t largest_batch(const Way& way, int64_t blocks) const {
    const PlanRow planned = row(way, blocks, /*batch=*/1);
    return planned.host <= machine_.host_memory ? planned.largest_batch : 0;
  }
  double million_parameters(int64_t blocks) const {
    return static_cast<double>(needs_.of(blocks, 1, true).weights.elements) / 1e6;
  }

 private:
  const NeedsByBlocks& needs_;
  Machine machine_;
};

// ---- Tables

void measure_here(int64_t budget) {
  constexpr int64_t kBlocks = 4;
  AccountingAllocator::install();
  const NeedsByBlocks needs({.blocks = 2}, {.blocks = 4});
  const Prediction prediction(needs, {.devices = 2, .memory = budget, .host_memory = budget, .is_on_host = true});
  std::printf(
      "Measured: 2 thread ranks with %.0f MB each, blocks of width %d, examples of %d tokens; in brackets what the "
      "planner predicts\n\n%-32s %30s %28s\n",
      static_cast<double>(budget) / 1e6, static_cast<int>(kWidth), static_cast<int>(kLength), "strategy",
      fmt::format("most blocks, batch {}", kBatch).c_str(), fmt::format("largest batch, {} blocks", kBlocks).c_str());
  // The next way is about as far from what is predicted as the last one.
  int64_t off_blocks = 0;
  int64_t off_batch = 0;
  for (const Way& way : all_ways(/*with_offload=*/false)) {
    const auto predicted_bytes = [&](int64_t blocks, int64_t batch) {
      return static_cast<double>(prediction.row(way, blocks, batch).total());
    };
    const int64_t predicted_blocks = prediction.largest_model(way, kBatch);
    const int64_t blocks =
        largest_measured(predicted_blocks + off_blocks, predicted_bytes(2, kBatch) - predicted_bytes(1, kBatch), budget,
                         [&](int64_t count) { return measured_peak(way, {.blocks = count}); });
    const int64_t predicted_batch = prediction.largest_batch(way, kBlocks);
    const int64_t batch = largest_measured(
        predicted_batch + off_batch, predicted_bytes(kBlocks, kBatch + 1) - predicted_bytes(kBlocks, kBatch), budget,
        [&](int64_t examples) { return measured_peak(way, {.blocks = kBlocks, .batch = examples}); });
    off_blocks = blocks - predicted_blocks;
    off_batch = batch - predicted_batch;
    std::printf("%-32s %30s %28s\n", way.label().c_str(),
                fmt::format("{:>3} ({:>3}), {:>4.1f} M parameters", blocks, predicted_blocks,
                            prediction.million_parameters(blocks))
                    .c_str(),
                fmt::format("{:>3} ({:>3})", batch, predicted_batch).c_str());
    std::fflush(stdout);
  }
}

void extrapolate(int64_t device_memory, int64_t host_memory) {
  constexpr int64_t kDeviceWidth = 2048;
  constexpr int64_t kDeviceLength = 1024;
  constexpr int64_t kBlocks = 24;
  const auto shape = [](int64_t blocks) {
    return Shape{.blocks = blocks, .batch = 2, .width = kDeviceWidth, .length = kDeviceLength};
  };
  const NeedsByBlocks needs(shape(1), shape(2));
  for (const int64_t devices : {2, 8, 64}) {
    const Prediction prediction(
        needs, {.devices = devices, .memory = device_memory, .host_memory = host_memory, .is_on_host = false});
    std::printf(
        "\nExtrapolated: %d devices with %.0f GiB each and %.0f GiB of their host's memory, blocks of width %d, "
        "examples "
        "of %d tokens\n\n%-42s %14s %16s %16s\n%-42s %14s %16s %16s\n",
        static_cast<int>(devices), static_cast<double>(device_memory) / 0x1p30,
        static_cast<double>(host_memory) / 0x1p30, static_cast<int>(kDeviceWidth), static_cast<int>(kDeviceLength), "",
        "largest batch", "largest model", "largest model", "strategy",
        fmt::format("of {:.0f} M", prediction.million_parameters(kBlocks)).c_str(), "batch 8, M", "batch 32, M");
    for (const Way& way : all_ways(/*with_offload=*/true)) {
      const auto model = [&](int64_t batch) {
        const int64_t blocks = prediction.largest_model(way, batch);
        return blocks == 0 ? std::string("-") : fmt::format("{:.0f}", prediction.million_parameters(blocks));
      };
      std::printf("%-42s %14d %16s %16s\n", way.label().c_str(),
                  static_cast<int>(prediction.largest_batch(way, kBlocks)), model(8).c_str(), model(32).c_str());
    }
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  levin::seed_everything(1);
  const auto argument = [&](int index, double otherwise, double unit) {
    return static_cast<int64_t>((argc > index ? std::stod(argv[index]) : otherwise) * unit);
  };
  measure_here(argument(1, 192, 1e6));
  extrapolate(argument(2, 80, 0x1p30), argument(3, 256, 0x1p30));
  return 0;
}
