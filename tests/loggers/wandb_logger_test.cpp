#include <levin/loggers/wandb_logger.h>

#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>
#include <levin/loggers/wandb_file.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "../support/eventually.h"
#include "../support/faulty_file_system.h"
#include "../support/run_program.h"
#include "../support/self_program.h"
#include "test_python.h"

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace levin {
namespace {

using Json = nlohmann::json;

std::string wandb_file_in(const std::string& directory) {
  const std::string folder = directory + "/wandb";
  const auto runs = FileSystem::current().list(folder);
  if (runs.size() != 1) return "";
  for (const auto& name : FileSystem::current().list(folder + "/" + runs.front()))
    if (name.ends_with(".wandb")) return folder + "/" + runs.front() + "/" + name;
  return "";
}

Json read_back(const std::string& directory) {
  return Json::parse(testing::output_of_script("read_wandb.py", {wandb_file_in(directory)}), nullptr, false);
}

class WandbLoggerTest : public ::testing::Test {
 protected:
  WandbLoggerTest() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    run_.directory = ::testing::TempDir() + "levin_wandb_" + test->name() + "_" + std::to_string(::getpid());
    run_.name = "version_0";
    std::filesystem::remove_all(run_.directory);
    log::set_sink([this](const std::string& line) {
      if (line.find("warning: ") == std::string::npos) return;  // such as that the end waits
      const std::lock_guard lock(mutex_);
      warnings_.push_back(line);
    });
  }
  ~WandbLoggerTest() override {
    log::set_sink(nullptr);
    std::filesystem::remove_all(run_.directory);
  }
  void SetUp() override {
    if (const std::string missing = testing::missing_module("wandb"); !missing.empty()) GTEST_SKIP() << missing;
  }

  std::vector<std::string> warnings() {
    const std::lock_guard lock(mutex_);
    return warnings_;
  }
  /// Rows that are in the file by now.
  int64_t rows_written() const { return WandbFile(wandb_file_in(run_.directory)).rows_found(); }

  std::string write_checkpoint(const std::string& name, const std::string& content) const {
    const std::string folder = run_.directory + "/checkpoints/" + name;
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/model.safetensors") << content;
    std::ofstream(folder + "/manifest.json") << "{}";
    return folder;
  }

  RunInfo run_;

 private:
  std::mutex mutex_;
  std::vector<std::string> warnings_;
};

void log_a_value(Logger& logger, const std::string& name, double value, int64_t step) {
  const MetricValue metric{name, value};
  logger.log_metrics({&metric, 1}, step, 0);
}

TEST_F(WandbLoggerTest, WandbReadsEverythingBack) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::string long_name(200, 'n');
  WandbLogger logger({.project = "p",
                      .entity = "e",
                      .name = "n",
                      .group = "g",
                      .tags = {"a", "b"},
                      .notes = "some notes",
                      .log_model = "true"});
  logger.start(run_);
  logger.log_hyperparameters(Config::parse("{model: {lr: 1e-3, width: 8, name: '12'}, list: [1, x, null]}", {}));
  const std::vector<MetricValue> values{{"train/loss", 0.1}, {"größe 😀", 2}, {long_name, -infinity}, {"bad", NAN}};
  logger.log_metrics(values, 49, 1);
  logger.log_text("note", "two\nlines", 50);
  logger.log_histogram("weights", std::vector<double>{0, 0.25, 1, NAN}, 50);
  logger.log_image("samples", at::arange(30).to(at::kByte).reshape({3, 2, 5}), 51);
  const std::string removed = write_checkpoint("epoch=0", "zero");
  logger.after_save_checkpoint({.path = removed, .is_best = true});
  const std::string best = write_checkpoint("epoch=1", "one");
  logger.after_save_checkpoint(
      {.path = best, .epoch = 1, .global_step = 50, .monitor = "val", .score = 0.5, .is_best = true});
  std::filesystem::remove_all(removed);
  logger.finish(TrainerStatus::kFinished);
  std::filesystem::remove_all(best);
  EXPECT_TRUE(warnings().empty()) << warnings().front();

  const Json found = read_back(run_.directory);
  ASSERT_TRUE(found.is_object());
  EXPECT_EQ(found["run"]["project"], "p");
  EXPECT_EQ(found["run"]["entity"], "e");
  EXPECT_EQ(found["run"]["name"], "n");
  EXPECT_EQ(found["run"]["group"], "g");
  EXPECT_EQ(found["run"]["tags"], Json({"a", "b"}));
  EXPECT_EQ(found["run"]["notes"], "some notes");
  EXPECT_EQ(found["kinds"].front(), "header");
  EXPECT_EQ(found["kinds"].back(), "exit");
  EXPECT_EQ(found["exit"], 0);
  EXPECT_EQ(found["config"],
            Json::parse(R"({"model": {"lr": 0.001, "width": 8, "name": "12"}, "list": [1, "x", null]})"));
  EXPECT_EQ(found["metric"], Json({"*", "trainer/global_step", true}));
  const Json& rows = found["history"];
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0], (Json{{"train/loss", "0.1"},
                           {"größe 😀", 2},
                           {long_name, "-inf"},
                           {"bad", "nan"},
                           {"epoch", 1},
                           {"trainer/global_step", 49},
                           {"_step", 0}}));
  EXPECT_EQ(rows[1]["note"], "two\nlines");
  EXPECT_EQ(rows[2]["weights"]["bins"].size(), 65u);
  EXPECT_EQ(rows[2]["weights"]["values"][0], 1);
  EXPECT_EQ(rows[2]["weights"]["values"][16], 1);
  EXPECT_EQ(rows[2]["weights"]["values"][63], 1);
  const Json& image = rows[3]["samples"];
  EXPECT_EQ(image["_type"], "image-file");
  EXPECT_EQ(image["width"], 5);
  const std::string files = std::filesystem::path(wandb_file_in(run_.directory)).parent_path().string() + "/files/";
  const std::string png = FileSystem::current().read_file(files + image["path"].get<std::string>());
  EXPECT_EQ(png.substr(1, 3), "PNG");
  EXPECT_EQ(image["size"], png.size());
  EXPECT_EQ(found["summary"]["train/loss"], "0.1");
  for (const std::string path : found["files"]) EXPECT_TRUE(std::filesystem::exists(files + path)) << path;
  ASSERT_EQ(found["artifacts"].size(), 1u);
  EXPECT_EQ(found["artifacts"][0]["files"], Json({"manifest.json", "model.safetensors"}));
  EXPECT_EQ(found["artifacts"][0]["aliases"], Json({"latest", "best"}));
  EXPECT_EQ(found["artifacts"][0]["metadata"]["score"], 0.5);
}

