#include <levin/loggers/mlflow_logger.h>

#include <levin/core/base/file_system.h>
#include <levin/core/base/http_client.h>
#include <levin/core/base/log.h>
#include <levin/loggers/mlflow_names.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "../support/eventually.h"
#include "../support/run_program.h"
#include "mlflow_fixture.h"
#include "stand_in_mlflow.h"
#include "stand_in_server.h"
#include "test_python.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace levin {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;
using testing::log_one;
using testing::MlflowTest;

TEST(MlflowNames, WhatMlflowTakesStaysAndTheRestIsMappedWithoutCollisions) {
  EXPECT_EQ(mlflow_name("train/loss_1.x-y z"), "train/loss_1.x-y z");
  EXPECT_EQ(mlflow_name(std::string(250, 'a')), std::string(250, 'a'));
  const std::vector<std::string> odd{"größe",
                                     "gr??e",
                                     "a//b",
                                     "/a",
                                     "a/",
                                     "../a",
                                     "a/./b",
                                     "",
                                     "a:b",
                                     "a?b",
                                     "a@b",
                                     std::string(251, 'a'),
                                     std::string(252, 'a'),
                                     std::string(240, 'a') + "/b/"};
  std::set<std::string> mapped;
  for (const auto& name : odd) {
    const std::string result = mlflow_name(name);
    EXPECT_LE(result.size(), 250u);
    EXPECT_EQ(result, mlflow_name(result)) << "what it gives is a name that stays";
    mapped.insert(result);
  }
  EXPECT_EQ(mapped.size(), odd.size());
  EXPECT_EQ(mlflow_name("a@b").substr(0, 4), "a_b-");
}

TEST(MlflowNames, TextsAreCutBetweenCharacters) {
  EXPECT_EQ(mlflow_text("abcdef", 6), "abcdef");
  EXPECT_EQ(mlflow_text("abcdefg", 6), "abc...");
  EXPECT_EQ(mlflow_text("aäöü", 6), "aä...");
  EXPECT_EQ(mlflow_text("a\xff", 10), "a\xEF\xBF\xBD");
}

// ---- Servers that refuse, stall or are not there.

class MlflowBadServer : public MlflowTest {
 protected:
  /// Logs 1000 rows and finishes; a server that fails is not waited for, and everything must be kept.
  void expect_kept(const std::string& uri, const std::string& message) {
    const auto begin = Clock::now();
    {
      MlflowLogger logger({.tracking_uri = uri, .finish_seconds = kLongSeconds});
      logger.start(run_);
      for (int64_t step = 0; step < 1000; ++step) log_one(logger, "loss", 1, step);
      logger.finish(TrainerStatus::kFinished);
    }
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(kLongSeconds));
    EXPECT_TRUE(has_unsent());
    ASSERT_FALSE(warnings().empty());
    EXPECT_NE(warnings().front().find(message), std::string::npos) << warnings().front();
    // Metrics, and the state at both ends.
    EXPECT_NE(warnings().back().find("1002 records"), std::string::npos) << warnings().back();
    EXPECT_NE(warnings().back().find("`levin-send-logs " + run_.directory + "` sends them"), std::string::npos);
    // That command finds the run, and says again what is wrong.
    EXPECT_EQ(MlflowLogger::send_unsent(run_.directory, uri).left, 1002);
    EXPECT_NE(warnings().back().find("1002 records"), std::string::npos) << warnings().back();
  }
};

TEST_F(MlflowBadServer, IsNotThere) { expect_kept("http://127.0.0.1:1", "no answer from http://127.0.0.1:1"); }

TEST_F(MlflowBadServer, WrongAddresses) {
  expect_kept("sqlite:///mlruns.db", "wrong tracking_uri; got 'sqlite:///mlruns.db'; valid: the address of an MLflow");
}

TEST_F(MlflowBadServer, NoAddress) { expect_kept("", "no tracking_uri; valid:"); }

