#include "tests/support/tiny.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/core/base/error.h>
#include <levin/core/metrics/mean_squared_error.h>
#include <levin/core/nn/sequential.h>
#include <levin/core/optim/adam.h>
#include <levin/core/optim/sgd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

using ::testing::HasSubstr;
using testing::quiet;
using testing::tiny_dataset;

struct ChainOptions {
  bool outside = false;  ///< layers before and after the sequential
  bool tuple = false;    ///< two tensors pass between elements
  double dropout = 0;
  std::string wrong;
  bool left_out = false;  ///< some batches do without some parameters
  static void describe(Schema<ChainOptions>& schema) {
    schema.field("outside", &ChainOptions::outside, "layers outside of the sequential");
    schema.field("tuple", &ChainOptions::tuple, "two tensors between elements");
    schema.field("dropout", &ChainOptions::dropout, "dropout probability");
    schema.field("wrong", &ChainOptions::wrong, "what is wrong");
    schema.field("left_out", &ChainOptions::left_out, "parameters that some batches do without");
  }
};

/// Uses its layer for some batches only.
class SometimesImpl : public torch::nn::Module {
 public:
  SometimesImpl() : layer_(register_module("layer", torch::nn::Linear(12, 12))) {}
  at::Tensor forward(const at::Tensor& x) { return x.sum().item<float>() > 0 ? layer_(x) : x * 2; }

 private:
  torch::nn::Linear layer_;
};
TORCH_MODULE(Sometimes);

class Chain : public Module {
 public:
  using Options = ChainOptions;
  explicit Chain(const Options& options) : options_(options) {
    Sequential net;
    net->push_back(torch::nn::Linear(4, 12));
    if (options.left_out) net->push_back(Sometimes());
    if (options.tuple) {
      net->push_back([](const at::Tensor& x) { return std::make_tuple(x.tanh(), x); });
      net->push_back([](const at::Tensor& x, const at::Tensor& skip) { return std::make_tuple(x.sin(), skip); });
      net->push_back([](const at::Tensor& x, const at::Tensor& skip) { return x + skip; });
    }
    net->push_back(torch::nn::Tanh());
    net->push_back(torch::nn::Linear(12, 12));
    net->push_back(torch::nn::Dropout(options.dropout));
    net->push_back(torch::nn::Tanh());
    net->push_back(torch::nn::Linear(torch::nn::LinearOptions(12, 12).bias(false)));
    net->push_back([](const at::Tensor& x) { return x.relu(); });
    net->push_back(torch::nn::Linear(12, options.outside ? 6 : 1));
    if (options.wrong == "wants two rows") net->push_back([](const at::Tensor& x) { return x.view({2, 1}); });
    if (options.wrong == "no sequential") {
      first_ = register_module("first", torch::nn::Linear(4, 1));
      return;
    }
    net_ = register_module("net", net);
    if (options.wrong == "two") other_ = register_module("other", Sequential(torch::nn::Linear(4, 1)));
    if (!options.outside) return;
    first_ = register_module("first", torch::nn::Linear(4, 4));
    last_ = register_module("last", torch::nn::Linear(6, 1));
  }

  at::Tensor forward(const at::Tensor& x) {
    if (!net_) return first_(x);
    if (!options_.outside) return net_(x);
    return last_(net_(first_(x)).tanh());
  }
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    if (options_.wrong == "throws" && batch_idx == 1 && trainer().global_rank() == 1)
      throw Error("test", "stage fails");
    if (options_.wrong == "not called") return batch["y"].mean().requires_grad_();
    at::Tensor y = forward(batch["x"]);
    if (options_.wrong == "twice") y = y + forward(batch["x"]);
    at::Tensor loss = torch::nn::functional::mse_loss(y, batch["y"]);
    log("loss", loss, {.on_step = true, .on_epoch = true});
    log("error", error_.update(y.detach(), batch["y"]), {.on_epoch = true});
    return loss;
  }
  StepOutput validation_step(const Batch& batch, int64_t) override {
    log("val_loss", torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]));
    return {};
  }
  Batch predict_step(const Batch& batch, int64_t) override { return {{"y", forward(batch["x"])}}; }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 0.02});
  }

 private:
  Options options_;
  Sequential net_{nullptr};
  Sequential other_{nullptr};
  torch::nn::Linear first_{nullptr};
  torch::nn::Linear last_{nullptr};
  metrics::MeanSquaredError error_;
};

