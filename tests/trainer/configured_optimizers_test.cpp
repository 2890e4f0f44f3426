#include "../support/tiny.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>
#include <levin/core/data/dataset.h>
#include <levin/core/optim/adam.h>
#include <levin/core/optim/named_optimizer.h>
#include <levin/core/optim/parameter_groups.h>
#include <levin/core/optim/sgd.h>
#include <levin/core/options/registries.h>

#include <gmock/gmock.h>
#include <torch/optim/optimizer.h>

#include <ATen/ops/allclose.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numbers>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

using ::testing::HasSubstr;
using testing::identical;
using testing::TinyModule;
using testing::weights;

/// TinyModule without a configure_optimizers of its own.
class WithoutOptimizers : public TinyModule {
 public:
  using Options = testing::TinyOptions;
  using TinyModule::TinyModule;
  OptimizerConfigs configure_optimizers() override { return Module::configure_optimizers(); }
};

/// Takes the configured optimizer and doubles its learning rate.
class Doubling : public TinyModule {
 public:
  using Options = testing::TinyOptions;
  using TinyModule::TinyModule;
  OptimizerConfigs configure_optimizers() override {
    OptimizerConfigs configs = configured_optimizers();
    for (auto& group : configs.front().optimizer->param_groups()) group.options().set_lr(2 * group.options().get_lr());
    return configs;
  }
};

/// Weights after a fit of ten steps, and the learning rates of each step.
struct Trained {
  std::vector<at::Tensor> weights;
  std::vector<double> rates;
};

template <class M = WithoutOptimizers>
Trained fit(const std::string& yaml, const std::string& strategy = "single_device") {
  seed_everything(5);
  Trained outcome;
  const auto given = parse_options<TrainerOptions>(Config::parse(yaml, {.source = "test.yaml"}), "trainer");
  TrainerOptions options = testing::quiet(/*epochs=*/2);
  options.optimizer = given.optimizer;
  options.scheduler = given.scheduler;
  options.accumulate_grad_batches = given.accumulate_grad_batches;
  options.strategy = strategy;
  if (strategy != "single_device") options.devices = 2;
  options.callbacks = {
      make<LambdaCallback>({.on_before_optimizer_step = [&](Trainer& trainer, Module&, OptimizerHandle& optimizer) {
        if (trainer.is_global_zero()) outcome.rates.push_back(optimizer.learning_rate());
      }})};
  Trainer trainer(options);
  auto module = make<M>({});
  trainer.fit(module, testing::tiny_loader(/*examples=*/40, strategy == "single_device" ? 8 : 4));
  outcome.weights = weights(*module);
  return outcome;
}

