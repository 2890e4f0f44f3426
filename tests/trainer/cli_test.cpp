#include <levin/core/cli/cli.h>

#include <levin/core/checkpoint/finder.h>
#include <levin/core/checkpoint/safetensors.h>
#include <levin/core/data/combined_data.h>
#include <levin/core/data/data_module.h>
#include <levin/core/data/tensor_dataset.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/nn/script_module.h>
#include <levin/core/optim/sgd.h>
#include <levin/core/options/registries.h>
#include <levin/core/trainer/trainer.h>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace levin {
namespace {

struct LineOptions {
  double lr = 0.05;
  std::string trouble = "none";
  static void describe(Schema<LineOptions>& schema) {
    schema.field("lr", &LineOptions::lr, "learning rate").above(0);
    schema.field("trouble", &LineOptions::trouble, "what goes wrong in training")
        .one_of({"none", "exception", "libtorch", "interrupt", "ragged"});
  }
};

/// Fits y = sum of x.
class Line : public Module {
 public:
  using Options = LineOptions;
  explicit Line(const Options& options) : options_(options) {
    linear_ = register_module("linear", torch::nn::Linear(4, 1));
  }

  StepOutput training_step(const Batch& batch, int64_t /*batch_idx*/) override {
    if (options_.trouble == "exception") throw std::out_of_range("the user's own message");
    if (options_.trouble == "libtorch") linear_(at::zeros({1, 3}));
    if (options_.trouble == "interrupt") std::raise(SIGINT);
    auto loss = (linear_(batch["x"]) - batch["y"]).square().mean();
    log("train_loss", loss);
    return loss;
  }

  StepOutput validation_step(const Batch& batch, int64_t /*batch_idx*/) override {
    auto loss = (linear_(batch["x"]) - batch["y"]).square().mean();
    log("val_loss", loss);
    return loss;
  }

  StepOutput test_step(const Batch& batch, int64_t /*batch_idx*/) override {
    log("test_loss", (linear_(batch["x"]) - batch["y"]).square().mean());
    return {};
  }

  Batch predict_step(const Batch& batch, int64_t batch_idx) override {
    const at::Tensor prediction = linear_(batch["x"]);
    if (options_.trouble != "ragged") return {{"prediction", prediction}};
    return {{"prediction", prediction},
            {"wide", prediction.expand({-1, batch.size() / 2})},
            {"mean", prediction.mean()},
            {"dims", batch_idx == 0 ? prediction : prediction.squeeze(1)}};
  }

  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = options_.lr});
  }

 private:
  Options options_;
  torch::nn::Linear linear_{nullptr};
};

/// Trains on both parts of a combined batch.
class LineOfParts : public Line {
 public:
  using Line::Line;
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    return Line::training_step(
        {{"x", at::cat({batch["first.x"], batch["second.x"]})}, {"y", at::cat({batch["first.y"], batch["second.y"]})}},
        batch_idx);
  }
};

class Sums : public DataModule {
 public:
  void setup(Stage /*stage*/) override {
    auto x = at::arange(96).reshape({24, 4}).sin();
    dataset_ = std::make_shared<data::TensorDataset>(Batch{{"x", x}, {"y", x.sum(1, true)}});
  }
  DataLoader train_dataloader() override { return DataLoader(dataset_, {.batch_size = 4, .shuffle = true}); }
  DataLoaders val_dataloader() override { return DataLoader(dataset_, {.batch_size = 10}); }
  DataLoaders test_dataloader() override {
    return {DataLoader(dataset_, {.batch_size = 10}), DataLoader(dataset_, {.batch_size = 24})};
  }
  DataLoaders predict_dataloader() override { return DataLoader(dataset_, {.batch_size = 10}); }

 private:
  std::shared_ptr<data::TensorDataset> dataset_;
};

struct Outcome {
  int status;
  std::string out;
  std::string err;
};

