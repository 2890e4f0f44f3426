#include "../support/captured_log.h"
#include "../support/tiny.h"
#include "../support/tiny_stream.h"

#include <levin/callbacks/early_stopping.h>
#include <levin/callbacks/lambda_callback.h>
#include <levin/callbacks/model_checkpoint.h>
#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>
#include <levin/core/data/length_grouped_sampler.h>
#include <levin/core/metrics/mean_squared_error.h>
#include <levin/loggers/csv_logger.h>
#include <levin/strategies/single_device.h>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

namespace levin {
namespace {

using testing::fresh_folder;
using testing::identical;
using testing::quiet;
using testing::TinyModule;
using testing::TinyOptions;
using testing::weights;

/// A module with everything that a resume could lose: dropout (global generator), a metric, a schedule, random data.
class BusyModule : public TinyModule {
 public:
  using TinyModule::TinyModule;
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    log("train_mse", train_error_.update(batch["x"].mean(1, true), batch["y"]), {.on_epoch = true});
    log("batch_mse", batch_error_.update(batch["x"].mean(1, true), batch["y"]));
    return TinyModule::training_step(batch, batch_idx);
  }
  StepOutput validation_step(const Batch& batch, int64_t batch_idx) override {
    auto output = TinyModule::validation_step(batch, batch_idx);
    log("val_mse", error_.update(forward(batch["x"]), batch["y"]));
    return output;
  }
  OptimizerConfigs configure_optimizers() override {
    auto configs = TinyModule::configure_optimizers();
    configs.front().scheduler = {.name = "cosine", .interval = Interval::kStep};
    configs.front().more_schedulers = {{.name = "reduce_on_plateau",
                                        .monitor = "val_loss/dataloader_idx_0",
                                        .options = Config::parse("{patience: 0}", {})}};
    return configs;
  }

 private:
  metrics::MeanSquaredError error_{{}};
  metrics::MeanSquaredError train_error_{{.squared = false}};  // the mean of two is not that of all
  metrics::MeanSquaredError batch_error_{{}};
};

/// Adds noise that depends on (seed, epoch, sample).
class NoisyDataset : public data::Dataset {
 public:
  int64_t size() const override { return 22; }
  Batch get(int64_t index, data::Generator& generator) const override {
    auto x = at::arange(4, at::kFloat).add(static_cast<double>(index)).sin() + 0.1 * generator.uniform();
    return {{"x", x}, {"y", x.sum(0, true)}};
  }
};

/// Every value that reaches the loggers, as text, by step.
class ResumedLogger : public Logger {
 public:
  void log_metrics(std::span<const MetricValue> values, int64_t step, int64_t epoch) override {
    std::ostringstream row;
    row.precision(17);
    row << "step " << step << " epoch " << epoch;
    for (const auto& value : values) row << " " << value.name << "=" << value.value;
    rows.push_back(row.str());
  }
  std::vector<std::string> rows;
};

struct RunResult {
  std::vector<at::Tensor> weights;
  std::vector<std::string> rows;
  MetricMap metrics;
};

struct Setup {
  int64_t accumulate = 3;
  int64_t workers = 0;
  std::function<void(TrainerOptions&)> change = [](TrainerOptions&) {};
};

/// Trains 3 epochs of 6 batches. `hook` may save checkpoints; `ckpt` resumes.
RunResult run(const Setup& setup, std::shared_ptr<Callback> callback, const std::string& ckpt) {
  seed_everything(ckpt.empty() ? 7 : 12345);  // a resumed run must take its random numbers from the checkpoint
  auto module = make<BusyModule>({.width = 8, .dropout = 0.3});
  auto logger = std::make_shared<ResumedLogger>();
  TrainerOptions options = quiet(3);
  options.accumulate_grad_batches = setup.accumulate;
  options.log_every_n_steps = 1;
  options.val_check_interval = 4;
  options.default_root_dir = fresh_folder("resume_root");
  options.logger = {logger};
  options.callbacks = {make<EarlyStopping>({.monitor = "val_loss/dataloader_idx_1", .patience = 100})};
  if (callback != nullptr) options.callbacks.push_back(callback);
  setup.change(options);
  Trainer trainer(options);
  auto dataset = std::make_shared<NoisyDataset>();
  const DataLoaderOptions loader{.batch_size = 4, .shuffle = true, .num_workers = setup.workers};
  trainer.fit(module, DataLoader(dataset, loader),
              DataLoaders{DataLoader(dataset, {.batch_size = 5}), DataLoader(dataset, {.batch_size = 7})}, ckpt);
  return {weights(*module), logger->rows, trainer.callback_metrics()};
}

/// The rows of a resumed run are the last rows of the run that was not stopped.
void expect_tail(const std::vector<std::string>& resumed, const std::vector<std::string>& whole,
                 const std::string& where) {
  ASSERT_LE(resumed.size(), whole.size()) << where;
  const std::vector<std::string> tail(whole.end() - static_cast<std::ptrdiff_t>(resumed.size()), whole.end());
  EXPECT_EQ(resumed, tail) << where;
}

void expect_resumes_everywhere(const Setup& setup) {
  const std::string folder = fresh_folder("resume");
  const RunResult plain = run(setup, nullptr, "");
  // One run that saves at the end of every training batch, of every validation batch and of every epoch.
  std::vector<std::string> saved;
  const auto save = [&](Trainer& trainer) {
    saved.push_back(folder + "/c" + std::to_string(saved.size()));
    trainer.save_checkpoint(saved.back());
  };
  auto saver = make<LambdaCallback>(LambdaCallbackOptions{
      .on_train_epoch_end = [&](Trainer& trainer, Module&) { save(trainer); },
      .on_train_batch_end = [&](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) { save(trainer); },
      .on_validation_end = [&](Trainer& trainer, Module&) { save(trainer); },
      .on_validation_batch_end = [&](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t,
                                     int64_t) { save(trainer); }});
  const RunResult whole = run(setup, saver, "");
  EXPECT_TRUE(identical(plain.weights, whole.weights)) << "saving changed the run";
  EXPECT_EQ(plain.rows, whole.rows);
  EXPECT_GT(saved.size(), 18u);
  for (const auto& path : saved) {
    const RunResult resumed = run(setup, nullptr, path);
    EXPECT_TRUE(identical(resumed.weights, whole.weights)) << path;
    EXPECT_EQ(resumed.metrics, whole.metrics) << path;
    expect_tail(resumed.rows, whole.rows, path);
  }
}

TEST(Resume, IsBitwiseAtEveryMomentWithAccumulation) { expect_resumes_everywhere({.accumulate = 4}); }

TEST(Resume, IsBitwiseAtEveryMomentWithoutAccumulation) { expect_resumes_everywhere({.accumulate = 1}); }

TEST(Resume, IsBitwiseWithWorkersAndClipping) {
  expect_resumes_everywhere({.accumulate = 2, .workers = 2, .change = [](TrainerOptions& options) {
                               options.gradient_clip_val = 0.5;
                               options.val_check_interval = 1.0;
                             }});
}

TEST(Resume, IsBitwiseAfterEveryBatchOfTwoRanks) {
  const std::string folder = fresh_folder("resume");
  const struct Setup setup {
    .accumulate = 1, .change = [](TrainerOptions& options) {
      options.strategy = "ddp_threads";
      options.devices = 2;
      options.log_every_n_steps = 2;
      options.val_check_interval = 1.0;
    }
  };
  const auto save = [&](Trainer& trainer) {
    trainer.save_checkpoint(fmt::format("{}/c{}", folder, trainer.total_batches()));
  };
  const RunResult whole =
      run(setup,
          make<LambdaCallback>({.on_train_batch_end = [&](Trainer& trainer, Module&, const StepOutput&, const Batch&,
                                                          int64_t) { save(trainer); }}),
          "");
  // The metric that each step updates is that of both ranks, also where no step follows that could log it again.
  ASSERT_EQ(whole.metrics.count("train_mse"), 1U);
  int64_t saved = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const RunResult resumed = run(setup, nullptr, entry.path());
    EXPECT_TRUE(identical(resumed.weights, whole.weights)) << entry.path();
    EXPECT_EQ(resumed.metrics, whole.metrics) << entry.path();
    expect_tail(resumed.rows, whole.rows, entry.path());
    ++saved;
  }
  EXPECT_EQ(saved, 9);
}

