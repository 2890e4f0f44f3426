// Steps of an engine are those of fit, to the bit, and so are its checkpoints; what is wrong is refused in words.

#include "../support/captured_log.h"
#include "../support/self_program.h"
#include "../support/tiny.h"

#include <levin/callbacks/early_stopping.h>
#include <levin/callbacks/lambda_callback.h>
#include <levin/callbacks/learning_rate_finder.h>
#include <levin/callbacks/weight_averaging.h>
#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>
#include <levin/core/base/signals.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/checkpoint/state_bytes.h>
#include <levin/core/engine/engine.h>
#include <levin/core/optim/adam.h>
#include <levin/core/optim/sgd.h>
#include <levin/loggers/csv_logger.h>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <thread>
#include <vector>

namespace levin {
namespace {

using ::testing::AllOf;
using testing::CapturedLog;
using testing::fresh_folder;
using ::testing::HasSubstr;
using testing::identical;
using testing::quiet;
using testing::tiny_dataset;
using testing::tiny_loader;
using testing::TinyModule;
using testing::TinyOptions;
using testing::weights;

/// Draws random numbers in the forward, and has a schedule of steps and one of epochs.
class Scheduled : public TinyModule {
 public:
  using TinyModule::TinyModule;
  OptimizerConfigs configure_optimizers() override {
    auto configs = TinyModule::configure_optimizers();
    configs.front().scheduler = {.name = "exponential", .interval = Interval::kStep, .options = half()};
    configs.front().more_schedulers = {{.name = "exponential", .interval = Interval::kEpoch, .options = half()}};
    return configs;
  }

 private:
  static Config half() { return Config::parse("{gamma: 0.9}", {}); }
};

struct StepCase {
  const char* name;
  std::function<void(TrainerOptions&)> configure;
};

std::string name_of(const ::testing::TestParamInfo<StepCase>& info) { return info.param.name; }

DataLoader training_data() { return DataLoader(tiny_dataset(32), {.shuffle = true, .global_batch_size = 8}); }
DataLoaders validation_data() { return {DataLoader(tiny_dataset(16), {.global_batch_size = 8})}; }

Batch tiny_batch() { return *DataLoader(tiny_dataset(8), {.batch_size = 8}).pass({}).next(); }

std::shared_ptr<Module> make_module() {
  seed_everything(7);
  return make<Scheduled>(TinyOptions{.dropout = 0.2});
}

/// Saves at the end of every epoch, as fit and as an engine.
TrainerOptions options_of(const StepCase& item, int64_t epochs, const std::string& folder) {
  TrainerOptions options = quiet(epochs);
  options.log_every_n_steps = 2;
  options.callbacks = {
      make<LambdaCallback>(LambdaCallbackOptions{.on_train_epoch_end = [folder](Trainer& trainer, Module&) {
        trainer.save_checkpoint(fmt::format("{}/epoch{}", folder, trainer.current_epoch()));
      }})};
  item.configure(options);
  return options;
}

/// A program's own loop over the epochs that are left.
void train(Rank& rank, const DataLoader& data, int64_t epochs, bool validates = true,
           const std::function<void()>& after_step = {}) {
  const DataLoader loader = data.copy();
  while (rank.position(loader).epoch < epochs) {
    rank.epoch([&] {
      auto pass = loader.pass(rank.position(loader));
      while (auto batch = pass.next()) {
        rank.train_step(std::move(*batch), {.is_last = pass.remaining() == 0});
        if (after_step) after_step();
      }
      if (validates) rank.validate(validation_data());
    });
  }
}

/// Everything in a checkpoint but times, what is written of the options, and how long the window before was to be.
std::map<std::string, std::string> content(const std::string& path) {
  State tree = read_checkpoint(path);
  for (const char* time : {"elapsed", "seconds_since_validation"}) tree["loops"][time] = 0.0;
  for (const char* number : {"window_examples", "window_usual_examples"}) tree["loops"][number] = int64_t{0};
  std::map<std::string, std::string> sections;
  for (const auto& [name, section] : tree.as_map())
    if (name != "config" && name != "path") sections[name] = state_to_bytes(section);
  return sections;
}

void expect_same_checkpoint(const std::string& expected, const std::string& got) {
  const auto of_fit = content(expected);
  const auto of_engine = content(got);
  ASSERT_EQ(of_fit.size(), of_engine.size());
  for (const auto& [name, bytes] : of_fit) EXPECT_EQ(bytes, of_engine.at(name)) << name;
}

class EngineSteps : public ::testing::TestWithParam<StepCase> {};

TEST_P(EngineSteps, AreThoseOfFit) {
  const std::string root = fresh_folder("engine");
  const auto of_fit = make_module();
  Trainer trainer(options_of(GetParam(), 2, root + "/fit"));
  trainer.fit(of_fit, training_data(), validation_data());

  const auto module = make_module();
  Engine engine(module, options_of(GetParam(), 2, root + "/engine"));
  engine.run([](Rank& rank) { train(rank, training_data(), 2); });
  EXPECT_TRUE(identical(weights(*of_fit), weights(*module)));
  EXPECT_EQ(trainer.callback_metrics(), engine.trainer().callback_metrics());
  EXPECT_EQ(trainer.global_step(), engine.step());
  for (const char* epoch : {"/epoch0", "/epoch1"})
    expect_same_checkpoint(root + "/fit" + epoch, root + "/engine" + epoch);
}

TEST_P(EngineSteps, GoOnWhereFitStoppedAndFitWhereTheyDid) {
  const std::string root = fresh_folder("engine");
  StepCase item = GetParam();
  // Inside of the second epoch, after a whole number of windows.
  const auto configure_saving = [&](const std::string& folder) {
    return [configure = item.configure, folder](TrainerOptions& options) {
      configure(options);
      options.callbacks.push_back(make<LambdaCallback>(LambdaCallbackOptions{
          .on_train_batch_end = [folder](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) {
            if (trainer.total_batches() == 5) trainer.save_checkpoint(folder + "/inside");
          }}));
    };
  };
  item.configure = configure_saving(root + "/fit");
  const auto whole = make_module();
  Trainer trainer(options_of(item, 3, root + "/fit"));
  trainer.fit(whole, training_data());
  const auto expected = weights(*whole);

  const auto module = make_module();
  Engine goes_on(module, options_of(GetParam(), 3, root + "/goes_on"));
  goes_on.load(root + "/fit/inside");
  goes_on.run([](Rank& rank) {
    EXPECT_EQ(rank.position(training_data()).batch, 2);
    train(rank, training_data(), 3, /*validates=*/false);
  });
  EXPECT_TRUE(identical(expected, weights(*module))) << "an engine after fit";

  const auto first = make_module();
  Engine stops(first, options_of(GetParam(), 3, root + "/stops"));
  stops.run([&](Rank& rank) {
    const auto save = [&] {
      if (rank.trainer().total_batches() == 6) rank.save(root + "/stops/inside");
    };
    train(rank, training_data(), 2, /*validates=*/false, save);
  });
  const auto resumed = make_module();
  Trainer later(options_of(GetParam(), 3, root + "/later"));
  later.fit(resumed, training_data(), DataLoaders{}, root + "/stops/inside");
  EXPECT_TRUE(identical(expected, weights(*resumed))) << "fit after an engine";
}

INSTANTIATE_TEST_SUITE_P(
    Cases, EngineSteps,
    ::testing::Values(
        StepCase{"single", [](TrainerOptions&) {}},
        StepCase{"recorded", [](TrainerOptions& options) { options.graph = true; }},
        StepCase{"accumulation", [](TrainerOptions& options) { options.accumulate_grad_batches = 2; }},
        StepCase{"clipping", [](TrainerOptions& options) { options.gradient_clip_val = 0.1; }},
        StepCase{"float16", [](TrainerOptions& options) { options.precision = "16-mixed"; }},
        StepCase{"bfloat16", [](TrainerOptions& options) { options.precision = "bf16-mixed"; }},
        StepCase{"average",
                 [](TrainerOptions& options) { options.callbacks.push_back(make<WeightAveraging>({.decay = 0.9})); }},
        StepCase{"ddp_threads",
                 [](TrainerOptions& options) {
                   options.strategy = "ddp_threads";
                   options.devices = 2;
                 }},
        StepCase{"ddp_threads_accumulation",
                 [](TrainerOptions& options) {
                   options.strategy = "ddp_threads";
                   options.devices = 2;
                   options.accumulate_grad_batches = 2;
                 }},
        StepCase{"ddp_spawn",
                 [](TrainerOptions& options) {
                   options.strategy = "ddp_spawn";
                   options.devices = 2;
                 }},
        StepCase{"sharded_spawn",
                 [](TrainerOptions& options) {
                   options.strategy = Spec<Strategy>(Config::parse("{name: sharded_spawn, stage: 3}", {}));
                   options.devices = 2;
                 }},
        StepCase{"mesh_threads",
                 [](TrainerOptions& options) {
                   options.strategy =
                       Spec<Strategy>(Config::parse("{replicate: 2, shard: 2, start_method: thread}", {}));
                   options.devices = 4;
                 }},
        StepCase{"recorded_accumulation_clipping_average",
                 [](TrainerOptions& options) {
                   options.graph = true;
                   options.accumulate_grad_batches = 2;
                   options.gradient_clip_val = 0.1;
                   options.callbacks.push_back(make<WeightAveraging>({.decay = 0.9}));
                 }},
        StepCase{"sharded_threads",
                 [](TrainerOptions& options) {
                   options.strategy = Spec<Strategy>(Config::parse("{name: sharded_threads, stage: 3}", {}));
                   options.devices = 2;
                 }}),
    name_of);

/// Two optimizers by hand, of which the second steps in every other batch.
class TwoByHand : public Module {
 public:
  struct Options {
    static void describe(Schema<Options>& /*schema*/) {}
  };
  explicit TwoByHand(const Options& /*options*/) {
    automatic_optimization = false;
    first = register_module("first", torch::nn::Linear(4, 4));
    second = register_module("second", torch::nn::Linear(4, 1));
  }
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    const at::Tensor loss = at::mse_loss(second(first(batch["x"]).tanh()), batch["y"]);
    optimizer(0).zero_grad();
    manual_backward(loss);
    optimizer(0).step();
    if (batch_idx % 2 == 1) {
      optimizer(1).step();
      optimizer(1).zero_grad();
    }
    log("loss", loss.detach(), {.on_epoch = true});
    return StepOutput();
  }
  OptimizerConfigs configure_optimizers() override {
    return {{.optimizer = std::make_shared<optim::Adam>(first->parameters(), optim::AdamOptions{.lr = 0.01})},
            {.optimizer = std::make_shared<optim::SGD>(second->parameters(), optim::SGDOptions{.lr = 0.1})}};
  }