TEST_F(MlflowBadServer, Refuses) {
  for (const int status : {401, 403, 404, 429, 500, 503}) {
    const testing::StandInServer server([status](const testing::Request&) {
      return testing::Answer{status, R"({"error_code": "NO", "message": "quota or so"})"};
    });
    std::filesystem::remove_all(run_.directory);
    MlflowLogger logger({.tracking_uri = server.uri(), .finish_seconds = kLongSeconds});
    logger.start(run_);
    log_one(logger, "loss", 1, 1);
    logger.finish(TrainerStatus::kFinished);
    EXPECT_TRUE(has_unsent()) << status;
    ASSERT_GE(warnings().size(), 2u);
    const auto all = warnings();
    const std::string& first = all[all.size() - 2];
    EXPECT_NE(first.find("status " + std::to_string(status) + ": quota or so"), std::string::npos) << first;
    EXPECT_EQ(first.find("MLFLOW_TRACKING_TOKEN") != std::string::npos, status == 401 || status == 403) << first;
  }
}

TEST_F(MlflowBadServer, AnswersWithAPage) {
  const testing::StandInServer server([](const testing::Request&) {
    return testing::Answer{200, "<html>welcome</html>"};
  });
  MlflowLogger logger({.tracking_uri = server.uri()});
  logger.start(run_);
  log_one(logger, "loss", 1, 1);
  logger.finish(TrainerStatus::kFinished);
  EXPECT_TRUE(has_unsent());
  EXPECT_EQ(warnings().size(), 2u);
}

/// A network's login page that comes up while a run is under way: what it "takes" is kept.
TEST_F(MlflowBadServer, AnswersWithAPageOnceTheRunIsThere) {
  for (const std::string page : {"<html>welcome</html>", "", "OK", "[]", "null"}) {
    const testing::StandInServer server([&](const testing::Request& request) {
      const std::string line = request.line();
      if (line.find("/experiments/get-by-name") != std::string::npos)
        return testing::Answer{200, R"({"experiment": {"experiment_id": "1"}})"};
      if (line.find("/runs/search") != std::string::npos) return testing::Answer{200, "{}"};
      if (line.find("/runs/create") != std::string::npos || line.find("/runs/get") != std::string::npos)
        return testing::Answer{200, R"({"run": {"info": {"run_id": "r", "artifact_uri": "mlflow-artifacts:/1/r"}}})"};
      return testing::Answer{200, page};
    });
    std::filesystem::remove_all(run_.directory);
    MlflowLogger logger({.tracking_uri = server.uri(), .finish_seconds = kLongSeconds});
    logger.start(run_);
    log_one(logger, "loss", 1, 1);
    logger.finish(TrainerStatus::kFinished);
    EXPECT_TRUE(has_unsent()) << page;
    const auto all = warnings();
    ASSERT_GE(all.size(), 2u);
    EXPECT_NE(all[all.size() - 2].find("that is no answer of MLflow"), std::string::npos) << all[all.size() - 2];
  }
}

TEST_F(MlflowBadServer, NeverAnswers) {
  const testing::StandInServer server([](const testing::Request&) { return testing::Answer{.seconds = 1e5}; });
  // None of these calls waits for an answer.
  MlflowLogger logger({.tracking_uri = server.uri(), .finish_seconds = 0.5, .stall_seconds = 1e5});
  logger.start(run_);
  for (int64_t step = 0; step < 1000; ++step) log_one(logger, "loss", 1, step);
  logger.finish(TrainerStatus::kInterrupted);
  EXPECT_TRUE(has_unsent());
  ASSERT_EQ(warnings().size(), 1u);
  EXPECT_NE(warnings()[0].find("1002 records"), std::string::npos) << warnings()[0];
}

TEST_F(MlflowBadServer, IsSlowAndWaitedForWithoutALimit) {
  testing::StandInMlflow server;
  server.be_slow(0.3);
  MlflowLogger logger(
      {.tracking_uri = server.uri(), .finish_seconds = std::numeric_limits<double>::infinity(), .stall_seconds = 1e5});
  logger.start(run_);
  log_one(logger, "loss", 1, 1);
  logger.finish(TrainerStatus::kFinished);
  EXPECT_FALSE(has_unsent());
  EXPECT_TRUE(warnings().empty());
  EXPECT_EQ(server.run().status, "FINISHED");
}

