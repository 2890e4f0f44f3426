#include "../support/captured_log.h"
#include "../support/tiny.h"
#include "../support/tiny_stream.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>
#include <levin/core/checkpoint/checkpoint.h>

#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <functional>
#include <thread>

namespace levin {
namespace {

using testing::identical;
using testing::quiet;
using testing::tiny_dataset;
using testing::tiny_loader;
using testing::TinyModule;
using testing::weights;

/// Counts what happens in a fit.
struct Counts {
  int64_t batches = 0;
  int64_t epochs = 0;
  int64_t validations = 0;
  int64_t validation_batches = 0;
  int64_t sanity_batches = 0;
  std::vector<int64_t> validated_after;  ///< global batch numbers
  std::vector<std::string> first_values;

  std::shared_ptr<Callback> callback() {
    return make<LambdaCallback>(LambdaCallbackOptions{
        .on_train_epoch_end = [this](Trainer&, Module&) { ++epochs; },
        .on_train_batch_end = [this](Trainer&, Module&, const StepOutput&, const Batch&, int64_t) { ++batches; },
        .on_validation_end =
            [this](Trainer& trainer, Module&) {
              if (trainer.sanity_checking()) return;
              ++validations;
              validated_after.push_back(batches);
            },
        .on_validation_batch_end =
            [this](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t, int64_t) {
              ++(trainer.sanity_checking() ? sanity_batches : validation_batches);
            }});
  }
};

struct FitOutcome {
  Counts counts;
  int64_t global_step = 0;
  int64_t epoch = 0;
};

/// 5 training batches an epoch and 2 validation batches.
FitOutcome fit(const std::function<void(TrainerOptions&)>& change, int64_t epochs = 2) {
  FitOutcome outcome;
  TrainerOptions options = quiet(epochs);
  change(options);
  options.callbacks.push_back(outcome.counts.callback());
  Trainer trainer(options);
  trainer.fit(make<TinyModule>({}), tiny_loader(40), tiny_loader(16, 8, false));
  outcome.global_step = trainer.global_step();
  outcome.epoch = trainer.current_epoch();
  return outcome;
}

TEST(FitLoop, EqualsTheLoopThatPeopleWriteByHand) {
  seed_everything(11);
  auto module = make<TinyModule>({.dropout = 0.2});
  auto by_hand = make<TinyModule>({.dropout = 0.2});
  {
    const torch::NoGradGuard no_grad;
    auto target = by_hand->parameters();
    const auto source = module->parameters();
    for (size_t i = 0; i < source.size(); ++i) target[i].copy_(source[i]);
  }
  Trainer trainer(quiet(3));
  seed_everything(5);
  trainer.fit(module, tiny_loader(44));

  seed_everything(5);
  by_hand->train();
  optim::AdamW adamw(by_hand->parameters(), optim::AdamWOptions{.lr = 0.05});
  auto loader = tiny_loader(44);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    auto pass = loader.pass({.seed = 5, .epoch = epoch});
    while (auto batch = pass.next()) {
      adamw.zero_grad();
      torch::nn::functional::mse_loss(by_hand->forward((*batch)["x"]), (*batch)["y"]).backward();
      adamw.step();
    }
  }
  EXPECT_TRUE(identical(weights(*module), weights(*by_hand)));
}

TEST(FitLoop, EpochsAndSteps) {
  const FitOutcome outcome = fit([](TrainerOptions&) {}, 3);
  EXPECT_EQ(outcome.counts.epochs, 3);
  EXPECT_EQ(outcome.counts.batches, 15);
  EXPECT_EQ(outcome.global_step, 15);
  EXPECT_EQ(outcome.epoch, 2);
  EXPECT_EQ(outcome.counts.validated_after, (std::vector<int64_t>{5, 10, 15}));
}

TEST(FitLoop, MaxSteps) {
  const FitOutcome outcome = fit([](TrainerOptions& options) { options.max_steps = 7; }, 100);
  EXPECT_EQ(outcome.global_step, 7);
  EXPECT_EQ(outcome.counts.batches, 7);
  const FitOutcome only_steps = fit([](TrainerOptions& options) {
    options.max_epochs.reset();
    options.max_steps = 12;
  });
  EXPECT_EQ(only_steps.global_step, 12);
}

TEST(FitLoop, MaxEpochsZeroTrainsNothing) {
  EXPECT_EQ(fit([](TrainerOptions& options) { options.max_epochs = 0; }).counts.batches, 0);
}

TEST(FitLoop, MaxTimeEndsTraining) {
  const FitOutcome outcome = fit([](TrainerOptions& options) {
    options.max_epochs = -1;
    options.max_time = "00:00:00:01";
  });
  EXPECT_GT(outcome.counts.batches, 0);
}

std::shared_ptr<Callback> stop_at(int64_t batch) {
  auto seen = std::make_shared<int64_t>(0);
  return make<LambdaCallback>(LambdaCallbackOptions{
      .on_train_batch_end = [batch, seen](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) {
        if (++*seen == batch) trainer.request_stop("test");
      }});
}

TEST(FitLoop, AStopIsTakenAtOnceUnlessAMinimumForbidsIt) {
  EXPECT_EQ(fit([](TrainerOptions& options) { options.callbacks = {stop_at(3)}; }, 9).counts.batches, 3);
  EXPECT_EQ(fit(
                [](TrainerOptions& options) {
                  options.callbacks = {stop_at(3)};
                  options.min_steps = 8;
                },
                9)
                .counts.batches,
            8);
  EXPECT_EQ(fit(
                [](TrainerOptions& options) {
                  options.callbacks = {stop_at(3)};
                  options.min_epochs = 2;
                },
                9)
                .counts.batches,
            10);
}

TEST(FitLoop, AccumulationDividesByWhatTheWindowHolds) {
  // 5 batches in windows of 2: two whole windows and one of a single batch.
  EXPECT_EQ(fit([](TrainerOptions& options) { options.accumulate_grad_batches = 2; }, 2).global_step, 6);
  // Windows of two batches of 4 equal batches of 8 under plain SGD; 20 examples: the last window holds one batch of 4.
  class Sgd : public TinyModule {
   public:
    using TinyModule::TinyModule;
    OptimizerConfigs configure_optimizers() override {
      return std::make_shared<torch::optim::SGD>(parameters(), torch::optim::SGDOptions(0.1));
    }
  };
  const auto train = [&](int64_t batch_size, int64_t accumulate, bool sized) {
    seed_everything(4);
    auto module = make<Sgd>({});
    TrainerOptions options = quiet(1);
    options.accumulate_grad_batches = accumulate;
    Trainer trainer(options);
    trainer.fit(module, sized ? DataLoader(tiny_dataset(20), {.batch_size = batch_size})
                              : DataLoader(std::make_shared<testing::TinyStream>(20), {.batch_size = batch_size}));
    EXPECT_EQ(trainer.global_step(), 3);
    return weights(*module);
  };
  const auto whole = train(8, 1, true);
  const auto accumulated = train(4, 2, true);
  const auto unsized = train(4, 2, false);
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_TRUE(whole[i].allclose(accumulated[i], 1e-5, 1e-6));
    EXPECT_TRUE(whole[i].allclose(unsized[i], 1e-5, 1e-6));
  }
}