template <class M = WithoutOptimizers>
std::string refusal(const std::string& yaml, const std::string& strategy = "single_device") {
  try {
    fit<M>(yaml, strategy);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

/// Makes in code what a test names in YAML.
template <class T>
class InCode : public TinyModule {
 public:
  using Options = testing::TinyOptions;
  using TinyModule::TinyModule;
  OptimizerConfigs configure_optimizers() override { return {std::make_shared<T>(groups(*this))}; }
  static inline std::function<typename T::Groups(const Module&)> groups;
};

TEST(ConfiguredOptimizers, AreThoseOfCode) {
  InCode<optim::AdamW>::groups = [](const Module& module) {
    return optim::parameter_groups(module, optim::AdamWOptions{.lr = 0.01, .weight_decay = 0.1},
                                   {{"*.bias", {.weight_decay = 0}}});
  };
  EXPECT_TRUE(identical(
      fit("optimizer: {name: adamw, lr: 0.01, weight_decay: 0.1, groups: [{pattern: '*.bias', weight_decay: 0}]}")
          .weights,
      fit<InCode<optim::AdamW>>("").weights));
  InCode<optim::SGD>::groups = [](const Module& module) {
    return optim::parameter_groups(module, optim::SGDOptions{.lr = 0.01, .momentum = 0.9}, {});
  };
  EXPECT_TRUE(
      identical(fit("optimizer: {sgd: {lr: 0.01, momentum: 0.9}}").weights, fit<InCode<optim::SGD>>("").weights));
}

/// YAML of an optimizer by name, or of one around SGD.
std::string yaml_of(const std::string& name, const std::string& learning_rate) {
  const bool wraps = name == "lookahead" || name == "sam";
  const std::string options = ", lr: " + learning_rate + "}";
  return "optimizer: {name: " + name + (wraps ? ", base: {name: sgd" + options + "}" : options);
}

TEST(ConfiguredOptimizers, EveryOneTrainsUnderStrategies) {
  const std::vector<std::string> whole = {"lamb", "lars", "adafactor", "muon", "sam"};
  for (const auto& item : registries().optimizers.items()) {
    if (item.name == "sparse_adam") continue;  // takes sparse gradients alone: SparseGradientTraining
    SCOPED_TRACE(item.name);
    const std::string yaml = yaml_of(item.name, "0.01");
    const Trained alone = fit(yaml);
    const Trained again = fit(yaml);
    EXPECT_TRUE(identical(alone.weights, again.weights));
    EXPECT_FALSE(identical(alone.weights, fit(yaml_of(item.name, "0")).weights) && item.name != "rprop");
    const bool divisible = std::find(whole.begin(), whole.end(), item.name) == whole.end();
    for (const std::string strategy : {"ddp_threads", "sharded_threads"}) {
      if (strategy == "sharded_threads" && !divisible) continue;
      SCOPED_TRACE(strategy);
      const Trained ranks = fit(yaml, strategy);
      ASSERT_EQ(ranks.weights.size(), alone.weights.size());
      for (size_t i = 0; i < alone.weights.size(); ++i)
        EXPECT_TRUE(at::allclose(ranks.weights[i], alone.weights[i], 1e-3, 1e-4)) << i;
    }
  }
}

TEST(ConfiguredOptimizers, StateOf8BitsHasBlocksOfItsOwnOnEachRank) {
  const std::string yaml = "optimizer: {name: adamw8bit, lr: 0.01, min_8bit_size: 1}";
  const Trained alone = fit(yaml);
  EXPECT_FALSE(identical(alone.weights, fit("optimizer: {name: adamw, lr: 0.01}").weights));
  for (const std::string strategy : {"ddp_threads", "sharded_threads"}) {
    const Trained ranks = fit(yaml, strategy);
    // Ten steps of at most 0.01, of which quantization in other blocks changes some a little.
    for (size_t i = 0; i < alone.weights.size(); ++i)
      EXPECT_TRUE(at::allclose(ranks.weights[i], alone.weights[i], 0, strategy == "ddp_threads" ? 1e-5 : 0.005)) << i;
  }
}

TEST(ConfiguredOptimizers, ThoseThatNeedWholeParametersAreShardedAndThoseThatEvaluateTheLossAreNot) {
  for (const std::string name : {"lamb", "adafactor", "muon"})
    EXPECT_EQ(refusal(yaml_of(name, "0.01"), "sharded_threads"), "no error") << name;
  EXPECT_EQ(refusal("optimizer: {name: lookahead, base: lamb}", "sharded_threads"), "no error");
  EXPECT_THAT(refusal(yaml_of("sam", "0.01"), "sharded_threads"),
              HasSubstr("'sharded_threads' does not work with an optimizer that evaluates the loss itself"));
}

TEST(ConfiguredOptimizers, OneAroundAnotherHasItsScheduleAndGroups) {
  const std::string adamw = "{name: adamw, lr: 0.1, groups: [{pattern: '*.bias', weight_decay: 0}]}";
  EXPECT_EQ(fit("{optimizer: {name: lookahead, k: 3, base: " + adamw + "}, scheduler: {name: exponential, gamma: 0.5}}")
                .rates,
            (std::vector<double>{0.1, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05, 0.05}));
  // One step of the slow weights for each of the fast ones, all of the way.
  EXPECT_TRUE(identical(fit("optimizer: {name: lookahead, k: 1, alpha: 1, base: " + adamw + "}").weights,
                        fit("optimizer: " + adamw).weights));
  EXPECT_TRUE(
      identical(fit("optimizer: {sam: {rho: 0, base: " + adamw + "}}").weights, fit("optimizer: " + adamw).weights));
}

struct Resumed {
  std::vector<at::Tensor> straight;  ///< weights of a fit of ten steps
  std::vector<at::Tensor> weights;   ///< of one that was resumed after five of them
};

Resumed resume(const std::string& yaml, const std::string& strategy_before, const std::string& strategy_after) {
  const auto given = parse_options<TrainerOptions>(Config::parse(yaml, {.source = "test.yaml"}), "trainer");
  const std::string path = testing::fresh_folder("optimizers") + "/c";
  const auto train = [&](const std::string& strategy, const std::string& checkpoint) {
    seed_everything(5);
    TrainerOptions options = testing::quiet(/*epochs=*/2);
    options.optimizer = given.optimizer;
    options.strategy = strategy;
    if (strategy != "single_device") options.devices = 2;
    options.callbacks = {make<LambdaCallback>({.on_train_epoch_end = [&](Trainer& trainer, Module&) {
      if (checkpoint.empty() && trainer.current_epoch() == 0) trainer.save_checkpoint(path);
    }})};
    Trainer trainer(options);
    auto module = make<WithoutOptimizers>({});
    trainer.fit(module, testing::tiny_loader(40, strategy == "single_device" ? 8 : 4), {}, checkpoint);
    return weights(*module);
  };
  Resumed outcome;
  outcome.straight = train(strategy_before, "");
  outcome.weights = train(strategy_after, path);
  return outcome;
}

bool resumes_bitwise(const std::string& yaml, const std::string& strategy) {
  const Resumed outcome = resume(yaml, strategy, strategy);
  return identical(outcome.weights, outcome.straight);
}

TEST(ConfiguredOptimizers, ThoseWithStateOfTheirOwnResumeBitwise) {
  const std::string lookahead = "{name: lookahead, k: 3, base: {name: adam, lr: 0.05}}";
  const std::string in_8_bits = "{name: adamw8bit, lr: 0.05, min_8bit_size: 1}";
  for (const std::string strategy : {"single_device", "ddp_threads"})
    for (const std::string& optimizer :
         {std::string("{name: adafactor, lr: 0.05}"), std::string("{name: muon, lr: 0.02}"), in_8_bits, lookahead,
          "{name: sam, base: " + lookahead + "}"})
      EXPECT_TRUE(resumes_bitwise("optimizer: " + optimizer, strategy)) << optimizer << " " << strategy;
  EXPECT_TRUE(resumes_bitwise("optimizer: " + lookahead, "sharded_threads"));
  EXPECT_TRUE(resumes_bitwise("optimizer: " + in_8_bits, "sharded_threads"));
}

TEST(ConfiguredOptimizers, StateOf8BitsIsDividedAnewForOtherRanks) {
  const std::string yaml = "optimizer: {name: adamw8bit, lr: 0.01, min_8bit_size: 1}";
  for (const auto& [before, after] :
       {std::pair("single_device", "sharded_threads"), {"sharded_threads", "single_device"}}) {
    const Resumed outcome = resume(yaml, before, after);
    for (size_t i = 0; i < outcome.straight.size(); ++i)
      EXPECT_TRUE(at::allclose(outcome.weights[i], outcome.straight[i], 0, 0.005))
          << before << " to " << after << " " << i;
  }
}

/// Twenty examples. Of two ranks, rank 1 has eight of them; one rank alone reads them in the order in which both do.
class UnevenExamples : public data::IterableDataset {
 public:
  std::unique_ptr<data::ExampleStream> stream(const data::StreamContext& context) const override {
    class Stream : public data::ExampleStream {
     public:
      explicit Stream(std::vector<int64_t> order) : order_(std::move(order)) {}
      std::optional<Batch> next() override {
        if (place_ == order_.size()) return std::nullopt;
        data::Generator generator(0, 0);
        return examples_->get(order_[place_++], generator);
      }

     private:
      std::vector<int64_t> order_;
      size_t place_ = 0;
      std::shared_ptr<data::TensorDataset> examples_ = testing::tiny_dataset(20);
    };
    std::vector<int64_t> order;
    for (int64_t batch = 0; batch < 5; ++batch)
      if (context.num_readers == 1 || context.reader == (batch < 4 ? batch % 2 : 0))
        for (int64_t i = 0; i < 4; ++i) order.push_back(4 * batch + i);
    return std::make_unique<Stream>(order);
  }
};

TEST(ConfiguredOptimizers, ThatEvaluateTheLossTakeTheMeanOverRanksWithData) {
  const auto given = parse_options<TrainerOptions>(
      Config::parse("optimizer: {name: sam, rho: 0.3, base: {name: sgd, lr: 0.1, momentum: 0.9}}", {}), "trainer");
  const auto train = [&](int64_t ranks) {
    seed_everything(5);
    TrainerOptions options = testing::quiet(/*epochs=*/2);
    options.optimizer = given.optimizer;
    options.strategy = ranks == 1 ? "single_device" : "ddp_threads";
    options.devices = ranks;
    Trainer trainer(options);
    auto module = make<WithoutOptimizers>({});
    trainer.fit(module,
                DataLoader(std::make_shared<UnevenExamples>(), {.batch_size = ranks == 1 ? 8 : 4, .num_workers = 1}));
    EXPECT_EQ(trainer.global_step(), 6);
    return weights(*module);
  };
  const auto alone = train(1);
  const auto together = train(2);
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(at::allclose(together[i], alone[i], 1e-5, 1e-6)) << i;
}

TEST(ConfiguredOptimizers, ThatEvaluateTheLossAreRefusedWhereItIsNotTheWhole) {
  EXPECT_THAT(refusal(yaml_of("sam", "0.01"), "parameter_server_threads"), HasSubstr("evaluates the loss itself"));
  EXPECT_THAT(refusal("{" + yaml_of("sam", "0.01") + ", accumulate_grad_batches: 2}"),
              HasSubstr("accumulate_grad_batches does not work"));
}

TEST(ConfiguredOptimizers, AModuleMayChangeThem) {
  EXPECT_EQ(fit<Doubling>("optimizer: {name: adamw, lr: 0.01}").rates, std::vector<double>(10, 0.02));
}

TEST(ConfiguredOptimizers, SchedulesStepWithTheOptimizerOrEveryEpoch) {
  EXPECT_EQ(fit("{optimizer: {name: sgd, lr: 0.1}, scheduler: {name: exponential, gamma: 0.5}}").rates,
            (std::vector<double>{0.1, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05, 0.05}));
  const auto stepped =
      fit("{optimizer: {name: sgd, lr: 0.1}, scheduler: {name: exponential, gamma: 0.5, interval: step}}").rates;
  for (size_t i = 0; i < stepped.size(); ++i) EXPECT_NEAR(stepped[i], 0.1 * std::pow(0.5, i), 1e-12);
}

TEST(ConfiguredOptimizers, AWarmUpComesBeforeTheSchedule) {
  const auto rates = fit("{optimizer: {name: sgd, lr: 0.1}, scheduler: {name: cosine, warmup_steps: 4}}").rates;
  ASSERT_EQ(rates.size(), 10u);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(rates[i], 0.025 * static_cast<double>(i + 1), 1e-12);
  // Half a cosine over the six steps that are left.
  for (size_t i = 4; i < 10; ++i)
    EXPECT_NEAR(rates[i], 0.05 * (1 + std::cos(std::numbers::pi * static_cast<double>(i - 4) / 6)), 1e-12);
  EXPECT_NEAR(
      fit("{optimizer: {name: sgd, lr: 0.1}, scheduler: {name: exponential, gamma: 1, warmup_steps: 1}}").rates.front(),
      0.1, 1e-12);
}

TEST(ConfiguredOptimizers, BadInputIsNamed) {
  EXPECT_THAT(refusal(""), HasSubstr("does not override configure_optimizers() and no optimizer is configured"));
  EXPECT_THAT(refusal<TinyModule>("optimizer: adamw"),
              HasSubstr("trainer.optimizer is 'adamw', and configure_optimizers of"));
  EXPECT_THAT(refusal("optimizer: adamm"), HasSubstr("unknown optimizer 'adamm'; did you mean 'adam'"));
  EXPECT_THAT(refusal("optimizer: {name: adamw, momentum: 0.9}"), HasSubstr("unknown key 'momentum'"));
  EXPECT_THAT(refusal("optimizer: [adamw, sgd]"), HasSubstr("trainer.optimizer: expected one name"));
  EXPECT_THAT(refusal("optimizer: {name: adamw, lr: -1}"), HasSubstr("trainer.optimizer.lr must be at least 0"));
  EXPECT_THAT(refusal("optimizer: {name: adamw, groups: [{weight_decay: 0}]}"),
              HasSubstr("optimizer.groups[0]: expected a mapping such as {pattern:"));
  EXPECT_THAT(refusal("optimizer: {name: adamw, groups: [{pattern: '*.bias', decay: 0}]}"),
              HasSubstr("test.yaml:1:55: unknown key 'decay' in 'optimizer.groups[0]'"));
  EXPECT_THAT(refusal("optimizer: {name: adamw, groups: [{pattern: '*.bais'}]}"),
              HasSubstr("the pattern '*.bais' of a parameter group matches no parameter"));
  EXPECT_THAT(refusal("optimizer: lookahead"), HasSubstr("trainer.optimizer needs `base`"));
  EXPECT_THAT(refusal("optimizer: {name: sam, base: adamm}"),
              HasSubstr("unknown optimizer 'adamm'; did you mean 'adam'"));
  EXPECT_THAT(refusal("optimizer: {name: sam, base: {name: adam, lr: -1}}"),
              HasSubstr("trainer.optimizer.base.lr must be at least 0"));
  EXPECT_THAT(refusal("scheduler: cosine"), HasSubstr("trainer.scheduler is given and trainer.optimizer is not"));
  EXPECT_THAT(refusal("{optimizer: adamw, scheduler: cosin}"), HasSubstr("unknown scheduler 'cosin'"));
  EXPECT_THAT(refusal("{optimizer: adamw, scheduler: {name: cosine, t_min: 1}}"), HasSubstr("unknown key 't_min'"));
  EXPECT_THAT(refusal("{optimizer: adamw, scheduler: {name: cosine, interval: epoch, warmup_steps: 3}}"),
              HasSubstr("warmup_steps counts optimizer steps"));
  EXPECT_THAT(refusal("{optimizer: adamw, scheduler: {name: cosine, interval: step, frequency: 2, warmup_steps: 3}}"),
              HasSubstr("warmup_steps counts optimizer steps, and scheduler.frequency is 2"));
  EXPECT_THAT(refusal("{optimizer: adamw, scheduler: {name: reduce_on_plateau, monitor: x, warmup_steps: 3}}"),
              HasSubstr("follows a metric"));
  EXPECT_THAT(refusal("{optimizer: adamw, scheduler: reduce_on_plateau}"), HasSubstr("needs `monitor`"));
}

TEST(ConfiguredOptimizers, AnOptionIsReadBackAsItIsWritten) {
  const std::string yaml =
      "{name: cosine, interval: step, frequency: 2, monitor: loss, strict: false, warmup_steps: 3, t_max: 8, "
      "eta_min: 0.001}";
  using Codec = ConfigCodec<SchedulerConfig>;
  const Config node = Config::parse(yaml, {});
  EXPECT_EQ(Codec::dump(Codec::parse(node, "scheduler")).to_flow(), node.to_flow());
}

}  // namespace
}  // namespace levin
