#include "../support/captured_log.h"
#include "../support/tiny.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/core/base/error.h>

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>

namespace levin {
namespace {

using testing::CapturedLog;
using testing::fresh_folder;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::quiet;
using testing::tiny_loader;
using testing::TinyModule;

class ReturnsNothing : public TinyModule {
 public:
  using TinyModule::TinyModule;
  StepOutput training_step(const Batch&, int64_t) override { return {}; }
};

class NeverSteps : public TinyModule {
 public:
  explicit NeverSteps(const Options& options) : TinyModule(options) { automatic_optimization = false; }
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    manual_backward(TinyModule::training_step(batch, batch_idx).loss());
    return {};
  }
};

/// What a fit of five batches an epoch says.
template <class M = TinyModule>
std::string said_by_fit(const TrainerOptions& options, const std::string& ckpt = "") {
  const CapturedLog log;
  Trainer(options).fit(make<M>({}), tiny_loader(), {}, ckpt);
  return log.text();
}

std::string refusal_of_fit(const TrainerOptions& options, const DataLoader& loader) {
  try {
    Trainer(options).fit(make<TinyModule>({}), loader);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

TEST(FitReport, SaysWhichLimitEndedTraining) {
  EXPECT_THAT(said_by_fit(quiet(2)), HasSubstr("training ended after 2 epochs, 10 steps: max_epochs 2 is reached"));
  TrainerOptions options = quiet(2);
  options.max_steps = 7;
  EXPECT_THAT(said_by_fit(options), HasSubstr("training ended after 1 epoch, 7 steps: max_steps 7 is reached"));
  options = quiet(1'000'000);
  options.max_time = "00:00:00:01";
  EXPECT_THAT(said_by_fit(options), HasSubstr("max_time is over"));
  options = quiet(2);
  options.fast_dev_run = true;
  EXPECT_THAT(said_by_fit(options), HasSubstr("1 step: fast_dev_run is over"));
}

TEST(FitReport, SaysWhoAskedForIt) {
  TrainerOptions options = quiet(5);
  options.callbacks = {make<LambdaCallback>(
      LambdaCallbackOptions{.on_train_epoch_end = [](Trainer& trainer, Module&) { trainer.request_stop("enough"); }})};
  EXPECT_THAT(said_by_fit(options),
              HasSubstr("training ended after 1 epoch, 5 steps: training was asked to stop: enough"));
  options.strategy = "ddp_threads";
  options.devices = 2;
  EXPECT_THAT(said_by_fit(options), HasSubstr("training was asked to stop: enough"));
}

TEST(FitReport, SaysThatNothingWasLeftToTrain) {
  TrainerOptions options = quiet(2);
  const std::string folder = fresh_folder("nothing_left");
  {
    Trainer trainer(options);
    trainer.fit(make<TinyModule>({}), tiny_loader());
    trainer.save_checkpoint(folder + "/done");
  }
  EXPECT_THAT(said_by_fit(options, folder + "/done"),
              HasSubstr("nothing was trained: training is at 2 epochs, 10 steps already, and max_epochs 2 is reached"));
  options.max_epochs = 1;
  EXPECT_THAT(said_by_fit(options, folder + "/done"), HasSubstr("nothing was trained"));
  options.max_epochs = 3;
  EXPECT_THAT(said_by_fit(options, folder + "/done"), Not(HasSubstr("nothing was trained")));
  options.limit_train_batches = 0;
  EXPECT_THAT(said_by_fit(options), HasSubstr("nothing was trained: training is at 0 epochs, 0 steps already, and "
                                              "limit_train_batches is 0"));
}

TEST(FitReport, WarnsOfStepsThatReturnNothing) {
  const std::string said = said_by_fit<ReturnsNothing>(quiet(2));
  EXPECT_THAT(said, HasSubstr("every training_step returned nothing; hint: return the loss"));
  EXPECT_EQ(said.find("returned nothing"), said.rfind("returned nothing")) << "said twice: " << said;
  EXPECT_THAT(said_by_fit(quiet(2)), Not(HasSubstr("returned nothing")));
}

TEST(FitReport, WarnsOfManualOptimizationWithoutAStep) {
  EXPECT_THAT(said_by_fit<NeverSteps>(quiet(1)), HasSubstr("call optimizer().step() in training_step"));
}

struct DivergesOptions {
  double factor = std::numeric_limits<double>::quiet_NaN();  ///< of the loss, from the third batch on
  double weight = 1;
  bool by_hand = false;
  static void describe(Schema<DivergesOptions>& schema) { schema.field("factor", &DivergesOptions::factor, "factor"); }
};

/// With `by_hand` the loss is given to manual_backward alone.
class Diverges : public TinyModule {
 public:
  using Options = DivergesOptions;
  explicit Diverges(const Options& options) : TinyModule({}), options_(options) {
    automatic_optimization = !options.by_hand;
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    at::Tensor loss = torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]);
    const bool diverges = trainer().total_batches() >= 2;
    if (diverges) loss = loss * options_.factor;
    if (automatic_optimization) return StepOutput({.loss = loss, .weight = diverges ? options_.weight : 1.0});
    manual_backward(loss);
    optimizer().step();
    return {};
  }

 private:
  const Options options_;
};

TEST(FitReport, WarnsOnceOfALossThatIsNoNumber) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const bool by_hand : {false, true})
    for (const double factor : {nan, infinity, 1.0}) {
      SCOPED_TRACE(::testing::Message() << factor << (by_hand ? " by hand" : ""));
      const CapturedLog log;
      Trainer trainer(quiet(2));
      const auto module = std::make_shared<Diverges>(DivergesOptions{.factor = factor, .by_hand = by_hand});
      trainer.fit(module, tiny_loader());
      EXPECT_EQ(trainer.status(), TrainerStatus::kFinished);
      const std::string said = log.text();
      if (factor == 1.0) {
        EXPECT_THAT(said, Not(HasSubstr("the loss is")));
        continue;
      }
      EXPECT_THAT(said, HasSubstr(std::string("the loss is ") + (std::isnan(factor) ? "NaN" : "infinite") +
                                  " in epoch 0, batch 2, after "));
      EXPECT_THAT(said, HasSubstr("hint: the callback nan_monitor"));
      EXPECT_EQ(said.find("the loss is"), said.rfind("the loss is")) << said;
      // Each fit says it again.
      trainer.fit(module, tiny_loader());
      EXPECT_NE(log.text().find("the loss is", said.size()), std::string::npos);
    }
}

