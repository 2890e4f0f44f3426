/// The plan for a cluster against real runs: a transformer of 4 blocks of width 256, batch 8 x 128 tokens a rank,
/// AdamW, under ddp, sharded and pipeline on ranks that are threads of this machine.
///
///   build/bin/plan_benchmark [rounds] [steps]        measured and predicted time of a step on 2 and on 4 ranks
///   build/bin/plan_benchmark --variant N [steps]     one variant: prints the seconds of a step
///
/// What describes the machine is measured first, with as many ranks at once as train afterwards: floating point
/// operations a second from trainings side by side that do not communicate, latency and bandwidth from all-reduces of
/// 4 KB and 16 MB between the same threads. Ranks compute and communicate on the same cores, so that nothing is hidden
/// here: predicted is the time of computing, of all communication and of the bubble. What the model itself predicts,
/// which lets communication and computation overlap as devices with links of their own do, is printed beside it.
/// Variants are timed in turn, each in processes of its own; a time is rank 0's median, of the rounds the median.

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

#include <array>
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
  std::vector<Variant> all{{"alone", "single_device", 1, {.strategy = "single_device"}}};
  for (const int64_t ranks : {2, 4}) {
    all.push_back({"ddp", "ddp_threads", ranks, {.strategy = "ddp"}});
    all.push_back(
        {"sharded, stage 1", "{name: sharded_threads, stage: 1}", ranks, {.strategy = "sharded", .stage = 1}});
    all.push_back(
        {"sharded, stage 2", "{name: sharded_threads, stage: 2}", ranks, {.strategy = "sharded", .stage = 2}});
    all.push_back(
        {"sharded, stage 3", "{name: sharded_threads, stage: 3}", ranks, {.strategy = "sharded", .stage = 3}});
    all.push_back({"pipeline, 1f1b",
                   "{name: pipeline_threads, micro_batches: 8, balance_by: parameters}",
                   ranks,
                   {.strategy = "pipeline", .stages = ranks, .pipelines = 1}});
  }
  return all;
}

/// Rank 0's median step.
class StepTimer : public levin::Callback {
 public:
  void on_train_batch_start(levin::Trainer& trainer, levin::Module&, const levin::Batch&, int64_t) override {
    if (!trainer.is_global_zero()) return;
    if (trainer.global_step() > kWarmUp) times_.push_back(seconds_since(started_));
    started_ = Clock::now();
  }
  void on_train_end(levin::Trainer& trainer, levin::Module&) override {
    if (trainer.is_global_zero()) std::printf("%.9f\n", median(times_));
  }
  static constexpr int64_t kWarmUp = 5;

