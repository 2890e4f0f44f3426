#include "tests/conformance/strategy_conformance.h"
#include "tests/support/eventually.h"

#include <levin/callbacks/model_checkpoint.h>
#include <levin/core/base/error.h>
#include <levin/core/data/joined_predictions.h>
#include <levin/core/data/weighted_random_sampler.h>
#include <levin/core/engine/engine.h>
#include <levin/core/metrics/mean_squared_error.h>
#include <levin/loggers/csv_logger.h>

#include <fmt/format.h>
#include <gmock/gmock-matchers.h>

#include <ATen/autocast_mode.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

namespace levin::testing {
namespace {

constexpr const char* kLocalGradients = "local SGD: gradients are each rank's own, and are clipped as such";
constexpr const char* kLocalMomentum = "local SGD: a checkpoint has rank 0's momentum alone";

constexpr const char* kLstmStages =
    "stages with LSTM layers take half a minute of simulation; the other strategies have them on the device";

constexpr const char* kLstmIsWhole = "tensor: no layer of the module with LSTM layers is cut";

constexpr const char* kNoBfloat16Lstm = "oneDNN has no LSTM in bf16 for this processor; 64-true is tested";

/// LibTorch gives LSTMs in bf16 to oneDNN, which lacks them for some processors that LibTorch takes for able, and for
/// others those of which autocast converts the weights alone.
bool has_bfloat16_lstm() {
  const bool was_enabled = at::autocast::is_autocast_enabled(at::kCPU);
  const at::ScalarType type_before = at::autocast::get_autocast_dtype(at::kCPU);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  bool has_both = true;
  for (const bool converts : {false, true}) {
    at::autocast::set_autocast_enabled(at::kCPU, converts);
    try {
      torch::nn::LSTM lstm(4, 4);
      if (!converts) lstm->to(torch::kBFloat16);
      const at::Tensor x = torch::ones({1, 1, 4}, converts ? torch::kFloat : torch::kBFloat16);
      std::get<0>(lstm(x)).sum().backward();
    } catch (const std::exception&) {
      has_both = false;
    }
  }
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, was_enabled);
  at::autocast::set_autocast_dtype(at::kCPU, type_before);
  return has_both;
}

constexpr const char* kProgramEnds =
    "a rank of ddp that fails ends this program: Forks/RankConformance has it with forked ranks, "
    "integration.StrategiesProgram with a killed rank of ddp";

TEST_P(StartConformance, TrainsAsOneDeviceOnTheWholeBatch) {
  expect_as_on_one_device([] { return TrainingRun{}; });
}

TEST_P(StrategyConformance, StepsOfAnEngineAreThoseOfFit) {
  if (is_parameter_server()) GTEST_SKIP() << "its ranks take batches of one loader, which an engine does not have";
  if (GetParam().starts_processes()) GTEST_SKIP() << "an engine starts no processes";
  // Micro-batches of eight ranks have two examples each.
  const TrainingRun run{.net = {.batch_norm = true}, .examples = 48, .global_batch = 16};
  const Outcome expected = train(run, GetParam());
  seed_everything(7);
  const auto module = make<Net>(run.net);
  Engine engine(module, trainer_options(run, GetParam()));
  engine.run([&](Rank& rank) {
    const DataLoader training(tiny_dataset(run.examples), {.shuffle = true, .global_batch_size = run.global_batch});
    while (!rank.stop_requested()) {
      rank.epoch([&] {
        auto pass = training.pass(rank.position(training));
        while (auto batch = pass.next()) rank.train_step(std::move(*batch), {.is_last = pass.remaining() == 0});
        rank.validate({DataLoader(tiny_dataset(19), {.global_batch_size = run.global_batch})});
      });
    }
  });
  std::vector<at::Tensor> got, buffers;
  for (const auto& weight : weights(*module)) got.push_back(weight.cpu());
  for (const auto& buffer : module->buffers()) buffers.push_back(buffer.clone().cpu());
  EXPECT_EQ(difference(got, expected.weights, 0), "");
  EXPECT_EQ(difference(buffers, expected.buffers, 0), "");
  EXPECT_EQ(engine.trainer().callback_metrics(), expected.metrics);
}

TEST_P(StrategyConformance, ALastBatchThatRanksCannotShareEvenlyIsWeightedByItsExamples) {
  expect_as_on_one_device([] { return TrainingRun{.examples = 43}; });
}

TEST_P(StartConformance, ALastBatchWithFewerExamplesThanRanksIsJoined) {
  expect_as_on_one_device([] { return TrainingRun{.examples = 41}; });
}

TEST_P(StrategyConformance, AccumulationIsSynchronisedAtTheEndOfTheWindow) {
  expect_as_on_one_device(
      [] { return TrainingRun{.configure = [](TrainerOptions& options) { options.accumulate_grad_batches = 2; }}; });
}

/// 43 examples in batches of 12, drawn by weight, some of them more than once.
TrainingRun weighted_run() {
  return {.global_batch = 12, .training = [] {
            std::vector<double> weights;
            for (int64_t i = 0; i < 30; ++i) weights.push_back(static_cast<double>(i % 4));
            return DataLoader(tiny_dataset(30), {.global_batch_size = 12},
                              std::make_shared<data::WeightedRandomSampler>(
                                  std::move(weights), data::WeightedRandomSamplerOptions{.num_samples = 43}));
          }};
}
/// Sequences of different lengths in batches of different sizes, in validation too.
TrainingRun token_run() {
  return {.training = [] { return token_batches(60, true); }, .validation = [] { return token_batches(19, false); }};
}

TEST_P(StrategyConformance, SamplesDrawnByWeightTrainAsOnOneDevice) {
  expect_as_on_one_device([] { return weighted_run(); });
}

TEST_P(StrategyConformance, BatchesOfABudgetOfTokensTrainAsOnOneDevice) {
  const auto run = [](int64_t batches_a_step) {
    TrainingRun accumulated = token_run();
    accumulated.configure = [=](TrainerOptions& options) { options.accumulate_grad_batches = batches_a_step; };
    return accumulated;
  };
  expect_as_on_one_device(run, int64_t{1});
  expect_as_on_one_device(run, int64_t{3});
}

TEST_P(StrategyConformance, PredictionsOfBatchesOfABudgetOfTokensComeInTheirOrder) {
  seed_everything(3);
  const auto module = make<Net>();
  const DataLoader loader = token_batches(30, true);
  Trainer one(trainer_options({}, {"single_device", 1}));
  Trainer several(trainer_options({}, GetParam()));
  const auto expected = one.predict(module, loader);
  const auto got = several.predict(module, loader);
  ASSERT_EQ(got.at(0).size(), expected.at(0).size());
  for (size_t i = 0; i < expected[0].size(); ++i) {
    ASSERT_EQ(got[0][i]["y"].sizes(), expected[0][i]["y"].sizes()) << "batch " << i;
    EXPECT_TRUE(got[0][i]["y"].cpu().allclose(expected[0][i]["y"], 1e-4, 1e-6)) << "batch " << i;
  }
}

TEST_P(StartConformance, GradientsAreClippedByTheNormOfTheWholeBatch) {
  if (is_local_sgd()) GTEST_SKIP() << kLocalGradients;
  expect_as_on_one_device(
      [] { return TrainingRun{.configure = [](TrainerOptions& options) { options.gradient_clip_val = 0.1; }}; });
}

TEST_P(StrategyConformance, EveryPrecisionTrainsAsOnOneDevice) {
  if (is("dp") || is("ddp2")) GTEST_SKIP() << "16 bits are refused: see precision.PrecisionErrors";
  // A loss scale at which no rank's gradients overflow: those of a smaller batch are larger.
  for (const char* precision : {"64-true", "bf16-mixed", "{name: 16-mixed, init_scale: 256}",
                                "{name: 16-static, scale: 256}", "bf16-true", "16-true"}) {
    const auto make_run = [](const std::string& name, bool clips) {
      return TrainingRun{.configure = [=](TrainerOptions& options) {
        options.precision = Spec<Precision>(Config::parse(name, {}));
        if (clips) options.gradient_clip_val = 0.5;
      }};
    };
    const std::string name = precision;
    const TrainingRun run = make_run(name, !is_local_sgd());
    const Outcome& expected = reference(make_run, name, !is_local_sgd());
    // Sums of more than two numbers of 16 bits are rounded at other places by each way of communication.
    const Outcome got = GetParam().ranks > 2 ? train(run, GetParam()) : train_case(run);
    // The smaller the type, the more it matters in which order numbers are added up.
    // Local SGD averages weights, which the type has rounded; the others average gradients.
    const double bound = std::string(precision) == "64-true" ? 1e-6
                         : is_local_sgd()                    ? 0.05
                         : GetParam().is_on_cpu()            ? 0.02
                                                             : 0.04;
    EXPECT_EQ(difference(got.weights, expected.weights, bound), "") << precision;
  }
}

// torch::nn::LSTM keeps its parameters a second time, in a list.
TEST_P(StrategyConformance, LstmsTrainAsOnOneDevice) {
  if (GetParam().is_pipeline() && !GetParam().is_on_cpu()) GTEST_SKIP() << kLstmStages;
  if (GetParam().is_tensor()) GTEST_SKIP() << kLstmIsWhole;
  expect_as_on_one_device([] { return TrainingRun{.net = {.lstm = true}, .examples = 43}; });
  const auto accumulated = [](bool clips) {
    return TrainingRun{.net = {.lstm = true}, .configure = [=](TrainerOptions& options) {
                         options.accumulate_grad_batches = 2;
                         if (clips) options.gradient_clip_val = 0.1;
                       }};
  };
  expect_as_on_one_device(accumulated, !is_local_sgd());
}

TEST_P(StrategyConformance, LstmsTrainInEveryPrecisionAsOnOneDevice) {
  if (GetParam().is_pipeline() && !GetParam().is_on_cpu()) GTEST_SKIP() << kLstmStages;
  if (GetParam().is_tensor()) GTEST_SKIP() << kLstmIsWhole;
  if (is("dp") || is("ddp2")) GTEST_SKIP() << "16 bits are refused: see precision.PrecisionErrors";
  const bool in_bfloat16 = has_bfloat16_lstm();
  for (const char* precision : {"64-true", "bf16-mixed", "bf16-true"}) {
    if (precision[0] == 'b' && !in_bfloat16) GTEST_SKIP() << kNoBfloat16Lstm;
    const auto run = [](const std::string& name) {
      return TrainingRun{.net = {.lstm = true}, .configure = [=](TrainerOptions& options) {
                           options.precision = Spec<Precision>(Config::parse(name, {}));
                         }};
    };
    const Outcome& expected = reference(run, std::string(precision));
    const Outcome got = train_case(run(precision));
    const double bound = std::string(precision) == "64-true" ? 1e-6 : is_local_sgd() ? 0.05 : 0.02;
    EXPECT_EQ(difference(got.weights, expected.weights, bound), "") << precision;
  }
}

TEST_P(StrategyConformance, GradientsAreClippedElementByElementAndAdaptively) {
  if (is_local_sgd()) GTEST_SKIP() << kLocalGradients;
  const auto run = [](const std::string& algorithm) {
    return TrainingRun{.configure = [=](TrainerOptions& options) {
      options.gradient_clip_algorithm = algorithm;
      options.gradient_clip_val = 0.01;
    }};
  };
  for (const std::string algorithm : {"value", "adaptive"}) expect_as_on_one_device(run, algorithm);
}

TEST_P(StrategyConformance, FrozenParametersStay) {
  expect_as_on_one_device([] { return TrainingRun{.net = {.freeze_first = true}}; });
}

TEST_P(StrategyConformance, EvaluationCountsEveryExampleOnce) {
  const Outcome got = train({.epochs = 1}, GetParam());
  EXPECT_EQ(got.metrics.at("val_examples"), 19);
}

TEST_P(StrategyConformance, ARunRepeatsItselfToTheBit) {
  const TrainingRun run{.net = {.dropout = 0.4}};
  const Outcome first = train(run, GetParam());
  const Outcome second = train(run, GetParam());
  EXPECT_TRUE(identical(first.weights, second.weights));
}

TEST_P(StrategyConformance, CallsMayFollowEachOther) {
  seed_everything(3);
  const auto module = make<Net>();
  Trainer trainer(trainer_options({.epochs = 1}, GetParam()));
  const DataLoader loader(tiny_dataset(19), {.global_batch_size = 8});
  trainer.fit(module, loader, loader);
  const auto tested = trainer.test(module, loader);
  const auto validated = trainer.validate(module, loader);
  EXPECT_EQ(tested.at(0).at("test_examples"), 19);
  EXPECT_NEAR(tested.at(0).at("test_loss"), validated.at(0).at("val_loss"), 1e-6);
  trainer.fit(module, loader, loader);
  EXPECT_LT(trainer.validate(module, loader).at(0).at("val_loss"), validated.at(0).at("val_loss"));
}

TEST_P(StartConformance, PredictionsComeInTheOrderOfTheExamples) {
  seed_everything(3);
  const auto module = make<Net>();
  const DataLoader loader(tiny_dataset(19), {.global_batch_size = 8});
  Trainer one(trainer_options({}, {"single_device", 1}));
  Trainer several(trainer_options({}, GetParam()));
  const auto expected = one.predict(module, loader);
  const auto got = several.predict(module, loader);
  ASSERT_EQ(got.at(0).size(), expected.at(0).size());
  for (size_t i = 0; i < expected[0].size(); ++i)
    EXPECT_TRUE(got[0][i]["y"].cpu().allclose(expected[0][i]["y"])) << "batch " << i;
}

/// Predicts what one tensor of all ranks cannot hold: rows whose width depends on the rank, and a number a batch.
class UnevenNet : public Net {
 public:
  using Net::Net;
  Batch predict_step(const Batch& batch, int64_t batch_idx) override {
    Batch prediction = Net::predict_step(batch, batch_idx);
    prediction.set("wide", prediction["y"].expand({-1, 1 + trainer().global_rank()}));
    prediction.set("examples", at::scalar_tensor(batch.size(), at::kLong));
    return prediction;
  }
};

TEST_P(StrategyConformance, NoPredictionIsLostWhereRanksDiffer) {
  seed_everything(3);
  const auto module = make<UnevenNet>();
  const DataLoader loader(tiny_dataset(19), {.global_batch_size = 8});
  Trainer one(trainer_options({}, {"single_device", 1}));
  Trainer several(trainer_options({}, GetParam()));
  const auto expected = join_predictions(one.predict(module, loader).at(0)).tensors;
  const auto joined = join_predictions(several.predict(module, loader).at(0));
  EXPECT_TRUE(joined.notes.empty());
  const Batch got = [&] {
    Batch batch;
    for (const auto& [name, tensor] : joined.tensors) batch.set(name, tensor);
    return batch;
  }();
  EXPECT_TRUE(got["y"].allclose(expected.at(0).second));
  EXPECT_EQ(got["examples"].sum().item<int64_t>(), 19);
  const at::Tensor* lengths = got.find("wide.lengths");
  for (int64_t i = 0; i < 19; ++i) {
    const at::Tensor row = got["wide"][i];
    const int64_t length = lengths == nullptr ? row.size(0) : (*lengths)[i].item<int64_t>();
    EXPECT_TRUE(row.slice(0, 0, length).eq(got["y"][i]).all().item<bool>()) << "row " << i;
    EXPECT_TRUE(row.slice(0, length).eq(0).all().item<bool>()) << "row " << i;
  }
}

TEST_P(StrategyConformance, TheLastStepHasARow) {
  const std::string root = fresh_folder("conformance");
  train({.examples = 20,
         .epochs = 2,
         .configure =
             [&](TrainerOptions& options) {
               options.logger = {make<CsvLogger>({})};
               options.default_root_dir = root;
               options.log_every_n_steps = 1000;
             }},
        GetParam());
  std::ifstream file(root + "/version_0/metrics.csv");
  if (!file.is_open() && has_processes()) GTEST_SKIP() << "rank 0 has the file";
  std::string header;
  std::getline(file, header);
  ASSERT_NE(header.find("train_loss_step"), std::string::npos) << header;
  const auto column =
      std::count(header.begin(), header.begin() + static_cast<int64_t>(header.find("train_loss_step")), ',');
  int64_t rows = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream cells(line);
    std::string cell;
    for (int64_t i = 0; i <= column; ++i) std::getline(cells, cell, ',');
    if (cell.empty()) continue;
    ++rows;
    EXPECT_TRUE(line.starts_with("1,6,")) << line;
  }
  EXPECT_EQ(rows, 1);
}

