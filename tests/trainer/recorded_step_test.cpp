#include <levin/callbacks/gradient_norm_monitor.h>
#include <levin/callbacks/lambda_callback.h>
#include <levin/callbacks/model_pruning.h>
#include <levin/callbacks/nan_monitor.h>
#include <levin/callbacks/stochastic_weight_averaging.h>
#include <levin/callbacks/weight_averaging.h>
#include <levin/core/base/seed.h>
#include <levin/core/metrics/accuracy.h>
#include <levin/core/metrics/mean.h>
#include <levin/core/metrics/metric_collection.h>
#include <levin/core/metrics/precision_recall.h>
#include <levin/core/metrics/regression.h>
#include <levin/core/nn/sequential.h>
#include <levin/core/optim/sgd.h>

#include <gmock/gmock.h>
#include <tests/support/captured_log.h>
#include <tests/support/fit_outcome.h>
#include <tests/support/tiny.h>
#include <tests/support/tiny_stream.h>
#include <torch/nn/functional.h>
#include <torch/nn/modules.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

/// Recorded steps on the CPU: a fit with `graph` is that without, to the bit.
namespace levin {
namespace {

namespace F = torch::nn::functional;
using testing::expect_same_outcome;
using testing::fit_into;
using testing::FitOutcome;
using ::testing::HasSubstr;
using testing::identical;
using ::testing::Not;
using testing::quiet;

constexpr int64_t kClasses = 3;

/// A network, and what its loss is.
struct Network {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const at::Tensor& x, const at::Tensor& y)> loss;
};

Network mlp() {
  torch::nn::Sequential body(torch::nn::Linear(16, 8), torch::nn::ReLU(), torch::nn::Dropout(0.3),
                             torch::nn::Linear(8, kClasses));
  return {body.ptr(),
          [body](const at::Tensor& x, const at::Tensor& y) mutable { return F::cross_entropy(body->forward(x), y); }};
}

/// Of units, as nan_monitor watches them.
Network units() {
  levin::Sequential body(torch::nn::Linear(16, 8), torch::nn::ReLU(), torch::nn::Dropout(0.3),
                         torch::nn::Linear(8, kClasses));
  return {body.ptr(),
          [body](const at::Tensor& x, const at::Tensor& y) mutable { return F::cross_entropy(body->forward(x), y); }};
}

Network cnn() {
  torch::nn::Sequential body(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).padding(1)), torch::nn::BatchNorm2d(4),
                             torch::nn::ReLU(), torch::nn::MaxPool2d(2), torch::nn::Flatten(),
                             torch::nn::Linear(16, kClasses));
  return {body.ptr(), [body](const at::Tensor& x, const at::Tensor& y) mutable {
            return F::cross_entropy(body->forward(x.view({-1, 1, 4, 4})), y,
                                    F::CrossEntropyFuncOptions().label_smoothing(0.1));
          }};
}

struct LstmNet : torch::nn::Module {
  LstmNet()
      : lstm(register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(4, 8).batch_first(true)))),
        head(register_module("head", torch::nn::Linear(8, kClasses))) {}
  torch::nn::LSTM lstm;
  torch::nn::Linear head;
};

Network lstm() {
  auto net = std::make_shared<LstmNet>();
  return {net, [net](const at::Tensor& x, const at::Tensor& y) {
            const at::Tensor states = std::get<0>(net->lstm->forward(x.view({-1, 4, 4})));
            return F::cross_entropy(net->head->forward(states.select(1, 3)), y);
          }};
}

struct TransformerNet : torch::nn::Module {
  TransformerNet()
      : embed(register_module("embed", torch::nn::Linear(4, 8))),
        encoder(register_module(
            "encoder", torch::nn::TransformerEncoder(torch::nn::TransformerEncoderOptions(
                           torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16).dropout(0.1), 2)))),
        head(register_module("head", torch::nn::Linear(8, kClasses))) {}
  torch::nn::Linear embed;
  torch::nn::TransformerEncoder encoder;
  torch::nn::Linear head;
};

Network transformer() {
  auto net = std::make_shared<TransformerNet>();
  return {net, [net](const at::Tensor& x, const at::Tensor& y) {
            const at::Tensor words = net->embed->forward(x.view({-1, 4, 4})).transpose(0, 1);
            return F::cross_entropy(net->head->forward(net->encoder->forward(words).mean(0)), y);
          }};
}