struct PipelineRun {
  std::vector<at::Tensor> weights;
  MetricMap metrics;
  std::vector<double> losses;  ///< what rank 0's hooks see
  std::vector<at::Tensor> predictions;
};

struct PipelineCase {
  ChainOptions module;
  std::string strategy = "single_device";
  int devices = 1;
  std::string precision = "32-true";
  double clip = 0;
  int64_t accumulate = 1;
  int64_t examples = 40;
  std::string ckpt;
  std::string save_in;
  int64_t epochs = 2;
};

PipelineRun run_case(const PipelineCase& tested) {
  torch::manual_seed(5);
  TrainerOptions options = quiet(tested.epochs);
  options.strategy = Spec<Strategy>(Config::parse(tested.strategy, {.source = "test"}));
  options.devices = tested.devices;
  options.precision = tested.precision;
  options.gradient_clip_val = tested.clip;
  options.accumulate_grad_batches = tested.accumulate;
  options.log_every_n_steps = 1;
  PipelineRun ran;
  options.callbacks.emplace_back(make<LambdaCallback>(
      {.on_train_epoch_end =
           [&](Trainer& trainer, Module&) {
             if (!tested.save_in.empty())
               trainer.save_checkpoint(fmt::format("{}/{}", tested.save_in, trainer.current_epoch()));
           },
       .on_train_batch_end =
           [&](Trainer& trainer, Module&, const StepOutput& output, const Batch&, int64_t) {
             if (trainer.is_global_zero()) ran.losses.push_back(output.loss().item<double>());
           }}));
  Trainer trainer(options);
  const auto module = make<Chain>(tested.module);
  const DataLoader data(tiny_dataset(tested.examples), {.shuffle = true, .global_batch_size = 8});
  trainer.fit(module, data, DataLoader(tiny_dataset(12), {.global_batch_size = 6}), tested.ckpt);
  ran.weights = testing::weights(*module);
  ran.metrics = trainer.callback_metrics();
  const auto predictions = trainer.predict(module, DataLoader(tiny_dataset(12), {.global_batch_size = 6}));
  for (const auto& batch : predictions.at(0)) ran.predictions.push_back(batch["y"]);
  return ran;
}

void expect_same_weights(const PipelineRun& actual, const PipelineRun& expected, double bound = 2e-5) {
  ASSERT_EQ(actual.weights.size(), expected.weights.size());
  for (size_t i = 0; i < expected.weights.size(); ++i)
    EXPECT_TRUE(actual.weights[i].allclose(expected.weights[i], 1e-3, bound)) << "tensor " << i;
}

void expect_alike(const PipelineRun& actual, const PipelineRun& expected, double bound = 2e-5) {
  expect_same_weights(actual, expected, bound);
  ASSERT_EQ(actual.metrics.size(), expected.metrics.size());
  for (const auto& [name, value] : expected.metrics) EXPECT_NEAR(actual.metrics.at(name), value, 10 * bound) << name;
  ASSERT_EQ(actual.losses.size(), expected.losses.size());
  for (size_t i = 0; i < expected.losses.size(); ++i)
    EXPECT_NEAR(actual.losses[i], expected.losses[i], 10 * bound) << i;
  ASSERT_EQ(actual.predictions.size(), expected.predictions.size());
  for (size_t i = 0; i < expected.predictions.size(); ++i)
    EXPECT_TRUE(actual.predictions[i].allclose(expected.predictions[i], 1e-3, 10 * bound)) << i;
}

std::string pipeline(const std::string& options) { return "{name: pipeline_threads, " + options + "}"; }

TEST(Pipeline, TrainsAsOneDevice) {
  const PipelineRun expected = run_case({});
  for (const char* options :
       {"schedule: gpipe, micro_batches: 4", "schedule: 1f1b, micro_batches: 4", "schedule: 1f1b, micro_batches: 3",
        "schedule: 1f1b, micro_batches: 1", "schedule: interleaved, micro_batches: 4",
        "schedule: zero_bubble, micro_batches: 4", "schedule: 1f1b, micro_batches: 100"})
    for (const int devices : {2, 4}) {
      SCOPED_TRACE(fmt::format("{} on {}", options, devices));
      expect_alike(run_case({.strategy = pipeline(options), .devices = devices}), expected);
    }
}