TEST_F(WandbLoggerTest, DeviceStatisticsAreForTheSystemPanel) {
  WandbLogger logger;
  logger.start(run_);
  log_a_value(logger, "loss", 1, 1);
  const std::vector<MetricValue> values{{"loss", 0.5},
                                        {"gpu3/utilization_percent", 98},
                                        {"gpu3/memory_used_mib", 2},
                                        {"gpu3/memory_total_mib", 8},
                                        {"rank1/gpu0/power_watts", 350},
                                        {"rank1/gpu0/power_limit_watts", 700},
                                        {"rank1/cpu/threads", 12},
                                        {"host/available_memory_mib", 1024},
                                        {"gpu3/sm_clock_mhz", NAN}};
  logger.log_metrics(values, 2, 0);
  logger.finish(TrainerStatus::kFinished);
  const Json found = read_back(run_.directory);
  ASSERT_TRUE(found.is_object());
  EXPECT_EQ(found["history"].size(), 2u);
  EXPECT_EQ(found["history"][1]["gpu3/utilization_percent"], 98) << "over steps as well";
  ASSERT_EQ(found["system"].size(), 1u) << "a row without device statistics is none";
  Json row = found["system"][0];
  EXPECT_GT(row["_timestamp"].get<double>(), 1.7e9);
  EXPECT_GE(row["_runtime"].get<double>(), 0);
  EXPECT_LT(row["_runtime"].get<double>(), 60);
  row.erase("_timestamp");
  row.erase("_runtime");
  EXPECT_EQ(row, (Json{{"_wandb", true},
                       {"system.gpu.3.gpu", 98},
                       {"system.gpu.3.memoryAllocatedBytes", 2 << 20},
                       {"system.gpu.3.memoryAllocated", 25},
                       {"system.gpu.0.powerWatts/l:rank1", 350},
                       {"system.gpu.0.powerPercent/l:rank1", 50},
                       {"system.gpu.0.enforcedPowerLimitWatts/l:rank1", 700},
                       {"system.proc.cpu.threads/l:rank1", 12},
                       {"system.proc.memory.availableMB", 1024}}));
}

