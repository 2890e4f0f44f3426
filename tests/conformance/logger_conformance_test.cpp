#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>
#include <levin/core/options/registries.h>
#include <levin/loggers/mlflow_logger.h>
#include <levin/loggers/mlflow_names.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "../loggers/stand_in_mlflow.h"
#include "../support/faulty_file_system.h"
#include "../support/tiny.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

/// What every built-in logger must bear, whatever it writes to. The MLflow logger's server is there where a test says
/// so.
namespace levin {
namespace {

using Clock = std::chrono::steady_clock;

class LoggerConformance : public ::testing::TestWithParam<std::string> {
 protected:
  LoggerConformance() : directory_(testing::fresh_folder("logger_conformance") + "/version_0") {
    testing::keep_loopback_off_proxies();
    log::set_sink([this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      lines_.push_back(line);
    });
  }
  ~LoggerConformance() override { log::set_sink(nullptr); }

  std::shared_ptr<Logger> make_logger(const std::string& server = "http://127.0.0.1:1") const {
    Config options = Config::mapping();
    if (GetParam() == "mlflow")
      options = Config::parse("{tracking_uri: '" + server + "', finish_seconds: 10}", {.source = "test"});
    return registries().loggers.make(GetParam(), options, "trainer.logger");
  }
  RunInfo run() const { return {.directory = directory_, .name = "version_0"}; }
  int64_t warnings() {
    const std::lock_guard lock(mutex_);
    return std::count_if(lines_.begin(), lines_.end(),
                         [](const std::string& line) { return line.find("warning") != std::string::npos; });
  }
  /// One call of everything.
  void log_everything(Logger& logger, int64_t step) const {
    const double infinity = std::numeric_limits<double>::infinity();
    const std::vector<MetricValue> values{{"loss", 0.5},
                                          {"train/a/b", -infinity},
                                          {"größe 😀", NAN},
                                          {std::string(200, 'n'), infinity},
                                          {"", 1},
                                          {"bytes \xff\xfe", 2},
                                          {"line\nbreak, \"quote\"", 3},
                                          {"../up//and/../down", 4}};
    logger.log_metrics(values, step, 0);
    logger.log_metrics({}, step, 0);
    logger.log_text("note/größe", "text\n\xff", step);
    logger.log_histogram("h", std::vector<double>{1, NAN, infinity}, step);
    logger.log_histogram("h", {}, step);
    logger.log_image("../image", at::zeros({3, 4, 4}, at::kByte), step);
    logger.log_hyperparameters(Config::parse("{model: {lr: 1e-3, list: [1, {a: b}], none: null}, 'ö?': ''}", {}));
    logger.after_save_checkpoint({.path = directory_ + "/nowhere/at/all", .is_best = true});
    logger.flush();
  }