TEST(Pipeline, TrainsAsOneDeviceWhateverTheModuleIsLike) {
  const std::string plain = pipeline("micro_batches: 4");
  for (const ChainOptions& module : {ChainOptions{.outside = true}, ChainOptions{.tuple = true}}) {
    SCOPED_TRACE(module.outside ? "outside" : "tuple");
    expect_alike(run_case({.module = module, .strategy = plain, .devices = 2}), run_case({.module = module}));
  }
  // Every cut goes through the elements between which two tensors pass.
  for (const char* balance : {"[2, 9]", "[3, 8]"}) {
    SCOPED_TRACE(balance);
    expect_alike(
        run_case({.module = {.tuple = true}, .strategy = pipeline(fmt::format("balance: {}", balance)), .devices = 2}),
        run_case({.module = {.tuple = true}}));
  }
}

TEST(Pipeline, TrainsAsOneDeviceWhateverTheOptions) {
  for (const char* balance_by : {"time", "parameters", "memory"}) {
    SCOPED_TRACE(balance_by);
    expect_alike(run_case({.strategy = pipeline(fmt::format("balance_by: {}", balance_by)), .devices = 2}),
                 run_case({}));
  }
  for (const char* checkpoint : {"always", "except_last"}) {
    SCOPED_TRACE(checkpoint);
    expect_alike(
        run_case({.strategy = pipeline(fmt::format("checkpoint: {}, micro_batches: 4", checkpoint)), .devices = 2}),
        run_case({}));
  }
  expect_alike(run_case({.strategy = pipeline("micro_batches: 4"), .devices = 4, .clip = 0.05}),
               run_case({.clip = 0.05}));
  expect_alike(run_case({.strategy = pipeline("micro_batches: 4"), .devices = 2, .accumulate = 2}),
               run_case({.accumulate = 2}));
  // 43 examples in batches of 8: the last one has 3.
  expect_alike(run_case({.strategy = pipeline("micro_batches: 4"), .devices = 2, .examples = 43}),
               run_case({.examples = 43}));
}

TEST(Pipeline, PipelinesSideBySideTrainAsOneDevice) {
  for (const int devices : {2, 4}) {
    SCOPED_TRACE(devices);
    // Each pipeline has losses of its own.
    expect_same_weights(run_case({.strategy = pipeline("data_parallel: 2, micro_batches: 2"), .devices = devices}),
                        run_case({}));
    expect_same_weights(run_case({.module = {.outside = true},
                                  .strategy = pipeline("data_parallel: 2, micro_batches: 2"),
                                  .devices = devices,
                                  .examples = 43}),
                        run_case({.module = {.outside = true}, .examples = 43}));
  }
}

/// Of the first stage, whose gradients c10d's Reducer exchanges, which waits for every parameter.
TEST(Pipeline, PipelinesSideBySideMayLeaveOutDifferentParameters) {
  const ChainOptions module{.left_out = true};
  expect_same_weights(
      run_case({.module = module, .strategy = pipeline("data_parallel: 2, micro_batches: 1"), .devices = 4}),
      run_case({.module = module, .strategy = "{name: ddp_threads, find_unused_parameters: true}", .devices = 2}));
}

TEST(Pipeline, PipelinesSideBySideDivideTheOptimizersState) {
  for (const double clip : {0.0, 0.05})
    expect_same_weights(run_case({.module = {.outside = true},
                                  .strategy = pipeline("data_parallel: 2, shard_optimizer: true, micro_batches: 2"),
                                  .devices = 4,
                                  .clip = clip}),
                        run_case({.module = {.outside = true}, .clip = clip}));
}

/// 43 examples: the last batch has 3, which are two micro-batches on one rank and one on the other.
TEST(Pipeline, RanksOfAStageDivideGradientsAndParameters) {
  const ChainOptions module{.outside = true};
  for (const int64_t accumulate : {1, 2}) {
    const PipelineRun expected = run_case({.module = module, .clip = 0.05, .accumulate = accumulate, .examples = 43});
    for (const char* options : {"shard_stage: 2, micro_batches: 4", "shard_stage: 3, micro_batches: 4",
                                "shard_stage: 3, micro_batches: 3, schedule: gpipe, shard_prefetch: 0",
                                "shard_stage: 3, micro_batches: 4, schedule: interleaved",
                                "shard_stage: 3, micro_batches: 4, checkpoint: always, shard_prefetch: 2",
                                "shard_stage: 2, micro_batches: 4, shard_keep_window_gradients: true",
                                "shard_stage: 3, micro_batches: 4, shard_keep_window_gradients: true"}) {
      SCOPED_TRACE(fmt::format("{}, {} batches a window", options, accumulate));
      expect_same_weights(
          run_case({.module = module,
                    .strategy = pipeline(fmt::format("data_parallel: 2, shard_optimizer: true, {}", options)),
                    .devices = 4,
                    .clip = 0.05,
                    .accumulate = accumulate,
                    .examples = 43}),
          expected);
    }
  }
}

