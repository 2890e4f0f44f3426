// Who acts on values of steps acts on the same ones whatever ranks there are, at a logging boundary or not.

#include "tests/conformance/strategy_conformance.h"

#include <levin/callbacks/early_stopping.h>
#include <levin/callbacks/gradient_norm_monitor.h>
#include <levin/callbacks/lambda_callback.h>
#include <levin/core/data/batch_sampler.h>
#include <levin/core/interfaces/logger.h>
#include <levin/core/metrics/mean.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/nn/functional/loss.h>

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace levin::testing {
namespace {

using ::testing::DoubleNear;
using ::testing::Pointwise;

const std::vector<StrategyCase>& cases() {
  static const std::vector<StrategyCase> cases = {
      {"ddp_threads", 2},
      {"sharded_threads", 2, 3},
      {"pipeline_threads", 2, 0, "micro_batches: 2"},
      {"mesh", 4, 0, "pipeline: {size: 2, micro_batches: 2}, replicate: 2"},
      {"mesh", 4, 0, "pipeline: {size: 2, micro_batches: 2}, shard: 2"},
      {"mesh", 4, 0, "pipeline: {size: 2, micro_batches: 2}, shard: {size: 2, stage: 3}"},
  };
  return cases;
}

/// Logs on the step: a value of each batch in a hook; the mean of its examples, which ranks have parts of, and that
/// as a metric; a value of every third batch alone.
class StepValues : public Net {
 public:
  explicit StepValues(const Options& options) : Net(options) {}
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    log("mean", batch["y"].mean(), {.on_step = true, .sync_dist = true});
    log("metric", mean_.update(batch["y"]), {.on_step = true, .sync_dist = true});
    return Net::training_step(batch, batch_idx);
  }
  void on_train_batch_end(const StepOutput&, const Batch&, int64_t) override {
    const int64_t batches = trainer().total_batches();
    log("hook", static_cast<double>(batches * 7 % 11), {.on_step = true, .sync_dist = true});
    if (batches % 3 == 1) log("some", static_cast<double>(batches * 5 % 13), {.on_step = true, .sync_dist = true});
  }

 private:
  metrics::Mean mean_;
};

/// Names of the kept checkpoints and their scores, best first.
using Kept = std::pair<std::vector<std::string>, std::vector<double>>;

Kept kept(const ModelCheckpointOptions& options, const StrategyCase& on) {
  seed_everything(7);
  const auto module = make<StepValues>({});
  const auto checkpoint = make<ModelCheckpoint>(options);
  TrainingRun run{.epochs = 3};
  run.configure = [&](TrainerOptions& trainer) {
    trainer.log_every_n_steps = 4;
    trainer.enable_checkpointing = true;
    trainer.default_root_dir = fresh_folder("step_values");
    trainer.callbacks = {checkpoint};
  };
  Trainer trainer(trainer_options(run, on));
  trainer.fit(module, DataLoader(tiny_dataset(40), {.global_batch_size = 8}),
              DataLoader(tiny_dataset(8), {.global_batch_size = 8}));
  Kept result;
  const State state = checkpoint->state_dict();
  for (const State& item : state.at("best_k_models").as_list()) {
    result.first.push_back(std::filesystem::path(item.at("path").as_string()).filename());
    result.second.push_back(item.at("score").as_double());
  }
  return result;
}

TEST(StepValues, RankTheSameCheckpointsOnAllRanks) {
  for (const char* monitor : {"hook", "mean", "metric", "some"})
    for (const int64_t every : {1, 3}) {
      const ModelCheckpointOptions options{.monitor = monitor,
                                           .mode = "max",
                                           .save_top_k = 4,
                                           .every_n_train_steps = every,
                                           .filename = "{step}-{hook}-{some}"};
      const Kept expected = kept(options, {"single_device", 1});
      ASSERT_FALSE(expected.first.empty()) << monitor;
      for (const StrategyCase& on : cases()) {
        const Kept got = kept(options, on);
        EXPECT_EQ(got.first, expected.first) << monitor << " every " << every << " steps, " << on;
        EXPECT_THAT(got.second, Pointwise(DoubleNear(1e-6), expected.second)) << monitor << " " << on;
      }
    }
}

TEST(StepValues, OfStepsBetweenBoundariesAreThereAtTheEndOfTheEpoch) {
  const ModelCheckpointOptions options{.monitor = "some", .mode = "max", .save_top_k = -1};
  const Kept expected = kept(options, {"single_device", 1});
  EXPECT_EQ(expected.second.size(), 3U);
  for (const StrategyCase& on : cases()) EXPECT_EQ(kept(options, on), expected) << on;
}

/// Follows a value of steps after each validation.
class Followed : public StepValues {
 public:
  explicit Followed(const Options& options) : StepValues(options) {}
  OptimizerConfigs configure_optimizers() override {
    auto configs = StepValues::configure_optimizers();
    configs.front().scheduler = {.name = "reduce_on_plateau", .interval = Interval::kStep, .monitor = "some"};
    return configs;
  }
  void lr_scheduler_step(optim::Scheduler& scheduler, std::optional<double> metric) override {
    if (trainer().is_global_zero()) followed().emplace_back(trainer().total_batches(), metric.value());
    StepValues::lr_scheduler_step(scheduler, metric);
  }
  static std::vector<std::pair<int64_t, double>>& followed() {
    static std::vector<std::pair<int64_t, double>> all;
    return all;
  }
};

TEST(StepValues, AreNewAfterAValidation) {
  const auto train_on = [](const StrategyCase& on) {
    Followed::followed().clear();
    seed_everything(7);
    const auto stopping = make<EarlyStopping>({.monitor = "some", .patience = 100, .check_on_train_epoch_end = false});
    TrainingRun run{.epochs = 3};
    run.configure = [&](TrainerOptions& options) {
      options.log_every_n_steps = 1000;
      options.val_check_interval = 2;
      options.callbacks = {stopping};
    };
    Trainer trainer(trainer_options(run, on));
    trainer.fit(make<Followed>({}), DataLoader(tiny_dataset(40), {.global_batch_size = 8}),
                DataLoader(tiny_dataset(8), {.global_batch_size = 8}));
    const State state = stopping->state_dict();
    return std::tuple(Followed::followed(), state.at("last_score").as_double(), state.at("wait_count").as_int(),
                      trainer.callback_metrics().at("some"));
  };
  for (const StrategyCase& on : cases()) {
    const auto [followed, last, waits, newest] = train_on(on);
    // Batches 2, 5, 8, 11 and 14 log; validations follow batches 2 and 4 of each epoch, its end after batch 5.
    EXPECT_THAT(followed, ::testing::ElementsAre(std::pair(2, 5.), std::pair(5, 7.), std::pair(9, 9.),
                                                 std::pair(12, 11.), std::pair(14, 0.)))
        << on;
    EXPECT_EQ(last, 0) << on;
    EXPECT_EQ(newest, 0) << on;
  }
}

// ---- Epochs cut short

/// Batches of 1, 4 and 5 examples.
class GrowingBatches : public data::BatchSampler {
 public:
  Batches batches(int64_t examples, uint64_t, int64_t) const override {
    Batches result;
    for (int64_t i = 0; i < examples; ++i) result.order.push_back(i);
    result.ends = {1, 5, examples};
    return result;
  }
};

/// Ends the first epoch before its second batch, the first that all ranks have a part of.
class EndsEarly : public Net {
 public:
  explicit EndsEarly(const Options& options) : Net(options) {}
  bool on_train_batch_start(const Batch&, int64_t batch_idx) override {
    return trainer().current_epoch() > 0 || batch_idx == 0;
  }
};

TEST(EpochCutShort, AsksRanksForNoValuesOfTheBatchThatWasNotRun) {
  const auto train_on = [](const StrategyCase& on) {
    seed_everything(7);
    const auto module = make<EndsEarly>({});
    Trainer trainer(trainer_options({.epochs = 1}, on));
    trainer.fit(module, DataLoader(tiny_dataset(10), {}, std::make_shared<GrowingBatches>()));
    return trainer.callback_metrics().at("train_loss_epoch");
  };
  const double expected = train_on({"single_device", 1});
  for (const StrategyCase& on : {StrategyCase{"ddp_threads", 2},
                                 {"ddp_threads", 4},
                                 {"sharded_threads", 2, 3},
                                 {"mesh", 4, 0, "pipeline: {size: 2, micro_batches: 2}, replicate: 2"}})
    EXPECT_NEAR(train_on(on), expected, 1e-6) << on;
}

/// Logs values of its own that no rank but this one needs to have.
class OwnValues : public Net {
 public:
  explicit OwnValues(const Options& options) : Net(options) {}
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    log("own", batch["y"].mean());
    log("own_metric", mean_.update(batch["y"]), {.on_step = true, .on_epoch = true});
    log("of_rank_zero", batch["y"].mean(), {.rank_zero_only = true});
    return Net::training_step(batch, batch_idx);
  }

 private:
  metrics::Mean mean_;
};

