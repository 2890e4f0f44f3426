#include "../support/captured_log.h"
#include "../support/tiny.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/core/base/seed.h>
#include <levin/core/interfaces/logger.h>
#include <levin/core/metrics/accuracy.h>
#include <levin/core/metrics/mean.h>
#include <levin/core/metrics/metric_collection.h>
#include <levin/core/metrics/precision_recall.h>
#include <levin/core/metrics/stacked_values.h>

#include <gmock/gmock-matchers.h>

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace levin {
namespace {

using testing::quiet;
using testing::tiny_dataset;
using testing::tiny_loader;
using testing::TinyModule;

struct Row {
  int64_t step;
  int64_t epoch;
  std::map<std::string, double> values;
};

class RecordingLogger : public Logger {
 public:
  void log_metrics(std::span<const MetricValue> values, int64_t step, int64_t epoch) override {
    Row row{step, epoch, {}};
    for (const auto& value : values) row.values[value.name] = value.value;
    rows.push_back(row);
  }
  void log_hyperparameters(const Config& given) override { hyperparameters = given; }
  std::vector<Row> rows;
  Config hyperparameters;
};

/// Logs numbers that are easy to add up: the batch index in training, the first input in validation.
class Logging : public TinyModule {
 public:
  using TinyModule::TinyModule;
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    log("index", static_cast<double>(batch_idx), {.on_step = true, .on_epoch = true, .prog_bar = true});
    log("sum", at::full({}, 1.0), {.on_step = false, .on_epoch = true, .reduce = LogReduce::kSum});
    log("max", at::full({}, static_cast<double>(batch_idx)),
        {.on_step = false, .on_epoch = true, .reduce = LogReduce::kMax});
    log("min", c10::Scalar(batch_idx), {.on_step = false, .on_epoch = true, .reduce = LogReduce::kMin});
    log("hidden", 3.0, {.logger = false});
    return TinyModule::training_step(batch, batch_idx);
  }
  StepOutput validation_step(const Batch& batch, int64_t batch_idx) override {
    log("mean_index", static_cast<double>(batch_idx));
    return TinyModule::validation_step(batch, batch_idx);
  }
  void on_train_epoch_end() override { log("from_hook", 42.0); }
};

struct Fixture {
  std::shared_ptr<RecordingLogger> logger = std::make_shared<RecordingLogger>();
  TrainerOptions options = quiet(1);
  Fixture() {
    options.logger = {logger};
    options.default_root_dir = testing::fresh_folder("logging");
    options.log_every_n_steps = 2;
  }
};

TEST(Logging, StepsAtBoundariesAndWeightedEpochs) {
  Fixture fixture;
  Trainer trainer(fixture.options);
  // Batches of 8, 8, 4: the mean of 0, 1, 2 weighted by size is (0*8 + 1*8 + 2*4) / 20.
  trainer.fit(make<Logging>({.width = 3}), tiny_loader(20), tiny_loader(20, 8, false));
  const auto& rows = fixture.logger->rows;
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[3].step, 3);
  EXPECT_EQ(rows[3].values.at("index_step"), 2.0) << "the last step, no boundary";
  EXPECT_EQ(rows[3].values.size(), 2U) << "train_loss_step is the other one";
  EXPECT_EQ(rows[0].step, 2);
  EXPECT_EQ(rows[0].values.at("index_step"), 1.0);
  EXPECT_EQ(rows[0].values.count("hidden"), 0u);
  EXPECT_EQ(rows[0].values.count("sum"), 0u);
  EXPECT_DOUBLE_EQ(rows[1].values.at("mean_index"), 16.0 / 20.0);
  EXPECT_EQ(rows[1].step, 3);
  EXPECT_DOUBLE_EQ(rows[2].values.at("index_epoch"), 16.0 / 20.0);
  EXPECT_EQ(rows[2].values.at("sum"), 3.0);
  EXPECT_EQ(rows[2].values.at("max"), 2.0);
  EXPECT_EQ(rows[2].values.at("min"), 0.0);
  EXPECT_EQ(rows[2].values.at("from_hook"), 42.0);
  const auto& latest = trainer.callback_metrics();
  EXPECT_DOUBLE_EQ(latest.at("index"), 16.0 / 20.0) << "the short name means the epoch's value once there is one";
  EXPECT_EQ(latest.at("index_step"), 2.0);
  EXPECT_EQ(latest.at("hidden"), 3.0);
  EXPECT_EQ(fixture.logger->hyperparameters.find("model")->find("width")->text(), "3");
}

