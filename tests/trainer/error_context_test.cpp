#include <levin/core/connectors/error_context.h>

#include <levin/core/base/error.h>
#include <levin/core/base/out_of_memory.h>
#include <levin/core/comm/rank_failure.h>
#include <levin/core/data/dataset.h>
#include <levin/core/interfaces/callback.h>
#include <levin/core/metrics/metric.h>
#include <levin/core/nn/checkpoint.h>
#include <levin/core/nn/sequential.h>
#include <levin/core/optim/adam.h>
#include <levin/core/trainer/trainer.h>
#include <tests/support/captured_log.h>
#include <tests/support/tiny.h>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace levin::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

struct MyError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A module all of whose steps and hooks can be made to throw. Rebuildable, so that thread ranks have theirs; what they
/// do is the process's.
struct Faults {
  std::function<void(int64_t)> training_step, validation_step, predict_step;
  std::function<void()> on_train_epoch_end, configure_optimizers, setup, on_after_backward, save;
  bool broken_net = false;
  bool broken_backward = false;
};
Faults faults;

struct FailingBackward : torch::autograd::Function<FailingBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    throw MyError("no gradient here");
  }
};

class ExpertImpl : public torch::nn::Module {
 public:
  ExpertImpl() { linear_ = register_module("linear", torch::nn::Linear(4, 4)); }
  at::Tensor forward(const at::Tensor& x) {
    if (x.size(-1) != 4) throw Error("expert", "four features, please");
    return linear_(x);
  }

 private:
  torch::nn::Linear linear_{nullptr};
};
LEVIN_UNIT(Expert);

class LayerImpl : public torch::nn::Module {
 public:
  LayerImpl() { expert_ = register_module("expert", Expert()); }
  at::Tensor forward(const at::Tensor& x) { return expert_(faults.broken_net ? x.repeat({1, 2}) : x); }

 private:
  Expert expert_{nullptr};
};
LEVIN_UNIT(Layer);

struct ClassifierOptions {
  bool narrow = false;
  static void describe(Schema<ClassifierOptions>& schema) {
    schema.field("narrow", &ClassifierOptions::narrow, "a net whose layers do not fit together");
  }
};

class Classifier : public Module {
 public:
  using Options = ClassifierOptions;
  explicit Classifier(const Options& options) {
    layer_ = register_module("layer", Layer());
    net_ = register_module("net", Sequential(
                                      torch::nn::Linear(4, 8), [](const at::Tensor& x) { return x.relu(); },
                                      torch::nn::Linear(options.narrow ? 10 : 8, 1)));
  }
  at::Tensor forward(const at::Tensor& x) { return net_->forward(layer_(x)); }

  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    if (faults.training_step) faults.training_step(batch_idx);
    at::Tensor y = forward(batch["x"]);
    if (faults.broken_backward) y = FailingBackward::apply(y);
    return torch::nn::functional::mse_loss(y, batch["y"]);
  }
  StepOutput validation_step(const Batch& batch, int64_t batch_idx) override {
    if (faults.validation_step) faults.validation_step(batch_idx);
    log("val_loss", torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]));
    return {};
  }
  Batch predict_step(const Batch& batch, int64_t batch_idx) override {
    if (faults.predict_step) faults.predict_step(batch_idx);
    return {{"y", forward(batch["x"])}};
  }
  void setup(Stage) override { call(faults.setup); }
  void on_train_epoch_end() override { call(faults.on_train_epoch_end); }
  void on_after_backward() override { call(faults.on_after_backward); }
  void on_save_checkpoint(State&) override { call(faults.save); }
  OptimizerConfigs configure_optimizers() override {
    call(faults.configure_optimizers);
    return std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 0.01});
  }

 private:
  static void call(const std::function<void()>& fault) {
    if (fault) fault();
  }
  Layer layer_{nullptr};
  Sequential net_{nullptr};
};

class ErrorContext : public ::testing::Test {
 protected:
  ~ErrorContext() override { faults = {}; }