Network embedding() {
  auto net = std::make_shared<TransformerNet>();
  auto words = torch::nn::Embedding(7, 8);
  net->register_module("words", words);
  auto norm = torch::nn::LayerNorm(torch::nn::LayerNormOptions({8}));
  net->register_module("norm", norm);
  return {net, [net, words, norm](const at::Tensor& x, const at::Tensor& y) mutable {
            const at::Tensor ids = (x.abs() * 6).to(at::kLong).remainder(7);
            return F::cross_entropy(net->head->forward(norm->forward(words->forward(ids)).mean(1)), y);
          }};
}

struct VaeNet : torch::nn::Module {
  VaeNet()
      : encoder(register_module("encoder", torch::nn::Linear(16, 8))),
        decoder(register_module("decoder", torch::nn::Linear(4, 16))) {}
  torch::nn::Linear encoder;
  torch::nn::Linear decoder;
};

Network vae() {
  auto net = std::make_shared<VaeNet>();
  return {net, [net](const at::Tensor& x, const at::Tensor&) {
            const auto parts = net->encoder->forward(x).chunk(2, 1);
            const at::Tensor z = parts[0] + (0.5 * parts[1]).exp() * at::randn_like(parts[0]);
            const at::Tensor divergence = -0.5 * (1 + parts[1] - parts[0].square() - parts[1].exp()).sum(1).mean();
            return F::mse_loss(net->decoder->forward(z), x) + divergence;
          }};
}

using MakeNetwork = Network (*)();

struct Net final : Module {
  explicit Net(MakeNetwork make_network) : network(make_network()) { register_module("network", network.module); }
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    ++steps;
    if (before_step) before_step(*this);
    seen_x = batch["x"];
    seen_y = batch["y"];
    at::Tensor loss = network.loss(batch["x"], batch["y"]);
    if (change_loss) loss = change_loss(*this, loss, batch_idx);
    seen_x.reset();
    seen_y.reset();
    log("loss", loss, {.on_step = true, .on_epoch = true});
    log("samples", batch["y"].sum(), {.on_step = false, .on_epoch = true, .reduce = LogReduce::kSum});
    return StepOutput({.loss = loss, .outputs = {{"x", batch["x"]}, {"double", loss * 2}}});
  }
  StepOutput validation_step(const Batch& batch, int64_t) override {
    log("val_loss", network.loss(batch["x"], batch["y"]));
    return {};
  }
  OptimizerConfigs configure_optimizers() override {
    const auto optimizer = std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 0.02});
    if (!schedules) return optimizer;
    return OptimizerConfig{.optimizer = optimizer, .scheduler = {.name = "cosine", .interval = Interval::kStep}};
  }

  Network network;
  int64_t steps = 0;
  int64_t epoch = 0;
  bool schedules = true;
  std::function<void(Net&)> before_step;
  std::function<at::Tensor(Net&, const at::Tensor& loss, int64_t batch_idx)> change_loss;
  at::Tensor kept;
  at::Tensor seen_x;  ///< of the batch of the step under way
  at::Tensor seen_y;
};

struct Setting {
  MakeNetwork network = mlp;
  std::function<void(TrainerOptions&)> options = [](TrainerOptions&) {};
  std::function<void(Net&)> module = [](Net&) {};
  std::function<void(Trainer&, Net&)> before_batch = nullptr;
  int64_t examples = 48;
  int64_t epochs = 3;
  GraphMode graph = true;
};

DataLoader loader(int64_t examples, bool shuffle = true) {
  const at::Tensor x = at::arange(examples * 16, at::kFloat).reshape({examples, 16}).mul(0.7).sin();
  return DataLoader(
      std::make_shared<data::TensorDataset>(Batch{{"x", x}, {"y", at::arange(examples).remainder(kClasses)}}),
      {.batch_size = 8, .shuffle = shuffle});
}