TEST_F(WandbLoggerTest, WandbSyncListsTheRun) {
  WandbLogger logger;
  logger.start(run_);
  log_a_value(logger, "loss", 1, 1);
  logger.finish(TrainerStatus::kFinished);
  const auto result = testing::run_program(
      {testing::test_python(), "-W", "ignore", "-m", "wandb", "sync"},
      {.environment = {{"WANDB_DIR", run_.directory}, {"WANDB_MODE", "offline"}}, .folder = run_.directory});
  const std::string name = std::filesystem::path(wandb_file_in(run_.directory)).parent_path().filename();
  EXPECT_NE((result.out + result.err).find(name), std::string::npos) << result.out << result.err;
}

TEST_F(WandbLoggerTest, FurtherFitsGoOnInOneRun) {
  for (int fit = 0; fit < 3; ++fit) {
    WandbLogger logger;  // as in a forked rank, which begins from nothing
    for (int call = 0; call < 2; ++call) {
      logger.start(run_);
      log_a_value(logger, "loss", fit, 2 * fit + call);
      logger.finish(fit == 2 ? TrainerStatus::kInterrupted : TrainerStatus::kFinished);
    }
  }
  const Json found = read_back(run_.directory);
  ASSERT_TRUE(found.is_object());
  ASSERT_EQ(found["history"].size(), 6u);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(found["history"][i]["_step"], i);
    EXPECT_EQ(found["history"][i]["trainer/global_step"], i);
  }
  const auto kinds = found["kinds"].get<std::vector<std::string>>();
  EXPECT_EQ(std::count(kinds.begin(), kinds.end(), "exit"), 1);
  EXPECT_EQ(found["exit"], 130);
  for (size_t i = 0; i < kinds.size(); ++i) EXPECT_EQ(found["numbers"][i], i + 1);
}