/// Logs a metric that is gone when the epoch ends.
class ForgetfulNet : public Net {
 public:
  using Net::Net;
  StepOutput validation_step(const Batch& batch, int64_t) override {
    const auto metric = std::make_unique<metrics::MeanSquaredError>(metrics::MeanSquaredErrorOptions());
    log("val_mse", metric->update(forward(batch["x"]), batch["y"]));
    return {};
  }
};

TEST_P(StrategyConformance, AMetricThatIsGoneIsNamed) {
  if (has_processes()) GTEST_SKIP() << kProgramEnds;
  const auto module = make<ForgetfulNet>();
  Trainer trainer(trainer_options({}, GetParam()));
  try {
    trainer.validate(module, DataLoader(tiny_dataset(19), {.global_batch_size = 8}));
    FAIL() << "nothing was thrown";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("the metric logged as 'val_mse' was destroyed"));
    EXPECT_THAT(error.what(), ::testing::Not(::testing::HasSubstr("MiB")));
  }
}

TEST_P(StartConformance, ResumesToTheBit) {
  if (is_local_sgd()) GTEST_SKIP() << kLocalMomentum;
  expect_resumed_to_the_bit({.dropout = 0.3});
  if (GetParam().is_pipeline() && !GetParam().is_on_cpu()) return;  // see kLstmStages
  if (GetParam().is_tensor()) return;                               // see kLstmIsWhole
  expect_resumed_to_the_bit({.dropout = 0.3, .lstm = true});
}