  /// What the error says that a call of a trainer throws, which must be of this type.
  template <class Expected = std::exception, class Call>
  static std::string message_of(const Call& call) {
    try {
      call();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Expected& error) {
      const auto* of_libtorch = dynamic_cast<const c10::Error*>(&error);
      return of_libtorch == nullptr ? error.what() : of_libtorch->what_without_backtrace();
    } catch (...) {
      ADD_FAILURE() << "another type: " << error_message(std::current_exception());
    }
    return "";
  }
  template <class Expected = std::exception>
  static std::string fit_message(const TrainerOptions& options = quiet(2), DataLoaders val = {},
                                 const Classifier::Options& module = {}) {
    return message_of<Expected>([&] {
      Trainer trainer(options);
      trainer.fit(make<Classifier>(module), tiny_loader(40, 8, /*shuffle=*/false), std::move(val));
    });
  }
  static TrainerOptions two(const std::string& strategy) {
    TrainerOptions options = quiet(2);
    options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
    options.devices = 2;
    return options;
  }
};

TEST_F(ErrorContext, AStepNamesItsClassItsBatchAndTheUnit) {
  const std::string text = fit_message<c10::Error>(quiet(2), {}, {.narrow = true});
  EXPECT_THAT(text, StartsWith("mat1 and mat2 shapes cannot be multiplied (8x8 and 10x1)\n"
                               "  in training_step of Classifier, batch 0 of epoch 0, unit net.2 (Linear 10→1), "
                               "batch {x: [8, 4] float, y: [8, 1] float}"));
}

TEST_F(ErrorContext, ALaterBatch) {
  int64_t calls = 0;
  faults.training_step = [&](int64_t) {
    if (++calls == 9) throw MyError("no");  // of 5 batches an epoch
  };
  EXPECT_THAT(fit_message<MyError>(),
              StartsWith("no\n  in training_step of Classifier, batch 3 of epoch 1, batch {x: "));
}

TEST_F(ErrorContext, TheLineOfTheUsersCode) {
#ifndef LEVIN_HAS_SOURCE_LINES
  GTEST_SKIP() << "Levin was built without libdw";
#endif
  faults.training_step = [](int64_t) { std::map<int, int>().at(3); };
  const std::string text = fit_message<std::out_of_range>();
  EXPECT_THAT(text, HasSubstr("error_context_test.cpp:"));
  EXPECT_THAT(text, HasSubstr(" in Classifier::training_step"));
  EXPECT_THAT(text, Not(HasSubstr("optimization.cpp")));
  EXPECT_THAT(text, Not(HasSubstr("stl_map.h")));
}

TEST_F(ErrorContext, ValidationSaysWhichBatchOfWhichLoader) {
  faults.validation_step = [](int64_t batch_idx) {
    if (batch_idx == 1) throw Error("mine", "no");
  };
  EXPECT_THAT(fit_message<Error>(quiet(1), tiny_loader()),
              StartsWith("[mine] no\n  in validation_step of Classifier, validation batch 1 of epoch 0, batch {"));
  TrainerOptions checked = quiet(1);
  checked.num_sanity_val_steps = 2;
  EXPECT_THAT(fit_message<Error>(checked, tiny_loader()),
              HasSubstr("Classifier, batch 1 of the sanity check, batch {"));
  EXPECT_THAT(message_of<Error>([] {
                Trainer trainer(quiet(1));
                trainer.validate(make<Classifier>(), {tiny_loader(), tiny_loader()});
              }),
              HasSubstr("Classifier, validation batch 1 of loader 0, batch {"));
}

TEST_F(ErrorContext, Prediction) {
  faults.predict_step = [](int64_t batch_idx) {
    if (batch_idx == 2) throw Error("mine", "no");
  };
  EXPECT_THAT(message_of<Error>([] {
                Trainer trainer(quiet(1));
                trainer.predict(make<Classifier>(), tiny_loader());
              }),
              HasSubstr("[mine] no\n  in predict_step of Classifier, prediction batch 2, batch {x: [8, 4] float"));
}

TEST_F(ErrorContext, HooksOfTheModule) {
  faults.on_train_epoch_end = [] { throw MyError("no"); };
  EXPECT_THAT(fit_message<MyError>(), StartsWith("no\n  in on_train_epoch_end of Classifier, epoch 0"));
  faults = {};
  faults.on_after_backward = [] { throw MyError("no"); };
  EXPECT_THAT(fit_message<MyError>(), StartsWith("no\n  in on_after_backward of Classifier, batch 0 of epoch 0"));
  faults = {};
  faults.setup = [] { throw MyError("no"); };
  EXPECT_THAT(fit_message<MyError>(), StartsWith("no\n  in setup of Classifier"));
  faults = {};
  faults.configure_optimizers = [] { throw ConfigError("no"); };
  EXPECT_THAT(fit_message<ConfigError>(), StartsWith("[config] no\n  in configure_optimizers of Classifier"));
}

