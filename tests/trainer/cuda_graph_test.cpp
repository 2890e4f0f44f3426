#include <levin/callbacks/lambda_callback.h>
#include <levin/core/base/log.h>
#include <levin/core/base/seed.h>
#include <levin/core/metrics/mean.h>
#include <levin/core/nn/checkpoint.h>
#include <levin/core/optim/adagrad.h>
#include <levin/core/optim/sgd.h>
#include <levin/strategies/single_device.h>

#include <gmock/gmock.h>
#include <tests/support/tape_recorder.h>
#include <tests/support/tiny.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace levin {
namespace {

using ::testing::HasSubstr;
using testing::identical;
using ::testing::Not;
using testing::quiet;
using testing::TapeRecorder;
using testing::tiny_loader;
using testing::TinyModule;
using testing::TinyOptions;
using testing::weights;

/// One device, with a recorder that the CPU can do.
class TapedDevice final : public SingleDevice {
 public:
  GraphSupport graph_support() override { return {.recorder = std::make_unique<TapeRecorder>(), .why_not = ""}; }
};

/// Counts its training steps; what else it does is the test's.
class CountingModule : public TinyModule {
 public:
  explicit CountingModule(const TinyOptions& options) : TinyModule(options) {}

  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    ++steps;
    if (in_step) in_step(*this);
    return TinyModule::training_step(batch, batch_idx);
  }
  OptimizerConfigs configure_optimizers() override {
    return optimizers_of ? optimizers_of(*this) : TinyModule::configure_optimizers();
  }
  void optimizer_zero_grad(OptimizerHandle& optimizer) override {
    if (keeps_gradients)
      optimizer.zero_grad(/*set_to_none=*/false);
    else
      optimizer.zero_grad();
  }
  torch::nn::Linear& first() { return first_; }

  int64_t steps = 0;
  bool keeps_gradients = false;
  std::function<void(CountingModule&)> in_step;
  std::function<OptimizerConfigs(CountingModule&)> optimizers_of;
};

/// What came of a fit.
struct GraphedFit {
  std::vector<at::Tensor> weights;
  MetricMap metrics;
  std::vector<double> seen;  ///< by callbacks
  at::Tensor random;         ///< the next random number
  int64_t training_steps = 0;
  int64_t replayed = 0;
  std::string log;
};

struct Setting {
  std::function<void(TrainerOptions&)> options = [](TrainerOptions&) {};
  std::function<void(CountingModule&)> module = [](CountingModule&) {};
  TinyOptions tiny = {.width = 8, .dropout = 0.3};
  int64_t examples = 40;
  int64_t epochs = 3;
};

constexpr double kNotFinite = -4;  ///< unlike any other number in `seen`

GraphedFit fit(const Setting& setting, bool graphs) {
  seed_everything(11);
  GraphedFit fitted;
  auto module = make<CountingModule>(setting.tiny);
  setting.module(*module);
  TrainerOptions options = quiet(setting.epochs);
  options.log_every_n_steps = 2;
  options.callbacks.push_back(make<LambdaCallback>(LambdaCallbackOptions{
      .on_train_batch_end = [&](Trainer&, Module&, const StepOutput& output, const Batch&,
                                int64_t) { fitted.seen.push_back(output.loss().item<double>()); },
      .on_before_zero_grad = [&](Trainer&, Module&, OptimizerHandle&) { fitted.seen.push_back(-1); },
      .on_before_backward = [&](Trainer&, Module&,
                                const at::Tensor& loss) { fitted.seen.push_back(-2 - loss.item<double>()); },
      .on_after_backward =
          [&](Trainer&, Module& of) {
            double sum = 0;
            for (const auto& parameter : of.parameters())
              if (parameter.grad().defined()) sum += parameter.grad().abs().sum().item<double>();
            fitted.seen.push_back(std::isfinite(sum) ? sum : kNotFinite);
          },
      .on_before_optimizer_step = [&](Trainer&, Module&, OptimizerHandle&) { fitted.seen.push_back(-3); }}));
  setting.options(options);
  options.graph = graphs;
  if (graphs) options.strategy = Spec<Strategy>(std::make_shared<TapedDevice>());
  const int64_t before = TapeRecorder::replayed();
  log::set_sink([&](const std::string& line) { fitted.log += line + "\n"; });
  Trainer trainer(options);
  try {
    trainer.fit(module, tiny_loader(setting.examples), tiny_loader(16, 8, false));
  } catch (...) {
    log::set_sink(nullptr);
    throw;
  }
  log::set_sink(nullptr);
  fitted.weights = weights(*module);
  fitted.metrics = trainer.callback_metrics();
  fitted.random = at::rand({1});
  fitted.training_steps = module->steps;
  fitted.replayed = TapeRecorder::replayed() - before;
  return fitted;
}