  const std::string directory_;

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

/// What three steps of log_everything are to an MLflow server.
void expect_everything(const testing::StandInMlflow& server) {
  const auto run = server.run();
  EXPECT_EQ(run.status, "FINISHED");
  const std::vector<std::pair<std::string, nlohmann::json>> metrics{{"loss", 0.5},
                                                                    {"train/a/b", "-Infinity"},
                                                                    {"größe 😀", "NaN"},
                                                                    {std::string(200, 'n'), "Infinity"},
                                                                    {"", 1},
                                                                    {"bytes \xff\xfe", 2},
                                                                    {"line\nbreak, \"quote\"", 3},
                                                                    {"../up//and/../down", 4}};
  EXPECT_EQ(run.metrics.size(), metrics.size() + 1);  // and the epoch
  for (const auto& [name, value] : metrics) {
    const std::string mapped = mlflow_name(name);
    ASSERT_TRUE(run.metrics.contains(mapped)) << mapped;
    const auto& points = run.metrics.at(mapped);
    ASSERT_EQ(points.size(), 3u) << mapped;
    for (size_t step = 0; step < 3; ++step) {
      EXPECT_EQ(points[step]["value"], value) << mapped;
      EXPECT_EQ(points[step]["step"], step) << mapped;
    }
  }
  EXPECT_EQ(run.tags.at("name." + mlflow_name("größe 😀")), "größe 😀");
  EXPECT_EQ(run.parameters.at("model.lr"), "1e-3");
  EXPECT_EQ(run.parameters.at(mlflow_name("ö?")), "");
  const auto artifacts = server.artifacts();
  EXPECT_EQ(artifacts.size(), 7u);  // three texts and images, and hparams.yaml
  const std::string root = "1/" + server.runs().begin()->first + "/artifacts/";
  EXPECT_TRUE(artifacts.contains(root + "hparams.yaml"));
  EXPECT_EQ(artifacts.at(root + "text/" + mlflow_name("note/größe") + "/step_000000002.txt"), "text\n\xff");
  EXPECT_EQ(artifacts.at(root + "images/" + mlflow_name("../image") + "/step_000000000.png").substr(1, 3), "PNG");
  EXPECT_EQ(server.bad_requests(), std::vector<std::string>());
}

TEST_P(LoggerConformance, TakesOddNamesAndValues) {
  const testing::StandInMlflow server;
  const auto logger = make_logger(server.uri());
  logger->start(run());
  for (int64_t step = 0; step < 3; ++step) log_everything(*logger, step);
  logger->finish(TrainerStatus::kFinished);
  EXPECT_EQ(warnings(), 0);
  if (GetParam() == "mlflow") expect_everything(server);
}

TEST_P(LoggerConformance, TakesEverythingWithoutAStartAndAfterTheEnd) {
  const auto logger = make_logger();
  log_everything(*logger, 0);
  logger->finish(TrainerStatus::kFailed);
  logger->start(run());
  logger->finish(TrainerStatus::kFailed);
  log_everything(*logger, 1);
  logger->finish(TrainerStatus::kFinished);
}

TEST_P(LoggerConformance, TakesSeveralFitsAndAStartWithoutAnEnd) {
  const auto logger = make_logger();
  for (int64_t fit = 0; fit < 3; ++fit) {
    logger->start(run());
    log_everything(*logger, fit);
    logger->finish(fit == 1 ? TrainerStatus::kInterrupted : TrainerStatus::kFinished);
  }
  logger->start(run());
  log_everything(*logger, 3);
  RunInfo other = run();
  other.directory += "_other";
  logger->start(other);
  log_everything(*logger, 4);
}

TEST_P(LoggerConformance, AFullDiskIsAWarningAndNothingIsThrown) {
  testing::FaultyFileSystem files;
  files.fail_after_bytes(0);
  const auto logger = make_logger();
  logger->start(run());
  for (int64_t step = 0; step < 10; ++step) log_everything(*logger, step);
  logger->finish(TrainerStatus::kFinished);
  if (GetParam() != "console") {
    EXPECT_GT(warnings(), 0);
  }
  EXPECT_LE(warnings(), 8);
}

TEST_P(LoggerConformance, AFolderThatCannotBeMadeIsAWarning) {
  std::ofstream(directory_) << "a file in its place";
  const auto logger = make_logger();
  logger->start(run());
  log_everything(*logger, 0);
  logger->finish(TrainerStatus::kFinished);
  if (GetParam() != "console") {
    EXPECT_GT(warnings(), 0);
  }
}

TEST_P(LoggerConformance, LoggingIsQuick) {
  const auto logger = make_logger();
  logger->start(run());
  const std::vector<MetricValue> values{{"train/loss", 0.125}, {"lr", 1e-3}, {"accuracy", 0.5}, {"norm", 2.25}};
  constexpr int64_t kRows = 1000;
  // The least of several rounds: other programs may disturb some.
  double each = std::numeric_limits<double>::max();
  for (int64_t first = 0; first < 20 * kRows; first += kRows) {
    const auto begin = Clock::now();
    for (int64_t step = first; step < first + kRows; ++step) logger->log_metrics(values, step, 0);
    each = std::min(each, std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / kRows);
  }
  RecordProperty("microseconds_a_row", std::to_string(each));
  std::cout << GetParam() << ": " << each << " us a row of 4 values\n";
  EXPECT_LT(each, 200);
  logger->finish(TrainerStatus::kFinished);
}

TEST_P(LoggerConformance, ATrainingThatThrowsEndsTheRun) {
  struct Failing : testing::TinyModule {
    Failing() : TinyModule({}) {}
    StepOutput training_step(const Batch& batch, int64_t index) override {
      if (index == 3) throw Error("test", "the third step fails");
      return TinyModule::training_step(batch, index);
    }
  };
  auto options = testing::quiet(1);
  options.default_root_dir = directory_;
  options.log_every_n_steps = 1;
  options.logger = {make_logger()};
  Trainer trainer(options);
  EXPECT_THROW(trainer.fit(std::make_shared<Failing>(), testing::tiny_loader()), Error);
  Trainer again(options);
  again.fit(std::make_shared<testing::TinyModule>(testing::TinyOptions{}), testing::tiny_loader());
  EXPECT_EQ(again.status(), TrainerStatus::kFinished);
}

INSTANTIATE_TEST_SUITE_P(All, LoggerConformance, ::testing::ValuesIn([] { return registries().loggers.names(); }()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace levin
