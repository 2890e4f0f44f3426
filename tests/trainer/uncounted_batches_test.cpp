#include "tests/support/tiny.h"

#include <levin/callbacks/batch_size_finder.h>
#include <levin/callbacks/learning_rate_finder.h>
#include <levin/core/metrics/mean.h>

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

namespace levin::testing {
namespace {

struct CountingOptions {
  bool at_end = true;
  static void describe(Schema<CountingOptions>& schema) {
    schema.field("at_end", &CountingOptions::at_end, "log when the epoch ends, rather than in each step");
  }
};

/// Its metrics are means of the examples that its steps were given.
class Counting : public TinyModule {
 public:
  using Options = CountingOptions;
  explicit Counting(const Options& options) : TinyModule(TinyOptions()), at_end_(options.at_end) {}
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    trained_.update(batch["x"]);
    if (!at_end_) log("trained", trained_, {.on_step = false, .on_epoch = true});
    return TinyModule::training_step(batch, batch_idx);
  }
  StepOutput validation_step(const Batch& batch, int64_t batch_idx) override {
    validated_.update(batch["x"]);
    if (!at_end_) log("validated", validated_);
    return TinyModule::validation_step(batch, batch_idx);
  }
  void on_train_epoch_end() override {
    if (at_end_) log("trained", trained_);
  }
  void on_validation_epoch_end() override {
    if (at_end_) log("validated", validated_);
  }

 private:
  const bool at_end_;
  metrics::Mean trained_;
  metrics::Mean validated_;
};

struct Ranks {
  const char* strategy;
  int64_t count;
  friend std::ostream& operator<<(std::ostream& stream, const Ranks& ranks) {
    return stream << ranks.strategy << " on " << ranks.count;
  }
};

constexpr int64_t kExamples = 20;  // batches of 2 leave one of three ranks without a part of the last one

double mean_of(int64_t examples) { return tiny_dataset(examples)->tensors()["x"].mean().item<double>(); }
DataLoader in_order(int64_t examples) { return tiny_loader(examples, 2, /*shuffle=*/false); }

class UncountedBatches : public ::testing::TestWithParam<Ranks> {
 protected:
  TrainerOptions options() const {
    TrainerOptions options = quiet(1);
    options.strategy = Spec<Strategy>(Config::parse(GetParam().strategy, {.source = "test"}));
    options.devices = GetParam().count;
    return options;
  }
};

TEST_P(UncountedBatches, ThoseToJoinOn) {
  for (const bool at_end : {true, false}) {
    Trainer trainer(options());
    trainer.fit(make<Counting>({.at_end = at_end}), in_order(kExamples), in_order(kExamples));
    EXPECT_NEAR(trainer.callback_metrics().at("trained"), mean_of(kExamples), 1e-6) << at_end;
    EXPECT_NEAR(trainer.callback_metrics().at("validated"), mean_of(kExamples), 1e-6) << at_end;
  }
}

TEST_P(UncountedBatches, ThoseToJoinOnBeforeTheFirstOfItsOwn) {
  Trainer trainer(options());
  const auto results = trainer.validate(make<Counting>({.at_end = false}), DataLoaders{in_order(1), in_order(8)});
  EXPECT_NEAR(results.at(0).at("validated/dataloader_idx_0"), mean_of(1), 1e-6);
  EXPECT_NEAR(results.at(1).at("validated/dataloader_idx_1"), mean_of(8), 1e-6);
}

TEST_P(UncountedBatches, ThoseOfASearch) {
  std::vector<Spec<Callback>> finders = {make<LearningRateFinder>({.num_training_steps = 4, .update_attr = false})};
  if (std::string(GetParam().strategy).find("sharded") == std::string::npos)  // which refuses the other one
    finders.emplace_back(make<BatchSizeFinder>({.init_val = 2, .max_trials = 2, .update_attr = false}));
  for (const auto& finder : finders) {
    TrainerOptions searching = options();
    searching.callbacks = {finder};
    Trainer trainer(searching);
    trainer.fit(make<Counting>({}), in_order(kExamples));
    EXPECT_NEAR(trainer.callback_metrics().at("trained"), mean_of(kExamples), 1e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, UncountedBatches,
                         ::testing::Values(Ranks{"single_device", 1}, Ranks{"ddp_threads", 3},
                                           Ranks{"{name: sharded_threads, stage: 3}", 3}));

}  // namespace
}  // namespace levin::testing
