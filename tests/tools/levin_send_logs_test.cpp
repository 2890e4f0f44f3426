#include <levin/loggers/mlflow_logger.h>

#include <gtest/gtest.h>
#include "../loggers/mlflow_fixture.h"
#include "../loggers/stand_in_mlflow.h"
#include "../support/eventually.h"
#include "../support/run_program.h"
#include "tests/support/tree.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

/// Runs the executable as a user would.
class LevinSendLogsTool : public testing::MlflowTest {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(tool_))
      GTEST_SKIP() << "no levin-send-logs at '" << tool_ << "'; build the tools or set LEVIN_SEND_LOGS_TOOL";
  }

  testing::ProgramResult run(std::vector<std::string> arguments, const std::string& folder = "") const {
    arguments.insert(arguments.begin(), tool_);
    return testing::run_program(std::move(arguments), {.folder = folder});
  }
  /// A run whose server was away: four records of values and one artifact in a file.
  void train(const std::string& tracking_uri = "http://127.0.0.1:1") {
    MlflowLogger logger({.tracking_uri = tracking_uri, .log_model = "all", .finish_seconds = 5});
    logger.start(run_);
    testing::log_one(logger, "loss", 1, 1);
    testing::log_one(logger, "loss", 2, 2);
    logger.after_save_checkpoint({.path = write_checkpoint("last", "weights")});
    logger.finish(TrainerStatus::kFinished);
  }

 private:
  static std::string find_tool() {
    const char* path = std::getenv("LEVIN_SEND_LOGS_TOOL");
    return path != nullptr ? path : testing::build_path("bin/levin-send-logs");
  }
  const std::string tool_ = find_tool();
};

TEST_F(LevinSendLogsTool, SendsEverythingFromAnyFolderToAnyServer) {
  train();
  const testing::StandInMlflow server;
  const std::filesystem::path folder = run_.directory;
  const auto result = run({"--tracking-uri=" + server.uri(), folder.filename()}, folder.parent_path());
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out, folder.filename().string() + ": everything is sent\n");
  EXPECT_EQ(server.run().metrics.at("loss").size(), 2u);
  EXPECT_EQ(server.run().status, "FINISHED");
  ASSERT_EQ(server.artifacts().size(), 1u);
  EXPECT_EQ(server.artifacts().begin()->second, "weights");
  EXPECT_FALSE(has_unsent() || has_unsent_artifacts());
  // There is nothing more, and it says so.
  EXPECT_EQ(run({run_.directory}).status, 0);

  // Another server gets a run of its own.
  train();
  const testing::StandInMlflow other;
  EXPECT_EQ(run({"--tracking-uri=" + other.uri(), run_.directory}).status, 0);
  EXPECT_EQ(other.run().metrics.at("loss").size(), 2u);
  EXPECT_EQ(server.run().metrics.at("loss").size(), 2u);
}

TEST_F(LevinSendLogsTool, SaysWhatIsLeft) {
  train();
  for (const std::string uri : {"", "--tracking-uri=nowhere"}) {
    std::vector<std::string> arguments{run_.directory};
    if (!uri.empty()) arguments.insert(arguments.begin(), uri);
    const auto result = run(arguments);
    EXPECT_EQ(result.status, 1);
    EXPECT_EQ(result.out, "");
    EXPECT_NE(result.err.find(run_.directory + ": 5 records are left\n"), std::string::npos) << result.err;
    EXPECT_NE(result.err.find(uri.empty() ? "no answer from http://127.0.0.1:1" : "wrong tracking_uri; got 'nowhere'"),
              std::string::npos)
        << result.err;
  }
}

TEST_F(LevinSendLogsTool, SaysThatTheServerRefuses) {
  train();
  {
    const testing::StandInServer server([](const testing::Request&) {
      return testing::Answer{401, R"({"error_code": "UNAUTHENTICATED", "message": "who are you?"})"};
    });
    const auto result = run({"--tracking-uri=" + server.uri(), run_.directory});
    EXPECT_EQ(result.status, 1);
    EXPECT_NE(result.err.find("status 401: who are you?"), std::string::npos) << result.err;
    EXPECT_NE(result.err.find("MLFLOW_TRACKING_TOKEN"), std::string::npos) << result.err;
    EXPECT_NE(result.err.find("5 records are left"), std::string::npos) << result.err;
  }
  testing::StandInMlflow server;
  server.refuse_artifacts(413);
  const auto result = run({"--tracking-uri=" + server.uri(), run_.directory});
  EXPECT_EQ(result.status, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_NE(result.err.find("the server will never take 1 records, which are kept; see " + mlflow_path("refused.txt")),
            std::string::npos)
      << result.err;
  EXPECT_EQ(server.run().metrics.at("loss").size(), 2u);
  EXPECT_EQ(testing::read_text(mlflow_path("refused/checkpoints/last/part/model.safetensors")), "weights");
}

TEST_F(LevinSendLogsTool, AFolderWithoutSuchARunIsSaidAndTheOthersAreSent) {
  train();
  const testing::StandInMlflow server;
  const std::string nowhere = run_.directory + "/nowhere";
  const auto result = run({"--tracking-uri=" + server.uri(), nowhere, run_.directory});
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.err.find(nowhere + "/mlflow/run.json is not there"), std::string::npos) << result.err;
  EXPECT_EQ(result.out, run_.directory + ": everything is sent\n");
  std::ofstream(mlflow_path("run.json")) << "no JSON";
  EXPECT_EQ(run({run_.directory}).status, 1);
}

TEST_F(LevinSendLogsTool, LeavesARunAloneThatTrains) {
  const testing::StandInMlflow server;
  {
    MlflowLogger logger({.tracking_uri = "http://127.0.0.1:1"});
    logger.start(run_);
    testing::log_one(logger, "loss", 1, 1);
    // Its run.json comes from its thread.
    ASSERT_TRUE(testing::eventually([&] { return std::filesystem::exists(mlflow_path("run.json")); }));
    const auto result = run({"--tracking-uri=" + server.uri(), run_.directory});
    EXPECT_EQ(result.status, 1);
    EXPECT_NE(result.err.find("process " + std::to_string(::getpid())), std::string::npos) << result.err;
    EXPECT_TRUE(server.runs().empty());
    logger.finish(TrainerStatus::kFinished);
  }
  EXPECT_EQ(run({"--tracking-uri=" + server.uri(), run_.directory}).status, 0);
  EXPECT_EQ(server.run().metrics.at("loss").size(), 1u);
}

TEST_F(LevinSendLogsTool, Usage) {
  const auto help = run({"--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_TRUE(help.out.starts_with("Usage: levin-send-logs")) << help.out;
  for (const auto& words : std::vector<std::vector<std::string>>{{}, {"--no-such-option", "a"}}) {
    const auto result = run(words);
    EXPECT_EQ(result.status, 2);
    EXPECT_TRUE(result.err.starts_with("[command line] ")) << result.err;
    EXPECT_NE(result.err.find("--help"), std::string::npos) << result.err;
  }
}

}  // namespace
}  // namespace levin
