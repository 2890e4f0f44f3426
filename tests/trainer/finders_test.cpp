#include "tests/support/tiny.h"

#include <levin/callbacks/batch_size_finder.h>
#include <levin/callbacks/lambda_callback.h>
#include <levin/callbacks/learning_rate_finder.h>
#include <levin/callbacks/model_checkpoint.h>
#include <levin/core/base/error.h>
#include <levin/core/base/out_of_memory.h>
#include <levin/core/base/seed.h>
#include <levin/core/metrics/mean_squared_error.h>
#include <levin/core/optim/sgd.h>

#include <c10/util/Exception.h>
#include <gmock/gmock-matchers.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/optim/adam.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <ostream>
#include <stdexcept>

namespace levin::testing {
namespace {

using ::testing::HasSubstr;

[[noreturn]] void run_out_of_memory() {
  TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate more than there is");
  std::abort();
}

/// Runs out of memory in backward.
struct Hungry : torch::autograd::Function<Hungry> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.view_as(x); }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*, const torch::autograd::tensor_list&) {
    run_out_of_memory();
  }
};

struct LearnerOptions {
  double lr = 0.02;
  int64_t memory = 1000;          ///< examples of a batch (or of a replica's part) that fit
  int64_t rank = -1;              ///< the rank that runs out of memory; -1: all
  std::string where = "forward";  ///< or backward, or step
  std::string optimizer = "sgd";  ///< with momentum; or libtorch: its Adam
  bool manual = false;
  int64_t throws_in_batch = -1;
  static void describe(Schema<LearnerOptions>& schema) {
    schema.field("lr", &LearnerOptions::lr, "learning rate");
    schema.field("memory", &LearnerOptions::memory, "examples that fit");
    schema.field("rank", &LearnerOptions::rank, "the rank that runs out of memory");
    schema.field("where", &LearnerOptions::where, "where it does");
    schema.field("optimizer", &LearnerOptions::optimizer, "sgd or libtorch");
    schema.field("manual", &LearnerOptions::manual, "manual optimization");
    schema.field("throws_in_batch", &LearnerOptions::throws_in_batch, "a mistake in that batch");
  }
};

/// Everything that a search must take back: dropout, running statistics, momentum, a metric and a counter.
class Learner : public Module {
 public:
  using Options = LearnerOptions;
  explicit Learner(const Options& options) : options_(options) {
    automatic_optimization = !options.manual;
    first_ = register_module("first", torch::nn::Linear(4, 8));
    norm_ = register_module("norm", torch::nn::BatchNorm1d(8));
    dropout_ = register_module("dropout", torch::nn::Dropout(0.3));
    second_ = register_module("second", torch::nn::Linear(8, 1));
  }

  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    if (batch_idx == options_.throws_in_batch) throw std::range_error("the user's own mistake");
    too_large_ = batch.size() > options_.memory && (options_.rank < 0 || options_.rank == trainer().global_rank());
    if (too_large_ && options_.where == "forward") run_out_of_memory();
    at::Tensor y = second_(dropout_(norm_(first_(batch["x"])).relu()));
    if (too_large_ && options_.where == "backward") y = Hungry::apply(y);
    auto loss = torch::nn::functional::mse_loss(y, batch["y"]);
    log("loss", loss, {.on_step = true, .on_epoch = true, .sync_dist = true});
    log("error", error_.update(y.detach(), batch["y"]), {.on_epoch = true});
    if (!options_.manual) return loss;
    optimizer().zero_grad();
    manual_backward(loss);
    optimizer().step();
    return {};
  }
  void on_train_batch_end(const StepOutput&, const Batch&, int64_t) override { log("batches", ++batches); }
  void on_before_optimizer_step(OptimizerHandle&) override {
    if (too_large_ && options_.where == "step") run_out_of_memory();
  }
  void on_save_checkpoint(State& state) override { state["batches"] = batches; }
  void on_load_checkpoint(const State& state) override { batches = static_cast<int>(state.at("batches").as_int()); }
  OptimizerConfigs configure_optimizers() override {
    std::shared_ptr<torch::optim::Optimizer> optimizer =
        std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = options_.lr, .momentum = 0.9});
    if (options_.optimizer == "libtorch")
      optimizer = std::make_shared<torch::optim::Adam>(parameters(), torch::optim::AdamOptions(options_.lr));
    return OptimizerConfig{.optimizer = optimizer, .scheduler = {.name = "cosine", .interval = Interval::kStep}};
  }

  int batches = 0;

 private:
  Options options_;
  bool too_large_ = false;
  torch::nn::Linear first_{nullptr};
  torch::nn::BatchNorm1d norm_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
  torch::nn::Linear second_{nullptr};
  metrics::MeanSquaredError error_;
};