TEST(FitLoop, ClippingEqualsTorch) {
  for (const bool by_norm : {true, false}) {
    seed_everything(2);
    auto module = make<TinyModule>({});
    auto by_hand = make<TinyModule>({});
    {
      const torch::NoGradGuard no_grad;
      auto target = by_hand->parameters();
      const auto source = module->parameters();
      for (size_t i = 0; i < source.size(); ++i) target[i].copy_(source[i]);
    }
    TrainerOptions options = quiet(1);
    options.gradient_clip_val = 0.05;
    options.gradient_clip_algorithm = by_norm ? "norm" : "value";
    Trainer(options).fit(module, tiny_loader(40, 8, false));
    optim::AdamW adamw(by_hand->parameters(), optim::AdamWOptions{.lr = 0.05});
    auto loader = tiny_loader(40, 8, false);
    auto pass = loader.pass({.seed = 0});
    while (auto batch = pass.next()) {
      adamw.zero_grad();
      torch::nn::functional::mse_loss(by_hand->forward((*batch)["x"]), (*batch)["y"]).backward();
      if (by_norm)
        torch::nn::utils::clip_grad_norm_(by_hand->parameters(), 0.05);
      else
        torch::nn::utils::clip_grad_value_(by_hand->parameters(), 0.05);
      adamw.step();
    }
    const auto ours = weights(*module);
    const auto theirs = weights(*by_hand);
    for (size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(ours[i].allclose(theirs[i], 1e-5, 1e-6)) << by_norm;
  }
}

TEST(FitLoop, ValidationIntervals) {
  const auto when = [](const std::function<void(TrainerOptions&)>& change, int64_t epochs) {
    return fit(change, epochs).counts.validated_after;
  };
  using Batches = std::vector<int64_t>;
  EXPECT_EQ(when([](TrainerOptions& options) { options.val_check_interval = 2; }, 2), (Batches{2, 4, 7, 9}));
  EXPECT_EQ(when([](TrainerOptions& options) { options.val_check_interval = 0.5; }, 1), (Batches{2, 4}));
  EXPECT_EQ(when([](TrainerOptions& options) { options.check_val_every_n_epoch = 2; }, 4), (Batches{10, 20}));
  EXPECT_EQ(when(
                [](TrainerOptions& options) {
                  options.val_check_interval = 3;
                  options.check_val_every_n_epoch.reset();
                },
                2),
            (Batches{3, 6, 9}));
  EXPECT_EQ(when([](TrainerOptions& options) { options.limit_val_batches = 0; }, 2), (Batches{}));
  EXPECT_EQ(when([](TrainerOptions& options) { options.val_check_interval = std::chrono::seconds(1000); }, 2),
            (Batches{}));
  EXPECT_THROW(fit([](TrainerOptions& options) { options.val_check_interval = 6; }), ConfigError);
}

TEST(FitLoop, AStreamThatIsShorterThanTheIntervalIsValidatedAtItsEnd) {
  const auto validated_after = [](int64_t interval, const std::function<void(TrainerOptions&)>& change = {}) {
    Counts counts;
    TrainerOptions options = quiet(2);
    options.val_check_interval = interval;
    if (change) change(options);
    options.callbacks.push_back(counts.callback());
    const DataLoader stream(std::make_shared<testing::TinyStream>(40), {.batch_size = 8});  // 5 batches
    Trainer(options).fit(make<TinyModule>({}), stream, tiny_loader(16));
    return counts.validated_after;
  };
  using Batches = std::vector<int64_t>;
  EXPECT_EQ(validated_after(9), (Batches{5, 10}));
  EXPECT_EQ(validated_after(5), (Batches{5, 10}));
  EXPECT_EQ(validated_after(3), (Batches{3, 8}));
  // As many batches as there may be.
  EXPECT_EQ(validated_after(9, [](TrainerOptions& options) { options.limit_train_batches = 12; }), (Batches{5, 10}));
  EXPECT_EQ(validated_after(9, [](TrainerOptions& options) { options.check_val_every_n_epoch = 2; }), (Batches{10}));
  EXPECT_EQ(validated_after(9, [](TrainerOptions& options) { options.check_val_every_n_epoch.reset(); }), (Batches{9}));
  EXPECT_EQ(validated_after(9, [](TrainerOptions& options) { options.limit_val_batches = 0; }), (Batches{}));
  // Two ranks, one of which has a batch more.
  TrainerOptions options = quiet(1);
  options.val_check_interval = int64_t{9};
  options.strategy = "ddp_threads";
  options.devices = 2;
  Trainer trainer(options);
  trainer.fit(make<TinyModule>({}), DataLoader(std::make_shared<testing::TinyStream>(72), {.batch_size = 8}),
              tiny_loader(16));
  EXPECT_TRUE(trainer.validated());
  EXPECT_TRUE(trainer.callback_metrics().contains("val_loss"));
}

TEST(FitLoop, WhatAValidationSavesBeginsTheIntervalAnew) {
  const std::string path = testing::fresh_folder("interval") + "/checkpoint";
  TrainerOptions options = quiet(3);
  options.val_check_interval = std::chrono::seconds(1);
  options.check_val_every_n_epoch.reset();
  options.callbacks.push_back(make<LambdaCallback>(
      LambdaCallbackOptions{.on_train_batch_start =
                                [](Trainer& trainer, Module&, const Batch&, int64_t) {
                                  if (trainer.total_batches() == 2)
                                    std::this_thread::sleep_for(std::chrono::milliseconds(1100));
                                },
                            .on_validation_end = [&](Trainer& trainer, Module&) { trainer.save_checkpoint(path); }}));
  Trainer(options).fit(make<TinyModule>({}), tiny_loader(), tiny_loader(16));
  const State loops = read_checkpoint(path, {"loops"}).at("loops");
  EXPECT_EQ(loops.at("batches_since_validation").as_int(), 0);
  EXPECT_EQ(loops.at("seconds_since_validation").as_double(), 0.0);
}

TEST(FitLoop, AValidationAtAStopLeavesLaterOnesWhereTheyAre) {
  const std::string path = testing::fresh_folder("interval_stop") + "/checkpoint";
  std::vector<int64_t> validated_after;
  const auto options_with = [&](int64_t stop_in) {
    TrainerOptions options = quiet(4);  // of 5 batches
    options.val_check_interval = int64_t{4};
    options.check_val_every_n_epoch.reset();
    options.callbacks.push_back(make<LambdaCallback>(LambdaCallbackOptions{
        .on_train_batch_start =
            [stop_in](Trainer& trainer, Module&, const Batch&, int64_t) {
              if (trainer.total_batches() == stop_in) trainer.request_stop("test");
            },
        .on_validation_end = [&](Trainer& trainer, Module&) { validated_after.push_back(trainer.total_batches()); }}));
    return options;
  };
  Trainer first(options_with(5));
  first.fit(make<TinyModule>({}), tiny_loader(), tiny_loader(16));
  first.save_checkpoint(path);
  const std::vector<int64_t> before = validated_after;
  Trainer(options_with(-1)).fit(make<TinyModule>({}), tiny_loader(), tiny_loader(16), path);
  EXPECT_EQ(before, (std::vector<int64_t>{4, 6}));
  EXPECT_EQ(validated_after, (std::vector<int64_t>{4, 6, 8, 12, 16, 20}));
}

TEST(FitLoop, LimitsAreCountsOrFractions) {
  EXPECT_EQ(fit([](TrainerOptions& options) { options.limit_train_batches = 1; }, 1).counts.batches, 1);
  EXPECT_EQ(fit([](TrainerOptions& options) { options.limit_train_batches = 1.0; }, 1).counts.batches, 5);
  EXPECT_EQ(fit([](TrainerOptions& options) { options.limit_train_batches = 0.4; }, 1).counts.batches, 2);
  EXPECT_EQ(fit([](TrainerOptions& options) { options.limit_val_batches = 1; }, 1).counts.validation_batches, 1);
  EXPECT_EQ(fit([](TrainerOptions& options) { options.limit_train_batches = 100; }, 1).counts.batches, 5);
}

TEST(FitLoop, FastDevRun) {
  const std::string never_made = testing::fresh_folder("fast_dev_run") + "/never/made";
  const FitOutcome outcome = fit(
      [&](TrainerOptions& options) {
        options.fast_dev_run = 2;
        options.num_sanity_val_steps = 2;
        options.enable_checkpointing = true;
        options.logger = true;
        options.default_root_dir = never_made;
      },
      50);
  EXPECT_EQ(outcome.counts.batches, 2);
  EXPECT_EQ(outcome.counts.validation_batches, 2);
  EXPECT_EQ(outcome.counts.sanity_batches, 0);
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(never_made).parent_path()));
}