TEST(Logging, CallbackMetricsSeeTheStepAndAtTheEndTheEpoch) {
  Fixture fixture;
  fixture.options.callbacks = {make<LambdaCallback>(LambdaCallbackOptions{
      .on_train_epoch_end =
          [](Trainer& trainer, Module&) {
            EXPECT_DOUBLE_EQ(trainer.callback_metrics().at("index_epoch"), 16.0 / 20.0);
          },
      .on_train_batch_end =
          [](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t batch_idx) {
            EXPECT_EQ(trainer.callback_metrics().at("index"), static_cast<double>(batch_idx));
            EXPECT_EQ(trainer.progress_bar_metrics().at("index_step"), static_cast<double>(batch_idx));
          },
      .on_validation_end = [](Trainer& trainer,
                              Module&) { EXPECT_EQ(trainer.callback_metrics().count("val_loss"), 1u); }})};
  Trainer trainer(fixture.options);
  trainer.fit(make<Logging>({}), tiny_loader(20), tiny_loader(20, 8, false));
}

TEST(Logging, AMetricIsComputedAndResetEveryEpoch) {
  class Measuring : public TinyModule {
   public:
    using TinyModule::TinyModule;
    StepOutput validation_step(const Batch& batch, int64_t) override {
      const auto classes = at::zeros({batch.size()}, at::kLong);
      auto scores = at::zeros({batch.size(), 2});
      scores.select(1, wrong ? 1 : 0).fill_(1);
      log("acc", accuracy_.update(scores, classes));
      return {};
    }
    void on_validation_end() override { wrong = true; }
    bool wrong = false;

   private:
    metrics::Accuracy accuracy_{{.num_classes = 2}};
  };
  Fixture fixture;
  fixture.options.max_epochs = 2;
  Trainer trainer(fixture.options);
  trainer.fit(make<Measuring>({}), tiny_loader(16), tiny_loader(20));
  std::vector<double> values;
  for (const auto& row : fixture.logger->rows)
    if (row.values.count("acc") > 0) values.push_back(row.values.at("acc"));
  EXPECT_EQ(values, (std::vector<double>{1.0, 0.0}));
}

TEST(Logging, AMetricOfATrainingStepIsThatOfItsBatch) {
  class Measuring : public TinyModule {
   public:
    using TinyModule::TinyModule;
    StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
      const auto labels = at::zeros({batch.size()}, at::kLong);
      const auto predictions = at::full({batch.size()}, batch_idx % 2, at::kLong);
      log("acc", accuracy_.update(predictions, labels));
      log("both", both_.update(predictions, labels), {.on_epoch = true});
      return TinyModule::training_step(batch, batch_idx);
    }

   private:
    metrics::Accuracy accuracy_{{.num_classes = 2}};
    metrics::Accuracy both_{{.num_classes = 2}};
  };
  Fixture fixture;
  fixture.options.log_every_n_steps = 1;
  fixture.options.max_epochs = 2;
  Trainer trainer(fixture.options);
  trainer.fit(make<Measuring>({}), tiny_loader(20));  // batches of 8, 8 and 4
  std::vector<double> steps;
  std::vector<double> epochs;
  for (const auto& row : fixture.logger->rows) {
    if (row.values.count("acc") > 0) {
      steps.push_back(row.values.at("acc"));
      EXPECT_EQ(row.values.at("both_step"), row.values.at("acc"));
    }
    if (row.values.count("both_epoch") > 0) epochs.push_back(row.values.at("both_epoch"));
  }
  EXPECT_EQ(steps, (std::vector<double>{1, 0, 1, 1, 0, 1}));
  EXPECT_EQ(epochs, (std::vector<double>{12.0 / 20, 12.0 / 20}));
}

TEST(Logging, SeveralLoadersGetASuffix) {
  Trainer trainer(quiet(1));
  const auto results = trainer.validate(make<Logging>({}), DataLoaders{tiny_loader(16), tiny_loader(24)});
  EXPECT_DOUBLE_EQ(results[0].at("mean_index/dataloader_idx_0"), 0.5);
  EXPECT_DOUBLE_EQ(results[1].at("mean_index/dataloader_idx_1"), 1.0);
}

