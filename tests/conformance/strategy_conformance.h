#pragma once

#include "tests/conformance/strategy_case.h"

#include <levin/callbacks/model_checkpoint.h>

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <tuple>
#include <type_traits>

namespace levin::testing {

/// Sums over ranks are made in another order than sums over a batch.
constexpr double kSummationOrder = 2e-5;

class StrategyConformance : public ::testing::TestWithParam<StrategyCase> {
 protected:
  void SetUp() override {
    if (!GetParam().has_devices()) GTEST_SKIP() << "no CUDA device can be used here";
  }
  /// Trains as the case says. On the simulated device the result equals, to the bit, that of as many ranks on the CPU;
  /// except where the device draws numbers of its own or has kernels of its own (the cells of LSTM layers).
  Outcome train_case(const TrainingRun& run) const {
    const Outcome got = train(run, GetParam());
    if (GetParam().accelerator != std::string("sim") || run.net.dropout > 0 || run.net.lstm) return got;
    StrategyCase on_cpu = GetParam();
    on_cpu.accelerator = "cpu";
    const Outcome expected = train(run, on_cpu);
    EXPECT_EQ(difference(got.weights, expected.weights, 0), "") << "against the CPU";
    EXPECT_EQ(difference(got.buffers, expected.buffers, 0), "") << "against the CPU";
    EXPECT_EQ(got.metrics, expected.metrics) << "against the CPU";
    return got;
  }
  /// What one device makes of a run, trained once in a process. `make_run` captures nothing: only what it is called
  /// with can change the run.
  template <class MakeRun, class... Arguments>
  static const Outcome& reference(MakeRun make_run, const Arguments&... arguments) {
    static_assert(std::is_empty_v<MakeRun>);
    static std::map<std::tuple<Arguments...>, Outcome> outcomes;
    const std::tuple<Arguments...> key(arguments...);
    auto found = outcomes.find(key);
    if (found == outcomes.end()) found = outcomes.emplace(key, train_on_one_device(make_run(arguments...))).first;
    return found->second;
  }
  template <class MakeRun, class... Arguments>
  void expect_as_on_one_device(MakeRun make_run, const Arguments&... arguments) {
    const Outcome& expected = reference(make_run, arguments...);
    const Outcome got = train_case(make_run(arguments...));
    EXPECT_EQ(difference(got.weights, expected.weights, kSummationOrder), "");
    for (const char* name : {"train_loss_epoch", "val_loss", "val_examples", "val_largest"})
      EXPECT_NEAR(got.metrics.at(name), expected.metrics.at(name), 1e-4) << name;
  }
  bool is_parameter_server() const { return std::string(GetParam().strategy).starts_with("parameter_server"); }
  /// `data`: its loaders.
  void expect_resumed_to_the_bit(const NetOptions& net, const TrainingRun& data = {}) {
    const std::string root = fresh_folder("conformance");
    const auto checkpointing = [&](int64_t steps) {
      return [&root, steps](TrainerOptions& options) {
        options.max_steps = steps;
        options.enable_checkpointing = true;
        options.default_root_dir = root + "/" + std::to_string(steps);
        options.callbacks = {make<ModelCheckpoint>({.save_last = true, .every_n_train_steps = 7})};
      };
    };
    TrainingRun run = data;
    run.net = net;
    run.epochs = 3;
    run.configure = checkpointing(15);
    const Outcome whole = train(run, GetParam());
    run.configure = checkpointing(7);
    const Outcome part = train(run, GetParam());
    ASSERT_NE(part.last_checkpoint, "");
    run.configure = checkpointing(15);
    run.ckpt = part.last_checkpoint;
    const Outcome resumed = train(run, GetParam());
    EXPECT_TRUE(identical(resumed.weights, whole.weights)) << difference(resumed.weights, whole.weights, 0);
  }
  /// Stops inside of an epoch and goes on with other numbers of ranks, three among them where the strategy takes any.
  template <class MakeRun>
  void expect_resumed_on_other_ranks(MakeRun make_run) {
    if (has_processes()) return;  // a program has one number of them
    const std::string root = fresh_folder("conformance");
    TrainingRun run = make_run();
    run.epochs = 3;
    run.configure = [&](TrainerOptions& options) {
      options.max_steps = 6;
      options.enable_checkpointing = true;
      options.default_root_dir = root;
      options.callbacks = {make<ModelCheckpoint>({.save_last = true})};
    };
    const Outcome part = train(run, GetParam());
    run.configure = {};
    const Outcome& expected = reference(
        [](int64_t epochs) {
          TrainingRun whole = MakeRun()();
          whole.epochs = epochs;
          return whole;
        },
        run.epochs);
    run.ckpt = part.last_checkpoint;
    const int most = GetParam().is_pipeline() ? 4 : 3;
    for (const int ranks : {1, 2, most}) {
      StrategyCase other = GetParam();
      if (is("mesh"))
        other = StrategyCase{"sharded_threads", ranks, 3};  // whose sizes are those of one number of ranks
      other.ranks = ranks;
      other.first_device = 0;
      if (ranks == 1 || is("single_device")) other = GetParam().beside({"single_device", 1});
      const Outcome resumed = train(run, other);
      EXPECT_EQ(difference(resumed.weights, expected.weights, kSummationOrder), "") << ranks << " ranks";
    }
  }
  bool is(const char* strategy) const { return std::string(GetParam().strategy) == strategy; }
  /// What docs/extending.md says of it: gradients are each rank's own, and a checkpoint has no other momentum than rank
  /// 0's.
  bool is_local_sgd() const { return is("local_sgd"); }
  bool has_processes() const {
    return is("ddp") || is("horovod") || is("sharded") || is("pipeline") || is("parameter_server");
  }
};

/// What a way to start ranks can change: these tests run for every case, those of StrategyConformance for the cases
/// that divide the work in different ways.
class StartConformance : public StrategyConformance {};

/// What holds where ranks reduce the gradients of a whole model each, and neither for replicas nor for pipelines.
class GradientConformance : public StrategyConformance {};

/// What holds where there are ranks.
class RankConformance : public StrategyConformance {};

/// What multiplies learning rates by the number of ranks or replicas.
class LearningRateScale : public StrategyConformance {
 protected:
  void expect_scaled_by(double factor, const std::string& option) {
    const Outcome& expected = reference([](double lr) { return TrainingRun{.net = {.lr = lr}}; }, 0.01 * factor);
    TrainingRun run{.net = {.lr = 0.01}};
    run.configure = [&](TrainerOptions& options) {
      options.strategy = Spec<Strategy>(Config::parse(GetParam().yaml(option), {}));
    };
    EXPECT_EQ(difference(train_case(run).weights, expected.weights, kSummationOrder), "") << option;
  }
};

}  // namespace levin::testing