TEST_P(StrategyConformance, ResumesWithAnotherNumberOfRanks) {
  if (is_local_sgd()) GTEST_SKIP() << kLocalMomentum;
  if (has_processes())
    GTEST_SKIP() << "a program has one number of processes: launchers.torchrun.lost_host resumes with another";
  if (is("mesh")) GTEST_SKIP() << "its sizes are those of one number of ranks; MeshCheckpoints has others";
  const std::string root = fresh_folder("conformance");
  TrainingRun run{.examples = 40, .epochs = 3};
  run.configure = [&](TrainerOptions& options) {
    options.max_steps = 7;
    options.enable_checkpointing = true;
    options.default_root_dir = root;
    options.callbacks = {make<ModelCheckpoint>({.save_last = true})};
  };
  const Outcome part = train(run, GetParam());
  run.configure = {};
  const Outcome& expected = reference([] { return TrainingRun{.examples = 40, .epochs = 3}; });
  run.ckpt = part.last_checkpoint;
  for (const int ranks : {1, 2, 4}) {
    StrategyCase other = GetParam();
    other.ranks = ranks;
    other.first_device = 0;
    if (ranks == 1 || is("single_device")) other = GetParam().beside({"single_device", 1});
    const Outcome resumed = train(run, other);
    EXPECT_EQ(difference(resumed.weights, expected.weights, kSummationOrder), "") << ranks << " ranks";
  }
}