TEST(Pipeline, GoesOnUnderAnyStrategyAndBack) {
  const ChainOptions module{.outside = true};
  const PipelineRun whole = run_case({.module = module, .epochs = 3});
  const std::vector<std::pair<std::string, int>> strategies = {
      {"single_device", 1},
      {"ddp_threads", 2},
      {"{name: sharded_threads, stage: 3}", 2},
      {pipeline("micro_batches: 4"), 2},
      {pipeline("schedule: interleaved, micro_batches: 4"), 4},
      {pipeline("data_parallel: 2"), 4},
      {pipeline("data_parallel: 2, shard_optimizer: true"), 4},
      {pipeline("data_parallel: 2, shard_optimizer: true, shard_stage: 3"), 4}};
  for (const auto& [saver, devices] : strategies) {
    const std::string folder = testing::fresh_folder("pipeline_resume");
    run_case({.module = module, .strategy = saver, .devices = devices, .save_in = folder, .epochs = 1});
    for (const auto& [loader, more_devices] : strategies) {
      if (!saver.starts_with("{name: pipeline") && !loader.starts_with("{name: pipeline")) continue;
      SCOPED_TRACE(saver + " to " + loader);
      const PipelineRun resumed =
          run_case({.module = module, .strategy = loader, .devices = more_devices, .ckpt = folder + "/0", .epochs = 3});
      expect_same_weights(resumed, whole, 1e-4);
    }
  }
}

TEST(Pipeline, AModuleThatWasLeftInStagesNeedsACheckpoint) {
  TrainerOptions options = quiet(1);
  options.strategy = Spec<Strategy>(Config::parse(pipeline("gather_after_fit: false"), {.source = "test"}));
  options.devices = 2;
  options.enable_checkpointing = true;
  options.default_root_dir = testing::fresh_folder("left_in_stages");
  Trainer trainer(options);
  const auto module = make<Chain>({});
  trainer.fit(module, testing::tiny_loader(), testing::tiny_loader());
  const MetricMap after_fit = trainer.callback_metrics();
  try {
    trainer.validate(module, testing::tiny_loader());
    ADD_FAILURE() << "validated without weights";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("the module has no weights"));
  }
  const auto results = trainer.validate(module, testing::tiny_loader(), "last");
  EXPECT_NEAR(results.at(0).at("val_loss"), after_fit.at("val_loss"), 1e-6);
}

std::string refusal_of(const PipelineCase& tested) {
  try {
    run_case(tested);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Pipeline, SaysWhatIsWrong) {
  const auto message = [](const std::string& options, int devices, const std::string& wrong = "") {
    return refusal_of({.module = {.wrong = wrong}, .strategy = pipeline(options), .devices = devices});
  };
  EXPECT_THAT(message("balance: [1, 1]", 2), HasSubstr("has 2 units; the sequential `net` has 8"));
  EXPECT_THAT(message("balance: [1, 1, 6]", 2), HasSubstr("2"));
  EXPECT_THAT(message("schedule: interleaved, chunks_per_rank: 5", 2), HasSubstr("10"));
  EXPECT_THAT(message("chunks_per_rank: 2", 2), HasSubstr("1f1b"));
  EXPECT_THAT(message("data_parallel: 3", 2), HasSubstr("does not divide the 2 ranks"));
  EXPECT_THAT(message("sequential: nett", 2), HasSubstr("did you mean 'net'"));
  EXPECT_THAT(message("", 2, "no sequential"), HasSubstr("cuts a levin::Sequential, and"));
  EXPECT_THAT(message("", 2, "two"), HasSubstr("has 2: net, other"));
  EXPECT_THAT(message("", 2, "not called"), HasSubstr("did not call the sequential"));
  EXPECT_THAT(message("", 2, "twice"), HasSubstr("called the sequential 'net' a second time"));
  EXPECT_THAT(message("", 2, "throws"), HasSubstr("stage fails"));
  EXPECT_THAT(message("", 4, "throws"), HasSubstr("stage fails"));
  EXPECT_THAT(message("micro_batches: 3", 2, "wants two rows"), HasSubstr("the first micro-batch, of 3 examples"));
  EXPECT_THAT(message("micro_batches: 3, balance: [4, 5]", 2, "wants two rows"),
              HasSubstr("a batch of 8 examples was run as 3 micro-batches of 3 and 2, and one of them failed"));
}

}  // namespace
}  // namespace levin
