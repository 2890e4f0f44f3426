#include "../support/captured_log.h"
#include "../support/tiny.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/core/base/error.h>

#include <gmock/gmock.h>

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
