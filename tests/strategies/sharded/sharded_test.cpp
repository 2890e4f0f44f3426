#include <levin/core/base/error.h>
#include <levin/core/nn/unit.h>
#include <levin/core/optim/adam.h>
#include <levin/core/optim/optimizer_capabilities.h>
#include <levin/core/optim/sgd.h>

#include <gmock/gmock.h>
#include <tests/support/tiny.h>
#include <torch/optim/lbfgs.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

using ::testing::HasSubstr;
using testing::quiet;
using testing::tiny_loader;
using testing::TinyModule;

/// An optimizer that steps what it was made with, whatever becomes of its groups.
class StubbornSgd final : public torch::optim::Optimizer, public optim::DeclaresCapabilities {
 public:
  explicit StubbornSgd(std::vector<at::Tensor> parameters)
      : Optimizer({torch::optim::OptimizerParamGroup(parameters)},
                  std::make_unique<optim::GroupOptions<optim::SGDOptions>>(optim::SGDOptions{.lr = 0.1})),
        own_(std::move(parameters)) {}
  at::Tensor step(LossClosure = nullptr) override {
    const at::NoGradGuard no_grad;
    for (auto& parameter : own_)
      if (parameter.grad().defined()) parameter.add_(parameter.grad(), -0.1);
    return {};
  }
  optim::OptimizerCapabilities capabilities() const override { return {.element_wise = true}; }

 private:
  std::vector<at::Tensor> own_;
};

struct FailingOptions {
  std::string what;
  static void describe(Schema<FailingOptions>& schema) {
    schema.field("what", &FailingOptions::what, "what goes wrong");
  }
};

/// An optimizer that says nothing of what it can do.
class UnknownSgd final : public torch::optim::Optimizer {
 public:
  explicit UnknownSgd(std::vector<at::Tensor> parameters)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))},
                  std::make_unique<optim::GroupOptions<optim::SGDOptions>>(optim::SGDOptions{.lr = 0.1})) {}
  at::Tensor step(LossClosure = nullptr) override { return {}; }
};

/// Does what the strategy cannot work with.
class Failing : public TinyModule {
 public:
  using Options = FailingOptions;
  explicit Failing(const Options& options) : TinyModule({}), what_(options.what) {}

  OptimizerConfigs configure_optimizers() override {
    if (what_ == "lbfgs") return std::make_shared<torch::optim::LBFGS>(parameters());
    if (what_ == "unknown") return std::make_shared<UnknownSgd>(parameters());
    if (what_ == "stubborn") return std::make_shared<StubbornSgd>(parameters());
    if (what_ == "foreign") {
      auto others = parameters();
      others.push_back(torch::ones({3}, torch::requires_grad()));
      return std::make_shared<optim::AdamW>(std::move(others));
    }
    return TinyModule::configure_optimizers();
  }
  void on_train_epoch_start() override {
    if (what_ == "touches") static_cast<void>(first_->weight.sum().item<double>());
  }

 private:
  std::string what_;
};

std::string message_of(const std::string& strategy, int devices, const std::string& what) {
  TrainerOptions options = quiet(2);
  options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
  options.devices = devices;
  try {
    Trainer trainer(options);
    auto module = make<Failing>({.what = what});
    trainer.fit(module, tiny_loader());
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(ShardedErrors, SayWhatIsWrong) {
  const std::string three = "{name: sharded_threads, stage: 3}";
  EXPECT_THAT(message_of(three, 2, "lbfgs"), HasSubstr("an optimizer that evaluates the loss itself (LBFGS, SAM)"));
  EXPECT_THAT(message_of(three, 2, "unknown"),
              HasSubstr("is not known to step each parameter by itself; valid: levin::optim's but SAM"));
  EXPECT_THAT(message_of(three, 2, "foreign"), HasSubstr("a parameter of shape [3] that the module does not have"));
  EXPECT_THAT(message_of(three, 2, "touches"), HasSubstr("the parameter 'first.weight' is divided over the ranks"));
  EXPECT_THAT(message_of("{name: sharded_threads, stage: 2}", 2, "stubborn"),
              HasSubstr("changed none of the parameters in its groups"));
  EXPECT_THAT(message_of("{name: sharded_threads, stage: 4}", 2, ""), HasSubstr("stage"));
  EXPECT_THAT(message_of("{name: sharded_threads, shard_group: some}", 2, ""), HasSubstr("shard_group"));
  EXPECT_THAT(message_of("{name: sharded_threads, shard_group: 4}", 2, ""),
              HasSubstr("2 ranks cannot be divided into groups of 4"));
  EXPECT_THAT(message_of("{name: sharded_threads, units: [Blok]}", 2, ""), HasSubstr("'Blok' matches no unit"));
}

struct LayerImpl : torch::nn::Module {
  LayerImpl(int64_t in, int64_t out) : linear(in, out) { register_module("linear", linear); }
  at::Tensor forward(const at::Tensor& x) { return linear(x).tanh(); }
  torch::nn::Linear linear;
};
LEVIN_UNIT(Layer);

/// Built in configure_model, with random weights.
class Late : public Module {
 public:
  void configure_model() override {
    if (first_) return;
    first_ = register_module("first", Layer(4, 12));
    second_ = register_module("second", Layer(12, 12));
    last_ = register_module("last", torch::nn::Linear(12, 1));
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    return torch::nn::functional::mse_loss(last_(second_(first_(batch["x"]))), batch["y"]);
  }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 0.05});
  }

 private:
  Layer first_{nullptr};
  Layer second_{nullptr};
  torch::nn::Linear last_{nullptr};
};