  torch::nn::Linear first{nullptr}, second{nullptr};
};

TEST(Engine, StepsByHandAreThoseOfFit) {
  const auto make_by_hand = [] {
    seed_everything(7);
    return make<TwoByHand>({});
  };
  for (const char* precision : {"32-true", "16-mixed"})
    for (const char* strategy : {"single_device", "ddp_threads"}) {
      SCOPED_TRACE(fmt::format("{} {}", precision, strategy));
      const std::string root = fresh_folder("engine");
      const auto options_in = [&](const std::string& folder) {
        TrainerOptions options = options_of({"", [](TrainerOptions&) {}}, 2, root + folder);
        options.precision = precision;
        options.strategy = strategy;
        options.devices = std::string(strategy) == "ddp_threads" ? 2 : 1;
        return options;
      };
      const auto of_fit = make_by_hand();
      Trainer trainer(options_in("/fit"));
      trainer.fit(of_fit, training_data());

      const auto module = make_by_hand();
      Engine engine(module, options_in("/engine"));
      engine.run([](Rank& rank) { train(rank, training_data(), 2, /*validates=*/false); });
      EXPECT_TRUE(identical(weights(*of_fit), weights(*module)));
      EXPECT_EQ(trainer.callback_metrics(), engine.trainer().callback_metrics());
      expect_same_checkpoint(root + "/fit/epoch0", root + "/engine/epoch0");

      const auto resumed = make_by_hand();
      Engine goes_on(resumed, options_in("/goes_on"));
      goes_on.load(root + "/fit/epoch0");
      goes_on.run([](Rank& rank) { train(rank, training_data(), 2, /*validates=*/false); });
      EXPECT_TRUE(identical(weights(*of_fit), weights(*resumed)));
    }
}

// ---- Without run

TEST(Engine, NeedsNoEpochsAndNoRun) {
  const auto of_fit = make_module();
  Trainer trainer(quiet(1));
  trainer.fit(of_fit, training_data());

  const auto module = make_module();
  Engine engine(module, quiet(1));
  const DataLoader loader = training_data();
  auto pass = loader.pass(engine.position(loader));
  while (auto batch = pass.next()) {
    const StepOutput output = engine.train_step(std::move(*batch));
    EXPECT_TRUE(output.loss().defined());
  }
  EXPECT_EQ(engine.step(), 4);
  engine.close();
  engine.close();  // again does nothing
  EXPECT_EQ(trainer.global_step(), 4);
}

TEST(Engine, TellsCallbacksOfWhatThereIs) {
  std::vector<std::string> calls;
  TrainerOptions options = quiet(-1);
  options.callbacks = {make<LambdaCallback>(LambdaCallbackOptions{
      .on_fit_start = [&](Trainer&, Module&) { calls.emplace_back("fit_start"); },
      .on_fit_end = [&](Trainer&, Module&) { calls.emplace_back("fit_end"); },
      .on_train_epoch_start = [&](Trainer&, Module&) { calls.emplace_back("epoch_start"); },
      .on_train_epoch_end = [&](Trainer&, Module&) { calls.emplace_back("epoch_end"); },
      .on_train_batch_end = [&](Trainer&, Module&, const StepOutput&, const Batch&,
                                int64_t batch) { calls.push_back(fmt::format("batch {}", batch)); },
      .on_validation_end = [&](Trainer&, Module&) { calls.emplace_back("validation_end"); }})};
  {
    Engine engine(make_module(), options);
    EXPECT_TRUE(calls.empty()) << "nothing runs before the first call";
    engine.train_step(tiny_batch());
    engine.epoch([&] {
      engine.train_step(tiny_batch());
      engine.train_step(tiny_batch());
      engine.validate(validation_data());
    });
    engine.train_step(tiny_batch());
    EXPECT_EQ(engine.current_epoch(), 1);
  }
  EXPECT_EQ(calls, (std::vector<std::string>{"fit_start", "batch 0", "epoch_start", "batch 1", "batch 2",
                                             "validation_end", "epoch_end", "batch 0", "fit_end"}));
}

TEST(Engine, EvaluatesAndPredictsSingleBatches) {
  const auto module = make_module();
  Engine engine(module, quiet(-1));
  const auto before = weights(*module);
  const double loss = engine.eval_step(tiny_batch()).loss().item<double>();
  EXPECT_FLOAT_EQ(engine.trainer().callback_metrics().at("val_loss"), loss);
  const Batch prediction = engine.predict_step(tiny_batch());
  EXPECT_FALSE(prediction["y"].requires_grad());
  EXPECT_FALSE(prediction["y"].is_inference());
  EXPECT_NEAR(at::mse_loss(prediction["y"], tiny_batch()["y"]).item<double>(), loss, 1e-6);
  EXPECT_TRUE(identical(before, weights(*module)));
  EXPECT_TRUE(module->is_training());
  EXPECT_NEAR(engine.validate({DataLoader(tiny_dataset(8), {.batch_size = 8})}).at(0).at("val_loss"), loss, 1e-6);
}

/// Two optimizers' worth of steps by hand, in the loop's own words.
class ByHand : public TinyModule {
 public:
  explicit ByHand(const Options& options) : TinyModule(options) { automatic_optimization = false; }
};

TEST(Engine, TakesStepsByHand) {
  seed_everything(7);
  const auto module = make<ByHand>(TinyOptions{});
  Engine engine(module, quiet(-1));
  const auto twice = [&](Module&, const Batch& batch) -> StepOutput {
    at::Tensor loss;
    for (int i = 0; i < 2; ++i) {
      loss = torch::nn::functional::mse_loss(module->forward(batch["x"]), batch["y"]);
      engine.backward(loss);
      engine.optimizer_step();
      module->optimizer().zero_grad();
    }
    engine.log("own", 3);
    return loss;
  };
  engine.train_step(tiny_batch(), {.step = twice});
  EXPECT_EQ(engine.step(), 2);
  EXPECT_EQ(engine.trainer().callback_metrics().at("own"), 3);
}

TEST(Engine, TakesALossOfTheProgramsOwn) {
  const auto module = make<TinyModule>(TinyOptions{});
  Engine engine(module, quiet(-1));
  const auto before = weights(*module);
  const StepOutput output =
      engine.train_step(tiny_batch(), {.step = [&](Module& own, const Batch& batch) -> StepOutput {
                          return dynamic_cast<TinyModule&>(own).forward(batch["x"]).square().mean();
                        }});
  EXPECT_GT(output.loss().item<double>(), 0);
  EXPECT_FALSE(identical(before, weights(*module)));
}

TEST(Engine, ValidatesOnTheLoaderThatItTrainsOn) {
  for (const bool asks_position : {false, true}) {
    Engine engine(make_module(), quiet(-1));
    const DataLoader loader = tiny_loader(32, 8);
    auto pass = loader.pass(asks_position ? engine.position(loader) : DataLoaderPosition());
    while (auto batch = pass.next()) {
      engine.train_step(std::move(*batch));
      engine.validate({loader});
    }
    EXPECT_EQ(engine.step(), 4);
  }
}

/// As values of a target network.
TEST(Engine, LearnsFromItsPredictions) {
  const auto module = make<TinyModule>(TinyOptions{});
  Engine engine(module, quiet(-1));
  const at::Tensor wanted = engine.predict_step(tiny_batch())["y"] + 1;
  const at::Tensor loss = engine.eval_step(tiny_batch()).loss();
  EXPECT_FALSE(loss.is_inference());
  const StepOutput output = engine.train_step({{"x", tiny_batch()["x"]}, {"y", wanted}});
  EXPECT_NEAR(output.loss().item<double>(), 1, 1e-6);
  engine.train_step(tiny_batch(), {.step = [&](Module& own, const Batch& batch) -> StepOutput {
                      return loss * dynamic_cast<TinyModule&>(own).forward(batch["x"]).square().mean();
                    }});
  EXPECT_EQ(engine.step(), 2);
}

Batch no_rows() { return {{"x", at::empty({0, 4})}, {"y", at::empty({0, 1})}}; }

TEST(Engine, BatchesWithoutRowsCountForNothing) {
  const auto train = [](const std::vector<bool>& has_rows, int64_t window) {
    seed_everything(7);
    const auto module = make<TinyModule>(TinyOptions{});
    Engine engine(module, quiet(-1));
    engine.accumulate(window);
    for (const bool has : has_rows) engine.train_step(has ? tiny_batch() : no_rows());
    EXPECT_FALSE(engine.trainer().callback_metrics().empty());
    for (const auto& [name, value] : engine.trainer().callback_metrics()) EXPECT_TRUE(std::isfinite(value)) << name;
    return std::make_pair(engine.step(), weights(*module));
  };
  const auto [steps, trained] = train({true, true}, 1);
  const auto [steps_with_none, trained_with_none] = train({true, false, true}, 1);
  EXPECT_EQ(steps, 2);
  EXPECT_EQ(steps_with_none, 2);
  EXPECT_TRUE(identical(trained, trained_with_none));

  const auto [window_steps, window] = train({true, false, true, false}, 4);
  EXPECT_EQ(window_steps, 1);
  for (const at::Tensor& parameter : window) EXPECT_TRUE(parameter.isfinite().all().item<bool>());
}

TEST(Engine, ARankWithoutRowsJoinsTheStepsOfTheOthers) {
  for (const char* strategy : {"ddp_threads", "sharded_threads"}) {
    TrainerOptions options = quiet(-1);
    options.strategy = strategy;
    options.devices = 2;
    const auto module = make_module();
    Engine engine(module, options);
    engine.run([&](Rank& rank) {
      for (int i = 0; i < 3; ++i) rank.train_step(rank.global_rank() == 1 && i > 0 ? no_rows() : tiny_batch());
      rank.train_step(no_rows());
      EXPECT_EQ(rank.step(), 3);
    });
    for (const at::Tensor& parameter : weights(*module)) EXPECT_TRUE(parameter.isfinite().all().item<bool>());
  }
}

TEST(Engine, WeighsStepsByHandByTheExamplesOfEachRank) {
  class ByHand : public TinyModule {
   public:
    explicit ByHand(const TinyOptions& options) : TinyModule(options) { automatic_optimization = false; }
    StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
      optimizer(0).zero_grad();
      manual_backward(TinyModule::training_step(batch, batch_idx).loss());
      optimizer(0).step();
      return {};
    }
    OptimizerConfigs configure_optimizers() override {
      return OptimizerConfig{.optimizer = std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.05})};
    }
  };
  // How many examples each rank has in each batch of ten.
  using Sizes = std::vector<std::vector<int64_t>>;
  const auto train = [](const std::string& strategy, const Sizes& sizes, bool graph) {
    TrainerOptions options = quiet(-1);
    options.strategy = strategy;
    options.devices = std::ssize(sizes.front());
    if (graph) options.graph = true;
    seed_everything(7);
    const auto module = make<ByHand>(TinyOptions{});
    Engine engine(module, options);
    engine.run([&](Rank& rank) {
      const auto own = static_cast<size_t>(rank.global_rank());
      for (const auto& of_ranks : sizes) {
        int64_t first = 0;
        for (size_t before = 0; before < own; ++before) first += of_ranks[before];
        const at::Tensor x = at::arange(40, at::kFloat).reshape({10, 4}).mul(0.7).sin().narrow(0, first, of_ranks[own]);
        rank.train_step({{"x", x}, {"y", x.sum(1, true)}});
      }
    });
    return weights(*module);
  };
  const auto expected = train("single_device", Sizes(20, {10}), false);
  Sizes sizes(20, {5, 5});
  sizes[3] = {7, 3};
  for (size_t i = 12; i < 16; ++i) sizes[i] = {1, 9};
  for (const char* strategy : {"ddp_threads", "sharded_threads"})
    for (const bool graph : {false, true}) {
      const auto got = train(strategy, sizes, graph);
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(at::allclose(got[i], expected[i], 0, 1e-6)) << strategy << " recorded " << graph;
    }
}