TEST(Resume, TheRowOfALastStepThatIsNoBoundaryIsTheSame) {
  const auto change = [](TrainerOptions& options) { options.log_every_n_steps = 1000; };
  expect_resumes_everywhere({.accumulate = 1, .change = change});
}

/// Counts batches, and keeps the count in checkpoints.
class CountingStrategy : public SingleDevice {
 public:
  using SingleDevice::SingleDevice;
  StepOutput forward_backward(const Batch& batch, StepPhases& phases, const AccumulationWindow& window) override {
    ++batches;
    return SingleDevice::forward_backward(batch, phases, window);
  }
  State state_dict() const override { return batches; }
  void load_state_dict(const State& state) override { batches = state.as_int(); }
  int64_t batches = 0;
};

TEST(Resume, AStrategyHasItsStateBackAndAnotherLeavesItOut) {
  const std::string path = fresh_folder("resume_strategy") + "/c";
  auto saver = make<LambdaCallback>(LambdaCallbackOptions{
      .on_train_batch_end = [&](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t batch) {
        if (trainer.current_epoch() == 1 && batch == 2) trainer.save_checkpoint(path);
      }});
  const auto whole = make<CountingStrategy>();
  run({.change = [&](TrainerOptions& options) { options.strategy = whole; }}, saver, "");
  const auto resumed = make<CountingStrategy>();
  run({.change = [&](TrainerOptions& options) { options.strategy = resumed; }}, nullptr, path);
  EXPECT_EQ(whole->batches, 18);
  EXPECT_EQ(resumed->batches, 18);
  ::testing::internal::CaptureStderr();
  run({}, nullptr, path);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), ::testing::HasSubstr("'single_device' leaves out"));
}