TEST_F(ErrorContext, ACallbackAndTheMetricThatIsMissing) {
  struct Best : Callback {
    void on_train_batch_end(Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t batch_idx) override {
      if (batch_idx == 2) trainer.callback_metrics().at("val_los");
    }
  };
  struct Averages : Callback {
    void on_validation_end(Trainer& trainer, Module&) override { trainer.callback_metrics().at("val_los"); }
  };
  TrainerOptions options = quiet(1);
  options.callbacks = {std::make_shared<Best>()};
  EXPECT_THAT(fit_message<std::out_of_range>(options),
              StartsWith("[metrics] there is no metric 'val_los'; none was logged\n"
                         "  in on_train_batch_end of Best, batch 2 of epoch 0, batch {x: [8, 4] float"));
  options.callbacks = {std::make_shared<Averages>()};
  EXPECT_THAT(fit_message<std::out_of_range>(options, tiny_loader()),
              StartsWith("[metrics] there is no metric 'val_los'; did you mean 'val_loss'?; valid: val_loss\n"
                         "  in on_validation_end of Averages, epoch 0"));
}

TEST_F(ErrorContext, WhatACallbackCalls) {
  struct Saving : Callback {
    void on_train_batch_end(Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) override {
      trainer.save_checkpoint(fresh_folder("error_context") + "/x");
    }
  };
  faults.save = [] { throw MyError("no"); };
  TrainerOptions options = quiet(1);
  options.callbacks = {std::make_shared<Saving>()};
  EXPECT_THAT(fit_message<MyError>(options),
              StartsWith("no\n  in on_save_checkpoint of Classifier, batch 0 of epoch 0"));
}

class Pictures : public data::Dataset {
 public:
  int64_t size() const override { return 40; }
  Batch get(int64_t index, data::Generator&) const override {
    if (index == 29) throw std::filesystem::filesystem_error("cannot open", "29.png", std::error_code());
    return {{"x", at::ones({4})}, {"y", at::ones({1})}};
  }
};

TEST_F(ErrorContext, ADataSetSaysWhichExample) {
  for (const int64_t workers : {0, 2}) {
    SCOPED_TRACE(workers);
    const std::string text = message_of<std::filesystem::filesystem_error>([&] {
      Trainer trainer(quiet(1));
      trainer.fit(make<Classifier>(),
                  DataLoader(std::make_shared<Pictures>(), {.batch_size = 8, .num_workers = workers}));
    });
    EXPECT_THAT(text, HasSubstr("29.png"));
    EXPECT_THAT(text, HasSubstr("\n  in get of Pictures, example 29, batch 3 of epoch 0"));
  }
}

TEST_F(ErrorContext, ADataSetOfWholeBatchesAStreamAndACollate) {
  struct Rows : data::Dataset {
    int64_t size() const override { return 40; }
    Batch get_batch(std::span<const int64_t> indices, data::Generator&) const override {
      if (indices.front() == 16) throw MyError("no");
      const auto count = static_cast<int64_t>(indices.size());
      return {{"x", at::ones({count, 4})}, {"y", at::ones({count, 1})}};
    }
  };
  struct Lines : data::IterableDataset {
    struct Stream : data::ExampleStream {
      std::optional<Batch> next() override {
        if (++given == 20) throw MyError("no");
        return Batch{{"x", at::ones({4})}, {"y", at::ones({1})}};
      }
      int given = 0;
    };
    std::unique_ptr<data::ExampleStream> stream(const data::StreamContext&) const override {
      return std::make_unique<Stream>();
    }
  };
  struct Ragged : Pictures {
    Batch get(int64_t, data::Generator&) const override { return {{"x", at::ones({4})}}; }
    data::CollateFunction collate() const override {
      return [](std::span<const Batch>) -> Batch { throw MyError("no"); };
    }
  };
  const auto fit = [](const DataLoader& loader) {
    return message_of<MyError>([&] {
      TrainerOptions options = quiet(1);
      options.limit_train_batches = int64_t{5};
      Trainer trainer(options);
      trainer.fit(make<Classifier>(), loader);
    });
  };
  EXPECT_THAT(fit(DataLoader(std::make_shared<Rows>(), {.batch_size = 8})),
              StartsWith("no\n  in get_batch of Rows, examples 16, 17, 18, 19, 20, 21, 22, 23, batch 2 of epoch 0"));
  EXPECT_THAT(fit(DataLoader(std::make_shared<Lines>(), {.batch_size = 8})),
              StartsWith("no\n  in next of Lines, reader 0 of 1, its batch 2, batch 2 of epoch 0"));
  EXPECT_THAT(fit(DataLoader(std::make_shared<Ragged>(), {.batch_size = 10})),
              StartsWith("no\n  in collate of Ragged, examples 0, 1, 2, 3, 4, 5, 6, 7 and 2 more, batch 0 of epoch 0"));
}

