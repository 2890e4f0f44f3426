/// The plan for a cluster against real runs: a transformer of 4 blocks of width 256, batch 8 x 128 tokens a rank,
/// AdamW, under ddp, sharded and pipeline on ranks that are threads of this machine.
///
///   build/bin/plan_benchmark [rounds] [steps]        measured and predicted time of a step on 2 and on 4 ranks
///   build/bin/plan_benchmark --variant N [steps]     one variant: prints the seconds of a step
///
/// What describes the machine is measured first, with as many ranks at once as train afterwards: latency and bandwidth
/// from all-reduces of 4 KB and 16 MB between threads, and from trainings side by side that do not communicate the
/// operations a second, what a pass takes whatever its batch (the same examples at once and in eight passes) and the
/// optimizer's step. Ranks compute and communicate on the same cores, so that nothing is hidden here: predicted is the
/// time of computing, of all communication and of the bubble. What the model itself predicts, which lets communication
/// and computation overlap as devices with links of their own do, is printed beside it.
///
/// Each variant is timed in processes of its own, right behind a training side by side, which says how quick the
/// machine is at that time: its other users come and go. A time is rank 0's median; of the rounds the median and the
/// range of what the prediction is off is printed. With more ranks than cores a pipeline is quicker than predicted:
/// where one rank is idle, others have its core.

#include "measure.h"
#include "transformer.h"

#include <levin/core/planning/cluster_plan.h>
#include <levin/core/planning/memory_planner.h>
#include <levin/levin.h>
#include <levin/strategies/comm/shared_memory_backend.h>
#include <levin/strategies/comm/shared_memory_team.h>

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using levin::benchmarks::Clock;
using levin::benchmarks::kBatch;
using levin::benchmarks::kLength;
using levin::benchmarks::kVocabulary;
using levin::benchmarks::median;
using levin::benchmarks::run_in_process;
using levin::benchmarks::seconds_since;

constexpr int64_t kBlocks = 4;

// Variants of one rank.
constexpr size_t kAlone = 0;
constexpr size_t kInPasses = 1;   ///< each example of a batch in a pass of its own
constexpr size_t kOptimizer = 2;  ///< prints the time of the optimizer's step alone
constexpr size_t kFirstOfSeveral = 3;

class LanguageModel : public levin::Module {
 public:
  LanguageModel() { net_ = register_module("net", levin::benchmarks::Transformer(kBlocks)); }
  levin::StepOutput training_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    return net_->loss(batch["tokens"], batch["targets"]);
  }
  levin::OptimizerConfigs configure_optimizers() override {
    return std::make_shared<levin::optim::AdamW>(parameters(), levin::optim::AdamWOptions{.lr = 1e-3});
  }

 private:
  levin::benchmarks::Transformer net_{nullptr};
};

struct Variant {
  const char* name;
  const char* strategy;  ///< YAML
  int64_t ranks;
  levin::PlanRow way;
};

std::vector<Variant> variants() {
  std::vector<Variant> all(kFirstOfSeveral, {"alone", "single_device", 1, {}});
  for (const int64_t ranks : {2, 4}) {
    all.push_back({"ddp", "ddp_threads", ranks, {.replicate = ranks}});
    all.push_back({"sharded, stage 1", "{name: sharded_threads, stage: 1}", ranks, {.shard = ranks, .stage = 1}});
    all.push_back({"sharded, stage 2", "{name: sharded_threads, stage: 2}", ranks, {.shard = ranks, .stage = 2}});
    all.push_back({"sharded, stage 3", "{name: sharded_threads, stage: 3}", ranks, {.shard = ranks, .stage = 3}});
    all.push_back({"pipeline, 1f1b",
                   "{name: pipeline_threads, micro_batches: 8, balance_by: parameters}",
                   ranks,
                   {.pipeline = ranks}});
  }
  return all;
}

/// Rank 0's median step, or its optimizer's part.
class StepTimer : public levin::Callback {
 public:
  explicit StepTimer(bool times_optimizer) : times_optimizer_(times_optimizer) {}

  void on_train_batch_start(levin::Trainer& trainer, levin::Module&, const levin::Batch&, int64_t) override {
    if (!trainer.is_global_zero() || trainer.global_step() == step_) return;  // within a window
    if (!times_optimizer_) note(trainer);
    step_ = trainer.global_step();
    started_ = Clock::now();
  }
  void on_before_optimizer_step(levin::Trainer&, levin::Module&, levin::OptimizerHandle&) override {
    if (times_optimizer_) started_ = Clock::now();
  }
  void on_train_batch_end(levin::Trainer& trainer, levin::Module&, const levin::StepOutput&, const levin::Batch&,
                          int64_t) override {
    if (times_optimizer_) note(trainer);
  }
  void on_train_end(levin::Trainer& trainer, levin::Module&) override {
    if (trainer.is_global_zero()) std::printf("%.9f\n", median(times_));
  }
  static constexpr int64_t kWarmUp = 3;