TEST(Logging, OneMetricServesSeveralLoaders) {
  class Counting : public TinyModule {
   public:
    using TinyModule::TinyModule;
    StepOutput validation_step(const Batch& batch, int64_t) override {
      auto scores = at::zeros({batch.size(), 2});
      scores.select(1, dataloader_idx()).fill_(1);
      log("acc", accuracy_.update(scores, at::zeros({batch.size()}, at::kLong)));
      return {};
    }

   private:
    metrics::Accuracy accuracy_{{.num_classes = 2}};
  };
  Trainer trainer(quiet(1));
  const auto results = trainer.validate(make<Counting>({}), DataLoaders{tiny_loader(16), tiny_loader(24)});
  EXPECT_EQ(results[0].at("acc/dataloader_idx_0"), 1.0);
  EXPECT_EQ(results[1].at("acc/dataloader_idx_1"), 0.0);
}

TEST(Logging, OneNameForSeveralLoadersIsCombined) {
  /// Loader 0 has 3 batches of 8, loader 1 one of 8 and one of 4.
  class Combined : public TinyModule {
   public:
    using TinyModule::TinyModule;
    StepOutput validation_step(const Batch& batch, int64_t batch_idx) override {
      const auto loader = static_cast<double>(dataloader_idx());
      const LogOptions together{.add_dataloader_idx = false};
      LogOptions reduced = together;
      log("mean", loader, together);
      log("tensor", at::full({}, loader), together);
      reduced.reduce = LogReduce::kSum;
      log("sum", loader + 1, reduced);
      reduced.reduce = LogReduce::kMax;
      log("max", -loader, reduced);
      reduced.reduce = LogReduce::kMin;
      log("min", loader, reduced);
      LogOptions weighted = together;
      weighted.batch_size = dataloader_idx() == 0 ? 1 : 6;
      log("weighted", loader, weighted);
      log("apart", loader);
      log(dataloader_idx() == 0 ? "first" : "second", loader, together);
      auto scores = at::zeros({batch.size(), 2});
      scores.select(1, dataloader_idx()).fill_(1);
      const auto labels = at::zeros({batch.size()}, at::kLong);
      log("acc", one_.update(scores, labels), together);
      metrics::Accuracy& own = dataloader_idx() == 0 ? of_first_ : of_second_;
      log("acc_of_two", own.update(scores, labels), together);
      log("acc_apart", apart_.update(scores, labels));
      return {};
    }

   private:
    metrics::Accuracy one_{{.num_classes = 2}};
    metrics::Accuracy of_first_{{.num_classes = 2}};
    metrics::Accuracy of_second_{{.num_classes = 2}};
    metrics::Accuracy apart_{{.num_classes = 2}};
  };
  for (const std::string strategy : {"single_device", "ddp_threads"}) {
    SCOPED_TRACE(strategy);
    TrainerOptions options = quiet(1);
    options.strategy = strategy;
    options.devices = strategy == "single_device" ? 1 : 2;
    options.use_distributed_sampler = true;
    const int64_t ranks = strategy == "single_device" ? 1 : 2;
    Trainer trainer(options);
    const auto module = make<Combined>({});
    for (int round = 0; round < 2; ++round) {
      const auto results = trainer.validate(module, DataLoaders{tiny_loader(24 * ranks), tiny_loader(12 * ranks)});
      const auto& all = results[0];
      EXPECT_DOUBLE_EQ(all.at("mean"), 12.0 / 36);
      EXPECT_DOUBLE_EQ(all.at("tensor"), 12.0 / 36);
      EXPECT_DOUBLE_EQ(all.at("sum"), static_cast<double>(7 * ranks));
      EXPECT_DOUBLE_EQ(all.at("max"), 0);
      EXPECT_DOUBLE_EQ(all.at("min"), 0);
      EXPECT_DOUBLE_EQ(all.at("weighted"), 12.0 / 15);
      EXPECT_NEAR(all.at("acc"), 24.0 / 36, 1e-6);
      EXPECT_NEAR(all.at("acc_of_two"), 24.0 / 36, 1e-6);
      EXPECT_DOUBLE_EQ(all.at("first"), 0);
      EXPECT_DOUBLE_EQ(results[1].at("second"), 1);
      EXPECT_DOUBLE_EQ(results[1].at("apart/dataloader_idx_1"), 1);
      EXPECT_DOUBLE_EQ(all.at("acc_apart/dataloader_idx_0"), 1);
      EXPECT_DOUBLE_EQ(results[1].at("acc_apart/dataloader_idx_1"), 0);
      EXPECT_DOUBLE_EQ(trainer.callback_metrics().at("mean"), 12.0 / 36);
      EXPECT_EQ(results[1].size(), 3U) << "what is combined is there once";
    }
  }
}