/// A fit with graphs is that without, to the bit: `graphs` replayed. Gives what it logged.
std::string expect_same(const Setting& setting, int64_t graphs) {
  const GraphedFit plain = fit(setting, false);
  const GraphedFit replayed = fit(setting, true);
  EXPECT_TRUE(identical(plain.weights, replayed.weights));
  EXPECT_EQ(plain.metrics, replayed.metrics);
  EXPECT_EQ(plain.seen, replayed.seen);
  EXPECT_TRUE(plain.random.equal(replayed.random));
  EXPECT_EQ(plain.replayed, 0);
  EXPECT_EQ(replayed.replayed, graphs) << replayed.log;
  return replayed.log;
}

// 15 steps: 3 as ever, and 12 of three graphs each.
constexpr int64_t kAll = 12 * 3;

TEST(CudaGraph, ReplayedStepsAreEqualToTheBit) {
  expect_same({}, kAll);
  const GraphedFit replayed = fit({}, true);
  EXPECT_EQ(replayed.training_steps, 4) << "3 ordinary ones and the recorded one";
  EXPECT_THAT(replayed.log, HasSubstr("recorded the step of batch 3"));
}

TEST(CudaGraph, EveryFusedOptimizerFollowsItsSchedule) {
  const std::vector<std::function<std::shared_ptr<torch::optim::Optimizer>(Module&)>> makes = {
      [](Module& module) {
        return std::make_shared<optim::SGD>(module.parameters(), optim::SGDOptions{.lr = 0.1, .momentum = 0.9});
      },
      [](Module& module) { return std::make_shared<optim::SGD>(module.parameters(), optim::SGDOptions{.lr = 0.1}); },
      [](Module& module) {
        return std::make_shared<optim::Adam>(module.parameters(), optim::AdamOptions{.lr = 0.1, .amsgrad = true});
      },
      [](Module& module) {
        return std::make_shared<optim::AdamW>(module.parameters(), optim::AdamWOptions{.lr = 0.1});
      },
      [](Module& module) {
        return std::make_shared<optim::Adagrad>(module.parameters(), optim::AdagradOptions{.lr = 0.1});
      },
  };
  for (const auto& make_optimizer : makes) {
    expect_same({.module =
                     [&](CountingModule& module) {
                       module.optimizers_of = [&](CountingModule& of) {
                         return OptimizerConfig{.optimizer = make_optimizer(of),
                                                .scheduler = {.name = "cosine", .interval = Interval::kStep}};
                       };
                     }},
                kAll);
  }
}

TEST(CudaGraph, EveryPrecisionAndClippingAlgorithm) {
  for (const char* precision : {"32-true", "64-true", "bf16-true", "bf16-mixed"}) {
    for (const char* algorithm : {"norm", "value", "adaptive"}) {
      SCOPED_TRACE(std::string(precision) + " " + algorithm);
      expect_same({.options =
                       [&](TrainerOptions& options) {
                         options.precision = precision;
                         options.gradient_clip_val = 0.05;
                         options.gradient_clip_algorithm = algorithm;
                       }},
                  kAll);
    }
  }
}

TEST(CudaGraph, ScaledLossesThatOverflowAreSkippedAlike) {
  const Setting setting{.options = [](TrainerOptions& options) {
    options.precision =
        Spec<Precision>(Config::parse("{name: 16-mixed, init_scale: 33554432, growth_interval: 2}", {}));
    options.gradient_clip_val = 0.05;
  }};
  // Unscaling and the scale are graphs too.
  expect_same(setting, 12 * 5);
  const GraphedFit replayed = fit(setting, true);
  const auto skipped = std::count(replayed.seen.begin(), replayed.seen.end(), kNotFinite);
  EXPECT_GT(skipped, 4) << "some of them replayed";
  EXPECT_LT(skipped, 15);
}