std::string read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class CliTest : public ::testing::Test {
 protected:
  CliTest()
      : root_(::testing::TempDir() + "/cli_test_" + std::to_string(getpid()) + "_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
  }
  ~CliTest() override { std::filesystem::remove_all(root_); }

  /// Runs the program as from a shell.
  Outcome run(std::vector<std::string> words) {
    words.insert(words.begin(), "program");
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    Cli cli;
    cli.modules.add<Line>("line", "a line");
    cli.modules.add<LineOfParts>("line_of_parts");
    cli.data.add<Sums>("sums", "points and their sums");
    cli.data.add<data::CombinedData>("combined");
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    Outcome outcome;
    outcome.status = cli.run(static_cast<int>(argv.size()), argv.data());
    outcome.out = ::testing::internal::GetCapturedStdout();
    outcome.err = ::testing::internal::GetCapturedStderr();
    return outcome;
  }

  /// The same with options that keep a run small and in this test's folder.
  Outcome run_small(const std::string& command, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {command,
                                      "--seed=42",
                                      "--trainer.default_root_dir=" + root_,
                                      "--trainer.max_epochs=2",
                                      "--trainer.accelerator=cpu",
                                      "--trainer.enable_progress_bar=false",
                                      "--trainer.enable_model_summary=false",
                                      "--trainer.logger=csv"};
    words.insert(words.end(), more.begin(), more.end());
    return run(std::move(words));
  }

  const std::string root_;
};

TEST_F(CliTest, FitTrainsAndSaysWhereThingsAre) {
  const Outcome fit = run_small("fit");
  ASSERT_EQ(fit.status, 0) << fit.err;
  EXPECT_NE(fit.out.find("val_loss"), std::string::npos) << fit.out;
  EXPECT_NE(fit.out.find("last checkpoint"), std::string::npos) << fit.out;
  EXPECT_NE(fit.out.find(root_ + "/version_0"), std::string::npos) << fit.out;
  EXPECT_TRUE(std::filesystem::exists(root_ + "/version_0/metrics.csv"));
  EXPECT_NE(read(root_ + "/version_0/config.yaml").find("max_epochs: 2"), std::string::npos);
}

TEST_F(CliTest, SeveralDataModulesAreCombined) {
  const std::vector<std::string> combined = {
      "--model.name=line_of_parts", "--data={name: combined, mode: min_size, parts: {first: sums, second: sums}}"};
  const Outcome fit = run_small("fit", combined);
  ASSERT_EQ(fit.status, 0) << fit.err;
  EXPECT_NE(fit.out.find("val_loss"), std::string::npos) << fit.out;
  EXPECT_NE(fit.err.find("2 epochs, 12 steps"), std::string::npos) << fit.err;
  const Outcome again = run({"fit", "--config", root_ + "/version_0/config.yaml"});
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(read(root_ + "/version_0/metrics.csv"), read(root_ + "/version_1/metrics.csv"));
  const Outcome unknown = run_small("fit", {"--data={name: combined, parts: {first: sum}}"});
  EXPECT_NE(unknown.status, 0);
  EXPECT_NE(unknown.err.find("unknown data module 'sum'"), std::string::npos) << unknown.err;
}

TEST_F(CliTest, WrittenConfigurationRepeatsTheRun) {
  ASSERT_EQ(run_small("fit", {"--model.lr=0.02"}).status, 0);
  const Outcome again = run({"fit", "--config", root_ + "/version_0/config.yaml"});
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(read(root_ + "/version_0/metrics.csv"), read(root_ + "/version_1/metrics.csv"));
}

TEST_F(CliTest, TestPrintsATableWithAColumnALoader) {
  ASSERT_EQ(run_small("fit").status, 0);
  const Outcome test = run_small("test", {"--ckpt", "best"});
  ASSERT_EQ(test.status, 0) << test.err;
  EXPECT_NE(test.out.find("test_loss"), std::string::npos) << test.out;
  EXPECT_NE(test.out.find("loader 1"), std::string::npos) << test.out;
  EXPECT_EQ(test.err.find("never trained"), std::string::npos) << test.err;
}

TEST_F(CliTest, EvaluationWithoutACheckpointWarns) {
  const Outcome validate = run_small("validate");
  EXPECT_EQ(validate.status, 0) << validate.err;
  EXPECT_NE(validate.err.find("weights that were never trained"), std::string::npos);
  EXPECT_NE(validate.out.find("val_loss"), std::string::npos);
}

