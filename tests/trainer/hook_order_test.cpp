#include "../support/tiny.h"

#include <levin/core/connectors/error_context.h>
#include <levin/core/interfaces/callback.h>
#include <levin/core/interfaces/checkpointer.h>
#include <levin/core/interfaces/logger.h>
#include <levin/core/optim/scheduler.h>
#include <levin/strategies/single_device.h>

namespace levin {
namespace {

using testing::quiet;
using testing::tiny_dataset;

using Journal = std::vector<std::string>;

/// Writes down every hook as "CB name".
class RecordingCallback : public Callback {
 public:
  explicit RecordingCallback(Journal& journal, std::string who = "CB") : journal_(journal), who_(std::move(who)) {}

#define RECORD(name) \
  void name(Trainer&, Module&) override { add(#name); }
  // clang-format off
  RECORD(on_fit_start)
  RECORD(on_fit_end)
  RECORD(on_sanity_check_start)
  RECORD(on_sanity_check_end)
  RECORD(on_train_start)
  RECORD(on_train_end)
  RECORD(on_train_epoch_start)
  RECORD(on_train_epoch_end)
  RECORD(on_after_backward)
  RECORD(on_validation_start)
  RECORD(on_validation_end)
  RECORD(on_validation_epoch_start)
  RECORD(on_validation_epoch_end)
  RECORD(on_test_start)
  RECORD(on_test_end)
  RECORD(on_test_epoch_start)
  RECORD(on_test_epoch_end)
  RECORD(on_predict_start)
  RECORD(on_predict_end)
  RECORD(on_predict_epoch_start)
  RECORD(on_predict_epoch_end)
  // clang-format on
#undef RECORD
  void setup(Trainer&, Module&, Stage) override { add("setup"); }
  void teardown(Trainer&, Module&, Stage) override { add("teardown"); }
  void on_train_batch_start(Trainer&, Module&, const Batch&, int64_t) override { add("on_train_batch_start"); }
  void on_train_batch_end(Trainer&, Module&, const StepOutput&, const Batch&, int64_t) override {
    add("on_train_batch_end");
  }
  void on_before_zero_grad(Trainer&, Module&, OptimizerHandle&) override { add("on_before_zero_grad"); }
  void on_before_backward(Trainer&, Module&, const at::Tensor&) override { add("on_before_backward"); }
  void on_before_optimizer_step(Trainer&, Module&, OptimizerHandle&) override { add("on_before_optimizer_step"); }
  void on_validation_batch_start(Trainer&, Module&, const Batch&, int64_t, int64_t) override {
    add("on_validation_batch_start");
  }
  void on_validation_batch_end(Trainer&, Module&, const StepOutput&, const Batch&, int64_t, int64_t) override {
    add("on_validation_batch_end");
  }
  void on_test_batch_start(Trainer&, Module&, const Batch&, int64_t, int64_t) override { add("on_test_batch_start"); }
  void on_test_batch_end(Trainer&, Module&, const StepOutput&, const Batch&, int64_t, int64_t) override {
    add("on_test_batch_end");
  }
  void on_predict_batch_start(Trainer&, Module&, const Batch&, int64_t, int64_t) override {
    add("on_predict_batch_start");
  }
  void on_predict_batch_end(Trainer&, Module&, const Batch&, const Batch&, int64_t, int64_t) override {
    add("on_predict_batch_end");
  }
  void on_exception(Trainer&, Module&, const std::exception_ptr&) override { add("on_exception"); }
  void on_save_checkpoint(Trainer&, Module&, State&) override { add("on_save_checkpoint"); }
  void on_load_checkpoint(Trainer&, Module&, const State&) override { add("on_load_checkpoint"); }
  State state_dict() const override {
    journal_.push_back(who_ + " state_dict");
    return State(1);
  }
  void load_state_dict(const State&) override { add("load_state_dict"); }

 private:
  void add(const std::string& hook) { journal_.push_back(who_ + " " + hook); }
  Journal& journal_;
  std::string who_;
};

class RecordingModule : public testing::TinyModule {
 public:
  explicit RecordingModule(Journal& journal) : TinyModule({}), journal_(journal) {}

#define RECORD(name) \
  void name() override { add(#name); }
  // clang-format off
  RECORD(on_fit_start)
  RECORD(on_fit_end)
  RECORD(on_train_start)
  RECORD(on_train_end)
  RECORD(on_train_epoch_start)
  RECORD(on_train_epoch_end)
  RECORD(on_after_backward)
  RECORD(on_validation_start)
  RECORD(on_validation_end)
  RECORD(on_validation_epoch_start)
  RECORD(on_validation_epoch_end)
  RECORD(prepare_data)
  RECORD(configure_model)
  RECORD(on_test_start)
  RECORD(on_test_end)
  RECORD(on_test_epoch_start)
  RECORD(on_test_epoch_end)
  RECORD(on_predict_start)
  RECORD(on_predict_end)
  RECORD(on_predict_epoch_start)
  RECORD(on_predict_epoch_end)
  RECORD(on_validation_model_train)
  RECORD(on_test_model_train)
  RECORD(on_predict_model_train)
  // clang-format on
#undef RECORD
  void on_validation_model_eval() override {
    add("on_validation_model_eval");
    TinyModule::on_validation_model_eval();
  }
  void on_test_model_eval() override {
    add("on_test_model_eval");
    TinyModule::on_test_model_eval();
  }
  void on_predict_model_eval() override {
    add("on_predict_model_eval");
    TinyModule::on_predict_model_eval();
  }
  void setup(Stage) override { add("setup"); }
  void teardown(Stage) override { add("teardown"); }
  std::vector<std::shared_ptr<Callback>> configure_callbacks() override {
    add("configure_callbacks");
    return {};
  }
  OptimizerConfigs configure_optimizers() override {
    add("configure_optimizers");
    auto configs = TinyModule::configure_optimizers();
    configs.front().scheduler = {.name = "exponential", .interval = Interval::kStep};
    return configs;
  }
  Batch on_before_batch_transfer(Batch batch, int64_t) override {
    add("on_before_batch_transfer");
    return batch;
  }
  Batch transfer_batch_to_device(Batch batch, const at::Device&, int64_t) override {
    add("transfer");
    return batch;
  }
  Batch on_after_batch_transfer(Batch batch, int64_t) override {
    add("on_after_batch_transfer");
    return batch;
  }
  bool on_train_batch_start(const Batch&, int64_t) override {
    add("on_train_batch_start");
    return true;
  }
  void on_train_batch_end(const StepOutput&, const Batch&, int64_t) override { add("on_train_batch_end"); }
  void on_before_zero_grad(OptimizerHandle&) override { add("on_before_zero_grad"); }
  void optimizer_zero_grad(OptimizerHandle& optimizer) override {
    add("optimizer_zero_grad");
    optimizer.zero_grad();
  }
  void on_before_backward(const at::Tensor&) override { add("on_before_backward"); }
  void on_before_optimizer_step(OptimizerHandle&) override { add("on_before_optimizer_step"); }
  void configure_gradient_clipping(OptimizerHandle&, double, ClipAlgorithm) override {
    add("configure_gradient_clipping");
  }
  void lr_scheduler_step(optim::Scheduler& scheduler, std::optional<double>) override {
    add("lr_scheduler_step");
    scheduler.step();
  }
  void optimizer_step(int64_t, int64_t, OptimizerHandle& optimizer, const OptimizerHandle::Closure& closure) override {
    add("optimizer_step");
    optimizer.step(closure);
  }
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    add("training_step");
    return TinyModule::training_step(batch, batch_idx);
  }
  StepOutput training_step_end(StepOutput output) override {
    add("training_step_end");
    return output;
  }
  void on_validation_batch_start(const Batch&, int64_t, int64_t) override { add("on_validation_batch_start"); }
  void on_validation_batch_end(const StepOutput&, const Batch&, int64_t, int64_t) override {
    add("on_validation_batch_end");
  }
  StepOutput validation_step(const Batch& batch, int64_t batch_idx) override {
    add("validation_step");
    EXPECT_FALSE(is_training());
    return TinyModule::validation_step(batch, batch_idx);
  }
  void on_test_batch_start(const Batch&, int64_t, int64_t) override { add("on_test_batch_start"); }
  void on_test_batch_end(const StepOutput&, const Batch&, int64_t, int64_t) override { add("on_test_batch_end"); }
  void on_predict_batch_start(const Batch&, int64_t, int64_t) override { add("on_predict_batch_start"); }
  void on_predict_batch_end(const Batch&, const Batch&, int64_t, int64_t) override { add("on_predict_batch_end"); }
  StepOutput test_step(const Batch& batch, int64_t batch_idx) override {
    add("test_step");
    return TinyModule::test_step(batch, batch_idx);
  }
  Batch predict_step(const Batch& batch, int64_t batch_idx) override {
    add("predict_step");
    return TinyModule::predict_step(batch, batch_idx);
  }
  void on_save_checkpoint(State&) override { add("on_save_checkpoint"); }
  void on_load_checkpoint(const State&) override { add("on_load_checkpoint"); }

 private:
  void add(const std::string& hook) { journal_.push_back("M " + hook); }
  Journal& journal_;
};

class RecordingData : public DataModule {
 public:
  explicit RecordingData(Journal& journal) : journal_(journal) {}
  void prepare_data() override { journal_.push_back("D prepare_data"); }
  void setup(Stage) override { journal_.push_back("D setup"); }
  void teardown(Stage) override { journal_.push_back("D teardown"); }
  DataLoader train_dataloader() override { return DataLoader(tiny_dataset(16), {.batch_size = 8}); }
  DataLoaders val_dataloader() override { return DataLoader(tiny_dataset(8), {.batch_size = 8}); }
  DataLoaders test_dataloader() override { return DataLoader(tiny_dataset(8), {.batch_size = 8}); }
  DataLoaders predict_dataloader() override { return DataLoader(tiny_dataset(8), {.batch_size = 8}); }

 private:
  Journal& journal_;
};

Journal both(const std::string& hook) { return {"CB " + hook, "M " + hook}; }

void append(Journal& journal, const Journal& more) { journal.insert(journal.end(), more.begin(), more.end()); }

const Journal kTransfer = {"M on_before_batch_transfer", "M transfer", "M on_after_batch_transfer"};

Journal evaluation(const std::string& stage, const std::string& step) {
  Journal expected = {"M on_" + stage + "_model_eval"};
  append(expected, both("on_" + stage + "_start"));
  append(expected, both("on_" + stage + "_epoch_start"));
  append(expected, kTransfer);
  append(expected, both("on_" + stage + "_batch_start"));
  expected.push_back("M " + step);
  append(expected, both("on_" + stage + "_batch_end"));
  append(expected, both("on_" + stage + "_epoch_end"));
  append(expected, both("on_" + stage + "_end"));
  expected.push_back("M on_" + stage + "_model_train");
  return expected;
}

const Journal kSetup = {"M configure_callbacks", "D prepare_data", "M prepare_data", "D setup", "CB setup", "M setup",
                        "M configure_model"};
const Journal kTeardown = {"D teardown", "CB teardown", "M teardown"};

Journal micro_batch(bool first) {
  Journal expected = {"M training_step", "M training_step_end"};
  if (first) {
    append(expected, both("on_before_zero_grad"));
    expected.push_back("M optimizer_zero_grad");
  }
  append(expected, both("on_before_backward"));
  append(expected, both("on_after_backward"));
  return expected;
}

TEST(HookOrder, OfFitIsTheDocumentedOne) {
  Journal journal;
  auto module = std::make_shared<RecordingModule>(journal);
  TrainerOptions options = quiet(1);
  options.num_sanity_val_steps = 2;
  options.accumulate_grad_batches = 2;
  options.gradient_clip_val = 1.0;
  options.callbacks = {std::make_shared<RecordingCallback>(journal)};
  Trainer trainer(options);
  trainer.fit(module, std::make_shared<RecordingData>(journal));

  Journal expected = kSetup;
  expected.push_back("M configure_optimizers");
  append(expected, both("on_fit_start"));
  expected.push_back("CB on_sanity_check_start");
  append(expected, evaluation("validation", "validation_step"));
  expected.push_back("CB on_sanity_check_end");
  append(expected, both("on_train_start"));
  append(expected, both("on_train_epoch_start"));
  // The first micro-batch of the window runs the closure alone.
  append(expected, kTransfer);
  append(expected, both("on_train_batch_start"));
  append(expected, micro_batch(true));
  append(expected, both("on_train_batch_end"));
  // The second one steps.
  append(expected, kTransfer);
  append(expected, both("on_train_batch_start"));
  expected.push_back("M optimizer_step");
  append(expected, micro_batch(false));
  append(expected, both("on_before_optimizer_step"));
  append(expected, {"M configure_gradient_clipping", "M lr_scheduler_step"});
  append(expected, both("on_train_batch_end"));
  append(expected, evaluation("validation", "validation_step"));
  append(expected, both("on_train_epoch_end"));
  append(expected, both("on_train_end"));
  append(expected, both("on_fit_end"));
  append(expected, kTeardown);
  EXPECT_EQ(journal, expected);
}

/// Evaluates with dropout, as Monte Carlo dropout does.
class DropoutInEvaluation : public testing::TinyModule {
 public:
  using TinyModule::TinyModule;
  void on_validation_model_eval() override {
    TinyModule::on_validation_model_eval();
    dropout_->train();
  }
  void on_validation_model_train() override { modes_afterwards.push_back(is_training() && !second_->is_training()); }
  StepOutput validation_step(const Batch& batch, int64_t batch_idx) override {
    modes_within.push_back(dropout_->is_training() && !is_training() && !first_->is_training());
    return TinyModule::validation_step(batch, batch_idx);
  }
  void on_train_start() override { second_->eval(); }
  std::vector<bool> modes_within;
  std::vector<bool> modes_afterwards;
};

TEST(ModelMode, IsWhatTheModuleMakesOfItAndItsFormerOneAfterwards) {
  auto module = make<DropoutInEvaluation>({.dropout = 0.5});
  Trainer trainer(quiet(1));
  trainer.fit(module, testing::tiny_loader(16), testing::tiny_loader(8, 8, false));
  EXPECT_EQ(module->modes_within, (std::vector<bool>{true}));
  EXPECT_EQ(module->modes_afterwards, (std::vector<bool>{true}));
  Trainer other(quiet(1));
  const auto value = [&] {
    return other.validate(module, testing::tiny_loader(8, 8, false), "", false)[0].at("val_loss");
  };
  EXPECT_NE(value(), value()) << "dropout";
}

TEST(HookOrder, OfTestAndPredict) {
  Journal journal;
  auto module = std::make_shared<RecordingModule>(journal);
  TrainerOptions options = quiet(1);
  options.callbacks = {std::make_shared<RecordingCallback>(journal)};
  Trainer trainer(options);
  trainer.test(module, std::make_shared<RecordingData>(journal));
  Journal expected = kSetup;
  append(expected, evaluation("test", "test_step"));
  append(expected, kTeardown);
  EXPECT_EQ(journal, expected);

  journal.clear();
  trainer.predict(module, std::make_shared<RecordingData>(journal));
  expected = kSetup;
  append(expected, evaluation("predict", "predict_step"));
  append(expected, kTeardown);
  EXPECT_EQ(journal, expected);
}

TEST(HookOrder, OfSavingAndResuming) {
  Journal journal;
  const std::string path = testing::fresh_folder("order") + "/c";
  TrainerOptions options = quiet(1);
  options.callbacks = {std::make_shared<RecordingCallback>(journal)};
  Trainer trainer(options);
  trainer.fit(std::make_shared<RecordingModule>(journal), std::make_shared<RecordingData>(journal));
  journal.clear();
  trainer.save_checkpoint(path);
  EXPECT_EQ(journal, (Journal{"M on_save_checkpoint", "CB state_dict", "CB on_save_checkpoint"}));

  journal.clear();
  options.max_epochs = 2;
  Trainer resumed(options);
  resumed.fit(std::make_shared<RecordingModule>(journal), std::make_shared<RecordingData>(journal), path);
  Journal expected = kSetup;
  append(expected, {"M on_load_checkpoint", "CB on_load_checkpoint", "CB load_state_dict", "M configure_optimizers"});
  append(expected, both("on_fit_start"));
  append(expected, both("on_train_start"));
  append(expected, both("on_train_epoch_start"));
  ASSERT_GE(journal.size(), expected.size());
  journal.resize(expected.size());
  EXPECT_EQ(journal, expected);
}

/// A checkpointer that only says when it is called.
class RecordingCheckpointer : public Checkpointer {
 public:
  explicit RecordingCheckpointer(Journal& journal) : journal_(journal) {}
  std::string best_model_path() const override { return {}; }
  std::optional<double> best_model_score() const override { return {}; }
  std::string last_model_path() const override { return {}; }
  void save_last(Trainer&) override {}
  void on_train_epoch_end(Trainer&, Module&) override { journal_.push_back("checkpoint"); }

 private:
  Journal& journal_;
};

class MetricsCallback : public Callback {
 public:
  explicit MetricsCallback(Journal& journal) : journal_(journal) {}
  bool runs_after_metrics() const override { return true; }
  void on_train_epoch_end(Trainer& trainer, Module&) override {
    EXPECT_EQ(trainer.callback_metrics().count("train_loss"), 1u);
    journal_.push_back("metrics");
  }

 private:
  Journal& journal_;
};

class EpochEndModule : public testing::TinyModule {
 public:
  explicit EpochEndModule(Journal& journal) : TinyModule({}), journal_(journal) {}
  void on_train_epoch_end() override { journal_.push_back("module"); }

 private:
  Journal& journal_;
};

TEST(HookOrder, WhatActsOnMetricsComesAfterTheModuleAndCheckpointsLast) {
  Journal journal;
  TrainerOptions options = quiet(1);
  options.enable_checkpointing = true;
  options.default_root_dir = testing::fresh_folder("late");
  options.callbacks = {std::make_shared<RecordingCheckpointer>(journal), std::make_shared<MetricsCallback>(journal)};
  Trainer trainer(options);
  trainer.fit(std::make_shared<EpochEndModule>(journal), testing::tiny_loader());
  EXPECT_EQ(journal, (Journal{"module", "metrics", "checkpoint"}));
}

TEST(HookOrder, AnErrorOfTheUserKeepsItsTypeAndRunsOnException) {
  struct MyError : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  struct Throwing : testing::TinyModule {
    Throwing() : TinyModule({}) {}
    StepOutput training_step(const Batch&, int64_t) override { throw MyError("mine"); }
  };
  Journal journal;
  TrainerOptions options = quiet(1);
  options.callbacks = {std::make_shared<RecordingCallback>(journal)};
  Trainer trainer(options);
  try {
    trainer.fit(std::make_shared<Throwing>(), testing::tiny_loader());
    FAIL();
  } catch (const MyError& error) {
    EXPECT_EQ(without_context(error.what()), "mine");
  }
  ASSERT_GE(journal.size(), 2u);
  EXPECT_EQ(Journal(journal.end() - 2, journal.end()), (Journal{"CB on_exception", "CB teardown"}));
  EXPECT_EQ(trainer.status(), TrainerStatus::kFailed);
  // The trainer can be used again.
  trainer.fit(make<testing::TinyModule>({}), testing::tiny_loader());
  EXPECT_EQ(trainer.status(), TrainerStatus::kFinished);
}

// A logger may wait for its server longer than ranks that have failed wait for each other.
TEST(HookOrder, LoggersEndAfterTheStrategy) {
  struct RecordingStrategy : SingleDevice {
    explicit RecordingStrategy(Journal& journal) : journal(journal) {}
    void teardown() override { journal.push_back("strategy"); }
    Journal& journal;
  };
  struct RecordingLogger : Logger {
    explicit RecordingLogger(Journal& journal) : journal(journal) {}
    void log_metrics(std::span<const MetricValue>, int64_t, int64_t) override {}
    void finish(TrainerStatus status) override {
      journal.push_back(status == TrainerStatus::kFailed ? "logger, failed" : "logger");
    }
    Journal& journal;
  };
  struct Throwing : testing::TinyModule {
    Throwing() : TinyModule({}) {}
    StepOutput training_step(const Batch&, int64_t) override { throw std::runtime_error("mine"); }
  };
  Journal journal;
  TrainerOptions options = quiet(1);
  options.default_root_dir = testing::fresh_folder("loggers_end");
  options.strategy = Spec<Strategy>(std::make_shared<RecordingStrategy>(journal));
  options.logger = {std::make_shared<RecordingLogger>(journal)};
  Trainer trainer(options);
  EXPECT_THROW(trainer.fit(std::make_shared<Throwing>(), testing::tiny_loader()), std::runtime_error);
  EXPECT_EQ(journal, (Journal{"strategy", "logger, failed"}));
  journal.clear();
  trainer.fit(make<testing::TinyModule>({}), testing::tiny_loader());
  EXPECT_EQ(journal, (Journal{"strategy", "logger"}));
}

}  // namespace
}  // namespace levin