/// Saves in one of the hooks that run before the optimizers are there.
class EarlySaver : public TinyModule {
 public:
  using TinyModule::TinyModule;
  void setup(Stage /*stage*/) override { save_in("setup"); }
  void configure_model() override { save_in("configure_model"); }
  OptimizerConfigs configure_optimizers() override {
    save_in("configure_optimizers");
    return TinyModule::configure_optimizers();
  }
  std::vector<std::shared_ptr<Callback>> configure_callbacks() override {
    save_in("configure_callbacks");
    return {};
  }
  void on_fit_start() override { save_in("on_fit_start"); }
  void on_fit_end() override { save_in("on_fit_end"); }

  std::string hook;
  std::string path;

 private:
  void save_in(const std::string& here) {
    if (here == hook) trainer().save_checkpoint(path);
  }
};

TEST(Resume, ACheckpointBeforeTheOptimizersAreThereIsRefused) {
  for (const char* hook : {"setup", "configure_model", "configure_optimizers", "configure_callbacks"}) {
    SCOPED_TRACE(hook);
    Trainer trainer(quiet(1));
    const auto module = make<EarlySaver>({});
    module->path = fresh_folder("resume_early") + "/c";
    // In a first fit, and in one that follows it.
    for (const bool again : {false, true}) {
      module->hook = hook;
      std::string message;
      try {
        trainer.fit(module, testing::tiny_loader());
      } catch (const Error& error) {
        message = error.what();
      }
      EXPECT_THAT(message,
                  ::testing::HasSubstr("[trainer] save_checkpoint() cannot save what fit could go on from before "
                                       "the optimizers are there"));
      EXPECT_THAT(message, ::testing::HasSubstr("valid: from on_fit_start on, and after fit"));
      EXPECT_FALSE(std::filesystem::exists(module->path));
      module->hook = "";
      if (!again) trainer.fit(module, testing::tiny_loader());
    }
  }
  for (const char* hook : {"on_fit_start", "on_fit_end"}) {
    const auto module = make<EarlySaver>({});
    module->hook = hook;
    module->path = fresh_folder("resume_early") + "/c";
    Trainer(quiet(1)).fit(module, testing::tiny_loader());
    Trainer(quiet(2)).fit(make<EarlySaver>({}), testing::tiny_loader(), {}, module->path);
  }
}

TEST(Resume, FromWhatWasSavedBeforeTheFirstBatchOfAResumedFit) {
  const std::string folder = fresh_folder("resume_twice");
  const auto fit = [&](int64_t epochs, const std::string& ckpt, const LambdaCallbackOptions& hooks = {}) {
    TrainerOptions options = quiet(epochs);
    options.callbacks = {make<LambdaCallback>(hooks)};
    auto module = make<TinyModule>({.dropout = 0.2});
    Trainer(options).fit(module, testing::tiny_loader(), {}, ckpt);
    return weights(*module);
  };
  fit(1, "", {.on_fit_end = [&](Trainer& trainer, Module&) { trainer.save_checkpoint(folder + "/first"); }});
  for (const std::string hook : {"on_fit_start", "on_train_start"}) {
    const std::string path = folder + "/" + hook;
    LambdaCallbackOptions hooks;
    (hook == "on_fit_start" ? hooks.on_fit_start : hooks.on_train_start) = [&](Trainer& trainer, Module&) {
      trainer.save_checkpoint(path);
    };
    const auto expected = fit(2, folder + "/first", hooks);
    EXPECT_TRUE(identical(fit(2, path), expected)) << hook;
  }
}

TEST(Resume, NamesTheCallbacksWhoseStateIsLeftOut) {
  const std::string path = fresh_folder("resume_callbacks") + "/c";
  auto saver = make<LambdaCallback>(
      LambdaCallbackOptions{.on_train_epoch_end = [&](Trainer& trainer, Module&) { trainer.save_checkpoint(path); }});
  run({}, saver, "");
  ::testing::internal::CaptureStderr();
  run({.change = [](TrainerOptions& options) { options.callbacks.clear(); }}, nullptr, path);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::HasSubstr("state of callbacks that are not there now: early_stopping("));
}

/// Knows how many rows are safe on disk.
class BufferingLogger : public Logger {
 public:
  void log_metrics(std::span<const MetricValue> /*values*/, int64_t /*step*/, int64_t /*epoch*/) override { ++rows; }
  void flush() override { on_disk = rows; }
  void after_save_checkpoint(const CheckpointEvent& /*event*/) override { on_disk_at_checkpoint = on_disk; }
  int64_t rows = 0;
  int64_t on_disk = 0;
  int64_t on_disk_at_checkpoint = 0;
};

TEST(Resume, LosesNoRowThatWasLoggedBeforeTheCheckpoint) {
  const std::string path = fresh_folder("resume_rows") + "/c";
  const auto logger = std::make_shared<BufferingLogger>();
  auto saver = make<LambdaCallback>(LambdaCallbackOptions{
      .on_train_batch_end = [&](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t batch) {
        if (trainer.current_epoch() == 1 && batch == 2) trainer.save_checkpoint(path);
      }});
  run({.change = [&](TrainerOptions& options) { options.logger = {logger}; }}, saver, "");
  EXPECT_TRUE(std::filesystem::exists(path));
  EXPECT_GT(logger->on_disk_at_checkpoint, 0) << "a kill would lose them, and a resume not log them again";
}