TEST(CudaGraph, BatchesOfAnotherShapeTakeOrdinarySteps) {
  // 5 full batches and one of 4 examples an epoch: 18 steps, of which 3 are before the recording and 3 are small.
  const std::string log = expect_same({.examples = 44}, (18 - 3 - 3) * 3);
  EXPECT_THAT(log, HasSubstr("other shapes"));
}

TEST(CudaGraph, WhatStepsDependOnMayChange) {
  const auto at_second_epoch = [](const std::function<void(Trainer&, CountingModule&)>& change) {
    return [change](TrainerOptions& options) {
      options.callbacks.push_back(make<LambdaCallback>(
          LambdaCallbackOptions{.on_train_epoch_start = [change](Trainer& trainer, Module& module) {
            if (trainer.current_epoch() == 1) change(trainer, dynamic_cast<CountingModule&>(module));
          }}));
    };
  };
  // After the change 3 of the 10 steps are ordinary again; before it 2 of 5 were replayed.
  const auto freeze = at_second_epoch([](Trainer&, CountingModule& module) {
    for (auto& parameter : module.first()->parameters()) parameter.set_requires_grad(false);
  });
  EXPECT_THAT(expect_same({.options = freeze}, (2 + 7) * 3), HasSubstr("recorded anew"));
  const auto decay = at_second_epoch([](Trainer&, CountingModule& module) {
    for (auto& group : module.optimizer(0).optimizer().param_groups())
      dynamic_cast<optim::GroupOptions<optim::AdamWOptions>&>(group.options()).values.weight_decay = 0.5;
  });
  expect_same({.options = decay}, (2 + 7) * 3);
  const auto mode = at_second_epoch([](Trainer&, CountingModule& module) { module.eval(); });
  expect_same({.options = mode}, (2 + 7) * 3);
  const auto storage = at_second_epoch([](Trainer&, CountingModule& module) {
    auto weight = module.first()->weight;
    weight.set_data(weight.detach().clone());
  });
  expect_same({.options = storage}, (2 + 7) * 3);
}

TEST(CudaGraph, MetricsThatChangeInPlace) {
  auto mean = std::make_shared<metrics::Mean>();
  const auto log_mean = [mean](CountingModule& module) {
    module.in_step = [mean](CountingModule& of) {
      of.log("weight", mean->update(of.first()->weight.detach().abs().mean()), {.on_epoch = true});
    };
  };
  expect_same({.module = log_mean}, kAll);
}

TEST(CudaGraph, SaysWhyNot) {
  const auto because = [](const Setting& setting) { return expect_same(setting, 0); };
  const auto with = [](const std::function<void(TrainerOptions&)>& change) { return Setting{.options = change}; };
  const auto in_step = [](const std::function<void(CountingModule&)>& step) {
    return Setting{.module = [step](CountingModule& module) { module.in_step = step; }};
  };
  EXPECT_THAT(because(with([](TrainerOptions& options) { options.accumulate_grad_batches = 2; })),
              HasSubstr("steps are not recorded: gradients are accumulated"));
  EXPECT_THAT(because({.module =
                           [](CountingModule& module) {
                             module.automatic_optimization = false;
                             module.in_step = [](CountingModule& of) {
                               of.optimizer(0).zero_grad();
                               of.manual_backward(of.first()->weight.square().sum());
                               of.optimizer(0).step();
                             };
                           }}),
              HasSubstr("steps are not recorded: the module optimizes manually, which is recorded on the CPU only"));
  EXPECT_THAT(because(with([](TrainerOptions& options) { options.detect_anomaly = true; })),
              HasSubstr("detect_anomaly"));
  EXPECT_THAT(because({.module =
                           [](CountingModule& module) {
                             module.optimizers_of = [](CountingModule& of) {
                               return std::make_shared<torch::optim::AdamW>(of.parameters());
                             };
                           }}),
              HasSubstr("learning rate from a tensor"));
  EXPECT_THAT(because({.module = [](CountingModule& module) { module.keeps_gradients = true; }}),
              HasSubstr("keeps the gradients"));
  EXPECT_THAT(because(in_step([](CountingModule& module) { module.log("steps", 1.0); })),
              HasSubstr("the log of 'steps', a number of the host"));
  EXPECT_THAT(because(in_step([](CountingModule& module) {
                if (module.first()->weight.sum().item<float>() > 1e9) throw std::runtime_error("too large");
              })),
              HasSubstr("not permitted while recording"));
  EXPECT_THAT(because(in_step([](CountingModule& module) {
                const auto twice = [&](const at::Tensor& x) { return module.first()->forward(x); };
                checkpoint(twice, at::ones({1, module.first()->options.in_features()})).sum();
              })),
              HasSubstr("activation checkpointing cannot be recorded"));
  // A failed recording leaves nothing behind that a scaled step would take for its own.
  EXPECT_THAT(because({.options = [](TrainerOptions& options) { options.precision = "16-mixed"; },
                       .module = [](CountingModule& module) { module.keeps_gradients = true; }}),
              HasSubstr("keeps the gradients"));
}