TEST_P(StrategyConformance, SamplesByWeightResumeToTheBitAndOnOtherRanks) {
  if (is_local_sgd()) GTEST_SKIP() << kLocalMomentum;
  expect_resumed_to_the_bit({.dropout = 0.3}, weighted_run());
  expect_resumed_on_other_ranks([] { return weighted_run(); });
}

TEST_P(StrategyConformance, BatchesOfABudgetOfTokensResumeToTheBitAndOnOtherRanks) {
  if (is_local_sgd()) GTEST_SKIP() << kLocalMomentum;
  expect_resumed_to_the_bit({.dropout = 0.3}, token_run());
  expect_resumed_on_other_ranks([] { return token_run(); });
}

TEST_P(StrategyConformance, ResumesUnderOtherStrategiesAndStages) {
  if (is_local_sgd()) GTEST_SKIP() << kLocalMomentum;
  if (has_processes()) GTEST_SKIP() << "a program has one number of processes; threads and forks have it";
  const std::string root = fresh_folder("conformance");
  TrainingRun run{.examples = 40, .epochs = 3};
  run.configure = [&](TrainerOptions& options) {
    options.max_steps = 7;
    options.enable_checkpointing = true;
    options.default_root_dir = root;
    options.callbacks = {make<ModelCheckpoint>({.save_last = true, .asynchronous = true})};
  };
  const Outcome part = train(run, GetParam());
  run.configure = {};
  const Outcome& expected = reference([] { return TrainingRun{.examples = 40, .epochs = 3}; });
  run.ckpt = part.last_checkpoint;
  for (const StrategyCase& other : {StrategyCase{"ddp_threads", 2},
                                    {"sharded_threads", 2, 1},
                                    {"sharded_threads", 4, 2},
                                    {"sharded_threads", 4, 3},
                                    {"pipeline_threads", 2, 0, "micro_batches: 4"},
                                    {"pipeline_threads", 4, 0, "schedule: interleaved, micro_batches: 4"},
                                    {"pipeline_threads", 4, 0, "data_parallel: 2, micro_batches: 2"},
                                    {"single_device", 1}}) {
    const Outcome resumed = train(run, GetParam().beside(other));
    EXPECT_EQ(difference(resumed.weights, expected.weights, kSummationOrder), "") << other;
  }
}