 private:
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

levin::DataLoader loader(int64_t batches) {
  const int64_t rows = kBatch * batches;
  return {std::make_shared<levin::data::TensorDataset>(
              levin::Batch{{"tokens", torch::randint(kVocabulary, {rows, kLength})},
                           {"targets", torch::randint(kVocabulary, {rows, kLength})}}),
          {.batch_size = kBatch}};
}

void run_variant(const Variant& variant, int64_t steps) {
  levin::TrainerOptions options = trainer_options(variant.strategy, variant.ranks, steps);
  options.callbacks = {levin::make<StepTimer>()};
  levin::Trainer trainer(options);
  trainer.fit(levin::make<LanguageModel>(), loader(steps * variant.ranks));
}

levin::TrainingNeeds measure_needs() {
  const levin::TrainerOptions options = trainer_options("single_device", 1, 1);
  const auto planner = std::make_shared<levin::MemoryPlanner>(levin::PlanOptions{}, options);
  levin::Trainer trainer(levin::planning_options(options, planner));
  trainer.tune(levin::make<LanguageModel>(), loader(4));
  return planner->needs();
}

/// Seconds of a step, of as many trainings side by side.
double seconds_side_by_side(const std::string& program, int64_t ranks, int64_t steps) {
  std::vector<double> seconds(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (double& of_one : seconds) threads.emplace_back([&] { of_one = run_in_process(program, 0, steps); });
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

/// One host with so many ranks, as this machine is with them.
levin::Cluster measure_machine(const std::string& program, const levin::TrainingNeeds& needs, int64_t ranks,
                               int64_t steps) {
  constexpr double kSmall = 4e3;
  constexpr double kLarge = 16e6;
  const double small = all_reduce_seconds(ranks, static_cast<int64_t>(kSmall), 500);
  const double large = all_reduce_seconds(ranks, static_cast<int64_t>(kLarge), 40);
  const auto others = static_cast<double>(ranks - 1);
  const double per_byte = (large - small) / (kLarge - kSmall);  // of a ring, 2 (p - 1) / p over the bandwidth
  const double bandwidth = 2 * others / static_cast<double>(ranks) / per_byte;
  const double latency = std::max(0.0, small - per_byte * kSmall) / (2 * others);
  const double step = seconds_side_by_side(program, ranks, steps);
  return {.hosts = 1,
          .devices = ranks,
          .intra_gb_s = bandwidth / 1e9,
          .inter_gb_s = bandwidth / 1e9,
          .latency_us = latency * 1e6,
          .flops = needs.flops_per_example * kBatch / step};
}

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  levin::seed_everything(1);
  const std::vector<Variant> all = variants();
  if (argc > 2 && std::string(argv[1]) == "--variant") {
    run_variant(all.at(std::stoul(argv[2])), argc > 3 ? std::stoll(argv[3]) : 40);
    return 0;
  }
  const int64_t rounds = argc > 1 ? std::stoll(argv[1]) : 3;
  const int64_t steps = argc > 2 ? std::stoll(argv[2]) : 40;
  const levin::TrainingNeeds needs = measure_needs();
  std::printf("%ld parameters, %.4g floating point operations for each example\n",
              static_cast<long>(needs.weights.elements), needs.flops_per_example);

  std::map<size_t, std::vector<double>> measured;
  std::map<int64_t, std::vector<levin::Cluster>> machines;
  for (int64_t round = 0; round < rounds; ++round) {
    for (const int64_t ranks : {2, 4}) machines[ranks].push_back(measure_machine(argv[0], needs, ranks, steps));
    for (size_t i = 1; i < all.size(); ++i) measured[i].push_back(run_in_process(argv[0], i, steps));
  }
  double furthest = 0;
  for (const auto& [ranks, found] : machines) {
    const auto middle = [&](double levin::Cluster::*member) {
      std::vector<double> values;
      for (const levin::Cluster& machine : found) values.push_back(machine.*member);
      return median(values);
    };
    levin::Cluster machine = found.front();
    for (const auto member : {&levin::Cluster::intra_gb_s, &levin::Cluster::inter_gb_s, &levin::Cluster::latency_us,
                              &levin::Cluster::flops})
      machine.*member = middle(member);
    std::printf("\n%ld ranks: %.1f GFLOP/s each, %.2f GB/s, %.1f us; milliseconds of a step\n%-18s %9s %9s %7s %12s\n",
                static_cast<long>(ranks), machine.flops / 1e9, machine.intra_gb_s, machine.latency_us, "", "measured",
                "predicted", "off", "overlapping");
    for (size_t i = 1; i < all.size(); ++i) {
      if (all[i].ranks != ranks) continue;
      const levin::StepTime time = levin::step_time(needs, machine, all[i].way);
      const double real = median(measured[i]);
      // A pipeline's messages are on its critical path or not at all.
      const double communication = all[i].way.stages > 0 ? time.exposed : time.communication;
      const double predicted = time.compute + communication + time.bubble;
      const double off = predicted / real - 1;
      furthest = std::max(furthest, std::abs(off));
      std::printf("%-18s %9.2f %9.2f %+6.1f%% %12.2f\n", all[i].name, 1e3 * real, 1e3 * predicted, 100 * off,
                  1e3 * time.total());
    }
  }
  std::printf("\nfurthest off: %.1f %%\n", 100 * furthest);
  return 0;
}