TEST_F(ErrorContext, AMetricSaysUnderWhichNameItWasLogged) {
  struct Median : metrics::Metric {
    at::Tensor compute() const override { throw MyError("no"); }
  };
  struct Measured : Classifier {
    Measured() : Classifier({}) {}
    StepOutput validation_step(const Batch&, int64_t) override {
      log("val_median", median);
      return {};
    }
    Median median;
  };
  EXPECT_THAT(message_of<MyError>([] {
                Trainer trainer(quiet(1));
                trainer.fit(std::make_shared<Measured>(), tiny_loader(), tiny_loader());
              }),
              StartsWith("no\n  in compute of Median, the metric logged as 'val_median', epoch 0"));
}

TEST_F(ErrorContext, TheInnermostOfNestedUnits) {
  faults.broken_net = true;
  const std::string plain = fit_message<Error>();
  EXPECT_THAT(plain, StartsWith("[expert] four features, please\n  in training_step of Classifier, batch 0 of epoch 0, "
                                "unit layer.expert (Expert), batch {"));
  TrainerOptions hooked = quiet(1);
  hooked.activation_checkpointing = {.units = {"Layer", "Expert"}};
  EXPECT_THAT(fit_message<Error>(hooked), HasSubstr(", unit layer.expert (Expert), batch {"));
}

TEST_F(ErrorContext, InsideBackward) {
  faults.broken_backward = true;
  EXPECT_THAT(fit_message<MyError>(), StartsWith("no gradient here\n  in backward, batch 0 of epoch 0"));
}

/// What training_step returns, or backward throws.
struct Returning : Classifier {
  explicit Returning(std::function<StepOutput()> given) : Classifier({}), step(std::move(given)) {}
  StepOutput training_step(const Batch&, int64_t) override { return step(); }
  void backward(const at::Tensor& loss) override {
    if (fails) throw MyError("no backward");
    loss.backward();
  }
  std::function<StepOutput()> step;
  bool fails = false;
};

TEST_F(ErrorContext, WhatClosuresOfOptimizersThrowIsOfTheirPhase) {
  const auto message = [](const std::function<StepOutput()>& step, bool fails = false) {
    return message_of([&] {
      auto module = std::make_shared<Returning>(step);
      module->fails = fails;
      Trainer trainer(quiet(1));
      trainer.fit(module, tiny_loader());
    });
  };
  const auto parameter = [] { return at::ones({2}).requires_grad_(); };
  const std::string in_step = "\n  in training_step of Returning, batch 0 of epoch 0";
  const std::string in_backward = "\n  in backward, batch 0 of epoch 0";
  EXPECT_THAT(message([&] { return parameter(); }),
              AllOf(StartsWith("[module] training_step must return a scalar loss; got shape [2]"), HasSubstr(in_step)));
  EXPECT_THAT(message([] { return at::ones({}); }),
              AllOf(StartsWith("[module] the loss of training_step does not depend on"), HasSubstr(in_step)));
  EXPECT_THAT(message([&] { return StepOutput({.loss = parameter().sum(), .weight = -1.0}); }), HasSubstr(in_step));
  EXPECT_THAT(message([&] { return parameter().sum(); }, true),
              AllOf(StartsWith("no backward"), HasSubstr(in_backward)));
}