TEST_P(StartConformance, WhatUserCodeThrowsEndsTheCall) {
  if (is("single_device")) GTEST_SKIP() << "trainer.HookOrder and trainer.CliTest have it for one device";
  if (has_processes()) GTEST_SKIP() << kProgramEnds;
  const auto module = make<Net>();
  TrainingRun run{.epochs = 1};
  run.configure = [](TrainerOptions& options) {
    options.callbacks = {make<LambdaCallback>(
        {.on_train_epoch_end = [](Trainer&, Module&) { throw Error("test", "the user's own mistake"); }})};
  };
  try {
    train(run, GetParam());
    FAIL() << "nothing was thrown";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("the user's own mistake"));
  }
}

TEST_P(LearningRateScale, IsTheNumberItsRootOrOne) {
  expect_scaled_by(GetParam().ranks, ", scale_lr: linear");
  expect_scaled_by(std::sqrt(GetParam().ranks), ", scale_lr: sqrt");
  expect_scaled_by(1, ", scale_lr: none");
  expect_scaled_by(is("horovod") ? GetParam().ranks : 1, "");
}

/// Builds a layer whose width depends on the rank.
class UnlikeNet : public Net {
 public:
  using Net::Net;
  void configure_model() override {
    if (!extra_) extra_ = register_module("extra", torch::nn::Linear(1, 1 + trainer().global_rank()));
  }