/// Puts a new tensor in the place of its state.
class ReplacingSum final : public metrics::Metric {
 public:
  ReplacingSum() { add_state("sum", at::zeros({}), metrics::Reduction::kSum); }
  ReplacingSum& update(const at::Tensor& value) {
    const UpdateScope scope(*this);
    state(0) = state(0) + value;
    return *this;
  }
  at::Tensor compute() const override { return state(0); }
};

TEST(CudaGraph, MetricsThatReplaceTheirStateAreRefusedAndKeepIt) {
  const auto log_sum = [](CountingModule& module) {
    auto sum = std::make_shared<ReplacingSum>();
    module.in_step = [sum](CountingModule& of) {
      of.log("sum", sum->update(of.first()->weight.detach().sum()), {.on_step = false, .on_epoch = true});
    };
  };
  EXPECT_THAT(expect_same({.module = log_sum}, 0), HasSubstr("in the place of its state 'sum'"));
}

TEST(CudaGraph, OtherStrategiesSayWhyNot) {
  const std::pair<const char*, const char*> strategies[] = {
      {"{name: dp}", "the strategy 'dp' does not record steps"},
      {"{name: sharded_threads}", "the strategy 'sharded_threads' does not record steps"},
      {"{name: ddp_threads, backend: gloo}", "ranks combine gradients while backward runs: the backend is gloo"},
      {"{name: ddp_threads, find_unused_parameters: true}", "find_unused_parameters, static_graph"}};
  for (const auto& [strategy, why_not] : strategies) {
    TrainerOptions options = quiet(1);
    options.graph = true;
    options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
    options.devices = 2;
    std::string log;
    log::set_sink([&](const std::string& line) { log += line + "\n"; });
    Trainer trainer(options);
    auto module = make<TinyModule>({});
    trainer.fit(module, tiny_loader());
    log::set_sink(nullptr);
    EXPECT_THAT(log, HasSubstr("steps are not recorded: "));
    EXPECT_THAT(log, HasSubstr(why_not));
  }
}

TEST(CudaGraph, ResumesToTheBit) {
  const std::string path = testing::fresh_folder("graph") + "/c";
  const auto train = [&](int64_t epochs, const std::string& ckpt) {
    seed_everything(4);
    auto module = make<CountingModule>({.width = 8, .dropout = 0.3});
    TrainerOptions options = quiet(epochs);
    options.graph = true;
    options.strategy = Spec<Strategy>(std::make_shared<TapedDevice>());
    Trainer trainer(options);
    trainer.fit(module, tiny_loader(), {}, ckpt);
    if (ckpt.empty() && epochs == 2) trainer.save_checkpoint(path);
    return weights(*module);
  };
  const auto whole = train(4, "");
  train(2, "");
  EXPECT_TRUE(identical(train(4, path), whole));
}

TEST(CudaGraph, ErrorsOfReplayedStepsEndTheFit) {
  Setting setting;
  setting.options = [](TrainerOptions& options) {
    options.callbacks.push_back(
        make<LambdaCallback>(LambdaCallbackOptions{.on_after_backward = [](Trainer& trainer, Module&) {
          if (trainer.global_step() == 7) throw std::runtime_error("the eighth step fails");
        }}));
  };
  EXPECT_THROW(fit(setting, true), std::runtime_error);
  // Nothing of it is left: another fit records and replays.
  expect_same({}, kAll);
}

}  // namespace
}  // namespace levin