TEST_F(ErrorContext, ARecomputeInBackwardNamesTheUnit) {
  TrainerOptions options = quiet(1);
  options.activation_checkpointing = {.units = {"Layer"}};
  faults.on_after_backward = [] { faults.broken_net = false; };
  struct Breaking : Callback {
    void on_before_backward(Trainer&, Module&, const at::Tensor&) override { faults.broken_net = true; }
  };
  options.callbacks = {std::make_shared<Breaking>()};
  EXPECT_THAT(fit_message<Error>(options),
              HasSubstr("\n  in backward, batch 0 of epoch 0, unit layer.expert (Expert)"));
}

TEST_F(ErrorContext, Replicas) {
  EXPECT_THAT(fit_message<c10::Error>(two("dp"), {}, {.narrow = true}),
              HasSubstr("\n  in training_step of Classifier, batch 0 of epoch 0, unit net.2 (Linear 10→1), "
                        "batch {x: [4, 4] float, y: [4, 1] float}"));
}

TEST_F(ErrorContext, RanksSayWhichOfThem) {
  for (const char* strategy : {"ddp_threads", "ddp_spawn"}) {
    SCOPED_TRACE(strategy);
    faults.training_step = [](int64_t batch_idx) {
      if (batch_idx == 1) throw MyError("no");
    };
    const std::string alike = fit_message(two(strategy));
    EXPECT_THAT(alike, HasSubstr("no\n  in training_step of Classifier, batch 1 of epoch 0, rank "));
  }
}

/// LibTorch's list of C++ calls is for its developers, and what another process sends has none.
TEST_F(ErrorContext, EveryStartMethodThrowsTheSameTypeWithoutACppStack) {
  const auto what = [](const TrainerOptions& options) -> std::string {
    try {
      Trainer trainer(options);
      trainer.fit(make<Classifier>({.narrow = true}), tiny_loader(40, 8));
    } catch (const c10::Error& error) {
      return error.what();
    }
    return "another type";
  };
  for (const TrainerOptions& options : {quiet(1), two("dp"), two("ddp_threads"), two("ddp_spawn")}) {
    const std::string text = what(options);
    EXPECT_THAT(text,
                AllOf(HasSubstr("mat1 and mat2 shapes cannot be multiplied"),
                      HasSubstr("\n  in training_step of Classifier, batch 0 of epoch 0"), Not(HasSubstr("frame #"))));
  }
  faults.training_step = [](int64_t) { throw std::out_of_range("no"); };
  EXPECT_THAT(fit_message<std::out_of_range>(two("ddp_threads")), StartsWith("no\n"));
  EXPECT_THAT(fit_message<std::out_of_range>(two("ddp_spawn")), HasSubstr(" failed: no\n"));
  // One that is known here alone is the nearest that is known everywhere.
  faults.training_step = [](int64_t) { throw MyError("no"); };
  EXPECT_THAT(fit_message<std::runtime_error>(two("ddp_spawn")), HasSubstr(" failed: no\n"));
}

TEST_F(ErrorContext, AnErrorOutsideOfStepsHasNoCppStackEither) {
  struct Broken : Classifier {
    Broken() : Classifier({}) {}
    void configure_model() override { at::ones({2, 3}).matmul(at::ones({2, 3})); }
  };
  try {
    Trainer trainer(quiet(1));
    trainer.fit(std::make_shared<Broken>(), tiny_loader());
    FAIL() << "nothing was thrown";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), Not(HasSubstr("frame #")));
  }
}

struct OnRankOne : Callback {
  void on_train_batch_end(Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t batch_idx) override {
    if (batch_idx == 1 && trainer.global_rank() == 1) throw MyError("no");
  }
  void on_exception(Trainer& trainer, Module&, const std::exception_ptr& error) override {
    if (trainer.global_rank() != 0) return;
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& failure) {
      seen = failure.what();
    }
  }
  inline static std::string seen;  // NOLINT: by rank 0 alone
};

TEST_F(ErrorContext, TheOtherRanksSayItToo) {
  TrainerOptions options = two("ddp_threads");
  options.callbacks = {make<OnRankOne>()};
  EXPECT_THAT(fit_message<MyError>(options), StartsWith("no\n  in on_train_batch_end of OnRankOne, batch 1 of epoch 0, "
                                                        "rank 1, batch {"));
  EXPECT_THAT(OnRankOne::seen, StartsWith("[ranks] rank 1 failed: no\n  in on_train_batch_end of OnRankOne, batch 1"));
}