 private:
  torch::nn::Linear extra_{nullptr};
};

TEST_P(GradientConformance, UnusedParametersAreFound) {
  TrainingRun run{.net = {.alternate = true}};
  const Outcome& expected = reference([] { return TrainingRun{.net = {.alternate = true}}; });
  // A parameter server finds them without being asked to.
  const std::string strategy = GetParam().yaml(is_parameter_server() ? "" : ", find_unused_parameters: true");
  run.configure = [&](TrainerOptions& options) { options.strategy = Spec<Strategy>(Config::parse(strategy, {})); };
  const Outcome got = train_case(run);
  EXPECT_EQ(difference(got.weights, expected.weights, kSummationOrder), "");
}

TEST_P(GradientConformance, SeveralOptimizersAreSteppedByHand) {
  expect_as_on_one_device([] { return TrainingRun{.net = {.manual = true}}; });
  expect_as_on_one_device([] { return TrainingRun{.net = {.manual = true}, .examples = 43}; });
}

TEST_P(GradientConformance, SyncBatchNormIsThatOfTheWholeBatch) {
  TrainingRun run{.net = {.batch_norm = true}};
  const Outcome& expected = reference([] { return TrainingRun{.net = {.batch_norm = true}}; });
  run.configure = [](TrainerOptions& options) { options.sync_batchnorm = true; };
  // A device may have kernels for it that add up in another order.
  const Outcome got = train(run, GetParam());
  EXPECT_EQ(difference(got.weights, expected.weights, 1e-4), "");
  EXPECT_EQ(difference(got.buffers, expected.buffers, 1e-4), "");
}

TEST_P(GradientConformance, BatchNormWithoutItIsThatOfTheRank) {
  const TrainingRun run{.net = {.batch_norm = true}};
  const Outcome& whole = reference([] { return TrainingRun{.net = {.batch_norm = true}}; });
  const Outcome parts = train(run, GetParam());
  if (GetParam().ranks == 1)
    EXPECT_EQ(difference(parts.weights, whole.weights, kSummationOrder), "");
  else
    EXPECT_NE(difference(parts.weights, whole.weights, 1e-4), "");
}