FitOutcome fit_setting(const Setting& setting, GraphMode graph) {
  seed_everything(11);
  FitOutcome outcome;
  auto module = std::make_shared<Net>(setting.network);
  setting.module(*module);
  TrainerOptions options = quiet(setting.epochs);
  options.log_every_n_steps = 2;
  const auto sum_of_gradients = [](const Module& of) {
    double sum = 0;
    for (const auto& parameter : of.parameters())
      if (parameter.grad().defined()) sum += parameter.grad().abs().sum().item<double>();
    return std::isfinite(sum) ? sum : -1;
  };
  const auto hold = [&](const at::Tensor& tensor) {
    if (tensor.defined()) outcome.held.push_back(tensor);
  };
  options.callbacks.push_back(make<LambdaCallback>(LambdaCallbackOptions{
      .on_train_batch_start =
          [&](Trainer& trainer, Module&, const Batch&, int64_t) {
            module->epoch = trainer.current_epoch();
            if (setting.before_batch) setting.before_batch(trainer, *module);
          },
      .on_train_batch_end =
          [&](Trainer& trainer, Module& of, const StepOutput& output, const Batch&, int64_t) {
            outcome.seen.push_back(output.loss().item<double>());
            outcome.seen.push_back(output.outputs()["double"].item<double>());
            outcome.seen.push_back(output.outputs()["x"].sum().item<double>());
            if (trainer.global_step() % 5 != 0) return;
            for (const auto& [name, tensor] : output.outputs().items()) hold(tensor);
            hold(output.loss());
            hold(of.parameters().front().grad());
            if (of.parameters().back().grad().defined()) hold(of.parameters().back().grad().detach());
          },
      .on_before_zero_grad = [&](Trainer&, Module& of,
                                 OptimizerHandle&) { outcome.seen.push_back(sum_of_gradients(of)); },
      .on_before_backward =
          [&](Trainer&, Module& of, const at::Tensor& loss) {
            outcome.seen.push_back(loss.item<double>() + sum_of_gradients(of));
          },
      .on_after_backward = [&](Trainer&, Module& of) { outcome.seen.push_back(sum_of_gradients(of)); }}));
  setting.options(options);
  options.graph = graph;
  Trainer trainer(options);
  fit_into(outcome, trainer, module, loader(setting.examples), loader(16, false));
  outcome.training_steps = module->steps;
  return outcome;
}

/// Gives what the run with recorded steps said.
FitOutcome expect_same(const Setting& setting) {
  const FitOutcome plain = fit_setting(setting, false);
  const FitOutcome replayed = fit_setting(setting, setting.graph);
  expect_same_outcome(plain, replayed);
  return replayed;
}

void expect_replayed(const Setting& setting) {
  const FitOutcome outcome = expect_same(setting);
  EXPECT_THAT(outcome.log, HasSubstr("[graph] recorded the step of batch 3 in "));
  EXPECT_THAT(outcome.log, Not(HasSubstr("not recorded")));
}

TEST(RecordedStep, EveryKindOfNetworkTrainsToTheBit) {
  const std::pair<const char*, MakeNetwork> networks[] = {
      {"mlp", mlp}, {"cnn", cnn}, {"lstm", lstm}, {"transformer", transformer}, {"vae", vae}, {"embedding", embedding}};
  for (const auto& [name, network] : networks) {
    SCOPED_TRACE(name);
    expect_replayed({.network = network});
  }
}

TEST(RecordedStep, RunsTrainingStepToRecordAndToCompareOnly) {
  // 18 steps: 3 ordinary ones, one recorded, 3 compared (of two epochs), one at the start of the third.
  EXPECT_EQ(fit_setting({}, true).training_steps, 3 + 1 + 3 + 1);
  // One epoch of 60: again after 8 and 16 replays.
  EXPECT_EQ(fit_setting({.examples = 480, .epochs = 1}, true).training_steps, 3 + 1 + 3 + 2);
}

TEST(RecordedStep, EveryPrecisionAndClippingAlgorithm) {
  for (const char* precision : {"32-true", "64-true", "bf16-true", "bf16-mixed"}) {
    for (const char* algorithm : {"norm", "value", "adaptive"}) {
      for (const MakeNetwork network : {cnn, transformer}) {
        SCOPED_TRACE(std::string(precision) + " " + algorithm);
        expect_replayed({.network = network, .options = [&](TrainerOptions& options) {
                           options.precision = precision;
                           options.gradient_clip_val = 0.05;
                           options.gradient_clip_algorithm = algorithm;
                         }});
      }
    }
  }
}

TEST(RecordedStep, ScaledLossesThatOverflowAreSkippedAlike) {
  expect_replayed({.options = [](TrainerOptions& options) {
    options.precision =
        Spec<Precision>(Config::parse("{name: 16-mixed, init_scale: 33554432, growth_interval: 2}", {}));
  }});
}