TEST(FitLoop, FastDevRunValidatesWhateverTheInterval) {
  const FitOutcome outcome = fit([](TrainerOptions& options) {
    options.fast_dev_run = 1;
    options.check_val_every_n_epoch = 5;
    options.val_check_interval = int64_t{100};
  });
  EXPECT_EQ(outcome.counts.validation_batches, 1);
}

TEST(FitLoop, OneLoaderMayServeTrainingAndValidation) {
  for (const int64_t workers : {0, 2}) {
    Counts counts;
    TrainerOptions options = quiet(2);
    options.val_check_interval = int64_t{2};
    options.callbacks.push_back(counts.callback());
    const DataLoader loader(tiny_dataset(40), {.batch_size = 8, .num_workers = workers});
    Trainer(options).fit(make<TinyModule>({}), loader, loader);
    EXPECT_EQ(counts.batches, 10);
    EXPECT_EQ(counts.validated_after, (std::vector<int64_t>{2, 4, 7, 9}));
  }
}

TEST(FitLoop, OverfitUsesTheSameBatchesOfEachLoaderInOrder) {
  std::vector<at::Tensor> trained;
  std::vector<at::Tensor> validated;
  TrainerOptions options = quiet(2);
  options.overfit_batches = 2;
  options.callbacks = {make<LambdaCallback>(
      LambdaCallbackOptions{.on_train_batch_end = [&](Trainer&, Module&, const StepOutput&, const Batch& batch,
                                                      int64_t) { trained.push_back(batch["x"]); },
                            .on_validation_batch_end = [&](Trainer&, Module&, const StepOutput&, const Batch& batch,
                                                           int64_t, int64_t) { validated.push_back(batch["x"]); }})};
  Trainer(options).fit(make<TinyModule>({}), tiny_loader(40, 8, true), tiny_loader(24, 6, false));
  const auto batch_of = [](int64_t batch_size, int64_t index) {
    const at::Tensor x = at::arange(160, at::kFloat).reshape({40, 4}).mul(0.7).sin();  // of tiny_dataset
    return x.slice(0, index * batch_size, (index + 1) * batch_size);
  };
  EXPECT_TRUE(identical(trained, {batch_of(8, 0), batch_of(8, 1), batch_of(8, 0), batch_of(8, 1)}));
  EXPECT_TRUE(identical(validated, {batch_of(6, 0), batch_of(6, 1), batch_of(6, 0), batch_of(6, 1)}));
}