TEST_F(CliTest, WeightsOfInitFromAreTrained) {
  ASSERT_EQ(run_small("fit").status, 0);
  const std::string weights = "--trainer.init_from=" + find_best(root_);
  const Outcome trained = run_small("test", {"--ckpt", "best"});
  const Outcome test = run_small("test", {weights});
  ASSERT_EQ(test.status, 0) << test.err;
  EXPECT_EQ(test.out, trained.out);
  EXPECT_EQ(test.err.find("never trained"), std::string::npos) << test.err;
  const std::string script = root_ + "/line.pt";
  const Outcome exported = run_small("export", {weights, "--format", "torchscript", "-o", script});
  ASSERT_EQ(exported.status, 0) << exported.err;
  EXPECT_EQ(exported.err.find("never trained"), std::string::npos) << exported.err;
  const auto best = load_from_checkpoint<Line>(find_best(root_), LineOptions{});
  ScriptModule line(script);
  EXPECT_TRUE(at::equal(line->named_parameters()["linear.weight"], best->named_parameters()["linear.weight"]));
}

TEST_F(CliTest, PredictWritesAFile) {
  const Outcome predict = run_small("predict");
  ASSERT_EQ(predict.status, 0) << predict.err;
  const std::string path = root_ + "/version_0/predictions.safetensors";
  EXPECT_NE(predict.out.find(path), std::string::npos) << predict.out;
  const SafetensorsFile file(path);
  EXPECT_EQ(file.shape("prediction"), (std::vector<int64_t>{24, 1}));
}

TEST_F(CliTest, PredictLosesNothingThatDiffersBetweenBatches) {
  for (const char* ranks : {"1", "2"}) {
    const Outcome predict = run_small("predict", {"--model.trouble=ragged", "--trainer.strategy=ddp_threads",
                                                  std::string("--trainer.devices=") + ranks});
    ASSERT_EQ(predict.status, 0) << predict.err;
    EXPECT_NE(predict.err.find("'dims' does not fit into one tensor"), std::string::npos) << predict.err;
    const SafetensorsFile file(root_ + "/version_" + (*ranks == '1' ? "0" : "1") + "/predictions.safetensors");
    const at::Tensor prediction = file.read("prediction");
    ASSERT_EQ(prediction.size(0), 24);
    const at::Tensor wide = file.read("wide");
    const at::Tensor lengths = file.read("wide.lengths");
    for (int64_t i = 0; i < 24; ++i)
      EXPECT_TRUE(wide[i].slice(0, 0, lengths[i].item<int64_t>()).eq(prediction[i]).all().item<bool>()) << i;
    EXPECT_TRUE(file.read("mean")[0].equal(file.read("dims.batch_0").mean()));
    EXPECT_GE(file.shape("mean").at(0), 3);
  }
}

TEST_F(CliTest, ResumesFromLast) {
  ASSERT_EQ(run_small("fit").status, 0);
  const Outcome resumed = run_small("fit", {"--ckpt", "last", "--trainer.max_epochs=3"});
  EXPECT_EQ(resumed.status, 0) << resumed.err;
}

TEST_F(CliTest, FastDevRunWritesNothing) {
  const Outcome fit = run_small("fit", {"--trainer.fast_dev_run"});
  ASSERT_EQ(fit.status, 0) << fit.err;
  EXPECT_TRUE(std::filesystem::is_empty(root_));
}

TEST_F(CliTest, ErrorsOfUserCodeAreStatusOneWithTheirMessage) {
  const Outcome fit = run_small("fit", {"--model.trouble=exception"});
  EXPECT_EQ(fit.status, 1);
  EXPECT_NE(fit.err.find("error: the user's own message\n"), std::string::npos) << fit.err;
}

TEST_F(CliTest, LibTorchsErrorsComeWithoutAStackTrace) {
  const Outcome fit = run_small("fit", {"--model.trouble=libtorch"});
  EXPECT_EQ(fit.status, 1);
  EXPECT_NE(fit.err.find("error: "), std::string::npos);
  EXPECT_EQ(fit.err.find("frame #"), std::string::npos) << fit.err;
}

TEST_F(CliTest, ConfigurationErrorsAreStatusTwo) {
  EXPECT_EQ(run({}).status, 2);
  EXPECT_EQ(run({"fti"}).status, 2);
  EXPECT_EQ(run({"fit", "--config", root_ + "/none.yaml"}).status, 2);
  const Outcome unknown = run({"fit", "--trainer.max_epoch=3"});
  EXPECT_EQ(unknown.status, 2);
  EXPECT_NE(
      unknown.err.find("error: [config] command line --trainer.max_epoch: unknown key 'max_epoch' in 'trainer'; did "
                       "you mean 'max_epochs'?"),
      std::string::npos)
      << unknown.err;
  EXPECT_EQ(unknown.out, "");
}