TEST(RecordedStep, EachShapeHasARecordingOfItsOwn) {
  const FitOutcome outcome = expect_same({.examples = 44, .epochs = 7});
  EXPECT_THAT(outcome.log, HasSubstr("recorded the step of batch 3"));
  EXPECT_THAT(outcome.log, HasSubstr("recorded the step of batch 23")) << "the fourth batch of 4 examples";
}

// ---- Accumulation.

TEST(RecordedStep, AccumulationWindowsAreRecordedByPlace) {
  for (const MakeNetwork network : {mlp, cnn, lstm, transformer}) {
    for (const int64_t size : {2, 3}) {
      SCOPED_TRACE(size);
      const FitOutcome outcome = expect_same({.network = network,
                                              .options =
                                                  [&](TrainerOptions& options) {
                                                    options.accumulate_grad_batches = size;
                                                    options.gradient_clip_val = 0.05;
                                                  },
                                              .examples = 24 * 8,
                                              .epochs = 2});
      EXPECT_THAT(outcome.log, Not(HasSubstr("not recorded")));
      // Beginning and end of a window, and what lies between: 4 windows of each are ordinary or recorded, and 5
      // compared.
      EXPECT_LE(outcome.training_steps, 9 * size) << outcome.log;
    }
  }
}

TEST(RecordedStep, WindowsOfOtherSizesAndScaledLosses) {
  // 10 batches: the last window of each epoch is shorter.
  for (const char* precision : {"32-true", "bf16-mixed", "{name: 16-mixed, init_scale: 65536, growth_interval: 2}"}) {
    SCOPED_TRACE(precision);
    expect_same({.options =
                     [&](TrainerOptions& options) {
                       options.accumulate_grad_batches = 4;
                       options.precision = Spec<Precision>(Config::parse(precision, {}));
                     },
                 .examples = 80,
                 .epochs = 6});
  }
  expect_same({.options =
                   [](TrainerOptions& options) {
                     options.accumulate_grad_batches = optim::AccumulationSchedule({{0, 1}, {2, 2}, {4, 3}});
                   },
               .epochs = 6});
}

TEST(RecordedStep, ResumesToTheBitInsideOfAWindow) {
  const std::string path = testing::fresh_folder("recorded_window") + "/c";
  const auto train = [&](const GraphMode& graph, int64_t batches, const std::string& from, const std::string& save) {
    seed_everything(4);
    auto module = std::make_shared<Net>(mlp);
    module->schedules = false;
    TrainerOptions options = quiet(4);
    options.graph = graph;
    options.accumulate_grad_batches = 3;
    options.callbacks.push_back(make<LambdaCallback>(LambdaCallbackOptions{
        .on_train_batch_end = [&](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) {
          if (trainer.total_batches() + 1 == batches) {
            trainer.save_checkpoint(save);
            trainer.request_stop("the test resumes here");
          }
        }}));
    Trainer trainer(options);
    trainer.fit(module, loader(72), {}, from);
    return testing::weights(*module);
  };
  const auto whole = train(false, 0, "", "");
  for (const int64_t at : {4, 14, 23}) {
    const std::string checkpoint = path + std::to_string(at);
    train(true, at, "", checkpoint);
    EXPECT_TRUE(identical(train(true, 0, checkpoint, ""), whole)) << "resumed after batch " << at;
  }
}

// ---- Callbacks.

TEST(RecordedStep, AveragesMonitorsAndPruningSeeWhatTheySeeOfOrdinarySteps) {
  const std::pair<const char*, std::function<std::shared_ptr<Callback>()>> callbacks[] = {
      {"ema", [] { return make<WeightAveraging>({.decay = 0.8, .use_buffers = true}); }},
      {"gradient norms", [] { return make<GradientNormMonitor>({.per_parameter = true}); }},
      {"nan", [] { return make<NanMonitor>({.every_n_steps = 1}); }},
      {"swa", [] { return make<StochasticWeightAveraging>({.swa_lrs = 0.01, .swa_epoch_start = 0.5}); }},
      {"pruning", [] { return make<ModelPruning>({.amount = 0.3}); }}};
  for (const auto& [name, make_callback] : callbacks) {
    SCOPED_TRACE(name);
    const FitOutcome outcome = expect_same({.network = cnn,
                                            .options =
                                                [&](TrainerOptions& options) {
                                                  options.callbacks.push_back(make_callback());
                                                  options.gradient_clip_val = 0.05;
                                                },
                                            .module = [](Net& net) { net.schedules = false; },
                                            .epochs = 6});
    EXPECT_THAT(outcome.log, HasSubstr("[graph] recorded the step of batch 3 in "));
    EXPECT_THAT(outcome.log, Not(HasSubstr("not recorded")));
  }
}