 private:
  void note(const levin::Trainer& trainer) {
    if (trainer.global_step() > kWarmUp) times_.push_back(seconds_since(started_));
  }

  const bool times_optimizer_;
  int64_t step_ = -1;
  Clock::time_point started_;
  std::vector<double> times_;
};

levin::TrainerOptions trainer_options(const std::string& strategy, int64_t ranks, int64_t steps) {
  levin::TrainerOptions options;
  options.max_steps = steps;
  options.accelerator = "cpu";
  options.devices = static_cast<int>(ranks);
  options.strategy = levin::Spec<levin::Strategy>(levin::Config::parse(strategy, {}));
  options.logger = false;
  options.enable_checkpointing = options.enable_progress_bar = options.enable_model_summary = false;
  return options;
}

levin::DataLoader loader(int64_t batches, int64_t batch_size = kBatch) {
  const int64_t rows = batch_size * batches;
  return {std::make_shared<levin::data::TensorDataset>(
              levin::Batch{{"tokens", torch::randint(kVocabulary, {rows, kLength})},
                           {"targets", torch::randint(kVocabulary, {rows, kLength})}}),
          {.batch_size = batch_size}};
}

void run_variant(size_t index, int64_t steps) {
  const Variant variant = variants().at(index);
  levin::TrainerOptions options = trainer_options(variant.strategy, variant.ranks, steps);
  options.callbacks = {std::shared_ptr<levin::Callback>(std::make_shared<StepTimer>(index == kOptimizer))};
  const int64_t passes = index == kInPasses ? kBatch : 1;
  options.accumulate_grad_batches = passes;
  levin::Trainer trainer(options);
  trainer.fit(levin::make<LanguageModel>(), loader(steps * variant.ranks * passes, kBatch / passes));
}

levin::TrainingNeeds measure_needs() {
  const levin::TrainerOptions options = trainer_options("single_device", 1, 1);
  const auto planner = std::make_shared<levin::MemoryPlanner>(levin::PlanOptions{}, options);
  levin::Trainer trainer(levin::planning_options(options, planner));
  trainer.tune(levin::make<LanguageModel>(), loader(4));
  return planner->needs();
}

/// What a variant of one rank prints, of as many side by side.
double seconds_side_by_side(const std::string& program, size_t variant, int64_t ranks, int64_t steps) {
  std::vector<double> seconds(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (double& of_one : seconds) threads.emplace_back([&] { of_one = run_in_process(program, variant, steps); });
  for (std::thread& thread : threads) thread.join();
  return median(seconds);
}

/// Seconds of an all-reduce between threads, the median of many.
double all_reduce_seconds(int64_t ranks, int64_t bytes, int64_t calls) {
  constexpr std::chrono::milliseconds kTimeout{60000};
  const auto team = levin::make_thread_team(ranks);
  double result = 0;
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      const auto backend = levin::make_shared_memory_backend(team, rank, kTimeout);
      std::vector<at::Tensor> tensors{at::full({bytes / 4}, 1.0F)};
      c10d::AllreduceOptions options;
      options.reduceOp = c10d::ReduceOp::MAX;  // as costly as a sum, and the values stay what they are
      std::vector<double> times;
      for (int64_t i = 0; i < calls; ++i) {
        backend->barrier()->wait();
        const auto started = Clock::now();
        backend->allreduce(tensors, options)->wait();
        if (i > 2) times.push_back(seconds_since(started));
      }
      if (rank == 0) result = median(times);
    });
  for (std::thread& thread : threads) thread.join();
  return result;
}

/// Links between so many ranks of this machine, and parts of a step of one rank.
struct Machine {
  double bandwidth = 0;  ///< bytes a second
  double latency = 0;    ///< seconds
  double pass = 0;       ///< part of a step that a pass takes whatever its batch
  double optimizer = 0;  ///< part of a step that is the optimizer's
};

Machine measure_machine(const std::string& program, int64_t ranks, int64_t steps) {
  constexpr double kSmall = 4e3;
  constexpr double kLarge = 16e6;
  const double small = all_reduce_seconds(ranks, static_cast<int64_t>(kSmall), 500);
  const double large = all_reduce_seconds(ranks, static_cast<int64_t>(kLarge), 40);
  const auto others = static_cast<double>(ranks - 1);
  const double per_byte = (large - small) / (kLarge - kSmall);  // of a ring, 2 (p - 1) / p over the bandwidth
  const double alone = seconds_side_by_side(program, kAlone, ranks, steps);
  const double in_passes = seconds_side_by_side(program, kInPasses, ranks, steps);
  return {.bandwidth = 2 * others / static_cast<double>(ranks) / per_byte,
          .latency = std::max(0.0, small - per_byte * kSmall) / (2 * others),
          .pass = std::max(0.0, in_passes / alone - 1) / (kBatch - 1),
          .optimizer = seconds_side_by_side(program, kOptimizer, ranks, steps) / alone};
}