TEST_F(MlflowBadServer, AFolderThatCannotBeWritten) {
  // A file where the folder should be: not even root can make one there.
  std::filesystem::create_directories(run_.directory);
  std::ofstream(run_.directory + "/mlflow") << "in the way";
  MlflowLogger logger({.tracking_uri = "http://127.0.0.1:1"});
  logger.start(run_);
  log_one(logger, "loss", 1, 1);
  logger.finish(TrainerStatus::kFinished);
  ASSERT_FALSE(warnings().empty());
  EXPECT_NE(warnings().back().find("3 records could be neither sent nor kept on disk"), std::string::npos)
      << warnings().back();
}

// ---- A real server.

/// One `mlflow server` for the suite, on SQLite; a test may end it and start it again.
class MlflowServer : public MlflowTest {
 protected:
  static void SetUpTestSuite() { set_up("sqlite:///store.db"); }
  /// `store`: the server's --backend-store-uri, in its folder.
  static void set_up(const std::string& store) {
    if (!testing::missing_module("mlflow").empty()) return;
    testing::keep_loopback_off_proxies();
    folder_ = ::testing::TempDir() + "levin_mlflow_server_" + std::to_string(::getpid());
    store_ = store;
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    port_ = testing::free_port();
    start_server();
  }
  static void TearDownTestSuite() {
    stop_server();
    std::filesystem::remove_all(folder_);
  }
  static void start_server() {
    const std::string port = std::to_string(port_);
    server_ = std::make_unique<testing::RunningProgram>(
        std::vector<std::string>{testing::test_python(), "-W", "ignore", "-m", "mlflow", "server",
                                 "--backend-store-uri", store_, "--artifacts-destination", folder_ + "/artifacts",
                                 "--serve-artifacts", "--host", "127.0.0.1", "--port", port, "--workers", "1"},
        testing::ProgramOptions{.folder = folder_, .timeout = 10min});
    HttpClient client({});
    const std::atomic<bool> stop = false;
    const bool answers = server_->wait_until([&] {
      try {
        return client.send({.method = "GET", .url = uri() + "/health"}, stop).status == 200;
      } catch (const Error&) {
        std::this_thread::sleep_for(50ms);
        return false;
      }
    });
    EXPECT_TRUE(answers) << server_->err();
  }
  /// Kills it with the processes that it started.
  static void stop_server() {
    if (server_ == nullptr) return;
    std::vector<pid_t> processes{server_->process()};
    for (size_t i = 0; i < processes.size(); ++i) {
      const std::string process = std::to_string(processes[i]);
      std::ifstream children("/proc/" + process + "/task/" + process + "/children");
      for (pid_t child = 0; children >> child;) processes.push_back(child);
    }
    for (const pid_t process : processes) ::kill(process, SIGKILL);
    server_->wait();
    server_.reset();
  }
  static std::string uri() { return "http://127.0.0.1:" + std::to_string(port_); }

  void SetUp() override {
    if (const std::string missing = testing::missing_module("mlflow"); !missing.empty()) GTEST_SKIP() << missing;
  }
  MlflowLoggerOptions options() const {
    return {.tracking_uri = uri(), .experiment_name = name_, .run_name = "a run", .finish_seconds = kLongSeconds};
  }
  /// The experiment's runs.
  Json runs() const { return Json::parse(testing::output_of_script("read_mlflow.py", {uri(), name_})); }

  static std::string folder_;
  static std::string store_;
  static int port_;
  static std::unique_ptr<testing::RunningProgram> server_;
};

std::string MlflowServer::folder_;
std::string MlflowServer::store_;
int MlflowServer::port_ = 0;
std::unique_ptr<testing::RunningProgram> MlflowServer::server_;