TEST(FitReport, ALossOfWeightZeroMayBeTheMeanOfNothing) {
  const CapturedLog log;
  Trainer(quiet(2)).fit(std::make_shared<Diverges>(DivergesOptions{.weight = 0}), tiny_loader());
  EXPECT_THAT(log.text(), Not(HasSubstr("the loss is")));
}

TEST(FitReport, OneOfSeveralRanksWarnsOfTheLoss) {
  TrainerOptions options = quiet(2);
  options.strategy = "ddp_threads";
  options.devices = 3;
  const CapturedLog log;
  Trainer(options).fit(make<Diverges>({}), tiny_loader(96, 8));
  const std::string said = log.text();
  EXPECT_THAT(said, HasSubstr("the loss is NaN in epoch 0, batch 2"));
  EXPECT_EQ(said.find("the loss is"), said.rfind("the loss is")) << said;
}

TEST(FitReport, RefusesDataWithoutABatch) {
  for (const char* strategy : {"single_device", "ddp_threads"}) {
    TrainerOptions options = quiet(1);
    options.strategy = strategy;
    options.devices = strategy == std::string("ddp_threads") ? 2 : 1;
    EXPECT_THAT(refusal_of_fit(options, tiny_loader(0)), HasSubstr("[data] the training data set is empty; hint:"));
    const DataLoader too_few(testing::tiny_dataset(7), {.batch_size = 8, .drop_last = true});
    EXPECT_THAT(refusal_of_fit(options, too_few),
                HasSubstr("gives no batch: 7 examples of the data set, batches of 8 on each of"));
  }
}

/// A stream that ends at once.
class Nothing : public data::IterableDataset {
 public:
  std::unique_ptr<data::ExampleStream> stream(const data::StreamContext&) const override {
    class End : public data::ExampleStream {
     public:
      std::optional<Batch> next() override { return std::nullopt; }
    };
    return std::make_unique<End>();
  }
};

TEST(FitReport, RefusesAStreamWithoutABatch) {
  EXPECT_THAT(refusal_of_fit(quiet(1), DataLoader(std::make_shared<Nothing>())),
              HasSubstr("[data] the training loader gave no batch in epoch 0"));
}

TEST(FitReport, NoDataAreFineWhereNoneAreAskedFor) {
  TrainerOptions options = quiet(1);
  options.limit_train_batches = 0;
  EXPECT_EQ(refusal_of_fit(options, tiny_loader(0)), "nothing");
}

}  // namespace
}  // namespace levin