TEST(RecordedStep, NanMonitorSeesTheUnitsOfReplays) {
  const FitOutcome outcome = expect_same(
      {.network = units,
       .options = [](TrainerOptions& options) { options.callbacks.push_back(make<NanMonitor>({.every_n_steps = 1})); },
       .epochs = 6});
  EXPECT_THAT(outcome.log, HasSubstr("[graph] recorded the step of batch 3 in "));
  EXPECT_THAT(outcome.log, Not(HasSubstr("not recorded")));
}

TEST(RecordedStep, OfRanksWhoseDataHasNoSizeIsRefusedAloud) {
  const auto fit = [](const GraphMode& graph) {
    const testing::CapturedLog log;
    TrainerOptions options = testing::quiet(1);
    options.strategy = "ddp_threads";
    options.devices = 2;
    options.graph = graph;
    std::string error;
    try {
      Trainer(options).fit(make<testing::TinyModule>({}),
                           DataLoader(std::make_shared<testing::TinyStream>(64), {.batch_size = 4}));
    } catch (const Error& thrown) {
      error = thrown.what();
    }
    return log.text() + error;
  };
  constexpr const char* kWhy = "ranks ask each other in each step who has data left";
  EXPECT_THAT(fit(true), HasSubstr(kWhy));
  EXPECT_THAT(fit("required"), HasSubstr(std::string("steps cannot be recorded: ") + kWhy));
}

TEST(RecordedStep, MetricsCountInEveryStep) {
  struct Counted {
    metrics::Accuracy accuracy{{.num_classes = kClasses}};
    metrics::MetricCollection scores;
    metrics::MetricCollection fits;
    Counted() {
      fits.add<metrics::R2Score>("r2");
      fits.add<metrics::PearsonCorrelation>("pearson");
      fits.add<metrics::ExplainedVariance>("explained_variance");
      scores.add<metrics::Precision>("precision", {.num_classes = kClasses, .average = "macro"});
      scores.add<metrics::Recall>("recall", {.num_classes = kClasses, .average = "macro"});
    }
  };
  expect_replayed({.module = [](Net& module) {
    const auto counted = std::make_shared<Counted>();
    module.change_loss = [counted](Net& net, const at::Tensor& loss, int64_t) {
      const at::Tensor logits = at::stack({net.seen_x.sum(1), net.seen_x.select(1, 0), net.seen_x.select(1, 3)}, 1);
      net.log("accuracy", counted->accuracy.update(logits, net.seen_y), {.on_step = true, .on_epoch = true});
      net.log_dict(counted->scores.update(logits, net.seen_y), {.on_step = false, .on_epoch = true});
      net.log_dict(counted->fits.update(net.seen_x.sum(1), net.seen_x.select(1, 0)),
                   {.on_step = false, .on_epoch = true});
      return loss;
    };
  }});
}

TEST(RecordedStep, GradientsThatAHookChangesCount) {
  const auto in_place = [](Module& of) {
    const at::NoGradGuard no_grad;
    for (const auto& parameter : of.parameters()) parameter.mutable_grad().mul_(0.5);
  };
  const auto by_others = [](Module& of) {
    for (const auto& parameter : of.parameters()) parameter.mutable_grad() = parameter.grad() * 0.5;
  };
  for (const std::function<void(Module&)>& change : {std::function<void(Module&)>(in_place), {by_others}}) {
    for (const int64_t window : {1, 2}) {
      const FitOutcome outcome = expect_same(
          {.options =
               [&](TrainerOptions& options) {
                 options.accumulate_grad_batches = window;
                 options.callbacks.push_back(make<LambdaCallback>(LambdaCallbackOptions{
                     .on_before_optimizer_step = [&](Trainer&, Module& of, OptimizerHandle&) { change(of); }}));
               },
           .examples = 96});
      EXPECT_THAT(outcome.log, HasSubstr("[graph] recorded the step of batch"));
    }
  }
}