/// A run that is killed behind its last checkpoint has nothing left to log when it goes on.
TEST(Resume, LosesNoRowAfterTheLastCheckpoint) {
  const auto stopping = make<LambdaCallback>(LambdaCallbackOptions{.on_train_epoch_end = [](Trainer& trainer, Module&) {
    if (trainer.current_epoch() == 1) trainer.request_stop("enough");
  }});
  struct Ending {
    const char* name;
    std::shared_ptr<Callback> callback;
    std::optional<int64_t> max_steps;
  };
  for (const auto& [name, callback, max_steps] :
       {Ending{"max_epochs", nullptr, {}}, Ending{"a request", stopping, {}}, Ending{"max_steps", nullptr, 10}}) {
    SCOPED_TRACE(name);
    const auto logger = std::make_shared<BufferingLogger>();
    const auto change = [&, steps = max_steps](TrainerOptions& options) {
      options.logger = {logger};
      options.log_every_n_steps = 1000;
      options.max_steps = steps.value_or(-1);
      options.enable_checkpointing = true;
      options.callbacks.push_back(make<ModelCheckpoint>({.save_last = true, .save_on_train_epoch_end = true}));
    };
    run({.accumulate = 1, .change = change}, callback, "");
    EXPECT_GT(logger->rows, 0);
    EXPECT_EQ(logger->on_disk_at_checkpoint, logger->rows);
  }
}

TEST(Resume, AtTheLastBatchOfAnEpochMissesNoStep) {
  const std::string path = fresh_folder("resume_last_batch") + "/c";
  auto saver = make<LambdaCallback>(LambdaCallbackOptions{
      .on_train_batch_end = [&](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t batch) {
        if (trainer.current_epoch() == 1 && batch == 5) trainer.save_checkpoint(path);
      }});
  run({}, saver, "");
  ASSERT_TRUE(std::filesystem::exists(path));
  ::testing::internal::CaptureStderr();
  run({}, nullptr, path);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), ::testing::Not(::testing::HasSubstr("no optimizer step")));
}

TEST(Resume, ContinuesAfterMaxStepsWasRaised) {
  const std::string folder = fresh_folder("raise");
  const RunResult whole = run({}, nullptr, "");
  run({.change = [](TrainerOptions& options) { options.max_steps = 2; }},
      make<LambdaCallback>(LambdaCallbackOptions{
          .on_train_end = [&](Trainer& trainer, Module&) { trainer.save_checkpoint(folder + "/c"); }}),
      "");
  // The cosine schedule of the shorter run spans its own length, so only the position is compared here.
  RunResult resumed = run({}, nullptr, folder + "/c");
  EXPECT_EQ(resumed.metrics.size(), whole.metrics.size());
}

TEST(Resume, InsideOfAnEpochTheOrderMustBeTheSame) {
  const std::vector<int64_t> lengths(48, 3);
  const auto stream = [](int64_t workers) {
    return DataLoader(std::make_shared<testing::TinyStream>(48), {.batch_size = 4, .num_workers = workers});
  };
  const auto grouped = [&](int64_t size) {
    return DataLoader(testing::tiny_dataset(48), {.batch_size = size},
                      std::make_shared<data::LengthGroupedSampler>(
                          lengths, data::LengthGroupedSamplerOptions{.group_size = size, .window = 2}));
  };
  std::vector<int64_t> others = lengths;
  others.back() = 9;
  const DataLoader grouped_otherwise(testing::tiny_dataset(48), {.batch_size = 4},
                                     std::make_shared<data::LengthGroupedSampler>(
                                         others, data::LengthGroupedSamplerOptions{.group_size = 4, .window = 2}));
  const auto fit = [](const DataLoader& loader, const std::string& from, const std::string& to) {
    TrainerOptions options = quiet(2);
    options.callbacks = {make<LambdaCallback>(
        LambdaCallbackOptions{.on_train_epoch_end =
                                  [&to](Trainer& trainer, Module&) {
                                    if (!to.empty()) trainer.save_checkpoint(to + "/end");
                                  },
                              .on_train_batch_end =
                                  [&to](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t batch) {
                                    if (!to.empty() && batch == 2) trainer.save_checkpoint(to + "/inside");
                                  }})};
    Trainer(options).fit(make<TinyModule>({}), loader, {}, from);
  };
  struct Case {
    DataLoader former;
    DataLoader other;
    std::string was;
    std::string is;
  };
  for (const Case& item :
       {Case{stream(2), stream(3), "1 rank with 2 workers, batches of 4", "1 rank with 3 workers, batches of 4"},
        Case{grouped(4), grouped(8), "length_grouped of 4 examples, window of 2",
             "length_grouped of 8 examples, window of 2"},
        Case{grouped(4), grouped_otherwise, "length_grouped of 4 examples, window of 2, 48 examples of lengths ",
             "length_grouped of 4 examples, window of 2, 48 examples of lengths "}}) {
    const std::string folder = fresh_folder("resume_order");
    fit(item.former, "", folder);
    fit(item.former, folder + "/inside", "");
    fit(item.other, folder + "/end", "");
    try {
      fit(item.other, folder + "/inside", "");
      ADD_FAILURE() << "went on with " << item.is;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("whose order was that of " + item.was));
      EXPECT_THAT(error.what(), ::testing::HasSubstr("; got " + item.is));
    }
  }
}