TEST_F(MlflowServer, MlflowReadsEverythingBack) {
  const std::string checkpoint = write_checkpoint("epoch=0 step=10", "weights");
  const double infinity = std::numeric_limits<double>::infinity();
  const std::string long_name(200, 'n');
  MlflowLoggerOptions given = options();
  given.tags = {{"team", "vision"}};
  given.log_model = "all";
  MlflowLogger logger(given);
  logger.start(run_);
  logger.log_hyperparameters(
      Config::parse("{model: {lr: 1e-3, text: '" + std::string(7000, 'x') + "', 'a?b': 1}}", {}));
  for (int64_t step = 0; step < 2500; ++step) {
    const std::vector<MetricValue> values{{"train/loss", 0.1 * static_cast<double>(step)}, {long_name, 1}};
    logger.log_metrics(values, step, 0);
  }
  const std::vector<MetricValue> odd{{"größe", 1.5}, {"nan", NAN}, {"high", infinity}, {"low", -infinity}};
  logger.log_metrics(odd, 2500, 1);
  logger.log_text("note", "two\nlines", 50);
  logger.log_image("samples/a", at::arange(30).to(at::kByte).reshape({3, 2, 5}), 51);
  logger.after_save_checkpoint({.path = checkpoint});
  std::filesystem::remove_all(checkpoint);
  logger.finish(TrainerStatus::kFinished);
  EXPECT_TRUE(warnings().empty()) << warnings().front();
  EXPECT_FALSE(has_unsent());

  const Json found = runs();
  ASSERT_EQ(found.size(), 1u);
  const Json& run = found[0];
  EXPECT_EQ(run["name"], "a run");
  EXPECT_EQ(run["status"], "FINISHED");
  EXPECT_EQ(run["tags"]["team"], "vision");
  EXPECT_EQ(run["params"]["model.lr"], "1e-3");
  const std::string text = run["params"]["model.text"];
  EXPECT_EQ(text.substr(0, 240), std::string(240, 'x'));
  EXPECT_TRUE(text.ends_with("..."));
  EXPECT_EQ(run["params"][mlflow_name("model.a?b")], "1");
  const Json& loss = run["history"]["train/loss"];
  ASSERT_EQ(loss.size(), 2500u);
  for (size_t i = 0; i < loss.size(); ++i) {
    EXPECT_EQ(loss[i][0], i);
    EXPECT_EQ(std::stod(loss[i][1].get<std::string>()), 0.1 * static_cast<double>(i));
  }
  EXPECT_EQ(run["history"][long_name].size(), 2500u);
  EXPECT_EQ(run["history"]["epoch"].size(), 2501u);
  EXPECT_EQ(run["history"][mlflow_name("größe")], Json::parse(R"([[2500, "1.5"]])"));
  EXPECT_EQ(run["tags"]["name." + mlflow_name("größe")], "größe");
  EXPECT_EQ(run["history"]["nan"][0][1], "nan");
  EXPECT_GT(std::stod(run["history"]["high"][0][1].get<std::string>()), 1e308);  // SQLite keeps the largest double
  EXPECT_LT(std::stod(run["history"]["low"][0][1].get<std::string>()), -1e308);
  EXPECT_EQ(run["artifacts"]["text/note/step_000000050.txt"], "two\nlines");
  EXPECT_EQ(run["artifacts"]["images/samples/a/step_000000051.png"].get<std::string>().substr(2, 3),
            "PNG");  // behind U+0089
  EXPECT_EQ(run["artifacts"]["checkpoints/epoch=0 step=10/part/model.safetensors"], "weights");
  EXPECT_TRUE(run["artifacts"].contains("hparams.yaml"));
}