TEST_F(CliTest, MissingCheckpointIsRefused) {
  const Outcome fit = run_small("fit", {"--ckpt", root_ + "/none"});
  EXPECT_NE(fit.status, 0);
  EXPECT_NE(fit.err.find(root_ + "/none"), std::string::npos) << fit.err;
}

TEST_F(CliTest, InterruptEndsWithTheSignalsStatus) {
  const Outcome fit = run_small("fit", {"--model.trouble=interrupt"});
  EXPECT_EQ(fit.status, 128 + SIGINT) << fit.err;
  EXPECT_NE(fit.err.find("--ckpt last"), std::string::npos) << fit.err;
}

TEST_F(CliTest, RandomSeedIsPrintedAndKept) {
  const Outcome fit = run_small("fit", {"--seed", "null"});
  ASSERT_EQ(fit.status, 0) << fit.err;
  EXPECT_NE(fit.err.find("drawn at random"), std::string::npos) << fit.err;
  EXPECT_EQ(read(root_ + "/version_0/config.yaml").find("seed: null"), std::string::npos);
}

TEST_F(CliTest, PrintConfigShowsValuesAndOrigins) {
  const Outcome print = run({"fit", "--print_config", "--trainer.max_epochs=3"});
  ASSERT_EQ(print.status, 0) << print.err;
  EXPECT_NE(print.out.find("max_epochs: 3"), std::string::npos);
  EXPECT_NE(print.out.find("# command line --trainer.max_epochs"), std::string::npos);
  EXPECT_NE(print.out.find("# default"), std::string::npos);
}

TEST_F(CliTest, HelpIsAPageWithTheTopics) {
  const Outcome help = run({"--help"});
  ASSERT_EQ(help.status, 0) << help.err;
  for (const char* word :
       {"fit", "--config FILE", "--trainer.max_epochs", "--trainer.accumulate_grad_batches", "--model.name=NAME",
        "line", "sums", "early_stopping", "tensorboard", "single_device", "32-true", "cosine", "--help TOPIC"})
    EXPECT_NE(help.out.find(word), std::string::npos) << word;
  EXPECT_LE(std::count(help.out.begin(), help.out.end(), '\n'), 75) << help.out;
  EXPECT_EQ(run({"-h"}).out, help.out);
  EXPECT_EQ(run({"fit", "--help"}).out, help.out);
}

TEST_F(CliTest, HelpOfAllHasEveryOptionInHundredColumns) {
  const Outcome help = run({"--help", "all"});
  ASSERT_EQ(help.status, 0) << help.err;
  for (const char* word :
       {"fit", "--config FILE", "--trainer.max_epochs", "--plan.devices", "--model.lr", "line (default): a line",
        "sums", "--trainer.callbacks.early_stopping.patience", "--trainer.logger.csv.flush_every",
        "--trainer.strategy.stage", "32-true", "cosine", "at least -1"})
    EXPECT_NE(help.out.find(word), std::string::npos) << word;
  std::istringstream lines(help.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100U) << line;
}

TEST_F(CliTest, HelpOfATopic) {
  const auto help_of = [&](const char* topic) {
    const Outcome help = run({"--help", topic});
    EXPECT_EQ(help.status, 0) << topic << help.err;
    return help.out;
  };
  EXPECT_NE(help_of("model").find("--model.lr"), std::string::npos);
  EXPECT_EQ(help_of("model").find("--trainer.max_epochs"), std::string::npos);
  EXPECT_NE(help_of("trainer").find("--trainer.max_epochs"), std::string::npos);
  EXPECT_NE(help_of("general").find("--local_rank"), std::string::npos);
  EXPECT_NE(help_of("callbacks").find("early_stopping"), std::string::npos);
  EXPECT_EQ(help_of("callbacks").find("patience"), std::string::npos);  // a line for each
  EXPECT_NE(help_of("callback").find("early_stopping"), std::string::npos);
  EXPECT_NE(help_of("early_stopping").find("--trainer.callbacks.early_stopping.patience"), std::string::npos);
  EXPECT_NE(help_of("sharded").find("--trainer.strategy.stage"), std::string::npos);
  EXPECT_NE(help_of("csv").find("--trainer.logger.csv.flush_every"), std::string::npos);
  EXPECT_NE(help_of("16-mixed").find("--trainer.precision.init_scale"), std::string::npos);
  EXPECT_NE(help_of("simple").find("a profiler"), std::string::npos);
  EXPECT_NE(help_of("cosine").find("t_max"), std::string::npos);
  EXPECT_NE(help_of("max_epochs").find("--trainer.max_epochs\n"), std::string::npos);
  EXPECT_EQ(help_of("trainer.max_epochs"), help_of("max_epochs"));
}