TEST(Logging, OneMetricObjectIsOfOneLoaderOrOfAll) {
  class Both : public TinyModule {
   public:
    using TinyModule::TinyModule;
    StepOutput validation_step(const Batch& batch, int64_t) override {
      mean_.update(1.0);
      log("apart", mean_);
      log("together", mean_, {.add_dataloader_idx = false});
      return {};
    }

   private:
    metrics::Mean mean_;
  };
  try {
    Trainer(quiet(1)).validate(make<Both>({}), DataLoaders{tiny_loader(16), tiny_loader(24)});
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("hint: use two objects"));
  }
}

TEST(Logging, MistakesAreNamed) {
  class Vector : public TinyModule {
   public:
    using TinyModule::TinyModule;
    StepOutput training_step(const Batch& batch, int64_t) override {
      log("vector", batch["x"]);
      return {};
    }
  };
  Trainer trainer(quiet(1));
  try {
    trainer.fit(make<Vector>({}), tiny_loader());
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'vector' must be one number; got a tensor of shape [8, 4]"),
              std::string::npos)
        << error.what();
  }
  EXPECT_THROW(make<TinyModule>({})->log("x", 1.0), Error) << "no trainer runs the module";
}

/// The steps whose training metrics reached the loggers.
std::vector<int64_t> steps_with_rows(int64_t every, const std::function<void(TrainerOptions&)>& change = {}) {
  Fixture fixture;
  fixture.options.log_every_n_steps = every;
  if (change) change(fixture.options);
  Trainer trainer(fixture.options);
  trainer.fit(make<Logging>({}), tiny_loader(20), tiny_loader(20, 8, false));
  std::vector<int64_t> steps;
  for (const Row& row : fixture.logger->rows)
    if (row.values.contains("index_step")) steps.push_back(row.step);
  return steps;
}

TEST(Logging, TheLastStepHasARow) {
  using Steps = std::vector<int64_t>;
  const auto epochs = [](int64_t count) { return [count](TrainerOptions& options) { options.max_epochs = count; }; };
  const auto stops_at_second_batch = [](TrainerOptions& options) {
    options.callbacks = {make<LambdaCallback>(LambdaCallbackOptions{
        .on_train_batch_end = [](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t batch_idx) {
          if (batch_idx == 1) trainer.request_stop("enough");
        }})};
  };
  const auto stops_at_first_epoch = [](TrainerOptions& options) {
    options.max_epochs = 2;
    options.callbacks = {make<LambdaCallback>(LambdaCallbackOptions{
        .on_train_epoch_end = [](Trainer& trainer, Module&) { trainer.request_stop("enough"); }})};
  };
  // Epochs of 3 batches.
  EXPECT_EQ(steps_with_rows(50), (Steps{3}));
  EXPECT_EQ(steps_with_rows(3), (Steps{3})) << "a boundary: one row";
  EXPECT_EQ(steps_with_rows(50, epochs(3)), (Steps{9}));
  EXPECT_EQ(steps_with_rows(2, epochs(3)), (Steps{2, 4, 6, 8, 9}));
  EXPECT_EQ(steps_with_rows(50, [](TrainerOptions& options) { options.max_steps = 2; }), (Steps{2}));
  EXPECT_EQ(steps_with_rows(2, [](TrainerOptions& options) { options.max_steps = 2; }), (Steps{2}));
  EXPECT_EQ(steps_with_rows(50, [](TrainerOptions& options) { options.accumulate_grad_batches = 2; }), (Steps{2}));
  EXPECT_EQ(steps_with_rows(50, stops_at_second_batch), (Steps{2}));
  EXPECT_EQ(steps_with_rows(50, stops_at_first_epoch), (Steps{3}));
}