TEST_F(MlflowServer, MoreMetricsThanARequestCarries) {
  MlflowLogger logger(options());
  logger.start(run_);
  std::string parameters;
  for (int i = 0; i < 150; ++i) parameters += "p" + std::to_string(i) + ": " + std::string(6000, 'v') + "\n";
  logger.log_hyperparameters(Config::parse(parameters, {}));
  std::vector<MetricValue> many;
  for (int i = 0; i < 1200; ++i) many.push_back({"m" + std::to_string(i), static_cast<double>(i)});
  logger.log_metrics(many, 7, 0);
  logger.finish(TrainerStatus::kFailed);
  HttpClient client({});
  EXPECT_TRUE(warnings().empty()) << warnings().front();
  const std::atomic<bool> stop = false;
  const Json state = Json::parse(FileSystem::current().read_file(run_.directory + "/mlflow/run.json"));
  const auto answer = client.send(
      {.method = "GET", .url = uri() + "/api/2.0/mlflow/runs/get?run_id=" + state["run_id"].get<std::string>()}, stop);
  const Json run = Json::parse(answer.body)["run"];
  EXPECT_EQ(run["data"]["metrics"].size(), 1201u);
  EXPECT_EQ(run["data"]["params"].size(), 150u);
  EXPECT_EQ(run["info"]["status"], "FAILED");
}

TEST_F(MlflowServer, ARunGoesOn) {
  const RunInfo first = run_;
  {
    MlflowLogger logger(options());
    logger.start(first);
    logger.log_hyperparameters(Config::parse("{lr: 1, width: 8}", {}));
    log_one(logger, "loss", 1, 1);
    logger.finish(TrainerStatus::kFinished);
    logger.start(first);  // a further call of the same trainer
    log_one(logger, "loss", 2, 2);
    logger.finish(TrainerStatus::kInterrupted);
  }
  RunInfo second{.directory = first.directory + "/version_1",
                 .name = "version_1",
                 .resumed_from = first.directory + "/checkpoints/last"};
  {
    MlflowLogger logger(options());
    logger.start(second);
    logger.log_hyperparameters(Config::parse("{lr: 3, width: 8}", {}));
    log_one(logger, "loss", 3, 3);
    logger.finish(TrainerStatus::kFinished);
  }
  const Json found = runs();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0]["history"]["loss"], Json::parse(R"([[1, "1.0"], [2, "2.0"], [3, "3.0"]])"));
  EXPECT_EQ(found[0]["params"]["lr"], "1");
  EXPECT_EQ(found[0]["tags"]["changed.lr"], "3");
  EXPECT_EQ(found[0]["status"], "FINISHED");
  EXPECT_TRUE(warnings().empty()) << warnings().front();

  MlflowLoggerOptions apart = options();
  apart.resume = false;
  second.directory += "_apart";
  MlflowLogger logger(apart);
  logger.start(second);
  logger.finish(TrainerStatus::kFinished);
  EXPECT_EQ(runs().size(), 2u);
}

class MlflowServerRestart : public MlflowServer {
 protected:
  /// What the server has of the run's metric by now.
  std::optional<double> latest_value(const std::string& metric) const {
    const std::string kept = run_.directory + "/mlflow/run.json";
    if (!std::filesystem::exists(kept)) return {};
    const std::string id = Json::parse(FileSystem::current().read_file(kept)).value("run_id", "");
    HttpClient client({});
    const std::atomic<bool> stop = false;
    const auto answer = client.send({.method = "GET", .url = uri() + "/api/2.0/mlflow/runs/get?run_id=" + id}, stop);
    if (answer.status != 200) return {};
    const Json run = Json::parse(answer.body)["run"];
    if (!run["data"].contains("metrics")) return {};
    for (const auto& item : run["data"]["metrics"])
      if (item["key"] == metric) return item["value"].get<double>();
    return {};
  }
};

TEST_F(MlflowServerRestart, GoesAwayAndComesBack) {
  MlflowLogger logger(options());
  logger.start(run_);
  int64_t step = 0;
  for (; step < 100; ++step) log_one(logger, "loss", static_cast<double>(step), step);
  ASSERT_TRUE(testing::eventually([&] { return latest_value("loss") == 99; }));
  stop_server();
  for (; step < 2000; ++step) log_one(logger, "loss", static_cast<double>(step), step);
  EXPECT_TRUE(testing::eventually([&] { return has_unsent(); }));
  start_server();
  for (; step < 2100; ++step) log_one(logger, "loss", static_cast<double>(step), step);
  logger.finish(TrainerStatus::kFinished);
  EXPECT_FALSE(has_unsent());
  const Json found = runs();
  ASSERT_EQ(found.size(), 1u);
  const Json& loss = found[0]["history"]["loss"];
  ASSERT_EQ(loss.size(), 2100u);
  for (size_t i = 0; i < loss.size(); ++i) EXPECT_EQ(loss[i][0], i);
  EXPECT_EQ(warnings().size(), 1u);
}