TEST(RecordedStep, AutoKeepsWhatIsFaster) {
  const FitOutcome outcome = expect_same({.epochs = 8, .graph = "auto"});
  EXPECT_THAT(outcome.log, HasSubstr("[graph] auto: a replayed step takes"));
}

// ---- What training_step may not do.

TEST(RecordedStep, SaysWhichOperatorCannotBeRecorded) {
  const auto with = [](const std::function<at::Tensor(Net&, const at::Tensor&, int64_t)>& change) {
    return Setting{.module = [change](Net& net) { net.change_loss = change; }};
  };
  EXPECT_THAT(expect_same(with([](Net&, const at::Tensor& loss, int64_t) {
                return loss.item<double>() > 100 ? loss * 2 : loss;
              })).log,
              HasSubstr("aten::_local_scalar_dense cannot be recorded: it looks at a value"));
  EXPECT_THAT(expect_same(with([](Net&, const at::Tensor& loss, int64_t) {
                return loss + loss.detach().reshape({1}).nonzero().sum();
              })).log,
              HasSubstr("aten::nonzero"));
  EXPECT_THAT(expect_same(with([](Net& net, const at::Tensor& loss, int64_t) {
                net.kept = loss.detach();
                return loss;
              })).log,
              HasSubstr("something keeps what"));
}

Network with_a_unit_that_looks_at_values() {
  auto net = std::make_shared<TransformerNet>();
  Sequential body(
      torch::nn::Linear(16, 8), [](const at::Tensor& x) { return x.sum().item<double>() > 1e9 ? x * 2 : x; },
      torch::nn::Linear(8, kClasses));
  net->register_module("body", body);
  return {net,
          [body](const at::Tensor& x, const at::Tensor& y) mutable { return F::cross_entropy(body->forward(x), y); }};
}

Network with_a_unit_of_the_host() {
  auto net = std::make_shared<TransformerNet>();
  const auto steps = std::make_shared<int64_t>(0);
  Sequential body(
      torch::nn::Linear(16, 8), [steps](const at::Tensor& x) { return x * static_cast<double>(++*steps); },
      torch::nn::Linear(8, kClasses));
  net->register_module("body", body);
  return {net,
          [body](const at::Tensor& x, const at::Tensor& y) mutable { return F::cross_entropy(body->forward(x), y); }};
}

TEST(RecordedStep, NamesTheUnitOfTheOperator) {
  EXPECT_THAT(expect_same({.network = with_a_unit_that_looks_at_values}).log,
              HasSubstr("aten::_local_scalar_dense in unit network.body.1 (Function) cannot be recorded: it looks at a "
                        "value"));
  EXPECT_THAT(expect_same({.network = with_a_unit_of_the_host}).log,
              HasSubstr("argument 'other' of aten::mul.Scalar in unit network.body.1 (Function) changes from step to "
                        "step"));
}

TEST(RecordedStep, ControlFlowOfTheHostIsFoundByComparing) {
  const auto with = [](const std::function<at::Tensor(Net&, const at::Tensor&, int64_t)>& change) {
    return Setting{.module = [change](Net& net) { net.change_loss = change; }};
  };
  EXPECT_THAT(
      expect_same(with([](Net&, const at::Tensor& loss, int64_t batch_idx) { return loss * (1.0 + batch_idx); })).log,
      HasSubstr("aten::mul"));
  EXPECT_THAT(expect_same(with([](Net&, const at::Tensor& loss, int64_t batch_idx) {
                return loss * at::tensor(1.0 + static_cast<double>(batch_idx));
              })).log,
              HasSubstr("a tensor that the host writes changes from step to step"));
  EXPECT_THAT(expect_same(with([](Net& net, const at::Tensor& loss, int64_t) {
                return net.epoch == 1 ? loss.square() : loss;
              })).log,
              HasSubstr("aten::pow"));
  EXPECT_THAT(expect_same(with([](Net&, const at::Tensor& loss, int64_t batch_idx) {
                at::Tensor factor = at::empty({1});
                factor.data_ptr<float>()[0] = static_cast<float>(batch_idx);
                return loss * factor.sum();
              })).log,
              HasSubstr("a tensor that the host writes"));
  // A moving average by assignment reads another tensor in each step.
  EXPECT_THAT(expect_same({.module =
                               [](Net& module) {
                                 module.kept = at::zeros({});
                                 module.change_loss = [](Net& net, const at::Tensor& loss, int64_t) {
                                   net.kept = net.kept * 0.9 + loss.detach();
                                   return loss + net.kept;
                                 };
                               }})
                  .log,
              HasSubstr("not recorded"));
}