/// What goes wrong where `module` is trained and validated.
std::string mistake_of(const std::shared_ptr<Module>& module) {
  Trainer trainer(quiet(2));
  try {
    trainer.fit(module, tiny_loader(), tiny_loader());
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Logging, AMetricThatDiesBeforeTheEpochsEndIsNamed) {
  class OfTheStep : public TinyModule {
   public:
    using TinyModule::TinyModule;
    StepOutput validation_step(const Batch& batch, int64_t) override {
      const auto metric = std::make_unique<metrics::Accuracy>(metrics::AccuracyOptions{.num_classes = 2});
      const auto classes = at::zeros({batch.size()}, at::kLong);
      log("val_acc", metric->update(classes, classes));
      return {};
    }
  };
  /// The same in the last batch alone, so that nobody logs the name again.
  class OfTheLastStep : public OfTheStep {
   public:
    using OfTheStep::OfTheStep;
    StepOutput validation_step(const Batch& batch, int64_t batch_idx) override {
      return batch_idx == 4 ? OfTheStep::validation_step(batch, batch_idx) : StepOutput();
    }
  };
  /// Moved by a vector that grows.
  class Moved : public TinyModule {
   public:
    using TinyModule::TinyModule;
    StepOutput validation_step(const Batch& batch, int64_t) override {
      metrics_.emplace_back(metrics::AccuracyOptions{.num_classes = 2});
      const auto classes = at::zeros({batch.size()}, at::kLong);
      log("val_acc", metrics_.front().update(classes, classes));
      return {};
    }

   private:
    std::vector<metrics::Accuracy> metrics_;
  };
  for (const std::shared_ptr<Module>& module :
       std::vector<std::shared_ptr<Module>>{make<OfTheStep>({}), make<OfTheLastStep>({}), make<Moved>({})}) {
    const std::string mistake = mistake_of(module);
    EXPECT_NE(mistake.find("[log] the metric logged as 'val_acc' was destroyed or moved before the end of the epoch"),
              mistake.npos)
        << mistake;
    EXPECT_NE(mistake.find("member of the module"), mistake.npos) << mistake;
  }
}

TEST(Logging, AMetricMayBeMadeAnewForEveryEpoch) {
  class Fresh : public TinyModule {
   public:
    using TinyModule::TinyModule;
    void on_validation_epoch_start() override {
      metric_ = std::make_unique<metrics::Accuracy>(metrics::AccuracyOptions{.num_classes = 2});
    }
    StepOutput validation_step(const Batch& batch, int64_t) override {
      const auto classes = at::zeros({batch.size()}, at::kLong);
      log("val_acc", metric_->update(classes, classes));
      return {};
    }

   private:
    std::unique_ptr<metrics::Accuracy> metric_;
  };
  EXPECT_EQ(mistake_of(make<Fresh>({})), "");
}

TEST(Logging, AMetricStartsAfreshAfterACallThatEndedInsideOfAnEpoch) {
  /// Right in the first calls' batches, wrong in those of the last.
  class Measuring : public TinyModule {
   public:
    using TinyModule::TinyModule;
    StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
      measure("train_acc", batch);
      return TinyModule::training_step(batch, batch_idx);
    }
    StepOutput validation_step(const Batch& batch, int64_t batch_idx) override {
      measure("val_acc", batch);
      if (fails && batch_idx == 1) throw std::runtime_error("the user's");
      return {};
    }
    bool wrong = false;
    bool fails = false;

   private:
    void measure(const char* name, const Batch& batch) {
      const auto labels = at::zeros({batch.size()}, at::kLong);
      log(name, accuracy_.update(wrong ? labels + 1 : labels, labels), {.on_step = false, .on_epoch = true});
    }
    metrics::Accuracy accuracy_{{.num_classes = 2}};
  };
  const auto module = make<Measuring>({});
  TrainerOptions cut_short = quiet(1);
  cut_short.max_steps = 2;
  Trainer trainer(cut_short);
  trainer.fit(module, tiny_loader());
  EXPECT_EQ(trainer.callback_metrics().at("train_acc"), 1.0);
  module->wrong = true;
  Trainer other(quiet(1));
  other.fit(module, tiny_loader());
  EXPECT_EQ(other.callback_metrics().at("train_acc"), 0.0);
  module->wrong = false;
  module->fails = true;
  EXPECT_THROW(trainer.validate(module, tiny_loader()), std::runtime_error);
  module->wrong = true;
  module->fails = false;
  EXPECT_EQ(trainer.validate(module, tiny_loader()).front().at("val_acc"), 0.0);
}