/// Trains and does not validate. Counts the hooks of validation.
class TrainsOnly : public Module {
 public:
  TrainsOnly() { layer_ = register_module("layer", torch::nn::Linear(4, 1)); }
  StepOutput training_step(const Batch& batch, int64_t) override {
    return torch::nn::functional::mse_loss(layer_(batch["x"]), batch["y"]);
  }
  void on_validation_start() override { ++hooks; }
  void on_validation_model_eval() override { ++hooks; }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 0.01});
  }
  int hooks = 0;

 private:
  torch::nn::Linear layer_{nullptr};
};

struct Named {
  virtual ~Named() = default;
  virtual std::string title() const { return "named"; }
};
/// The module is not its first base.
class NamedTrainsOnly : public Named, public TrainsOnly {};
class NamedValidates : public Named, public TrainsOnly {
 public:
  StepOutput validation_step(const Batch&, int64_t) override {
    ++steps;
    return {};
  }
  int steps = 0;
};
class ValidatesByInheritance : public NamedValidates {};

TEST(FitLoop, ValidationDataWithoutAValidationStepAreLeftOut) {
  class WithValidation : public DataModule {
   public:
    DataLoader train_dataloader() override { return testing::tiny_loader(); }
    DataLoaders val_dataloader() override { return testing::tiny_loader(); }
  };
  const auto log_of = [](const auto& call) {
    const testing::CapturedLog log;
    call();
    return log.text();
  };
  TrainerOptions options = testing::quiet(2);
  options.num_sanity_val_steps = 2;
  for (const auto& module : {std::make_shared<TrainsOnly>(), std::shared_ptr<TrainsOnly>(new NamedTrainsOnly)}) {
    Trainer trainer(options);
    const std::string given = log_of([&] { trainer.fit(module, testing::tiny_loader(), testing::tiny_loader()); });
    EXPECT_NE(given.find("TrainsOnly does not override validation_step(), so fit runs no validation"),
              std::string::npos)
        << given;
    EXPECT_EQ(trainer.current_epoch(), 1) << "it trained for both epochs";
    EXPECT_EQ(module->hooks, 0);
    const auto data = std::make_shared<WithValidation>();
    EXPECT_NE(log_of([&] { Trainer(options).fit(module, data); }).find("fit runs no validation"), std::string::npos);
    EXPECT_EQ(module->hooks, 0);
    // Asked for, it is an error.
    EXPECT_THROW(Trainer(options).validate(module, testing::tiny_loader()), Error);
    EXPECT_THROW(Trainer(options).test(module, testing::tiny_loader()), Error);
    EXPECT_THROW(Trainer(options).predict(module, testing::tiny_loader()), Error);
  }
  options.limit_val_batches = int64_t{0};
  EXPECT_EQ(log_of([&] {
              Trainer(options).fit(std::make_shared<TrainsOnly>(), testing::tiny_loader(), testing::tiny_loader());
            }).find("validation_step"),
            std::string::npos)
      << "it was turned off";
}