TEST(Engine, AccumulatesAsManyBatchesAsItIsTold) {
  Engine engine(make_module(), quiet(-1));
  engine.accumulate(3);
  for (int i = 0; i < 4; ++i) engine.train_step(tiny_batch());
  EXPECT_EQ(engine.step(), 1);
  engine.accumulate(1);  // from the next window on
  engine.train_step(tiny_batch());
  engine.train_step(tiny_batch());
  EXPECT_EQ(engine.step(), 2);
  engine.train_step(tiny_batch());
  EXPECT_EQ(engine.step(), 3);
}

TEST(Engine, GoesOnToTheBitWhereBatchesDifferInSize) {
  const std::vector<int64_t> sizes = {8, 8, 8, 5, 7, 3, 6, 2, 5};
  const std::string path = fresh_folder("engine_sizes") + "/middle";
  const auto train = [&](const std::shared_ptr<Module>& module, size_t begin, size_t end, const std::string& ckpt) {
    Engine engine(module, quiet(-1));
    if (!ckpt.empty()) engine.load(ckpt);
    engine.accumulate(3);
    for (size_t i = begin; i < end; ++i)
      engine.train_step(*DataLoader(tiny_dataset(sizes[i]), {.batch_size = sizes[i]}).pass({}).next());
    if (end < sizes.size()) engine.save(path);
    engine.close();
    return weights(*module);
  };
  const auto undisturbed = train(make_module(), 0, sizes.size(), "");
  train(make_module(), 0, 3, "");
  EXPECT_TRUE(identical(train(make_module(), 3, sizes.size(), path), undisturbed));
}