struct RanksOf {
  const char* strategy = "single_device";
  int count = 1;
  friend std::ostream& operator<<(std::ostream& stream, const RanksOf& ranks) {
    return stream << ranks.strategy << " on " << ranks.count;
  }
};

struct Fit {
  LearnerOptions module;
  RanksOf ranks;
  int64_t examples = 64;
  int64_t batch_size = 4;  ///< of one rank
  int64_t accumulate = 1;
  std::vector<Spec<Callback>> callbacks;
  std::function<void(TrainerOptions&)> configure;
  std::string ckpt;
  bool tune = false;
};

struct Left {
  std::vector<at::Tensor> tensors;
  MetricMap metrics;
  int64_t global_step = 0;
  std::vector<std::string> reports;
  std::string last_checkpoint;
};

Left fit(const Fit& run) {
  seed_everything(11);
  const auto module = make<Learner>(run.module);
  TrainerOptions options = quiet(2);
  options.strategy = run.ranks.strategy;
  options.devices = run.ranks.count;
  options.accumulate_grad_batches = run.accumulate;
  options.log_every_n_steps = 2;
  options.callbacks = run.callbacks;
  if (run.configure) run.configure(options);
  Trainer trainer(options);
  const DataLoader loader(tiny_dataset(run.examples), {.batch_size = run.batch_size, .shuffle = true});
  Left left;
  if (run.tune)
    left.reports = trainer.tune(module, loader);
  else
    trainer.fit(module, loader, {}, run.ckpt);
  left.tensors = weights(*module);
  for (const auto& buffer : module->buffers()) left.tensors.push_back(buffer.clone());
  left.metrics = trainer.callback_metrics();
  left.global_step = trainer.global_step();
  if (Checkpointer* checkpointer = trainer.checkpoint_callback())
    left.last_checkpoint = checkpointer->last_model_path();
  return left;
}

void expect_same(const Left& a, const Left& b) {
  EXPECT_TRUE(identical(a.tensors, b.tensors));
  EXPECT_EQ(a.metrics, b.metrics);
  EXPECT_EQ(a.global_step, b.global_step);
}

class FindersOnStrategies : public ::testing::TestWithParam<RanksOf> {
 protected:
  bool splits_batches() const { return std::string(GetParam().strategy) == "dp"; }
};

class LearningRateFinderOnStrategies : public FindersOnStrategies {};

TEST_P(LearningRateFinderOnStrategies, ASearchLeavesNoTrace) {
  const Left plain = fit({.ranks = GetParam(), .accumulate = 3});
  const auto finder = make<LearningRateFinder>({.num_training_steps = 40, .update_attr = false});
  const Left searched = fit({.ranks = GetParam(), .accumulate = 3, .callbacks = {finder}});
  EXPECT_GE(finder->points().size(), 12);
  ASSERT_TRUE(finder->suggestion()) << finder->report();
  expect_same(searched, plain);
}

TEST_P(FindersOnStrategies, ABatchSizeSearchLeavesNoTrace) {
  for (const char* where : {"forward", "backward", "step"}) {
    const Left plain = fit({.ranks = GetParam(), .accumulate = 3});
    const auto finder = make<BatchSizeFinder>({.mode = "binsearch", .init_val = 4, .update_attr = false});
    const LearnerOptions on_one{.memory = 11, .rank = splits_batches() ? 0 : GetParam().count - 1, .where = where};
    const Left searched = fit({.module = on_one, .ranks = GetParam(), .accumulate = 3, .callbacks = {finder}});
    ASSERT_TRUE(finder->batch_size()) << finder->report();
    expect_same(searched, plain);
  }
}