TEST(FitLoop, AValidationStepOfAnyBaseIsFound) {
  for (const auto& module :
       {std::make_shared<NamedValidates>(), std::shared_ptr<NamedValidates>(new ValidatesByInheritance)}) {
    Trainer(testing::quiet(1)).fit(module, testing::tiny_loader(40, 8), testing::tiny_loader(40, 8));
    EXPECT_EQ(module->steps, 5);
  }
}

TEST(FitLoop, SanityCheckLeavesNoTrace) {
  const auto train = [](int64_t sanity_steps) {
    seed_everything(8);
    auto module = make<TinyModule>({.dropout = 0.5});
    TrainerOptions options = quiet(2);
    options.num_sanity_val_steps = sanity_steps;
    Counts counts;
    options.callbacks = {counts.callback()};
    Trainer trainer(options);
    trainer.fit(module, tiny_loader(), tiny_loader(16));
    EXPECT_EQ(counts.sanity_batches, sanity_steps == -1 ? 2 : sanity_steps);
    return weights(*module);
  };
  const auto without = train(0);
  EXPECT_TRUE(identical(without, train(1)));
  EXPECT_TRUE(identical(without, train(-1)));
}

TEST(FitLoop, SkippedBatchesTakeNoStep) {
  class Skipping : public TinyModule {
   public:
    using TinyModule::TinyModule;
    StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
      if (batch_idx % 2 == 1) return {};
      return TinyModule::training_step(batch, batch_idx);
    }
  };
  Trainer trainer(quiet(1));
  trainer.fit(make<Skipping>({}), tiny_loader());
  EXPECT_EQ(trainer.global_step(), 3);
}