/// Saves inside of the first epoch, and goes on with other options; what the second fit says.
template <class Net = TinyModule>
std::string said_inside_of_an_epoch(const DataLoader& former, const DataLoader& other, TrainerOptions options,
                                    const DataLoaders& validation = {},
                                    const std::optional<TrainerOptions>& other_options = {}) {
  const std::string saved = fresh_folder("resume_inside") + "/inside";
  TrainerOptions first = options;
  first.val_check_interval = 1.0;
  first.callbacks = {make<LambdaCallback>(LambdaCallbackOptions{
      .on_train_batch_end = [saved](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t batch) {
        if (trainer.current_epoch() == 0 && batch == 1) trainer.save_checkpoint(saved);
      }})};
  Trainer(first).fit(make<Net>({}), former, validation);
  try {
    Trainer(other_options.value_or(options)).fit(make<Net>({}), other, validation, saved);
  } catch (const Error& error) {
    return error.what();
  }
  return "went on";
}

TEST(Resume, InsideOfAnEpochLoadersOfEachRankHaveTheSameBatches) {
  TrainerOptions options = quiet(2);
  options.strategy = "ddp_threads";
  options.devices = 2;
  options.use_distributed_sampler = false;
  const auto batches_of = [](int64_t size) { return testing::tiny_loader(48, size); };
  EXPECT_EQ(said_inside_of_an_epoch(batches_of(4), batches_of(4), options), "went on");
  EXPECT_THAT(said_inside_of_an_epoch(batches_of(4), batches_of(8), options),
              ::testing::HasSubstr("with batches of other sizes than the training loader has now"));
  // A rank that has read by itself is at no place of those that share, nor the other way round.
  for (const bool shared : {true, false}) {
    options.use_distributed_sampler = shared;
    TrainerOptions other = options;
    other.use_distributed_sampler = !shared;
    EXPECT_THAT(said_inside_of_an_epoch(batches_of(4), batches_of(4), options, {}, other),
                ::testing::HasSubstr("each rank by itself"));
  }
}

/// Of the part `map` of a combined loader.
class OfOnePart : public TinyModule {
 public:
  using TinyModule::TinyModule;
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    return TinyModule::training_step({{"x", batch["map.x"]}, {"y", batch["map.y"]}}, batch_idx);
  }
};

TEST(Resume, InsideOfAnEpochStreamsBesideOthersAreReadAlike) {
  const auto beside = [](int64_t workers) {
    return DataLoader::combined(
        {{"map", testing::tiny_loader(48, 4)},
         {"stream", DataLoader(std::make_shared<testing::TinyStream>(48), {.batch_size = 4, .num_workers = workers})}},
        CombinedMode::kMinSize);
  };
  EXPECT_EQ(said_inside_of_an_epoch<OfOnePart>(beside(1), beside(1), quiet(2)), "went on");
  EXPECT_THAT(
      said_inside_of_an_epoch<OfOnePart>(beside(1), beside(2), quiet(2)),
      ::testing::HasSubstr("stream (1 rank with 1 worker, batches of 4); got map (48 examples, shuffled), stream "
                           "(1 rank with 2 workers, batches of 4)"));
}

TEST(Resume, AValidationIntervalIsOfTheWholeEpochThatGoesOn) {
  TrainerOptions options = quiet(2);
  options.val_check_interval = int64_t{5};
  EXPECT_EQ(said_inside_of_an_epoch(testing::tiny_loader(40, 4), testing::tiny_loader(40, 8), options,
                                    testing::tiny_loader(16)),
            "went on");
}

/// Has other data in each epoch, and notes which it has trained on.
class ReloadedModule : public TinyModule {
 public:
  struct Options {
    std::shared_ptr<std::vector<std::string>> seen = {};
  };
  explicit ReloadedModule(const Options& options) : TinyModule({}), seen_(options.seen) {}
  DataLoader train_dataloader() override {
    const int64_t epoch = trainer().current_epoch();
    Batch examples = testing::tiny_dataset(12 + 4 * epoch)->tensors();
    examples["of"] = at::full({12 + 4 * epoch}, epoch, at::kLong);
    return {std::make_shared<data::TensorDataset>(examples), {.batch_size = 4}};
  }
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    seen_->push_back(fmt::format("{}:{}:{}", trainer().current_epoch(), batch_idx, batch["of"][0].item<int64_t>()));
    return TinyModule::training_step(batch, batch_idx);
  }

 private:
  std::shared_ptr<std::vector<std::string>> seen_;
};