TEST_F(WandbLoggerTest, ManyBlocksAndRecordsOfEverySize) {
  WandbLogger logger;
  logger.start(run_);
  // Sizes that leave every number of bytes at a block's end.
  for (int64_t i = 0; i < 3000; ++i) logger.log_text("t", std::string(static_cast<size_t>(i * 37 % 4099), 'x'), i);
  logger.log_text("t", std::string(200'000, 'y'), 3000);
  logger.finish(TrainerStatus::kFinished);
  logger.start(run_);  // goes on behind all of them
  log_a_value(logger, "loss", 1, 3001);
  logger.finish(TrainerStatus::kFinished);
  const Json found = read_back(run_.directory);
  ASSERT_TRUE(found.is_object());
  ASSERT_EQ(found["history"].size(), 3002u);
  EXPECT_EQ(found["history"][3001]["_step"], 3001);
  for (size_t i = 0; i < 3000; ++i) ASSERT_EQ(found["history"][i]["t"].get<std::string>().size(), i * 37 % 4099) << i;
  EXPECT_EQ(found["history"][3000]["t"].get<std::string>().size(), 200'000u);
}

TEST_F(WandbLoggerTest, AFullDiskLosesNothing) {
  testing::FaultyFileSystem files;
  WandbLogger logger;
  logger.start(run_);
  log_a_value(logger, "loss", 0, 0);
  ASSERT_TRUE(testing::eventually([&] { return rows_written() == 1; }));
  files.fail_after_bytes(50);
  for (int64_t step = 1; step < 100; ++step) log_a_value(logger, "loss", 1, step);
  ASSERT_TRUE(testing::eventually([&] { return !warnings().empty(); }));
  files.heal();
  log_a_value(logger, "loss", 2, 100);
  logger.finish(TrainerStatus::kFinished);
  const Json found = read_back(run_.directory);
  ASSERT_TRUE(found.is_object());
  ASSERT_EQ(found["history"].size(), 101u);
  for (int64_t step = 0; step < 101; ++step)
    EXPECT_EQ(found["history"][static_cast<size_t>(step)]["trainer/global_step"], step);
  ASSERT_EQ(warnings().size(), 1u);
  EXPECT_NE(warnings()[0].find("W&B logger: [files] cannot write"), std::string::npos) << warnings()[0];
}

TEST_F(WandbLoggerTest, ALargeCheckpointHoldsUpNothing) {
  const std::string checkpoint = write_checkpoint("epoch=0", "");
  // It takes many minutes to read, and no room on the disk.
  std::filesystem::resize_file(checkpoint + "/model.safetensors", uintmax_t{2} << 40);
  WandbLogger logger({.log_model = "all", .finish_seconds = 0.2});
  logger.start(run_);
  logger.after_save_checkpoint({.path = checkpoint, .is_best = true});
  log_a_value(logger, "loss", 1, 1);
  EXPECT_TRUE(testing::eventually([&] { return rows_written() == 1; }));
  log_a_value(logger, "loss", 2, 2);
  logger.finish(TrainerStatus::kFinished);
  const Json found = read_back(run_.directory);
  ASSERT_TRUE(found.is_object());
  EXPECT_EQ(found["history"].size(), 2u);
  EXPECT_EQ(found["summary"]["loss"], "2");
  EXPECT_EQ(found["kinds"].back(), "exit");
  EXPECT_TRUE(found["artifacts"].empty());
  ASSERT_EQ(warnings().size(), 1u);
  EXPECT_NE(warnings()[0].find("W&B logger: [files] there was no time to read all of"), std::string::npos)
      << warnings()[0];
  EXPECT_NE(warnings()[0].find("hint: a longer finish_seconds"), std::string::npos) << warnings()[0];
}

TEST_F(WandbLoggerTest, TextsThatAreNoUtf8AreWrittenAsUtf8) {
  WandbLogger logger({.project = "p\xff",
                      .entity = "e\xff",
                      .name = "n\xff",
                      .group = "g\xff",
                      .tags = {"plain", "t\xff"},
                      .notes = "o\xff"});
  logger.start(run_);
  logger.finish(TrainerStatus::kFinished);
  const Json found = read_back(run_.directory);
  ASSERT_TRUE(found.is_object());
  EXPECT_EQ(found["run"]["project"], "p\xEF\xBF\xBD");
  EXPECT_EQ(found["run"]["entity"], "e\xEF\xBF\xBD");
  EXPECT_EQ(found["run"]["name"], "n\xEF\xBF\xBD");
  EXPECT_EQ(found["run"]["group"], "g\xEF\xBF\xBD");
  EXPECT_EQ(found["run"]["notes"], "o\xEF\xBF\xBD");
  EXPECT_EQ(found["run"]["tags"], Json({"plain", "t\xEF\xBF\xBD"}));
}

const testing::SelfProgram endless("endless wandb run", [] {
  WandbLogger logger;
  logger.start({.directory = std::getenv("LEVIN_TEST_FOLDER"), .name = "version_0"});
  for (int64_t step = 0;; ++step) {
    log_a_value(logger, "loss", static_cast<double>(step), step);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return 0;
});

TEST_F(WandbLoggerTest, AKilledProcessLeavesAReadableFile) {
  {
    testing::RunningProgram program(endless.words(), endless.options({{"LEVIN_TEST_FOLDER", run_.directory}}));
    ASSERT_TRUE(program.wait_until([&] {
      const std::string path = wandb_file_in(run_.directory);
      return !path.empty() && std::filesystem::file_size(path) > 40'000;
    }));
    program.send(SIGKILL);
    EXPECT_EQ(program.wait().signal, SIGKILL);
  }
  const Json found = read_back(run_.directory);
  ASSERT_TRUE(found.is_object());
  EXPECT_GT(found["history"].size(), 100u);
  for (size_t i = 0; i < found["history"].size(); ++i) EXPECT_EQ(found["history"][i]["loss"], i);
}

}  // namespace
}  // namespace levin