TEST_P(FindersOnStrategies, OneRankOutOfMemoryMakesAllStepBack) {
  for (const char* where : {"forward", "backward", "step"}) {
    const auto finder = make<BatchSizeFinder>({.mode = "binsearch", .steps_per_trial = 2, .init_val = 4, .margin = 0});
    fit({.module = {.memory = 11, .rank = splits_batches() ? 0 : GetParam().count - 1, .where = where},
         .ranks = GetParam(),
         .callbacks = {finder}});
    EXPECT_EQ(finder->batch_size(), splits_batches() && std::string(where) == "step" ? 22
                                    : splits_batches()                               ? 22
                                                                                     : 11)
        << where << ": " << finder->report();
  }
}

TEST_P(LearningRateFinderOnStrategies, AnAppliedLearningRateTrainsAsThoughItWereConfigured) {
  const auto finder = make<LearningRateFinder>({.num_training_steps = 30});
  const Left searched = fit({.ranks = GetParam(), .callbacks = {finder}});
  ASSERT_TRUE(finder->suggestion()) << finder->report();
  EXPECT_NE(*finder->suggestion(), 0.02);
  expect_same(searched, fit({.module = {.lr = *finder->suggestion()}, .ranks = GetParam()}));
}

TEST_P(FindersOnStrategies, AnAppliedBatchSizeTrainsAsThoughItWereConfigured) {
  const auto finder = make<BatchSizeFinder>({.init_val = 4, .max_val = 8});
  const Left searched = fit({.ranks = GetParam(), .callbacks = {finder}});
  ASSERT_EQ(finder->batch_size(), 8) << finder->report();
  expect_same(searched, fit({.ranks = GetParam(), .batch_size = 8}));
}

TEST_P(FindersOnStrategies, TuneReportsAndTrainsNothing) {
  const Left untrained = fit({.configure = [](TrainerOptions& options) { options.max_epochs = 0; }});
  const Left tuned =
      fit({.ranks = GetParam(),
           .callbacks = {make<BatchSizeFinder>({.init_val = 4, .max_val = 8}), make<LearningRateFinder>()},
           .tune = true});
  ASSERT_EQ(tuned.reports.size(), 2);
  EXPECT_THAT(tuned.reports[0], HasSubstr("batch_size_finder: 8 examples"));
  EXPECT_THAT(tuned.reports[1], HasSubstr("--model.lr="));
  EXPECT_TRUE(identical(tuned.tensors, untrained.tensors));
  EXPECT_EQ(tuned.global_step, 0);
}

std::string name_of_ranks(const ::testing::TestParamInfo<RanksOf>& info) { return info.param.strategy; }

INSTANTIATE_TEST_SUITE_P(Finders, FindersOnStrategies,
                         ::testing::Values(RanksOf{"single_device", 1}, RanksOf{"ddp_threads", 2},
                                           RanksOf{"ddp_spawn", 2}, RanksOf{"dp", 2}),
                         name_of_ranks);
// A batch size cannot be searched where ranks cannot run a step alone.
INSTANTIATE_TEST_SUITE_P(Finders, LearningRateFinderOnStrategies,
                         ::testing::Values(RanksOf{"single_device", 1}, RanksOf{"ddp_threads", 2},
                                           RanksOf{"ddp_spawn", 2}, RanksOf{"dp", 2}, RanksOf{"sharded_threads", 2}),
                         name_of_ranks);

TEST(Finders, LossesAreThoseOfAllRanks) {
  const auto losses = [](const RanksOf& ranks, int64_t batch_size) {
    const auto finder = make<LearningRateFinder>({.num_training_steps = 6, .early_stop_threshold = std::nullopt});
    seed_everything(5);
    TrainerOptions options = quiet(1);
    options.strategy = ranks.strategy;
    options.devices = ranks.count;
    options.callbacks = {finder};
    Trainer trainer(options);
    // 42 examples in batches of 8: the ranks share the last batch, of two examples.
    trainer.fit(make<TinyModule>(), DataLoader(tiny_dataset(42), {.batch_size = batch_size, .shuffle = true}));
    std::vector<double> all;
    for (const auto& point : finder->points()) all.push_back(point.loss);
    return all;
  };
  const auto expected = losses({}, 8);
  const auto got = losses({"ddp_threads", 2}, 4);
  ASSERT_EQ(got.size(), 6);
  ASSERT_EQ(expected.size(), 6);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-5) << i;
}