TEST_F(CliTest, EveryNameOfTheHelpIsATopic) {
  auto& known = registries();
  const auto check = [&](const auto& registry) {
    for (const auto& name : registry.names()) EXPECT_EQ(run({"--help", name.c_str()}).status, 0) << name;
  };
  check(known.callbacks);
  check(known.loggers);
  check(known.strategies);
  check(known.precisions);
  check(known.profilers);
}

TEST_F(CliTest, HelpOfWhatIsNoTopicNamesTheNearest) {
  const Outcome section = run({"--help", "modle"});
  EXPECT_EQ(section.status, 2);
  EXPECT_NE(section.err.find("did you mean 'model'?"), std::string::npos) << section.err;
  const Outcome callback = run({"--help", "erly_stoping"});
  EXPECT_EQ(callback.status, 2);
  EXPECT_NE(callback.err.find("there is no help for 'erly_stoping'; did you mean 'early_stopping'?; valid: all"),
            std::string::npos)
      << callback.err;
}

TEST_F(CliTest, ExportWritesTheCheckpointsModelInEitherFormat) {
  ASSERT_EQ(run_small("fit").status, 0);
  const std::string script = root_ + "/line.pt";
  const Outcome torchscript = run_small("export", {"--ckpt", "best", "--format", "torchscript", "-o", script});
  ASSERT_EQ(torchscript.status, 0) << torchscript.err;
  EXPECT_NE(torchscript.out.find("wrote " + script + ": prediction of x, with any batch size"), std::string::npos)
      << torchscript.out;
  EXPECT_EQ(torchscript.err.find("never trained"), std::string::npos) << torchscript.err;
  const auto trained = load_from_checkpoint<Line>(find_best(root_), LineOptions{});
  ScriptModule line(script);
  EXPECT_TRUE(at::equal(line->named_parameters()["linear.weight"], trained->named_parameters()["linear.weight"]));

  const Outcome onnx = run_small("export", {"--ckpt=last", "-o", root_ + "/line.onnx"});
  ASSERT_EQ(onnx.status, 0) << onnx.err;
  EXPECT_GT(std::filesystem::file_size(root_ + "/line.onnx"), 100);
}

TEST_F(CliTest, ExportSaysWhatItLacks) {
  EXPECT_EQ(run_small("export").status, 2);
  EXPECT_NE(run_small("export").err.find("hint: -o model.onnx"), std::string::npos);
  EXPECT_EQ(run_small("export", {"-o"}).status, 2);
  EXPECT_EQ(run_small("export", {"-o", root_ + "/line.onnx", "--format=tflite"}).status, 2);
  const Outcome no_folder = run_small("export", {"-o", root_ + "/none/line.onnx"});
  EXPECT_EQ(no_folder.status, 1);
  EXPECT_NE(no_folder.err.find("there is no folder"), std::string::npos) << no_folder.err;
  EXPECT_NE(run({"export", "--help"}).out.find("--export.external_data_bytes"), std::string::npos);
}

TEST_F(CliTest, VersionNamesLevinAndLibTorch) {
  const Outcome version = run({"--version"});
  EXPECT_EQ(version.status, 0);
  EXPECT_NE(version.out.find("Levin "), std::string::npos);
  EXPECT_NE(version.out.find("LibTorch "), std::string::npos);
}

TEST_F(CliTest, LocalRankOfOlderLaunchersBecomesTheVariable) {
  const auto local_rank = [] {
    const char* value = std::getenv("LOCAL_RANK");
    return std::string(value == nullptr ? "unset" : value);
  };
  run({"--version", "--local_rank=1"});
  EXPECT_EQ(local_rank(), "unset") << "no launcher";
  setenv("RANK", "1", 1);
  setenv("WORLD_SIZE", "2", 1);
  run({"--version"});
  EXPECT_EQ(local_rank(), "unset");
  run({"--version", "--local-rank", "1"});
  EXPECT_EQ(local_rank(), "1");
  run({"--version", "--local_rank=0"});
  EXPECT_EQ(local_rank(), "1") << "the variable counts where both are there";
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK"}) unsetenv(name);
}

}  // namespace
}  // namespace levin