TEST(Engine, SaysWhenToStop) {
  TrainerOptions options = quiet(-1);
  options.max_steps = 3;
  Engine by_steps(make_module(), options);
  while (!by_steps.stop_requested()) by_steps.train_step(tiny_batch());
  EXPECT_EQ(by_steps.step(), 3);

  Engine by_request(make_module(), quiet(-1));
  by_request.train_step(tiny_batch());
  std::thread([&] { by_request.request_stop("another thread asks"); }).join();
  EXPECT_TRUE(by_request.stop_requested());

  Engine by_epochs(make_module(), quiet(2));
  while (!by_epochs.stop_requested()) by_epochs.epoch([&] { by_epochs.train_step(tiny_batch()); });
  EXPECT_EQ(by_epochs.step(), 2);
}

TEST(Engine, RanksStopBeforeTheSameBatch) {
  TrainerOptions options = quiet(-1);
  options.strategy = "ddp_threads";
  options.devices = 2;
  std::array<std::atomic<int64_t>, 2> steps;
  Engine engine(make_module(), options);
  engine.run([&](Rank& rank) {
    EXPECT_EQ(rank.all_gather(at::full({}, rank.global_rank())).sum().item<int64_t>(), 1);
    while (!rank.stop_requested()) {
      if (rank.global_rank() == 1 && rank.step() == 3) rank.request_stop("one rank has enough");
      rank.train_step(tiny_batch());
    }
    rank.barrier();
    steps[static_cast<size_t>(rank.global_rank())] = rank.step();
  });
  EXPECT_EQ(steps[0], steps[1]);
  EXPECT_GE(steps[0], 3);
}