TEST(Sharded, AModelThatIsBuiltInPartsStartsAsOnOneDevice) {
  const auto train = [](const std::string& strategy, int devices, const char* precision) {
    torch::manual_seed(3);
    TrainerOptions options = quiet(2);
    options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
    options.devices = devices;
    options.precision = precision;
    // Adam's first steps are as long as the learning rate whatever the gradient, which 16 bits may turn round.
    if (std::string(precision) == "bf16-mixed") options.max_steps = 2;
    Trainer trainer(options);
    auto module = make<Late>();
    trainer.fit(module, DataLoader(testing::tiny_dataset(), {.shuffle = true, .global_batch_size = 8}));
    return testing::weights(*module);
  };
  for (const char* precision : {"32-true", "bf16-mixed"}) {
    const auto expected = train("single_device", 1, precision);
    const double bound = std::string(precision) == "32-true" ? 2e-5 : 2 * 2 * 0.05;
    for (const int ranks : {2, 4}) {
      const auto got = train("{name: sharded_threads, stage: 3}", ranks, precision);
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(got[i].allclose(expected[i], 1e-3, bound)) << ranks << " ranks, tensor " << i << ", " << precision;
    }
  }
}

TEST(Sharded, HybridTrainsAsWhole) {
  const auto train = [](const std::string& strategy, int devices) {
    torch::manual_seed(3);
    TrainerOptions options = quiet(2);
    options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
    options.devices = devices;
    options.gradient_clip_val = 0.1;
    Trainer trainer(options);
    auto module = make<TinyModule>({});
    trainer.fit(module, DataLoader(testing::tiny_dataset(), {.shuffle = true, .global_batch_size = 8}));
    return testing::weights(*module);
  };
  const auto expected = train("single_device", 1);
  for (const int stage : {1, 2, 3}) {
    const auto got = train("{name: sharded_threads, shard_group: 2, stage: " + std::to_string(stage) + "}", 4);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(got[i].allclose(expected[i], 1e-3, 2e-5)) << stage;
  }
}

TEST(Sharded, OffloadAndOtherOptionsChangeNothing) {
  const auto train = [](const std::string& further) {
    torch::manual_seed(3);
    TrainerOptions options = quiet(2);
    options.strategy = Spec<Strategy>(Config::parse("{name: sharded_threads, stage: 3" + further + "}", {}));
    options.devices = 2;
    options.accumulate_grad_batches = 2;
    Trainer trainer(options);
    auto module = make<TinyModule>({});
    trainer.fit(module, DataLoader(testing::tiny_dataset(), {.shuffle = true, .global_batch_size = 8}));
    return testing::weights(*module);
  };
  const auto expected = train("");
  for (const char* further : {", offload: true", ", prefetch: 0", ", prefetch: 3", ", min_unit_parameters: 1000"})
    EXPECT_TRUE(testing::identical(train(further), expected)) << further;
  const auto whole_windows = train(", keep_window_gradients: true");
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(whole_windows[i].allclose(expected[i], 1e-3, 2e-5));
}

TEST(Sharded, AModuleThatWasLeftDividedNeedsACheckpoint) {
  TrainerOptions options = quiet(1);
  options.strategy = Spec<Strategy>(Config::parse("{name: sharded_threads, stage: 3, gather_after_fit: false}", {}));
  options.devices = 2;
  options.enable_checkpointing = true;
  options.default_root_dir = testing::fresh_folder("left_divided");
  Trainer trainer(options);
  auto module = make<TinyModule>({});
  trainer.fit(module, tiny_loader(), tiny_loader());
  const MetricMap after_fit = trainer.callback_metrics();
  try {
    trainer.validate(module, tiny_loader());
    ADD_FAILURE() << "validated without weights";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("the module has no weights"));
  }
  const auto results = trainer.validate(module, tiny_loader(), "last");
  EXPECT_NEAR(results.at(0).at("val_loss"), after_fit.at("val_loss"), 1e-6);
}

TEST(Sharded, CheckpointsAreSavedInHooksOnly) {
  TrainerOptions options = quiet(1);
  options.strategy = "sharded_threads";
  options.devices = 2;
  Trainer trainer(options);
  auto module = make<TinyModule>({});
  trainer.fit(module, tiny_loader());
  try {
    trainer.save_checkpoint(testing::fresh_folder("sharded") + "/c");
    FAIL() << "a part of the optimizer's state was saved";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot save what strategy 'sharded_threads' has divided"));
  }
}

}  // namespace
}  // namespace levin