TEST(Finders, AnOptimizerOfLibTorchLosesTheStateOfTheSearch) {
  const Left plain = fit({.module = {.optimizer = "libtorch"}});
  const Left searched =
      fit({.module = {.optimizer = "libtorch"}, .callbacks = {make<LearningRateFinder>({.update_attr = false})}});
  expect_same(searched, plain);
}

TEST(Finders, OtherCallbacksAndLoggersSeeNothing) {
  std::atomic<int> batches = 0;
  const std::string root = fresh_folder("finders");
  fit({.callbacks = {make<LearningRateFinder>({.update_attr = false}), make<BatchSizeFinder>({.update_attr = false}),
                     make<LambdaCallback>({.on_train_batch_end = [&](Trainer&, Module&, const StepOutput&, const Batch&,
                                                                     int64_t) { ++batches; }})},
       .configure = [&](TrainerOptions& options) {
         options.logger = "csv";
         options.default_root_dir = root;
       }});
  EXPECT_EQ(batches, 32);
  std::ifstream file(root + "/version_0/metrics.csv");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  // A row for every second of 32 steps and one for each epoch.
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1 + 16 + 2) << text;
}

TEST(Finders, TheSweepIsWrittenToTheRunsFolder) {
  const std::string root = fresh_folder("finders");
  const auto finder = make<LearningRateFinder>();
  fit({.callbacks = {finder}, .configure = [&](TrainerOptions& options) {
         options.logger = "csv";
         options.default_root_dir = root;
       }});
  for (const char* name : {"svg", "csv"}) {
    const std::string path = root + "/version_0/learning_rate_finder." + name;
    EXPECT_TRUE(std::filesystem::exists(path)) << path;
    EXPECT_THAT(finder->report(), HasSubstr(path));
  }
}

TEST(Finders, AResumedRunGoesOnWithWhatWasFound) {
  const std::string root = fresh_folder("finders");
  const auto run = [&](const std::string& ckpt) {
    return fit({.callbacks = {make<BatchSizeFinder>({.max_val = 8}), make<LearningRateFinder>(),
                              make<ModelCheckpoint>({.save_top_k = -1, .every_n_train_steps = 3})},
                .configure =
                    [&](TrainerOptions& options) {
                      options.enable_checkpointing = true;
                      options.default_root_dir = root;
                    },
                .ckpt = ckpt});
  };
  const Left whole = run("");
  EXPECT_EQ(whole.global_step, 16);
  const Left resumed = run(root + "/version_0/checkpoints/epoch=0-step=3");
  expect_same(resumed, whole);
}

TEST(Finders, ASearchThatFindsNothingChangesNothing) {
  const Left plain = fit({});
  const auto few = make<LearningRateFinder>({.num_training_steps = 5});
  expect_same(fit({.callbacks = {few}}), plain);
  EXPECT_EQ(few->suggestion(), std::nullopt);
  EXPECT_THAT(few->report(), HasSubstr("nothing found, and the learning rate stays as it is: there are only 5 points"));

  const auto no_memory = make<BatchSizeFinder>();
  EXPECT_THROW(fit({.module = {.memory = 0}, .callbacks = {no_memory}}), OutOfMemoryError);  // of the fit itself
  EXPECT_EQ(no_memory->batch_size(), std::nullopt);
  EXPECT_THAT(no_memory->report(), HasSubstr("nothing found, and the batch size stays as it is: 1 ran out of memory"));

  const auto no_data = make<BatchSizeFinder>();
  fit({.ranks = {"ddp_threads", 2},
       .examples = 1,
       .batch_size = 1,
       .callbacks = {no_data},
       .configure = [](TrainerOptions& options) { options.max_epochs = 0; }});
  EXPECT_THAT(no_data->report(), HasSubstr("fewer examples than there are ranks"));
}

TEST(Finders, TheDataSetLimitsTheBatchSize) {
  const auto finder = make<BatchSizeFinder>();
  fit({.examples = 50, .callbacks = {finder}});
  EXPECT_EQ(finder->batch_size(), 50);
  EXPECT_THAT(finder->report(), HasSubstr("the data set has no more examples"));
}