// ---- Types

TEST_F(ErrorContext, TheTypeSurvives) {
  const auto type_survives = [](const auto& error, const std::string& text) {
    using Type = std::decay_t<decltype(error)>;
    SCOPED_TRACE(text);
    faults.training_step = [&](int64_t) { throw error; };
    EXPECT_THAT(fit_message<Type>(), AllOf(StartsWith(text), HasSubstr("\n  in training_step of Classifier")));
  };
  struct Derived : ConfigError {
    using ConfigError::ConfigError;
  };
  type_survives(Error("mine", "no"), "[mine] no");
  type_survives(Derived("no"), "[config] no");
  type_survives(InternalError("no"), "no");
  type_survives(std::out_of_range("no"), "no");
  type_survives(std::invalid_argument("no"), "no");
  type_survives(std::system_error(std::make_error_code(std::errc::no_such_file_or_directory)), "No such file");
  type_survives(std::bad_optional_access(), "bad optional access");
  type_survives(c10::IndexError({"f", "file", 1}, "no"), "no");
}

TEST_F(ErrorContext, OutOfMemoryStaysSo) {
  faults.training_step = [](int64_t) { throw c10::OutOfMemoryError({"f", "file", 1}, "full"); };
  EXPECT_THAT(
      fit_message<OutOfMemoryError>(),
      AllOf(StartsWith("[memory] full; hint: "), HasSubstr("\n  in training_step of Classifier, batch 0 of epoch 0")));
}

TEST_F(ErrorContext, AnErrorWithATextOfItsOwnStaysAndTheLogSaysWhere) {
  struct Numbered : std::exception {
    const char* what() const noexcept override { return "error 17"; }
  };
  faults.training_step = [](int64_t) { throw Numbered(); };
  const CapturedLog log;
  EXPECT_EQ(fit_message<Numbered>(), "error 17");
  EXPECT_THAT(log.text(), HasSubstr("error 17\n  in training_step of Classifier, batch 0 of epoch 0"));
}

TEST_F(ErrorContext, ATrainerInsideAnotherOne) {
  struct Outer : Classifier {
    Outer() : Classifier({}) {}
    StepOutput training_step(const Batch&, int64_t) override {
      faults.training_step = [](int64_t) { throw MyError("no"); };
      Trainer inner(quiet(1));
      inner.fit(make<Classifier>(), tiny_loader());
      return {};
    }
  };
  const std::string text = message_of<MyError>([] {
    Trainer trainer(quiet(1));
    trainer.fit(std::make_shared<Outer>(), tiny_loader());
  });
  EXPECT_THAT(text, StartsWith("no\n  in training_step of Classifier, batch 0"));
  EXPECT_THAT(text, HasSubstr("\n  in training_step of Outer, batch 0"));
}

TEST_F(ErrorContext, WhatUserCodeCatchesIsItsOwnAffair) {
  faults.training_step = [](int64_t batch_idx) {
    try {
      ExpertImpl().forward(at::ones({1, 3}));
    } catch (const Error&) {
      if (batch_idx == 2) throw MyError("another");
    }
  };
  EXPECT_THAT(fit_message<MyError>(),
              StartsWith("another\n  in training_step of Classifier, batch 2 of epoch 0, batch {"));
}

TEST_F(ErrorContext, WithoutUserCodeTheMessageIsAsItWas) {
  TrainerOptions options = quiet(1);
  options.strategy = "ddp_threads";
  options.devices = 2;
  EXPECT_THAT(message_of<Error>([&] {
                Trainer trainer(options);
                trainer.fit(std::make_shared<Classifier>(Classifier::Options()), tiny_loader());
              }),
              Not(HasSubstr("\n  in ")));
}

TEST(WithoutContext, IsWhatTheErrorSaid) {
  EXPECT_EQ(without_context("no\nreally\n  in training_step of X, rank 1\n  at x.cpp:3"), "no\nreally");
  EXPECT_EQ(without_context("no"), "no");
}

}  // namespace
}  // namespace levin::testing