/// Asked before a batch that no rank takes.
TEST(Engine, RanksThatAskedWhetherToStopMayEnd) {
  TrainerOptions options = quiet(-1);
  options.strategy = "ddp_threads";
  options.devices = 2;
  Engine(make_module(), options).run([&](Rank& rank) {
    while (!rank.stop_requested() && rank.step() < 3) rank.train_step(tiny_batch());
    EXPECT_EQ(rank.step(), 3);
  });
}

TEST(Engine, ARequestBetweenStepsEndsALoopThatOnlyAsks) {
  TrainerOptions options = quiet(-1);
  options.strategy = "ddp_threads";
  options.devices = 2;
  Engine(make_module(), options).run([&](Rank& rank) {
    rank.train_step(tiny_batch());
    EXPECT_FALSE(rank.stop_requested());
    if (rank.global_rank() == 1) rank.request_stop("there is no more data");
    EXPECT_TRUE(rank.stop_requested());
    EXPECT_EQ(rank.step(), 1);
  });
}

TEST(Engine, LogsTheProgramsValuesAtThePresentStep) {
  const std::string root = fresh_folder("engine");
  TrainerOptions options = quiet(-1);
  options.default_root_dir = root;
  options.logger = {make<CsvLogger>({})};
  {
    Engine engine(make_module(), options);
    engine.train_step(tiny_batch());
    engine.log("reward", 5);
    engine.train_step(tiny_batch());
  }
  EXPECT_THAT(testing::read_text(root + "/version_0/metrics.csv"), HasSubstr("reward"));
}

TEST(Engine, LeavesSignalsAndOutputAlone) {
  struct sigaction before {
  }, during{};
  sigaction(SIGINT, nullptr, &before);
  const CapturedLog log;
  ::testing::internal::CaptureStderr();
  Engine engine(make_module(), {.logger = false, .enable_checkpointing = false});
  engine.epoch([&] { engine.train_step(tiny_batch()); });
  sigaction(SIGINT, nullptr, &during);
  engine.close();
  EXPECT_EQ(before.sa_handler, during.sa_handler);
  EXPECT_EQ(log.text() + ::testing::internal::GetCapturedStderr(), "");
}

TEST(Engine, IsNotEndedByASignalThatATrainerGot) {
  const auto handler = ::signal(SIGTERM, SIG_IGN);
  Trainer trainer([] {
    TrainerOptions options = quiet(3);
    options.callbacks = {make<LambdaCallback>(LambdaCallbackOptions{
        .on_train_batch_end = [](Trainer&, Module&, const StepOutput&, const Batch&, int64_t) { raise(SIGTERM); }})};
    return options;
  }());
  trainer.fit(make_module(), training_data());
  ASSERT_EQ(trainer.status(), TrainerStatus::kInterrupted);
  ::signal(SIGTERM, handler);
  Engine engine(make_module(), quiet(-1));
  for (int i = 0; i < 3; ++i) engine.train_step(tiny_batch());
  EXPECT_FALSE(engine.validate(validation_data()).at(0).empty());
  EXPECT_EQ(engine.step(), 3);
  engine.close();
  EXPECT_EQ(engine.trainer().status(), TrainerStatus::kFinished);

  TrainerOptions options = quiet(-1);
  options.strategy = "ddp_spawn";
  options.devices = 2;
  Engine forks(make_module(), options);
  forks.run([](Rank& rank) { rank.train_step(tiny_batch()); });
  EXPECT_EQ(forks.step(), 1);
}

TEST(Engine, TwoInTwoThreadsWorkSideBySide) {
  const auto trained = [] {
    const auto module = make<TinyModule>(TinyOptions{});
    for (auto& parameter : module->parameters()) parameter.detach().fill_(0.1);
    Engine engine(module, quiet(-1));
    for (int i = 0; i < 50; ++i) engine.train_step(tiny_batch());
    engine.close();
    return weights(*module);
  };
  const auto expected = trained();
  std::vector<at::Tensor> first, second;
  std::thread one([&] { first = trained(); });
  std::thread other([&] { second = trained(); });
  one.join();
  other.join();
  EXPECT_TRUE(identical(expected, first));
  EXPECT_TRUE(identical(expected, second));
}

TEST(Engine, MovesBetweenThreads) {
  Engine engine(make_module(), quiet(-1));
  engine.train_step(tiny_batch());
  std::thread([&] { engine.train_step(tiny_batch()); }).join();
  engine.train_step(tiny_batch());
  EXPECT_EQ(engine.step(), 3);
}

// ---- Ranks that a launcher has started

/// A rank's part of a job: trains as an engine or by fit, and prints a checksum of the weights.
int run_rank() {
  log::set_sink([](const std::string&) {});
  TrainerOptions options = quiet(2);
  options.strategy = Spec<Strategy>(Config::parse(std::getenv("ENGINE_STRATEGY"), {}));
  const bool starts_ranks = std::getenv("ENGINE_STARTS") != nullptr;
  options.devices = starts_ranks ? 2 : 1;
  options.num_nodes = starts_ranks ? 1 : 2;
  const auto module = make_module();
  if (std::getenv("ENGINE_FITS") != nullptr) {
    Trainer(options).fit(module, training_data(), validation_data());
  } else {
    Engine engine(module, options);
    engine.run([](Rank& rank) {
      train(rank, training_data(), 2);
      EXPECT_EQ(rank.world_size(), 2);
    });
  }
  if (starts_ranks && std::getenv("RANK") != nullptr) return 0;  // rank 1, which runs the program again
  for (const at::Tensor& weight : weights(*module))
    fmt::print("{:.9} {:.9}\n", weight.sum().item<double>(), weight.square().sum().item<double>());
  return 0;
}
const testing::SelfProgram rank_program("engine_rank", run_rank);

