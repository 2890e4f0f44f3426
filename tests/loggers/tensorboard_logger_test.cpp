#include <levin/loggers/tensorboard_logger.h>

#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "../support/faulty_file_system.h"
#include "event_reader.h"
#include "tests/support/run_program.h"
#include "tests/support/tree.h"

#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

namespace levin {
namespace {

class TensorBoardLoggerTest : public ::testing::Test {
 protected:
  TensorBoardLoggerTest() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    run_.directory = ::testing::TempDir() + "levin_tensorboard_" + test->name() + "_" + std::to_string(::getpid());
    run_.name = "version_0";
    std::filesystem::remove_all(run_.directory);
    log::set_sink([this](const std::string& line) { warnings_.push_back(line); });
  }
  ~TensorBoardLoggerTest() override {
    log::set_sink(nullptr);
    std::filesystem::remove_all(run_.directory);
  }

  /// The events of all files, without the version that each file begins with.
  std::vector<testing::ReadEvent> events() const {
    std::vector<testing::ReadEvent> all;
    for (const auto& name : FileSystem::current().list(run_.directory))
      for (auto& event : testing::read_events(run_.directory + "/" + name))
        if (event.file_version.empty()) all.push_back(std::move(event));
    return all;
  }

  RunInfo run_;
  std::vector<std::string> warnings_;
};

void log_one(TensorBoardLogger& logger, const std::string& name, double value, int64_t step, int64_t epoch = 0) {
  const MetricValue metric{name, value};
  logger.log_metrics({&metric, 1}, step, epoch);
}

TEST_F(TensorBoardLoggerTest, TensorBoardReadsEverythingBack) {
  const std::string interpreter = testing::torch_python();
  if (testing::run_program({interpreter, "-c", "import tensorboard"}).status != 0)
    GTEST_SKIP() << interpreter
                 << " has no tensorboard package; set LEVIN_PYTHON to one that has, or run scripts/bootstrap";

  TensorBoardLogger logger;
  logger.start(run_);
  logger.log_hyperparameters(Config::parse(
      "{model: {hidden: 256, lr: 1e-3, name: a|b_c}, data: {shuffle: true, tag: '12'}, sizes: [1, 2], none: null}",
      {}));
  for (int64_t step = 0; step < 3; ++step) {
    const std::vector<MetricValue> values{{"train/loss", 1.0 / static_cast<double>(step + 1)}, {"acc", 0.25}};
    logger.log_metrics(values, step, 0);
  }
  log_one(logger, "odd", std::nan(""), 3, 1);
  log_one(logger, "odd", -std::numeric_limits<double>::infinity(), 4, 1);
  logger.log_text("note", "a **bold** word", 5);
  logger.log_histogram("weights", std::vector<double>{-1, 0, 0.5, 0.5, 2}, 6);
  const at::Tensor color = at::arange(3 * 2 * 5).mul(8).to(at::kByte).reshape({3, 2, 5});
  logger.log_image("samples", color, 6);
  logger.log_image("samples", color.to(at::kFloat).div(255), 7);
  logger.log_image("grey", at::tensor({0.0, 0.5, 1.0}).reshape({1, 1, 3}), 6);
  logger.finish(TrainerStatus::kFinished);
  logger.start(run_);
  log_one(logger, "acc", 0.5, 7);
  logger.finish(TrainerStatus::kFinished);
  EXPECT_TRUE(warnings_.empty());

  const auto read =
      testing::run_program({interpreter, testing::source_path("tests/loggers/read_events.py"), run_.directory});
  ASSERT_EQ(read.status, 0) << read.err;
  const auto found = nlohmann::json::parse(read.out);
  const auto json = [](const char* text) { return nlohmann::json::parse(text); };
  EXPECT_EQ(found["scalars"]["train/loss"], json(R"([[0, "1.0"], [1, "0.5"], [2, "0.3333333432674408"]])"));
  EXPECT_EQ(found["scalars"]["acc"], json(R"([[0, "0.25"], [1, "0.25"], [2, "0.25"], [7, "0.5"]])"));
  EXPECT_EQ(found["scalars"]["odd"], json(R"([[3, "nan"], [4, "-inf"]])"));
  EXPECT_EQ(found["scalars"]["epoch"].size(), 6u);
  EXPECT_EQ(found["text"]["note"], json(R"([[5, "a **bold** word"]])"));
  const std::string table = found["text"]["hyperparameters"][0][1];
  EXPECT_NE(table.find("| model.hidden | 256 |\n"), std::string::npos) << table;
  EXPECT_NE(table.find("| model.name | a\\|b\\_c |\n"), std::string::npos) << table;
  EXPECT_EQ(found["histograms"]["weights"],
            json(R"([{"step": 6, "min": "-1.0", "max": "2.0", "count": "5.0", "counted": "5.0"}])"));
  const auto rows = json(R"([[0, 80, 160, 8, 88, 168, 16, 96, 176, 24, 104, 184, 32, 112, 192],
                             [40, 120, 200, 48, 128, 208, 56, 136, 216, 64, 144, 224, 72, 152, 232]])");
  ASSERT_EQ(found["images"]["samples"].size(), 2u);
  for (size_t i = 0; i < 2; ++i)
    EXPECT_EQ(found["images"]["samples"][i],
              nlohmann::json({{"step", 6 + i}, {"width", 5}, {"height", 2}, {"rows", rows}}));
  EXPECT_EQ(found["images"]["grey"], json(R"([{"step": 6, "width": 3, "height": 1, "rows": [[0, 128, 255]]}])"));
  EXPECT_EQ(found["hparams"], json(R"({"model.hidden": "256.0", "model.lr": "0.001", "model.name": "'a|b_c'",
                                       "data.shuffle": "True", "data.tag": "'12'", "sizes": "'[1, 2]'"})"));
  EXPECT_EQ(found["status"], 1);
}