TEST(RecordedStep, MemoryWrittenThroughAPointerIsFound) {
  const auto counter = std::make_shared<at::Tensor>(at::zeros({}));
  EXPECT_THAT(expect_same({.module =
                               [&](Net& net) {
                                 counter->zero_();
                                 net.change_loss = [&](Net&, const at::Tensor& loss, int64_t) {
                                   const at::Tensor used = loss + *counter * 0;
                                   counter->data_ptr<float>()[0] += 1;
                                   return used;
                                 };
                               }})
                  .log,
              HasSubstr("written through a pointer"));
}

TEST(RecordedStep, RequiredRecordingIsAnError) {
  Setting setting{.module = [](Net& net) {
    net.change_loss = [](Net&, const at::Tensor& loss, int64_t) { return loss.item<double>() > 100 ? loss * 2 : loss; };
  }};
  try {
    fit_setting(setting, "required");
    FAIL() << "it was recorded";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("steps cannot be recorded: "));
    EXPECT_THAT(error.what(), HasSubstr("aten::_local_scalar_dense"));
  }
  EXPECT_NO_THROW(fit_setting({}, "required"));
}

TEST(RecordedStep, WeightsChangedByHandBetweenStepsCount) {
  const auto at_step = [](int64_t step, const std::function<void(Net&)>& change) {
    return [=](Trainer& trainer, Net& net) {
      if (trainer.global_step() == step) change(net);
    };
  };
  expect_same({.before_batch = at_step(9, [](Net& net) {
                 const at::NoGradGuard no_grad;
                 for (auto& parameter : net.parameters()) parameter.mul_(0.5);
               })});
  expect_same({.before_batch = at_step(9, [](Net& net) {
                 auto weight = net.parameters().front();
                 weight.set_data(weight.detach() * 0.5);
               })});
  // Another layer in its place; the optimizer goes on with the old one.
  const FitOutcome swapped = expect_same({.before_batch = at_step(9, [](Net& net) {
                                            auto& body = *net.network.module->as<torch::nn::SequentialImpl>();
                                            auto fresh = torch::nn::Linear(16, 8);
                                            *body[0]->as<torch::nn::LinearImpl>() = *fresh;
                                          })});
  EXPECT_THAT(swapped.log, HasSubstr("recorded anew"));
}

TEST(RecordedStep, ModesAndFreezingAreFollowed) {
  const auto second_epoch = [](const std::function<void(Net&)>& change) {
    return [=](Trainer& trainer, Net& net) {
      if (trainer.global_step() == 8) change(net);
    };
  };
  EXPECT_THAT(expect_same({.before_batch = second_epoch([](Net& net) { net.network.module->eval(); })}).log,
              HasSubstr("the training mode of a part changed: the step is recorded anew"));
  expect_same({.before_batch = second_epoch([](Net& net) { net.parameters().front().set_requires_grad(false); })});
}

TEST(RecordedStep, ResumesToTheBitAtAnyBatch) {
  const std::string path = testing::fresh_folder("recorded") + "/c";
  const auto train = [&](GraphMode graph, int64_t steps, const std::string& from, const std::string& save) {
    seed_everything(4);
    auto module = std::make_shared<Net>(mlp);
    module->schedules = false;  // its length is that of the run
    TrainerOptions options = quiet(4);
    options.max_steps = steps;
    options.graph = graph;
    Trainer trainer(options);
    trainer.fit(module, loader(48), {}, from);
    if (!save.empty()) trainer.save_checkpoint(save);
    return testing::weights(*module);
  };
  const auto whole = train(false, 24, "", "");
  for (const int64_t at : {2, 5, 8, 13}) {
    train(true, at, "", path + std::to_string(at));
    EXPECT_TRUE(identical(train(true, 24, path + std::to_string(at), ""), whole)) << "resumed after " << at;
  }
}

}  // namespace
}  // namespace levin