TEST(Logging, BeforeTheFirstEpochAndAfterTheLast) {
  class Hooked : public TinyModule {
   public:
    using TinyModule::TinyModule;
    void on_train_start() override { log("at_start", 3.0); }
    void on_validation_end() override {
      if (in_validation_end) log("late", 1.0);
    }
    void on_train_end() override {
      if (in_train_end) log("late", 1.0);
    }
    bool in_validation_end = false;
    bool in_train_end = false;
  };
  const auto module = make<Hooked>({});
  Fixture fixture;
  Trainer trainer(fixture.options);
  trainer.fit(module, tiny_loader(), tiny_loader());
  EXPECT_EQ(fixture.logger->rows.at(3).values.at("at_start"), 3.0) << "beside the values of the epoch";
  const auto refusal = [&module] {
    try {
      Trainer(quiet(1)).fit(module, tiny_loader(), tiny_loader());
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  module->in_validation_end = true;
  EXPECT_NE(refusal().find("'late' was logged when all values had been handed on; hint: log it in"), std::string::npos);
  module->in_validation_end = false;
  module->in_train_end = true;
  EXPECT_NE(refusal().find("'late' was logged when all values had been handed on; hint: log it in"), std::string::npos);
}

TEST(Logging, TheTrainersCountersAreNoMetrics) {
  class Counting : public TinyModule {
   public:
    explicit Counting(const std::string& name) : TinyModule({}), name_(name) {}
    StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
      log(name_, 1.0);
      return TinyModule::training_step(batch, batch_idx);
    }

   private:
    std::string name_;
  };
  for (const char* name : {"epoch", "step"}) {
    const std::string expected = "[log] a metric cannot be called '" + std::string(name) + "'";
    EXPECT_TRUE(mistake_of(std::make_shared<Counting>(name)).starts_with(expected));
    Fixture fixture;
    fixture.options.callbacks = {
        make<LambdaCallback>(LambdaCallbackOptions{.on_train_start = [&](Trainer& trainer, Module&) {
          trainer.log_metrics({{name, 1.0}});
        }})};
    Trainer trainer(fixture.options);
    EXPECT_THROW(trainer.fit(make<TinyModule>({}), tiny_loader()), Error);
  }
  EXPECT_EQ(mistake_of(std::make_shared<Counting>("epochs")), "");
}

TEST(Logging, NaNReachesTheLoggers) {
  class Nan : public TinyModule {
   public:
    using TinyModule::TinyModule;
    StepOutput validation_step(const Batch&, int64_t) override {
      log("nan", std::nan(""));
      return {};
    }
  };
  Trainer trainer(quiet(1));
  EXPECT_TRUE(std::isnan(trainer.validate(make<Nan>({}), tiny_loader()).at(0).at("nan")));
}

TEST(Logging, ValuesAddedByCallbacksShareTheRowOfTheStep) {
  Fixture fixture;
  fixture.options.callbacks = {make<LambdaCallback>(LambdaCallbackOptions{
      .on_train_batch_end = [](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t batch_idx) {
        if (batch_idx == 1) trainer.log_metrics({{"extra", 5.0}});
      }})};
  Trainer trainer(fixture.options);
  trainer.fit(make<Logging>({}), tiny_loader(20));
  EXPECT_EQ(fixture.logger->rows.at(0).values.at("extra"), 5.0);
  EXPECT_EQ(fixture.logger->rows.at(0).values.at("index_step"), 1.0);
}

TEST(Logging, BarebonesLogsNothingAndSaysSoOnce) {
  const testing::CapturedLog log;
  TrainerOptions options = quiet(2);
  options.barebones = true;
  Trainer trainer(options);
  auto module = make<Logging>({});
  trainer.fit(module, tiny_loader(20), tiny_loader(20, 8, false));
  EXPECT_TRUE(trainer.callback_metrics().empty());
  EXPECT_TRUE(trainer.logged_metrics().empty());
  EXPECT_TRUE(trainer.validate(module, tiny_loader()).at(0).empty());
  const std::string said = log.text();
  const size_t first = said.find("log() was called and trainer.barebones is true: nothing is logged");
  ASSERT_NE(first, std::string::npos) << said;
  EXPECT_EQ(said.find("barebones", first + 60), std::string::npos) << said;
}

/// Logs the median over all batches of the epoch of their first example's number.
class WithMedian : public TinyModule {
 public:
  using TinyModule::TinyModule;
  StepOutput validation_step(const Batch& batch, int64_t) override {
    log("median", median_.update(batch["x"][0][0]));
    return {};
  }

 private:
  metrics::StackedValues median_{{.reduce = [](const at::Tensor& values) { return values.median(); }}};
};

TEST(Logging, AReductionOfOnesOwnIsOfAllRanks) {
  // Batches of 4 examples on one rank, of 2 on each of two: the same first examples and others.
  const at::Tensor x = tiny_dataset(16)->tensors()["x"].select(1, 0);
  for (const int64_t ranks : {1, 2}) {
    TrainerOptions options = quiet(1);
    options.strategy = ranks == 1 ? "single_device" : "ddp_threads";
    options.devices = ranks;
    Trainer trainer(options);
    const auto results = trainer.validate(make<WithMedian>({}), tiny_loader(16, 4 / ranks, false), "", false);
    const at::Tensor first = x.slice(0, 0, 16, 4 / ranks).to(at::kDouble);
    EXPECT_EQ(results.at(0).at("median"), first.median().item<double>()) << ranks;
  }
}

/// Logs a collection of metrics whose classes are the signs of what is predicted and meant.
class WithCollection : public TinyModule {
 public:
  using Options = testing::TinyOptions;
  explicit WithCollection(const Options& options) : TinyModule(options) {
    for (metrics::MetricCollection* collection : {&training_, &validation_}) {
      const std::string stage = collection == &training_ ? "train_" : "val_";
      collection->add<metrics::Accuracy>(stage + "accuracy", {.num_classes = 2, .average = "macro"});
      collection->add<metrics::Precision>(stage + "precision", {.num_classes = 2, .average = "macro"});
      collection->add<metrics::Recall>(stage + "recall", {.num_classes = 2, .average = "macro"});
    }
  }
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    log_dict(training_.update(forward(batch["x"]) > 0, batch["y"] > 0), {.on_step = true, .on_epoch = true});
    return TinyModule::training_step(batch, batch_idx);
  }
  StepOutput validation_step(const Batch& batch, int64_t /*batch_idx*/) override {
    const at::Tensor predicted = forward(batch["x"]) > 0;
    log_dict(validation_.update(predicted, batch["y"] > 0));
    log("alone", alone_.update(predicted, batch["y"] > 0));
    return {};
  }

 private:
  metrics::MetricCollection training_;
  metrics::MetricCollection validation_;
  metrics::Precision alone_{{.num_classes = 2, .average = "macro"}};
};

TEST(Logging, ACollectionIsThatOfItsMetrics) {
  std::map<std::string, double> alone;
  for (const std::string strategy : {"single_device", "ddp_threads"}) {
    seed_everything(3);
    TrainerOptions options = quiet(/*epochs=*/2);
    options.log_every_n_steps = 1;
    options.strategy = strategy;
    const bool several = strategy != "single_device";
    if (several) options.devices = 2;
    Trainer trainer(options);
    auto module = make<WithCollection>({});
    trainer.fit(module, tiny_loader(36, several ? 4 : 8, false), {tiny_loader(23, several ? 3 : 6, false)});
    const auto& values = trainer.callback_metrics();
    EXPECT_EQ(values.at("val_precision"), values.at("alone")) << strategy;
    EXPECT_EQ(values.at("val_accuracy"), values.at("val_recall"));
    EXPECT_TRUE(values.contains("train_precision_step"));
    if (!several) alone = {values.begin(), values.end()};
    for (const std::string name : {"val_accuracy", "val_precision", "train_accuracy_epoch", "train_recall_epoch"})
      EXPECT_NEAR(values.at(name), alone.at(name), 1e-12) << name;
  }
}

}  // namespace
}  // namespace levin