/// The server's store as long as MLflow had no database: a folder.
class MlflowServerOnFolder : public MlflowServer {
 protected:
  static void SetUpTestSuite() { set_up("store"); }
};

TEST_F(MlflowServerOnFolder, TakesTheSame) {
  MlflowLoggerOptions given = options();
  given.log_model = "all";
  MlflowLogger logger(given);
  logger.start(run_);
  logger.log_hyperparameters(Config::parse("{lr: 1, text: '" + std::string(7000, 'x') + "'}", {}));
  const std::vector<MetricValue> values{
      {"train/loss", 0.5}, {"größe", 1.5}, {"nan", NAN}, {"high", std::numeric_limits<double>::infinity()}};
  for (int64_t step = 0; step < 300; ++step) logger.log_metrics(values, step, 0);
  logger.after_save_checkpoint({.path = write_checkpoint("last", "weights")});
  logger.finish(TrainerStatus::kFinished);
  logger.start(run_);
  logger.log_hyperparameters(Config::parse("{lr: 2}", {}));
  logger.finish(TrainerStatus::kFinished);
  EXPECT_EQ(all_warnings(), "");

  const Json found = runs();
  ASSERT_EQ(found.size(), 1u);
  const Json& run = found[0];
  EXPECT_EQ(run["status"], "FINISHED");
  EXPECT_EQ(run["params"]["lr"], "1");
  EXPECT_EQ(run["tags"]["changed.lr"], "2");
  EXPECT_TRUE(run["params"]["text"].get<std::string>().ends_with("..."));
  EXPECT_EQ(run["history"]["train/loss"].size(), 300u);
  EXPECT_EQ(run["history"][mlflow_name("größe")][299], Json::parse(R"([299, "1.5"])"));
  EXPECT_EQ(run["history"]["nan"][0][1], "nan");
  EXPECT_EQ(run["history"]["high"][0][1], "inf");
  EXPECT_EQ(run["artifacts"]["checkpoints/last/part/model.safetensors"], "weights");
}

TEST_F(MlflowServer, ARunOfAnotherServerGoesOnHere) {
  const testing::StandInMlflow former;
  {
    MlflowLogger logger({.tracking_uri = former.uri(), .experiment_name = name_});
    logger.start(run_);
    log_one(logger, "loss", 1, 1);
    logger.finish(TrainerStatus::kFinished);
  }
  for (int64_t step = 2; step < 4; ++step) {
    MlflowLogger logger(options());
    logger.start(run_);
    log_one(logger, "loss", 1, step);
    logger.finish(TrainerStatus::kFinished);
  }
  const Json found = runs();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0]["history"]["loss"].size(), 2u);
  ASSERT_EQ(warnings().size(), 1u);
  EXPECT_NE(warnings()[0].find("what is logged goes to the run " + found[0]["id"].get<std::string>()),
            std::string::npos)
      << warnings()[0];
}

TEST_F(MlflowServer, WhatWasKeptIsSentLater) {
  MlflowLoggerOptions wrong = options();
  wrong.tracking_uri = "http://127.0.0.1:1";
  {
    MlflowLogger logger(wrong);
    logger.start(run_);
    for (int64_t step = 0; step < 50; ++step) log_one(logger, "loss", static_cast<double>(step), step);
    logger.finish(TrainerStatus::kFinished);
  }
  ASSERT_TRUE(has_unsent());
  EXPECT_EQ(MlflowLogger::send_unsent(run_.directory, uri()).left, 0);
  const Json found = runs();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0]["history"]["loss"].size(), 50u);
  EXPECT_EQ(found[0]["status"], "FINISHED");
  EXPECT_EQ(found[0]["name"], "a run");
}

}  // namespace
}  // namespace levin