TEST(Resume, LoadersThatAreReloadedAreThoseOfTheEpoch) {
  for (const int64_t every : {1, 2, 3}) {
    const std::string folder = fresh_folder("reloaded");
    const auto fit = [&](const std::string& ckpt, bool saves) {
      ReloadedModule::Options own{.seen = std::make_shared<std::vector<std::string>>()};
      TrainerOptions options = quiet(5);
      options.reload_dataloaders_every_n_epochs = every;
      options.callbacks = {make<LambdaCallback>(LambdaCallbackOptions{
          .on_train_epoch_end =
              [&](Trainer& trainer, Module&) {
                if (saves) trainer.save_checkpoint(fmt::format("{}/end{}", folder, trainer.current_epoch()));
              },
          .on_train_batch_end =
              [&](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t batch) {
                if (saves && batch == 1)
                  trainer.save_checkpoint(fmt::format("{}/inside{}", folder, trainer.current_epoch()));
              }})};
      Trainer(options).fit(make<ReloadedModule>(own), DataLoader(), {}, ckpt);
      return *own.seen;
    };
    const std::vector<std::string> whole = fit("", true);
    for (const int64_t epoch : {0, 1, 2, 3, 4})
      for (const char* where : {"inside", "end"}) {
        SCOPED_TRACE(fmt::format("every {}, {} of {}", every, where, epoch));
        const std::vector<std::string> rest = fit(fmt::format("{}/{}{}", folder, where, epoch), false);
        ASSERT_LE(rest.size(), whole.size());
        EXPECT_EQ(rest, std::vector<std::string>(whole.end() - std::ssize(rest), whole.end()));
        if (epoch < 4) EXPECT_FALSE(rest.empty());
      }
  }
}

class PlannedModule : public TinyModule {
 public:
  using TinyModule::TinyModule;
  OptimizerConfigs configure_optimizers() override {
    auto configs = TinyModule::configure_optimizers();
    configs.front().scheduler = {.name = "one_cycle", .interval = Interval::kStep, .options = Config::parse("{}", {})};
    return configs;
  }
};

TEST(Resume, SchedulesOfTheWholeRunEndWithItWhateverTheBatchesWere) {
  for (const int64_t accumulate : {1, 2})
    for (const bool inside : {true, false}) {
      SCOPED_TRACE(fmt::format("windows of {}, {}", accumulate, inside));
      const std::string saved = fresh_folder("whole_run") + "/saved";
      const std::string again = saved + "_again";
      int64_t planned = 0;
      const auto fit = [&](int64_t size, const std::string& from, const std::string& to, int64_t at) {
        TrainerOptions options = quiet(3);
        options.accumulate_grad_batches = accumulate;
        options.callbacks = {make<LambdaCallback>(LambdaCallbackOptions{
            .on_train_start = [&](Trainer& trainer, Module&) { planned = *trainer.estimated_steps(); },
            .on_train_epoch_end =
                [&](Trainer& trainer, Module&) {
                  if (!inside && trainer.current_epoch() == at) trainer.save_checkpoint(to);
                },
            .on_train_batch_end =
                [&](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t batch) {
                  if (inside && batch == 3 && trainer.current_epoch() == at) trainer.save_checkpoint(to);
                }})};
        Trainer trainer(options);
        trainer.fit(make<PlannedModule>({}), testing::tiny_loader(36, size), {}, from);
        return trainer.global_step();
      };
      fit(4, "", saved, 0);
      const int64_t steps = fit(8, saved, again, 1);  // beyond its end, the schedule would throw
      EXPECT_EQ(planned, steps);
      EXPECT_EQ(fit(8, again, "", -1), steps);
      EXPECT_EQ(planned, steps);
    }
}

TEST(Resume, LastBestAutoAndPath) {
  const std::string root = fresh_folder("names");
  const auto train = [&](int64_t epochs, const std::string& ckpt) {
    seed_everything(3);
    auto module = make<TinyModule>({});
    TrainerOptions options = quiet(epochs);
    options.default_root_dir = root;
    options.enable_checkpointing = true;
    options.callbacks = {make<ModelCheckpoint>({.monitor = "val_loss", .save_last = true})};
    Trainer trainer(options);
    trainer.fit(module, testing::tiny_loader(), testing::tiny_loader(16, 8, false), ckpt);
    return std::pair(trainer.global_step(), trainer.checkpoint_callback()->best_model_path());
  };
  EXPECT_EQ(train(1, "auto").first, 5) << "auto starts afresh where there is no checkpoint";
  EXPECT_EQ(train(2, "auto").first, 10);
  EXPECT_EQ(train(3, "last").first, 15);
  const auto [steps, best] = train(4, "best");
  EXPECT_EQ(steps, 20);
  EXPECT_TRUE(std::filesystem::exists(best + "/model.safetensors"));
  EXPECT_EQ(train(5, best).first, 25);
  EXPECT_THROW(train(5, root + "/nothing"), Error);
}