/// What came after the checkpoint has other values here, as where the learning rate was changed.
TEST_F(TensorBoardLoggerTest, StepsThatAreLoggedAgainReplaceThoseOfAKilledRun) {
  const std::string interpreter = testing::torch_python();
  if (testing::run_program({interpreter, "-c", "import tensorboard"}).status != 0)
    GTEST_SKIP() << interpreter << " has no tensorboard package";
  TensorBoardLogger logger;
  EXPECT_TRUE(logger.state_dict().is_null()) << "not started";
  logger.start(run_);
  logger.log_hyperparameters(Config::parse("{lr: 1}", {}));
  log_one(logger, "loss", 1, 2);
  log_one(logger, "loss", 2, 4);
  const State state = logger.state_dict();
  for (int64_t step = 6; step < 20; step += 2) log_one(logger, "loss", 9, step);
  logger.finish(TrainerStatus::kFailed);
  logger.start(run_);
  logger.log_hyperparameters(Config::parse("{lr: 2}", {}));
  logger.load_state_dict(state);
  log_one(logger, "loss", 3, 6);
  log_one(logger, "loss", 4, 8);
  logger.finish(TrainerStatus::kFinished);
  const auto read =
      testing::run_program({interpreter, testing::source_path("tests/loggers/read_events.py"), run_.directory});
  ASSERT_EQ(read.status, 0) << read.err;
  const auto found = nlohmann::json::parse(read.out);
  EXPECT_EQ(found["scalars"]["loss"].dump(), R"([[2,"1.0"],[4,"2.0"],[6,"3.0"],[8,"4.0"]])");
  EXPECT_EQ(found["hparams"].size(), 1U);
}

TEST_F(TensorBoardLoggerTest, EventsArriveInOrderAcrossFits) {
  TensorBoardLogger logger;
  for (int64_t fit = 0; fit < 2; ++fit) {
    logger.start(run_);
    for (int64_t step = 0; step < 5; ++step) log_one(logger, "loss", 1, fit * 5 + step);
    logger.finish(TrainerStatus::kFinished);
  }
  const auto all = events();
  ASSERT_EQ(all.size(), 10u);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].step, static_cast<int64_t>(i));
}

TEST_F(TensorBoardLoggerTest, EventsWaitForFlush) {
  TensorBoardLogger waiting({.flush_seconds = 1000});
  waiting.start(run_);
  log_one(waiting, "loss", 1, 1);
  EXPECT_FALSE(std::filesystem::exists(run_.directory));
  waiting.flush();
  EXPECT_EQ(events().size(), 1u);

  TensorBoardLogger hasty({.flush_seconds = 0});
  hasty.start(run_);
  log_one(hasty, "loss", 1, 2);
  EXPECT_EQ(events().size(), 2u);
}

TEST_F(TensorBoardLoggerTest, NothingIsLostOnADiskThatIsFullForAWhile) {
  testing::FaultyFileSystem disk;
  TensorBoardLogger logger({.flush_seconds = 0});
  logger.start(run_);
  disk.fail_after_bytes(0);
  for (int64_t step = 0; step < 100; ++step) log_one(logger, "loss", 1, step);
  logger.flush();
  ASSERT_EQ(warnings_.size(), 1u) << "one warning however many faults";
  EXPECT_NE(warnings_[0].find("No space left on device"), std::string::npos) << warnings_[0];
  disk.heal();
  logger.finish(TrainerStatus::kFinished);
  EXPECT_EQ(warnings_.size(), 1u);
  EXPECT_EQ(events().size(), 100u);
}

TEST_F(TensorBoardLoggerTest, AnUnwritableFolderWarnsOnceAndSaysWhatIsLost) {
  testing::FaultyFileSystem disk;
  disk.fail_after_operations(0, EACCES);
  TensorBoardLogger logger({.flush_seconds = 0});
  logger.start(run_);
  logger.log_hyperparameters(Config::parse("a: 1", {}));
  constexpr int64_t kEvents = 150'000;
  for (int64_t step = 0; step < kEvents; ++step) log_one(logger, "a metric with a long name indeed", 1, step);
  logger.finish(TrainerStatus::kFailed);
  ASSERT_EQ(warnings_.size(), 2u);
  EXPECT_NE(warnings_[0].find("Permission denied"), std::string::npos) << warnings_[0];
  EXPECT_NE(warnings_[1].find(std::to_string(kEvents + 3) + " events"), std::string::npos) << warnings_[1];
}

TEST_F(TensorBoardLoggerTest, WithoutStartNothingHappens) {
  TensorBoardLogger logger;
  log_one(logger, "a", 1, 1);
  logger.log_text("a", "b", 1);
  logger.log_histogram("a", std::vector<double>{1}, 1);
  logger.log_image("a", at::zeros({1, 2, 2}), 1);
  logger.log_hyperparameters(Config::parse("a: 1", {}));
  logger.flush();
  logger.finish(TrainerStatus::kFailed);
  EXPECT_FALSE(std::filesystem::exists(run_.directory));
}

TEST_F(TensorBoardLoggerTest, OptionsAreDescribed) {
  const auto options = parse_options<TensorBoardLoggerOptions>(Config::parse("flush_seconds: 2.5", {}), "logger");
  EXPECT_EQ(options.flush_seconds, 2.5);
  EXPECT_THROW(parse_options<TensorBoardLoggerOptions>(Config::parse("flush_seconds: -1", {}), "logger"), ConfigError);
}

}  // namespace
}  // namespace levin