TEST(Finders, ABatchSizeThatOtherOptionsForbidIsNotUsed) {
  const auto with_validation = [](std::vector<Spec<Callback>> callbacks) {
    seed_everything(5);
    TrainerOptions options = quiet(1);
    options.val_check_interval = 4;
    options.callbacks = std::move(callbacks);
    Trainer trainer(options);
    const auto module = make<TinyModule>();
    trainer.fit(module, tiny_loader(), tiny_loader());
    return weights(*module);
  };
  const auto finder = make<BatchSizeFinder>();
  EXPECT_TRUE(identical(with_validation({finder}), with_validation({})));
  EXPECT_EQ(finder->batch_size(), std::nullopt);
  EXPECT_THAT(finder->report(), HasSubstr("training goes on with the batch size it had"));
}

TEST(Finders, AnErrorInASearchIsThatOfTheCallAndLeavesTheWeights) {
  seed_everything(11);
  const auto module = make<Learner>({.throws_in_batch = 2});
  const auto before = weights(*module);
  TrainerOptions options = quiet(1);
  options.callbacks = {make<LearningRateFinder>()};
  Trainer trainer(options);
  EXPECT_THROW(trainer.fit(module, tiny_loader()), std::range_error);
  EXPECT_TRUE(identical(weights(*module), before));
  EXPECT_EQ(trainer.callbacks().size(), 1);
}

TEST(Finders, ManualOptimizationHasBatchSizesButNoLearningRateSweep) {
  EXPECT_THROW(fit({.module = {.manual = true}, .callbacks = {make<LearningRateFinder>()}}), ConfigError);
  for (const RanksOf& ranks : {RanksOf{}, RanksOf{"ddp_threads", 2}}) {
    const auto finder = make<BatchSizeFinder>({.mode = "binsearch", .margin = 0, .update_attr = false});
    const Left plain = fit({.module = {.manual = true}, .ranks = ranks});
    const Left searched = fit({.module = {.memory = 9, .rank = ranks.count - 1, .where = "backward", .manual = true},
                               .ranks = ranks,
                               .callbacks = {finder}});
    EXPECT_EQ(finder->batch_size(), 9);
    expect_same(searched, plain);
  }
}

TEST(Finders, EveryRankMustHaveOne) {
  try {
    fit({.ranks = {"ddp_threads", 2}, .callbacks = {std::make_shared<LearningRateFinder>()}});
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("must run on every rank"));
  }
}

/// Two groups, the second with a tenth of the learning rate.
class TwoGroups : public TinyModule {
 public:
  using TinyModule::TinyModule;
  OptimizerConfigs configure_optimizers() override {
    using Group = optim::ParameterGroup<optim::SGDOptions>;
    return std::make_shared<optim::SGD>(
        std::vector<Group>{{first_->parameters(), {.lr = 0.1}}, {second_->parameters(), {.lr = 0.01}}});
  }
};

TEST(Finders, GroupsKeepTheirProportions) {
  seed_everything(5);
  const auto finder = make<LearningRateFinder>();
  TrainerOptions options = quiet(1);
  options.callbacks = {finder};
  Trainer trainer(options);
  trainer.fit(make<TwoGroups>(), tiny_loader());
  ASSERT_TRUE(finder->suggestion()) << finder->report();
  EXPECT_DOUBLE_EQ(trainer.optimizers()[0]->learning_rate(0), *finder->suggestion());
  EXPECT_DOUBLE_EQ(trainer.optimizers()[0]->learning_rate(1), *finder->suggestion() / 10);
}

TEST(Finders, OptionsAreChecked) {
  EXPECT_THROW(make<LearningRateFinder>({.min_lr = 1, .max_lr = 0.1}), ConfigError);
  EXPECT_THROW(make<LearningRateFinder>({.mode = "cubic"}), ConfigError);
  EXPECT_THROW(make<BatchSizeFinder>({.mode = "linear"}), ConfigError);
  EXPECT_THROW(make<BatchSizeFinder>({.margin = 1}), ConfigError);
}

}  // namespace
}  // namespace levin::testing