TEST(Resume, FromWhatWasSavedAfterAnEvaluation) {
  const std::string folder = fresh_folder("after_evaluation");
  Trainer trainer(quiet(1));
  auto module = make<TinyModule>({.dropout = 0.2});
  trainer.fit(module, testing::tiny_loader());
  trainer.save_checkpoint(folder + "/after_fit");
  trainer.validate(module, testing::tiny_loader(16, 8, false));
  trainer.save_checkpoint(folder + "/after_validate");
  trainer.predict(module, testing::tiny_loader(16, 8, false));
  trainer.save_checkpoint(folder + "/after_predict");
  const auto resumed = [](const std::string& ckpt) {
    auto again = make<TinyModule>({.dropout = 0.2});
    Trainer(quiet(2)).fit(again, testing::tiny_loader(), {}, ckpt);
    return weights(*again);
  };
  const auto expected = resumed(folder + "/after_fit");
  EXPECT_TRUE(identical(resumed(folder + "/after_validate"), expected));
  EXPECT_TRUE(identical(resumed(folder + "/after_predict"), expected));

  // A trainer that has never trained has weights to save, and nothing else.
  Trainer other(quiet(1));
  other.validate(module, testing::tiny_loader(16, 8, false));
  other.save_checkpoint(folder + "/never_trained");
  EXPECT_TRUE(identical(weights(*load_from_checkpoint<TinyModule>(folder + "/never_trained")), weights(*module)));
}

TEST(Resume, FromWhatWasSavedAfterACallOfSeveralRanks) {
  for (const char* strategy : {"ddp_threads", "ddp_spawn", "dp"}) {
    SCOPED_TRACE(strategy);
    const std::string path = fresh_folder(std::string("after_") + strategy) + "/c";
    const auto two = [&](int64_t epochs) {
      TrainerOptions options = quiet(epochs);
      options.devices = 2;
      options.strategy = strategy;
      return options;
    };
    auto module = make<TinyModule>({});
    Trainer trainer(two(1));
    trainer.fit(module, testing::tiny_loader());
    trainer.save_checkpoint(path);
    EXPECT_TRUE(identical(weights(*load_from_checkpoint<TinyModule>(path)), weights(*module)));
    // Optimizers of forks end with them: what is left has the weights.
    if (strategy == std::string("ddp_spawn")) continue;
    auto again = make<TinyModule>({});
    Trainer resumed(two(2));
    resumed.fit(again, testing::tiny_loader(), {}, path);
    EXPECT_EQ(resumed.global_step(), 2 * trainer.global_step());
  }
}

/// Another program in the same folder.
class AnotherModule : public TinyModule {
 public:
  using TinyModule::TinyModule;
};

class ThirdModule : public TinyModule {
 public:
  using TinyModule::TinyModule;
};

TEST(Resume, RunsOfOtherModulesArePassedOver) {
  const std::string root = fresh_folder("programs");
  const auto train = [&](const std::shared_ptr<Module>& module, const std::string& ckpt) {
    TrainerOptions options = quiet(1);
    options.max_epochs = ckpt.empty() ? 1 : 2;
    options.default_root_dir = root;
    options.enable_checkpointing = true;
    options.callbacks = {make<ModelCheckpoint>({.monitor = "val_loss", .save_last = true})};
    Trainer trainer(options);
    trainer.fit(module, testing::tiny_loader(), testing::tiny_loader(16, 8, false), ckpt);
    return trainer.global_step();
  };
  train(make<TinyModule>({}), "");
  train(make<AnotherModule>({.width = 3}), "");
  EXPECT_EQ(train(make<TinyModule>({}), "last"), 10);
  train(make<AnotherModule>({.width = 3}), "");
  for (const char* ckpt : {"best", "last"}) {
    TrainerOptions options = quiet(1);
    options.default_root_dir = root;
    EXPECT_EQ(Trainer(options).validate(make<TinyModule>({}), testing::tiny_loader(), ckpt).size(), 1U) << ckpt;
    try {
      Trainer(options).validate(make<ThirdModule>({}), testing::tiny_loader(), ckpt);
      FAIL() << "took a run of another module";
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find("got only runs of other modules below " + root), message.npos) << message;
      EXPECT_NE(message.find("version_1 ("), message.npos) << message;
      EXPECT_NE(message.find("AnotherModule"), message.npos) << message;
    }
  }
  EXPECT_EQ(train(make<ThirdModule>({.width = 5}), "auto"), 10) << "a fresh start of two epochs";
}

TEST(Resume, RefusesAnotherModelAndNamesTheDifference) {
  const std::string folder = fresh_folder("other");
  auto module = make<TinyModule>({.width = 8});
  Trainer trainer(quiet(1));
  trainer.fit(module, testing::tiny_loader());
  trainer.save_checkpoint(folder + "/c");
  auto wider = make<TinyModule>({.width = 9});
  const auto before = weights(*wider);
  Trainer other(quiet(2));
  try {
    other.fit(wider, testing::tiny_loader(), {}, folder + "/c");
    FAIL() << "a checkpoint of another model was accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("first.weight"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("[9, 4]"), std::string::npos) << error.what();
  }
  EXPECT_TRUE(identical(weights(*wider), before));
}

/// As wide as it is deep: many layers, none of which TinyModule has.
class DeepModule : public Module {
 public:
  explicit DeepModule(const TinyOptions& options) {
    for (int64_t i = 0; i < options.width; ++i) register_module("layer" + std::to_string(i), torch::nn::Linear(4, 4));
  }
  using Options = TinyOptions;
  StepOutput training_step(const Batch&, int64_t) override { return {}; }
};