/// The rows of a run with `metrics.csv`'s names, by step, and its newest values.
struct OwnRows : Logger {
  void log_metrics(std::span<const MetricValue> values, int64_t step, int64_t) override {
    for (const auto& value : values) rows.emplace_back(fmt::format("{} {}", step, value.name), value.value);
  }
  std::map<std::string, double> after(int64_t step) const {
    std::map<std::string, double> found;
    for (const auto& [name, value] : rows)
      if (std::stoll(name) > step) found[name] = value;
    return found;
  }
  std::vector<std::pair<std::string, double>> rows;
};

/// Whatever strategy has saved, a rank shows the values of the rank that has them.
TEST(StepValues, AreShownWhereOthersHaveThemAfterAResume) {
  constexpr int64_t kSaved = 7;
  const auto run = [](const StrategyCase& on, const std::string& save, const std::string& ckpt) {
    seed_everything(7);
    const auto rows = std::make_shared<OwnRows>();
    TrainingRun plan{.epochs = 3};
    plan.configure = [&](TrainerOptions& options) {
      options.logger = {rows};
      options.default_root_dir = fresh_folder("step_values");
      options.callbacks = {
          make<GradientNormMonitor>({}),
          make<LambdaCallback>(
              {.on_train_batch_end = [&save](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) {
                if (trainer.total_batches() + 1 == kSaved && !save.empty()) trainer.save_checkpoint(save);
              }})};
    };
    Trainer trainer(trainer_options(plan, on));
    trainer.fit(make<OwnValues>({}), DataLoader(tiny_dataset(40), {.global_batch_size = 8}), {}, ckpt);
    for (const auto& [name, value] : trainer.callback_metrics()) rows->rows.emplace_back("100 newest " + name, value);
    return rows->after(kSaved);
  };
  const std::vector<StrategyCase> with_outputs{{"single_device", 1}, {"ddp_threads", 2}, {"sharded_threads", 2, 3}};
  std::vector<StrategyCase> pipelines;
  for (const StrategyCase& on : cases())
    if (on.is_pipeline()) pipelines.push_back(on);
  ASSERT_FALSE(pipelines.empty());
  std::map<std::string, std::map<std::string, double>> undisturbed;
  const auto goes_on = [&](const StrategyCase& saved, const std::string& path, const StrategyCase& on) {
    if (!undisturbed.contains(on.yaml())) undisturbed[on.yaml()] = run(on, "", "");
    const auto& expected = undisturbed[on.yaml()];
    const auto got = run(on, "", path);
    SCOPED_TRACE(fmt::format("{} resumed as {}", saved.yaml(), on.yaml()));
    EXPECT_GT(expected.size(), 15U);
    ASSERT_EQ(got.size(), expected.size());
    for (const auto& [name, value] : expected) {
      ASSERT_TRUE(got.contains(name)) << name;
      EXPECT_NEAR(got.at(name), value, 1e-4) << name;
    }
  };
  const std::string path = fresh_folder("step_values") + "/checkpoint";
  for (const StrategyCase& saved : with_outputs) {
    run(saved, path, "");
    for (const StrategyCase& on : pipelines) goes_on(saved, path, on);
  }
  for (const StrategyCase& saved : pipelines) {
    run(saved, path, "");
    for (const StrategyCase& on : with_outputs) goes_on(saved, path, on);
  }
}

TEST(StepValues, OfRankZeroAloneAreThoseOfTheFirstPartOfTheData) {
  const auto values = [](const StrategyCase& on) {
    seed_everything(7);
    const auto rows = std::make_shared<OwnRows>();
    TrainingRun plan{.epochs = 1};
    plan.configure = [&](TrainerOptions& options) { options.logger = {rows}; };
    Trainer trainer(trainer_options(plan, on));
    trainer.fit(make<OwnValues>({}), DataLoader(tiny_dataset(40), {.global_batch_size = 8}));
    std::map<std::string, double> found = rows->after(0);
    std::erase_if(found, [](const auto& item) { return item.first.find("of_rank_zero") == std::string::npos; });
    return found;
  };
  const auto expected = values({"ddp_threads", 2});
  EXPECT_GE(expected.size(), 2U);
  StrategyCase on{"pipeline_threads", 4};
  on.options = "data_parallel: 2";
  const auto got = values(on);
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, value] : expected) EXPECT_NEAR(got.at(name), value, 1e-6) << name;
}

}  // namespace
}  // namespace levin::testing