TEST(FitLoop, TheModuleMaySkipTheRestOfAnEpoch) {
  class Short : public TinyModule {
   public:
    using TinyModule::TinyModule;
    bool on_train_batch_start(const Batch&, int64_t batch_idx) override { return batch_idx < 2; }
  };
  Trainer trainer(quiet(3));
  trainer.fit(make<Short>({}), tiny_loader());
  EXPECT_EQ(trainer.global_step(), 6);
}

TEST(FitLoop, AnyLibTorchOptimizerWorks) {
  class Lbfgs : public TinyModule {
   public:
    using TinyModule::TinyModule;
    OptimizerConfigs configure_optimizers() override {
      return std::make_shared<torch::optim::LBFGS>(parameters(),
                                                   torch::optim::LBFGSOptions(0.5).line_search_fn("strong_wolfe"));
    }
  };
  class TorchAdamW : public TinyModule {
   public:
    using TinyModule::TinyModule;
    OptimizerConfigs configure_optimizers() override {
      return std::make_shared<torch::optim::AdamW>(parameters(), torch::optim::AdamWOptions(0.05));
    }
  };
  for (const bool lbfgs : {true, false}) {
    seed_everything(1);
    std::shared_ptr<Module> module;
    if (lbfgs)
      module = make<Lbfgs>({});
    else
      module = make<TorchAdamW>({});
    TrainerOptions options = quiet(8);
    Trainer trainer(options);
    const double before = trainer.validate(module, tiny_loader(40, 40)).at(0).at("val_loss");
    trainer.fit(module, tiny_loader(40, 40));
    EXPECT_LT(trainer.validate(module, tiny_loader(40, 40)).at(0).at("val_loss"), 0.7 * before) << lbfgs;
  }
}

TEST(FitLoop, ALineSearchTakesTheSameStepsOnEveryRank) {
  class Lbfgs : public TinyModule {
   public:
    using TinyModule::TinyModule;
    OptimizerConfigs configure_optimizers() override {
      return std::make_shared<torch::optim::LBFGS>(
          parameters(), torch::optim::LBFGSOptions(0.5).max_iter(8).line_search_fn("strong_wolfe"));
    }
    void on_train_batch_end(const StepOutput&, const Batch&, int64_t) override {
      const at::Tensor all = all_gather(first_->weight.detach());
      EXPECT_TRUE(all[0].equal(all[all.size(0) - 1]));
    }
  };
  const auto train = [](const char* strategy, int devices) {
    seed_everything(1);
    const auto module = make<Lbfgs>({});
    TrainerOptions options = quiet(1);
    options.strategy = strategy;
    options.devices = devices;
    Trainer(options).fit(module, DataLoader(tiny_dataset(42), {.global_batch_size = 12}));
    return weights(*module);
  };
  const auto expected = train("single_device", 1);
  const auto found = train("ddp_threads", 2);
  // A search is sensitive to the last bits of the losses.
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(found[i].allclose(expected[i], 0.02, 0.02)) << found[i];
}