TEST(Resume, SaysWhoseCheckpointItIsAndNotThatItWasLoaded) {
  const std::string folder = fresh_folder("whose");
  Trainer trainer(quiet(1));
  trainer.fit(make<TinyModule>({.width = 8}), testing::tiny_loader());
  trainer.save_checkpoint(folder + "/c");
  const auto refusal = [](const auto& call) -> std::string {
    const testing::CapturedLog log;
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(log.text().find("loaded"), std::string::npos) << log.text();
      return error.what();
    }
    return "accepted";
  };
  const std::string path = folder + "/c";
  const auto deep = [] { return make<DeepModule>({.width = 40}); };
  const std::string resumed = refusal([&] {
    Trainer other(quiet(2));
    other.fit(deep(), testing::tiny_loader(), {}, path);
  });
  EXPECT_TRUE(resumed.starts_with("[checkpoint] the checkpoint " + path +
                                  " is of another model; got levin::testing::TinyModule with {width: 8, "))
      << resumed;
  EXPECT_NE(resumed.find("DeepModule with {width: 40, "), std::string::npos) << resumed;
  EXPECT_NE(resumed.find("; 80 not in the checkpoint: layer0.weight, layer0.bias, layer1.weight, layer1.bias, "
                         "layer2.weight and 75 more; 4 not in the module: first.bias, first.weight, second.bias, "
                         "second.weight; hint: "),
            std::string::npos)
      << resumed;
  EXPECT_EQ(refusal([&] {
              Trainer other(quiet(1));
              other.validate(deep(), testing::tiny_loader(), path);
            }),
            resumed);
  EXPECT_EQ(refusal([&] { load_from_checkpoint<DeepModule>(path, {.width = 40}); }), resumed);
}

TEST(Resume, SaysThatItLoadedOnceItHas) {
  const std::string folder = fresh_folder("loaded");
  Trainer trainer(quiet(1));
  trainer.fit(make<TinyModule>(), testing::tiny_loader());
  trainer.save_checkpoint(folder + "/c");
  const auto count = [&](const auto& call) {
    const testing::CapturedLog log;
    call();
    const std::string text = log.text();
    const std::string wanted = "loaded the checkpoint " + folder + "/c\n";
    const size_t found = text.find(wanted);
    return found == std::string::npos ? 0 : text.find(wanted, found + 1) == std::string::npos ? 1 : 2;
  };
  EXPECT_EQ(count([&] { Trainer(quiet(2)).fit(make<TinyModule>(), testing::tiny_loader(), {}, folder + "/c"); }), 1);
  EXPECT_EQ(count([&] { Trainer(quiet(1)).validate(make<TinyModule>(), testing::tiny_loader(), folder + "/c"); }), 1);
}

/// Has no layer before configure_model.
class LateModule : public Module {
 public:
  using Options = TinyOptions;
  explicit LateModule(const Options& options) : options_(options) {}
  void configure_model() override {
    if (!layer_) layer_ = register_module("layer", torch::nn::Linear(4, 1));
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    return torch::nn::functional::mse_loss(layer_(batch["x"]), batch["y"]);
  }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = options_.lr});
  }

 private:
  Options options_;
  torch::nn::Linear layer_{nullptr};
};

TEST(Resume, LayersOfConfigureModelAreBuiltBeforeTheirWeightsAreLoaded) {
  const std::string folder = fresh_folder("late");
  auto module = make<LateModule>({});
  Trainer trainer(quiet(1));
  trainer.fit(module, testing::tiny_loader());
  trainer.save_checkpoint(folder + "/c");
  EXPECT_TRUE(identical(weights(*load_from_checkpoint<LateModule>(folder + "/c")), weights(*module)));

  // The ranks are other processes than this one, which gets what they have trained.
  TrainerOptions options = quiet(1);
  options.strategy = "ddp_spawn";
  options.devices = 2;
  seed_everything(3);
  auto spawned = make<LateModule>({});
  Trainer(options).fit(spawned, testing::tiny_loader());
  const auto trained = weights(*spawned);
  ASSERT_EQ(trained.size(), 2u);
  seed_everything(3);
  auto fresh = make<LateModule>({});
  fresh->configure_model();
  EXPECT_FALSE(identical(trained, weights(*fresh)));
}

TEST(Resume, LoadFromCheckpointRebuildsTheModule) {
  const std::string folder = fresh_folder("rebuild");
  auto module = make<TinyModule>({.width = 5});
  Trainer trainer(quiet(1));
  trainer.fit(module, testing::tiny_loader());
  trainer.save_checkpoint(folder + "/c");
  auto loaded = load_from_checkpoint<TinyModule>(folder + "/c");
  EXPECT_TRUE(identical(weights(*loaded), weights(*module)));
  EXPECT_FALSE(loaded->attached());
  auto plain = std::make_shared<TinyModule>(TinyOptions{.width = 5});
  trainer.fit(plain, testing::tiny_loader());
  trainer.save_checkpoint(folder + "/d");
  EXPECT_THROW(load_from_checkpoint<TinyModule>(folder + "/d"), Error) << "no options were recorded";
  EXPECT_TRUE(identical(weights(*load_from_checkpoint<TinyModule>(folder + "/d", {.width = 5})), weights(*plain)));
}

}  // namespace
}  // namespace levin