/// A port that nobody listens on.
std::string free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(bind(socket, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(socket);
  return std::to_string(ntohs(address.sin_port));
}

std::string output_of_two_ranks(const std::string& strategy, bool fits) {
  std::map<std::string, std::string> variables = {
      {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", free_port()}, {"ENGINE_STRATEGY", strategy}};
  if (fits) variables["ENGINE_FITS"] = "1";
  std::vector<testing::ProgramResult> results(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank, own = variables]() mutable {
      own["RANK"] = std::to_string(rank);
      results[static_cast<size_t>(rank)] = rank_program.run(own);
    });
  for (auto& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result.status, 0) << result.err;
  return results[0].out;
}

TEST(EngineUnderALauncher, StepsAreThoseOfFit) {
  for (const char* strategy : {"ddp", "{name: sharded, stage: 3}"}) {
    const std::string expected = output_of_two_ranks(strategy, /*fits=*/true);
    EXPECT_NE(expected, "");
    EXPECT_EQ(output_of_two_ranks(strategy, /*fits=*/false), expected) << strategy;
  }
}

/// Processes that run the program again.
TEST(EngineThatStartsRanks, StepsAreThoseOfFit) {
  for (const char* strategy : {"ddp", "{name: sharded, stage: 3}"}) {
    std::map<std::string, std::string> variables = {{"ENGINE_STRATEGY", strategy}, {"ENGINE_STARTS", "1"}};
    const auto of_engine = rank_program.run(variables);
    variables["ENGINE_FITS"] = "1";
    const auto of_fit = rank_program.run(variables);
    EXPECT_EQ(of_engine.status, 0) << of_engine.err;
    EXPECT_EQ(of_fit.status, 0) << of_fit.err;
    EXPECT_NE(of_fit.out, "");
    EXPECT_EQ(of_engine.out, of_fit.out) << strategy;
  }
}

// ---- Bad input

template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(BadEngine, AfterTheEnd) {
  Engine engine(make_module(), quiet(-1));
  engine.train_step(tiny_batch());
  engine.close();
  EXPECT_EQ(error_of([&] { engine.train_step(tiny_batch()); }),
            "[engine] train_step after close(); got an engine that has ended; valid: before; hint: make a new engine, "
            "and load() what was saved");
  EXPECT_THAT(error_of([&] { engine.save("x"); }), HasSubstr("[engine] save after close()"));
  EXPECT_THAT(error_of([&] { engine.run([](Rank&) {}); }), HasSubstr("[engine] run after close()"));
  EXPECT_THAT(error_of([&] { engine.load("x"); }), HasSubstr("[engine] load after close()"));
}

TEST(BadEngine, AfterAFailure) {
  const auto module = make_module();
  Engine engine(module, quiet(-1));
  engine.train_step(tiny_batch());
  const std::string error = error_of([&] { engine.train_step({{"z", at::ones({8, 4})}}); });
  EXPECT_THAT(error, HasSubstr("in training_step of"));
  EXPECT_THAT(error_of([&] { engine.train_step(tiny_batch()); }),
              HasSubstr("[engine] train_step after a call that failed; got '"));
  engine.close();
  Engine anew(module, quiet(-1));
  anew.train_step(tiny_batch());
  EXPECT_EQ(anew.step(), 1);
}

TEST(BadEngine, InsideOfAStep) {
  Engine* engine = nullptr;
  std::string of_save, of_step, of_close;
  TrainerOptions options = quiet(-1);
  options.callbacks = {make<LambdaCallback>(
      LambdaCallbackOptions{.on_train_batch_end = [&](Trainer&, Module&, const StepOutput&, const Batch&, int64_t) {
        of_save = error_of([&] { engine->save("x"); });
        of_step = error_of([&] { engine->train_step(tiny_batch()); });
        of_close = error_of([&] { engine->close(); });
      }})};
  Engine made(make_module(), options);
  engine = &made;
  made.train_step(tiny_batch());
  EXPECT_THAT(of_save, HasSubstr("[engine] save inside of a step; got a call from a hook or a step of train_step; "
                                 "valid: between steps; hint: trainer().save_checkpoint() in a hook"));
  EXPECT_THAT(of_step, HasSubstr("[engine] train_step inside of a step"));
  EXPECT_THAT(of_close, HasSubstr("[engine] close of the engine inside of its run() or of a step"));
  made.train_step(tiny_batch());
  EXPECT_EQ(made.step(), 2) << "refused calls change nothing";
  EXPECT_THAT(error_of([&] { made.backward(at::ones({})); }), HasSubstr("[engine] backward outside of a step"));
  EXPECT_THAT(error_of([&] { made.optimizer_step(); }), HasSubstr("[engine] optimizer_step outside of a step"));
}

TEST(BadEngine, FromTwoThreadsAtOnce) {
  Engine* engine = nullptr;
  std::string of_other;
  TrainerOptions options = quiet(-1);
  options.callbacks = {make<LambdaCallback>(
      LambdaCallbackOptions{.on_train_batch_end = [&](Trainer&, Module&, const StepOutput&, const Batch&, int64_t) {
        std::thread([&] { of_other = error_of([&] { engine->train_step(tiny_batch()); }); }).join();
      }})};
  Engine made(make_module(), options);
  engine = &made;
  made.train_step(tiny_batch());
  EXPECT_THAT(of_other, HasSubstr("[engine] train_step while another thread uses the engine; got train_step under way "
                                  "there; valid: one thread at a time"));
  EXPECT_EQ(made.step(), 1);
}

/// Has layers alone.
class Layers : public Module {
 public:
  Layers() { net = register_module("net", torch::nn::Linear(4, 1)); }
  torch::nn::Linear net{nullptr};
};

TEST(BadEngine, StepsThatTheModuleDoesNotHave) {
  TrainerOptions options = quiet(-1);
  options.optimizer = "sgd";
  const auto module = std::make_shared<Layers>();
  Engine engine(module, options);
  EXPECT_THAT(error_of([&] { engine.train_step(tiny_batch()); }),
              HasSubstr("[engine] train_step needs training_step(), which Layers does not override"));
  EXPECT_THAT(error_of([&] { engine.eval_step(tiny_batch()); }),
              HasSubstr("[engine] eval_step needs validation_step(), which Layers does not override"));
  EXPECT_THAT(error_of([&] { engine.validate(validation_data()); }),
              HasSubstr("[engine] validate needs validation_step(), which Layers does not override"));
  EXPECT_THAT(error_of([&] { engine.predict_step(tiny_batch()); }),
              HasSubstr("[engine] predict_step needs predict_step(), which Layers does not override"));
  engine.train_step(tiny_batch(), {.step = [&](Module&, const Batch& batch) -> StepOutput {
                      return module->net(batch["x"]).square().mean();
                    }});
  EXPECT_EQ(engine.step(), 1);
}

TEST(BadEngine, NamesThatNoValueCanHave) {
  Engine engine(make_module(), quiet(-1));
  for (const char* name : {"epoch", "step", ""})
    EXPECT_THAT(error_of([&] { engine.log(name, 1); }), HasSubstr("name")) << name;
  engine.train_step(tiny_batch());
  EXPECT_EQ(engine.step(), 1);
}

TEST(BadEngine, Batches) {
  Engine engine(make_module(), quiet(-1));
  EXPECT_THAT(error_of([&] { engine.train_step({}); }), HasSubstr("[engine] train_step was given an empty batch"));
  EXPECT_THAT(error_of([&] {
                engine.predict_step({{"x", at::ones({8, 4}, at::kMeta)}});
              }),
              HasSubstr("[engine] predict_step was given a batch of another device; got 'x' on meta; valid: cpu"));
  EXPECT_THAT(error_of([&] { engine.train_step(tiny_batch(), {.is_last = true}); }),
              HasSubstr("got a step outside of an epoch; valid: inside of epoch()"));
  engine.epoch([&] {
    engine.train_step(tiny_batch(), {.is_last = true});
    EXPECT_THAT(error_of([&] { engine.train_step(tiny_batch()); }),
                HasSubstr("[engine] train_step after the last batch of epoch 0"));
    EXPECT_THAT(error_of([&] { engine.epoch([] {}); }), HasSubstr("[engine] epoch inside of an epoch"));
    EXPECT_THAT(error_of([&] { engine.close(); }), HasSubstr("[engine] close inside of an epoch"));
  });
  engine.train_step(tiny_batch());
  EXPECT_EQ(engine.step(), 2);
}

TEST(BadEngine, EpochsThatEndInsideOfAWindow) {
  TrainerOptions options = quiet(-1);
  options.accumulate_grad_batches = 2;
  Engine engine(make_module(), options);
  EXPECT_THAT(error_of([&] { engine.epoch([&] { engine.train_step(tiny_batch()); }); }),
              HasSubstr("[engine] the epoch ends inside of an accumulation window, after 1 of 2 batches; hint: "
                        "train_step(batch, {.is_last = true})"));
  engine.epoch([&] { engine.train_step(tiny_batch()); });
  EXPECT_EQ(engine.step(), 1);
  EXPECT_EQ(engine.current_epoch(), 0);
}

TEST(BadEngine, AnErrorOfTheProgramLeavesTheEpochOpen) {
  Engine engine(make_module(), quiet(-1));
  EXPECT_THROW(engine.epoch([&] {
    engine.train_step(tiny_batch());
    throw std::runtime_error("the game is over");
  }),
               std::runtime_error);
  engine.epoch([&] { engine.train_step(tiny_batch()); });
  EXPECT_EQ(engine.current_epoch(), 0);
  EXPECT_EQ(engine.trainer().total_batches(), 2);
}

TEST(BadEngine, StrategiesWhoseRanksShareALoader) {
  TrainerOptions options = quiet(-1);
  options.strategy = "parameter_server_threads";
  options.devices = 2;
  EXPECT_THAT(error_of([&] { Engine(make_module(), options); }), HasSubstr("gives its ranks batches of one loader"));
}

TEST(BadEngine, ThreadRanksOutsideOfRun) {
  TrainerOptions options = quiet(-1);
  options.strategy = "ddp_threads";
  options.devices = 2;
  Engine engine(make_module(), options);
  EXPECT_THAT(error_of([&] { engine.train_step(tiny_batch()); }),
              HasSubstr("[engine] train_step of an engine whose ranks run() starts; got strategy 'ddp_threads' on 2 "
                        "devices; valid: engine.run("));
  std::string inside, other;
  engine.run([&](Rank& rank) {
    rank.train_step(tiny_batch());
    if (!rank.is_global_zero()) return;
    inside = error_of([&] { engine.train_step(tiny_batch()); });
    other = error_of([&] { engine.run([](Rank&) {}); });
  });
  EXPECT_THAT(inside, HasSubstr("[engine] train_step of the engine inside of its run()"));
  EXPECT_THAT(other, HasSubstr("[engine] run inside of run or of a step"));
}

TEST(BadEngine, ARankThatThrowsEndsAll) {
  for (const char* strategy : {"ddp_threads", "ddp_spawn"}) {
    SCOPED_TRACE(strategy);
    TrainerOptions options = quiet(-1);
    options.strategy = strategy;
    options.devices = 2;
    Engine engine(make_module(), options);
    const auto run = [&] {
      engine.run([](Rank& rank) {
        rank.train_step(tiny_batch());
        if (rank.global_rank() == 1) throw std::runtime_error("rank 1 has no more games");
        for (;;) rank.train_step(tiny_batch());
      });
    };
    try {
      run();
      FAIL() << "nothing was thrown";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 1 has no more games"));
    }
    EXPECT_THAT(error_of([&] { engine.train_step(tiny_batch()); }), HasSubstr("[engine] train_step after run()"));
  }
}

TEST(BadEngine, RanksThatTakeUnequalNumbersOfSteps) {
  for (const char* strategy : {"ddp_threads", "sharded_threads"}) {
    for (const int64_t longer : {0, 1}) {
      TrainerOptions options = quiet(-1);
      options.strategy = strategy;
      options.devices = 2;
      Engine engine(make_module(), options);
      EXPECT_THAT(error_of([&] {
                    engine.run([&](Rank& rank) {
                      const int64_t steps = rank.global_rank() == longer ? 4 : 3;
                      while (rank.step() < steps) rank.train_step(tiny_batch());
                    });
                  }),
                  AllOf(HasSubstr("[engine] rank " + std::to_string(1 - longer) + " ends after batch 3"),
                        HasSubstr("valid: as many steps on every rank")));
    }
  }
}

TEST(BadEngine, OptionsAndCallbacksOfALoop) {
  const auto error_with = [](const std::function<void(TrainerOptions&)>& configure) {
    TrainerOptions options = quiet(-1);
    configure(options);
    return error_of([&] {
      Engine engine(make_module(), options);
      engine.train_step(tiny_batch());
    });
  };
  EXPECT_THAT(error_with([](auto& options) { options.limit_train_batches = 2; }),
              HasSubstr("trainer.limit_train_batches is an option of the loop over training data"));
  EXPECT_THAT(error_with([](auto& options) { options.fast_dev_run = true; }), HasSubstr("trainer.fast_dev_run"));
  EXPECT_THAT(error_with([](auto& options) { options.val_check_interval = 2; }), HasSubstr("val_check_interval"));
  EXPECT_THAT(error_with([](auto& options) { options.callbacks = {make<LearningRateFinder>({})}; }),
              HasSubstr("needs a loop over training data"));
  EXPECT_THAT(error_of([] { Engine(nullptr, quiet(-1)); }),
              HasSubstr("[engine] an engine needs a module; got nullptr"));
}

TEST(BadEngine, LoadAndCheckpoints) {
  const std::string root = fresh_folder("engine");
  Engine engine(make_module(), quiet(-1));
  EXPECT_THAT(error_of([&] { Engine(make_module(), quiet(-1)).load(root + "/nothing"); }), HasSubstr("nothing"));
  engine.train_step(tiny_batch());
  EXPECT_THAT(error_of([&] { engine.load(root); }), HasSubstr("[engine] load after the first step"));
  EXPECT_THAT(error_of([&] { engine.validate(); }), HasSubstr("[engine] validate was given no loader"));
  EXPECT_THAT(error_of([&] { engine.save("/proc/nothing/can/be/made/here"); }), HasSubstr("/proc/nothing"));
  EXPECT_THAT(error_of([&] { engine.accumulate(0); }), HasSubstr("valid: at least 1"));
  engine.train_step(tiny_batch());
  EXPECT_EQ(engine.step(), 2) << "what is refused changes nothing";

  // A place among other batches is refused by name.
  TrainerOptions options = quiet(1);
  options.callbacks = {make<LambdaCallback>(LambdaCallbackOptions{
      .on_train_batch_end = [&](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t batch) {
        if (batch == 1) trainer.save_checkpoint(root + "/inside");
      }})};
  Trainer trainer(options);
  trainer.fit(make_module(), tiny_loader(32, 8));
  Engine goes_on(make_module(), quiet(-1));
  goes_on.load(root + "/inside");
  EXPECT_EQ(goes_on.step(), 2);
  EXPECT_EQ(goes_on.position(tiny_loader(32, 8)).batch, 2);
  const DataLoaderPosition elsewhere = goes_on.position(tiny_loader(32, 4));
  EXPECT_EQ(elsewhere.batch, 4) << "the same example";
  goes_on.train_step(tiny_batch());
  EXPECT_EQ(goes_on.step(), 3);

  // Saved inside of a validation.
  options.callbacks = {make<LambdaCallback>(LambdaCallbackOptions{
      .on_validation_batch_end = [&](Trainer& rank, Module&, const StepOutput&, const Batch&, int64_t batch, int64_t) {
        if (batch == 0) rank.save_checkpoint(root + "/validation");
      }})};
  Trainer validating(options);
  validating.fit(make_module(), tiny_loader(32, 8), {tiny_loader(32, 8)});
  Engine refuses(make_module(), quiet(-1));
  EXPECT_THAT(error_of([&] { refuses.load(root + "/validation"); }),
              HasSubstr("[engine] the checkpoint was saved inside of a validation"));
}

TEST(BadEngine, FitWithBatchesOfAnotherSizeIsRefused) {
  const std::string root = fresh_folder("engine");
  Engine engine(make_module(), quiet(-1));
  engine.train_step(tiny_batch());
  engine.train_step({{"x", at::ones({3, 4})}, {"y", at::ones({3, 1})}});
  engine.train_step(tiny_batch());
  engine.save(root + "/uneven");
  Trainer trainer(quiet(2));
  EXPECT_THAT(error_of([&] { trainer.fit(make_module(), tiny_loader(), root + "/uneven"); }),
              HasSubstr("with batches of other sizes than the training loader has now"));
}

TEST(BadEngine, AModuleThatAnotherIsAtWorkWith) {
  constexpr const char* kRefused = "was given a module that another trainer or engine is at work with";
  const auto module = make_module();
  Engine first(module, quiet(-1));
  first.train_step(tiny_batch());
  EXPECT_THAT(error_of([&] { Engine(module, quiet(-1)); }), HasSubstr(std::string("[trainer] an engine ") + kRefused));
  Trainer trainer(quiet(1));
  EXPECT_THAT(error_of([&] { trainer.fit(module, training_data()); }),
              HasSubstr(std::string("[trainer] fit ") + kRefused));
  EXPECT_THAT(error_of([&] { trainer.validate(module, validation_data()); }), HasSubstr(kRefused));
  first.train_step(tiny_batch());
  EXPECT_EQ(first.step(), 2) << "refused calls change nothing";
  first.close();
  trainer.fit(module, training_data());

  // One after the other it may have several: an old one that ends leaves it to the new one.
  auto old = std::make_unique<Trainer>(quiet(1));
  old->fit(module, training_data());
  Engine second(module, quiet(-1));
  second.train_step(tiny_batch());
  old.reset();
  second.train_step(tiny_batch());
  EXPECT_EQ(second.step(), 2);
}

TEST(BadEngine, WhatIsNotOfAutomaticOptimization) {
  Engine engine(make_module(), quiet(-1));
  const auto step = [&](const char* call, const std::function<void()>& function) {
    std::string error;
    engine.train_step(tiny_batch(), {.step = [&](Module& module, const Batch& batch) {
                        error = error_of(function);
                        return module.training_step(batch, 0);
                      }});
    EXPECT_THAT(error, HasSubstr(std::string(call) + " is for manual optimization"));
  };
  step("optimizer_step", [&] { engine.optimizer_step(); });
  step("backward()", [&] { engine.backward(at::ones({}, at::requires_grad())); });
  EXPECT_EQ(engine.step(), 2);
}

TEST(BadEngine, FunctionsAndPathsThatAreEmpty) {
  Engine engine(make_module(), quiet(-1));
  EXPECT_EQ(error_of([&] { engine.epoch(nullptr); }), "[engine] epoch was given no function");
  EXPECT_EQ(error_of([&] { engine.run(nullptr); }), "[engine] run was given no function");
  EXPECT_THAT(error_of([&] { engine.save(""); }), HasSubstr("valid: a path that ends with its name"));
  EXPECT_THAT(error_of([&] { engine.module().optimizer(1); }), HasSubstr("there is no optimizer(1); got 1 from"));
  engine.train_step(tiny_batch());
  EXPECT_EQ(engine.step(), 1);
}

TEST(BadEngine, TheEnginesTrainerHasNoOtherCalls) {
  Engine engine(make_module(), quiet(-1));
  engine.train_step(tiny_batch());
  EXPECT_THAT(error_of([&] { engine.trainer().fit(make_module(), training_data()); }),
              HasSubstr("fit was called while the trainer is at work"));
  engine.train_step(tiny_batch());
}

}  // namespace
}  // namespace levin