TEST_P(GradientConformance, CompressedGradientsAreNearlyTheSame) {
  if (is_parameter_server()) GTEST_SKIP() << "parameter_server: gradients travel as they are";
  TrainingRun run;
  const Outcome& expected = reference([] { return TrainingRun{}; });
  for (const char* compression : {"fp16", "bf16"}) {
    const char* type = std::string(compression) == "fp16" ? "float16" : "bfloat16";
    const std::string strategy =
        GetParam().yaml(GetParam().is_sharded() ? std::string(", reduce_type: ") + type
                                                : std::string(", gradient_compression: ") + compression);
    run.configure = [&](TrainerOptions& options) { options.strategy = Spec<Strategy>(Config::parse(strategy, {})); };
    const Outcome got = train(run, GetParam());
    EXPECT_EQ(difference(got.weights, expected.weights, 0.05), "") << compression;
  }
}

TEST_P(RankConformance, TheMistakeOfOneRankEndsAllWithItsMessage) {
  if (has_processes()) GTEST_SKIP() << kProgramEnds;
  if (GetParam().ranks == 1) GTEST_SKIP() << "this case has one rank; the mistake is that of rank 1";
  struct Mistake {
    const char* what;
    const char* message;
  };
  for (const Mistake& mistake : {Mistake{"throws", "rank 1 made a mistake"}, Mistake{"logs", "only_here"}}) {
    TrainingRun run{.net = {.mistake = mistake.what}};
    run.configure = [](TrainerOptions& options) { options.log_every_n_steps = 1; };
    // Of one pipeline only the last stage logs; of several, these are compared.
    if (GetParam().is_one_pipeline() && std::string(mistake.what) == "logs") continue;
    if (GetParam().is_pipeline() && std::string(mistake.what) == "logs") run.net.mistaken_rank = GetParam().ranks - 1;
    // Of two ranks with the same examples the first logs.
    if (GetParam().is_tensor() && std::string(mistake.what) == "logs") run.net.mistaken_rank = GetParam().ranks - 2;
    try {
      train(run, GetParam());
      ADD_FAILURE() << mistake.what << ": nothing was thrown";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(mistake.message)) << mistake.what;
    }
  }
}

TEST_P(RankConformance, ARankThatIsWaitedForTooLongEndsTheCall) {
  if (has_processes()) GTEST_SKIP() << kProgramEnds;
  if (GetParam().ranks == 1) GTEST_SKIP() << "this case has one rank; the mistake is that of rank 1";
  std::string message;
  // In a short time ranks that are well may not come either.
  EXPECT_TRUE(testing::with_time_enough([&](std::chrono::seconds time) {
    const std::string strategy = GetParam().yaml(fmt::format(", timeout: {}", time.count()));
    Net::goes_on() = false;
    TrainingRun run{.net = {.mistake = "hangs"}};
    run.configure = [&](TrainerOptions& options) {
      options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
      options.callbacks.push_back(
          make<LambdaCallback>({.on_exception = [](Trainer& trainer, Module&, const std::exception_ptr&) {
            if (trainer.global_rank() != 1) Net::goes_on() = true;
          }}));
    };
    message = "nothing was thrown";
    try {
      train(run, GetParam());
    } catch (const std::exception& error) {
      message = error.what();
    }
    // The watchdog of the device's backend knows its own rank only.
    std::string expected = fmt::format("timed out|did not complete within {}000 ms", time.count());
    if (GetParam().is_on_cpu()) {
      // Where ranks wait for each other in a row, the first whose time is over may not be the one next to rank 1.
      // With two tensor groups, the ranks of the second wait for rank 0, which waits for rank 1.
      const bool in_a_row =
          (GetParam().is_pipeline() || GetParam().is_tensor() || is_parameter_server()) && GetParam().ranks > 2;
      expected = in_a_row ? "timed out.*rank|rank.*timed out" : "timed out.*rank 1|rank 1.*timed out";
    }
    return ::testing::Matches(::testing::ContainsRegex(expected))(message);
  })) << message;
}

TEST_P(RankConformance, RanksWithDifferentModelsAreToldTheFirstDifference) {
  if (has_processes()) GTEST_SKIP() << kProgramEnds;
  if (GetParam().ranks == 1) GTEST_SKIP() << "this case has one rank; the mistake is that of rank 1";
  seed_everything(7);
  Trainer trainer(trainer_options({}, GetParam()));
  const DataLoader loader(tiny_dataset(16), {.global_batch_size = 8});
  try {
    trainer.fit(make<UnlikeNet>(), loader);
    FAIL() << "nothing was thrown";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("ranks built different models"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("'extra.weight'"));
  }
}

}  // namespace
}  // namespace levin::testing