/// One host with so many ranks, of which each takes `step` seconds for a step where they do not communicate.
levin::Cluster cluster_of(const Machine& machine, const levin::TrainingNeeds& needs, int64_t ranks, double step) {
  return {.hosts = 1,
          .devices = ranks,
          .intra_gb_s = machine.bandwidth / 1e9,
          .inter_gb_s = machine.bandwidth / 1e9,
          .latency_us = machine.latency * 1e6,
          .flops = needs.flops_per_example * kBatch / (step * (1 - machine.pass - machine.optimizer)),
          .pass_us = machine.pass * step * 1e6,
          .optimizer_us = machine.optimizer * step * 1e6};
}

/// The median of each member.
Machine middle_of(const std::vector<Machine>& found) {
  Machine middle;
  for (const auto member : {&Machine::bandwidth, &Machine::latency, &Machine::pass, &Machine::optimizer}) {
    std::vector<double> values;
    for (const Machine& machine : found) values.push_back(machine.*member);
    middle.*member = median(values);
  }
  return middle;
}

/// A variant's step, and that of a rank without communication just before.
struct Sample {
  double alone = 0;
  double real = 0;
};

/// Prints the line of a variant, and returns by what part its prediction is off.
double compare(const Variant& variant, const Machine& machine, const levin::TrainingNeeds& needs,
               const std::vector<Sample>& samples) {
  std::vector<double> reals;
  std::vector<double> predictions;
  std::vector<double> overlapping;
  std::vector<double> offs;
  for (const Sample& sample : samples) {
    const levin::StepTime time =
        levin::step_time(needs, cluster_of(machine, needs, variant.ranks, sample.alone), variant.way);
    // A pipeline's messages are on its critical path or not at all.
    const double communication = variant.way.pipeline > 1 ? time.exposed : time.communication;
    reals.push_back(sample.real);
    predictions.push_back(time.compute + communication + time.bubble);
    overlapping.push_back(time.total());
    offs.push_back(predictions.back() / sample.real - 1);
  }
  const auto [least, most] = std::minmax_element(offs.begin(), offs.end());
  std::printf("%-18s %9.2f %9.2f %+6.1f%% (%+.1f to %+.1f) %12.2f\n", variant.name, 1e3 * median(reals),
              1e3 * median(predictions), 100 * median(offs), 100 * *least, 100 * *most, 1e3 * median(overlapping));
  return median(offs);
}

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  levin::seed_everything(1);
  if (argc > 2 && std::string(argv[1]) == "--variant") {
    run_variant(std::stoul(argv[2]), argc > 3 ? std::stoll(argv[3]) : 40);
    return 0;
  }
  const std::vector<Variant> all = variants();
  const int64_t rounds = argc > 1 ? std::stoll(argv[1]) : 5;
  const int64_t steps = argc > 2 ? std::stoll(argv[2]) : 20;
  const levin::TrainingNeeds needs = measure_needs();
  std::printf("%ld parameters, %.4g floating point operations for each example\n",
              static_cast<long>(needs.weights.elements), needs.flops_per_example);

  std::map<size_t, std::vector<Sample>> samples;
  std::map<int64_t, std::vector<Machine>> machines;
  for (int64_t round = 0; round < rounds; ++round) {
    for (const int64_t ranks : {2, 4}) machines[ranks].push_back(measure_machine(argv[0], ranks, steps));
    for (size_t i = kFirstOfSeveral; i < all.size(); ++i)
      samples[i].push_back({.alone = seconds_side_by_side(argv[0], kAlone, all[i].ranks, steps),
                            .real = run_in_process(argv[0], i, steps)});
    std::fprintf(stderr, "round %ld of %ld done\n", static_cast<long>(round + 1), static_cast<long>(rounds));
  }
  double furthest = 0;
  for (const auto& [ranks, found] : machines) {
    const Machine machine = middle_of(found);
    std::printf(
        "\n%ld ranks: %.2f GB/s, %.1f us, a pass takes %.1f %% of a step whatever its batch, the optimizer "
        "%.1f %%; milliseconds of a step\n%-18s %9s %9s %7s %28s\n",
        static_cast<long>(ranks), machine.bandwidth / 1e9, 1e6 * machine.latency, 100 * machine.pass,
        100 * machine.optimizer, "", "measured", "predicted", "off", "overlapping");
    for (size_t i = kFirstOfSeveral; i < all.size(); ++i)
      if (all[i].ranks == ranks) furthest = std::max(furthest, std::abs(compare(all[i], machine, needs, samples[i])));
  }
  std::printf("\nfurthest off: %.1f %%\n", 100 * furthest);
  return 0;
}