TEST(FitLoop, ManualOptimization) {
  class Manual : public TinyModule {
   public:
    explicit Manual(const testing::TinyOptions& options) : TinyModule(options) { automatic_optimization = false; }
    OptimizerConfigs configure_optimizers() override {
      return {OptimizerConfig{.optimizer = std::make_shared<optim::AdamW>(first_->parameters())},
              OptimizerConfig{.optimizer = std::make_shared<optim::AdamW>(second_->parameters())}};
    }
    StepOutput training_step(const Batch& batch, int64_t) override {
      for (OptimizerHandle* handle : optimizers()) {
        auto toggled = toggle_optimizer(*handle);
        EXPECT_EQ(first_->weight.requires_grad(), handle->index() == 0);
        handle->zero_grad();
        manual_backward(torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]));
        handle->step();
      }
      EXPECT_TRUE(first_->weight.requires_grad());
      EXPECT_THROW(optimizer(2), Error);
      return {};
    }
  };
  auto module = make<Manual>({});
  const auto before = weights(*module);
  Trainer trainer(quiet(1));
  trainer.fit(module, tiny_loader());
  EXPECT_EQ(trainer.global_step(), 10);
  const auto after = weights(*module);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_FALSE(before[i].equal(after[i]));
  TrainerOptions clipped = quiet(1);
  clipped.gradient_clip_val = 1.0;
  EXPECT_THROW(Trainer(clipped).fit(module, tiny_loader()), ConfigError);
}

TEST(FitLoop, PrecisionOfTheWholeRun) {
  TrainerOptions options = quiet(1);
  options.precision = "64-true";
  Trainer trainer(options);
  auto module = make<TinyModule>({});
  trainer.fit(module, tiny_loader());
  EXPECT_EQ(module->parameters().front().scalar_type(), at::kDouble);
  EXPECT_EQ(trainer.predict(module, tiny_loader(8)).at(0).at(0)["y"].scalar_type(), at::kDouble);
  EXPECT_EQ(at::get_default_dtype_as_scalartype(), at::kFloat);
}

TEST(FitLoop, DetectAnomalyNamesTheOperation) {
  class Broken : public TinyModule {
   public:
    using TinyModule::TinyModule;
    StepOutput training_step(const Batch& batch, int64_t) override {
      return (forward(batch["x"]) * 0 - 1).sqrt().sum();
    }
  };
  TrainerOptions options = quiet(1);
  options.detect_anomaly = true;
  EXPECT_ANY_THROW(Trainer(options).fit(make<Broken>({}), tiny_loader()));
}

TEST(FitLoop, ReloadsLoaders) {
  class Counting : public DataModule {
   public:
    DataLoader train_dataloader() override {
      ++calls;
      return tiny_loader();
    }
    int64_t calls = 0;
  };
  auto data = std::make_shared<Counting>();
  TrainerOptions options = quiet(6);
  options.reload_dataloaders_every_n_epochs = 2;
  Trainer(options).fit(make<TinyModule>({}), data);
  EXPECT_EQ(data->calls, 3);
}

TEST(FitLoop, CallsMayComeInAnyOrderSeveralTimes) {
  auto module = make<TinyModule>({});
  Trainer trainer(quiet(2));
  EXPECT_EQ(trainer.test(module, tiny_loader(16)).size(), 1u);
  trainer.fit(module, tiny_loader());
  const double first = trainer.test(module, tiny_loader(16)).at(0).at("test_loss");
  trainer.fit(module, tiny_loader());
  EXPECT_EQ(trainer.global_step(), 10);
  EXPECT_LT(trainer.test(module, tiny_loader(16)).at(0).at("test_loss"), first);
  const auto results = trainer.validate(module, DataLoaders{tiny_loader(16), tiny_loader(8)});
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[1].count("val_loss/dataloader_idx_1"), 1u);
  EXPECT_EQ(trainer.predict(module, DataLoaders{tiny_loader(16, 8, false)}).at(0).size(), 2u);
}

TEST(FitLoop, FrozenPartsStayInTheirMode) {
  auto module = make<TinyModule>({.dropout = 0.5});
  TrainerOptions options = quiet(2);
  options.callbacks = {make<LambdaCallback>(LambdaCallbackOptions{
      .on_train_start = [](Trainer&, Module& running) { running.named_children()["dropout"]->eval(); },
      .on_train_epoch_start =
          [](Trainer&, Module& running) {
            EXPECT_TRUE(running.is_training());
            EXPECT_FALSE(running.named_children()["dropout"]->is_training());
          }})};
  Trainer(options).fit(module, tiny_loader(), tiny_loader(16));
}

}  // namespace
}  // namespace levin
