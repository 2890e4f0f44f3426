#include "../support/tiny.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/core/interfaces/logger.h>
#include <levin/core/metrics/accuracy.h>

#include <cmath>
#include <map>

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
  ASSERT_EQ(rows.size(), 3u);
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

}  // namespace
}  // namespace levin
