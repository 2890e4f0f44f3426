#include <levin/loggers/mlflow_sender.h>

#include <levin/core/base/error.h>
#include <levin/loggers/mlflow_artifact_sink.h>
#include <levin/loggers/mlflow_client.h>
#include <levin/loggers/mlflow_logger.h>
#include <levin/loggers/mlflow_records.h>
#include <levin/loggers/mlflow_run.h>
#include <levin/loggers/mlflow_value_sink.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "../support/eventually.h"
#include "../support/run_program.h"
#include "mlflow_fixture.h"
#include "stand_in_mlflow.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

/// What the MLflow logger does with a server that can be made to go wrong.
namespace levin {
namespace {

using Json = nlohmann::json;
using testing::eventually;
using testing::log_one;

class MlflowSenderTest : public testing::MlflowTest {
 protected:
  /// One metric, two artifacts in records and, with log_model, one in a file.
  void log_some(MlflowLoggerOptions options) {
    options.finish_seconds = options.stall_seconds = kLongSeconds;
    MlflowLogger logger(options);
    logger.start(run_);
    logger.log_text("note", "a text", 1);
    logger.log_text("note", "another", 2);
    if (options.log_model == "all") logger.after_save_checkpoint({.path = write_checkpoint("last", "weights")});
    log_one(logger, "loss", 1, 1);
    logger.finish(TrainerStatus::kFinished);
  }
  Json run_json() const { return Json::parse(testing::read_text(mlflow_path("run.json"))); }
  static std::string loss_of(const testing::StandInMlflow& server) {
    return std::to_string(server.run().metrics.at("loss").size()) + " values, " + server.run().status;
  }
};

// ---- Values and artifacts.

TEST_F(MlflowSenderTest, AStoreThatFailsForGoodHoldsUpNoValues) {
  testing::StandInMlflow server;
  server.refuse_artifacts(503);
  log_some({.tracking_uri = server.uri(), .log_model = "all"});
  EXPECT_EQ(loss_of(server), "1 values, FINISHED");
  EXPECT_FALSE(has_unsent());
  EXPECT_TRUE(has_unsent_artifacts());
  ASSERT_EQ(warnings().size(), 2u) << all_warnings();
  EXPECT_NE(warnings()[0].find("MLflow logger, artifacts: "), std::string::npos) << warnings()[0];
  EXPECT_NE(warnings()[0].find("status 503"), std::string::npos) << warnings()[0];
  EXPECT_NE(warnings()[1].find("3 records"), std::string::npos) << warnings()[1];
  EXPECT_NE(warnings()[1].find(mlflow_path("unsent_artifacts")), std::string::npos) << warnings()[1];

  EXPECT_EQ(MlflowLogger::send_unsent(run_.directory).left, 3);
  server.refuse_artifacts(200);
  EXPECT_EQ(MlflowLogger::send_unsent(run_.directory).left, 0);
  EXPECT_EQ(server.artifacts().size(), 3u);
  EXPECT_FALSE(has_unsent_artifacts());
}

TEST_F(MlflowSenderTest, AStoreThatDoesNotAnswerHoldsUpNoValues) {
  testing::StandInMlflow server;
  std::atomic<int> held_up = 0;
  // It answers once the values have arrived, to the last one.
  const testing::StandInServer store([&](const testing::Request&) {
    if (!eventually([&] { return server.run().status == "FINISHED"; })) ++held_up;
    return testing::Answer{.status = 503};
  });
  server.keep_artifacts_in("mlflow-artifacts:" + store.uri().substr(store.uri().find("//")));
  log_some({.tracking_uri = server.uri()});
  EXPECT_EQ(held_up, 0);
  EXPECT_EQ(loss_of(server), "1 values, FINISHED");
  EXPECT_TRUE(has_unsent_artifacts());
}

TEST_F(MlflowSenderTest, BothWaitAtTheSameTime) {
  std::atomic<int> one_waited_alone = 0;
  // It answers once both wait for it.
  const testing::StandInServer server([&](const testing::Request&) {
    if (!eventually(
            [&] { return has_notice("MLflow logger: waits") && has_notice("MLflow logger, artifacts: waits"); }))
      ++one_waited_alone;
    return testing::Answer{.status = 503};
  });
  log_some({.tracking_uri = server.uri()});
  EXPECT_EQ(one_waited_alone, 0);
  EXPECT_TRUE(has_unsent());
  EXPECT_TRUE(has_unsent_artifacts());
  // The state at both ends and a metric; the texts.
  EXPECT_NE(all_warnings().find("MLflow logger: 3 records"), std::string::npos) << all_warnings();
  EXPECT_NE(all_warnings().find("MLflow logger, artifacts: 2 records"), std::string::npos) << all_warnings();
}

TEST_F(MlflowSenderTest, BothMakeOneRun) {
  for (int i = 0; i < 10; ++i) {
    const testing::StandInMlflow server;
    std::filesystem::remove_all(run_.directory);
    MlflowSender sender({.run = {.folder = mlflow_path(""), .tracking_uri = server.uri()}});
    sender.push(mlflow::bytes_record("a", "bytes"));
    sender.push(mlflow::status_record("RUNNING", 0));
    sender.finish(std::chrono::seconds(kLongSeconds));
    EXPECT_EQ(sender.waiting(), 0);
    EXPECT_EQ(server.runs().size(), 1u);
    EXPECT_EQ(server.artifacts().size(), 1u);
  }
}

TEST_F(MlflowSenderTest, RequestsCarryNoMoreThanMlflowTakes) {
  const testing::StandInMlflow server;
  const std::vector<mlflow::Metric> metrics(900, {.key = "m", .value = 1});
  std::vector<std::string> records;
  for (const size_t length : {5000, 1}) {  // too many bytes, then too many of all kinds together
    for (int i = 0; i < 150; ++i) {
      records.push_back(mlflow::tag_record("t" + std::to_string(i), std::string(length, 'v')));
      records.push_back(mlflow::parameter_record("p" + std::to_string(i), std::string(length, 'v')));
    }
    for (auto& record : mlflow::metric_records(metrics, 1, 1)) records.push_back(std::move(record));
  }
  const auto refused = std::make_shared<MlflowRefused>(mlflow_path(""));
  MlflowValueSink sink(mlflow_access(server.uri(), kLongSeconds),
                       std::make_shared<MlflowRun>(MlflowRunOptions{.folder = mlflow_path("")}), refused);
  const std::atomic<bool> stop = false;
  int64_t requests = 0;
  for (std::span<const std::string> rest = records; !rest.empty(); ++requests)
    rest = rest.subspan(sink.send(rest, stop));
  EXPECT_EQ(server.bad_requests(), std::vector<std::string>());
  EXPECT_EQ(refused->count(), 0);
  EXPECT_EQ(server.run().metrics.at("m").size(), 1800u);
  EXPECT_EQ(server.run().parameters.size(), 150u);
  EXPECT_EQ(server.run().tags.size(), 151u);  // with the key
  EXPECT_LT(requests, 10);
}

// ---- Artifacts that are refused.

TEST_F(MlflowSenderTest, ArtifactsThatAreRefusedAreKept) {
  for (const int status : {400, 404, 413}) {
    testing::StandInMlflow server;
    server.refuse_artifacts(status);
    std::filesystem::remove_all(run_.directory);
    log_some({.tracking_uri = server.uri(), .log_model = "all"});
    EXPECT_FALSE(has_unsent_artifacts());
    const std::string listed = testing::read_text(mlflow_path("refused.txt"));
    const std::vector<std::pair<std::string, std::string>> refused{
        {"text/note/step_000000001.txt", "a text"},
        {"text/note/step_000000002.txt", "another"},
        {"checkpoints/last/part/model.safetensors", "weights"}};
    for (const auto& [name, content] : refused) {
      EXPECT_EQ(testing::read_text(mlflow_path("refused/" + name)), content) << status;
      EXPECT_NE(listed.find("the artifact " + name + ", kept as " + mlflow_path("refused/" + name) + "\n"),
                std::string::npos)
          << listed;
    }
    EXPECT_NE(listed.find("status " + std::to_string(status) + ": the store does not take it"), std::string::npos)
        << listed;
    for (const auto& item : std::filesystem::recursive_directory_iterator(mlflow_path("checkpoints")))
      EXPECT_TRUE(item.is_directory()) << item.path();
  }
  EXPECT_EQ(warnings().size(), 3u) << all_warnings();  // one a run
}

TEST_F(MlflowSenderTest, AFileThatIsGoneIsSaidOnceAndTheRestGoesOn) {
  const testing::StandInMlflow server;
  MlflowSender sender({.run = {.folder = mlflow_path(""), .tracking_uri = server.uri()}});
  std::filesystem::create_directories(mlflow_path("kept"));
  std::filesystem::create_symlink(mlflow_path("nowhere/model"), mlflow_path("kept/link"));
  sender.push(mlflow::file_record("first", "kept/link"));
  sender.push(mlflow::file_record("second", "kept/nothing"));
  sender.push(mlflow::bytes_record("third", "bytes"));
  sender.finish(std::chrono::seconds(kLongSeconds));
  EXPECT_EQ(sender.refused(), 2);
  EXPECT_EQ(server.artifacts().size(), 1u);
  ASSERT_EQ(warnings().size(), 1u) << all_warnings();
  const std::string listed = testing::read_text(mlflow_path("refused.txt"));
  EXPECT_NE(listed.find("kept/link is no longer there\tthe artifact first\n"), std::string::npos) << listed;
  EXPECT_NE(listed.find("kept/nothing is no longer there\tthe artifact second\n"), std::string::npos) << listed;
  EXPECT_FALSE(std::filesystem::is_symlink(mlflow_path("kept/link")));
}

TEST_F(MlflowSenderTest, RecordsOfAnotherVersionAreSetAside) {
  const testing::StandInMlflow server;
  MlflowSender sender({.run = {.folder = mlflow_path(""), .tracking_uri = server.uri()}});
  sender.push("another kind");
  sender.push("F{ no JSON");
  sender.push(mlflow::status_record("RUNNING", 0));
  sender.push(mlflow::bytes_record("third", "bytes"));
  sender.finish(std::chrono::seconds(kLongSeconds));
  EXPECT_EQ(sender.waiting(), 0);
  EXPECT_EQ(server.run().status, "RUNNING");
  EXPECT_EQ(server.artifacts().size(), 1u);
}

TEST_F(MlflowSenderTest, AStoreOnDiskIsWrittenToWhereItIsThisMachines) {
  namespace fs = std::filesystem;
  const fs::path store = fs::path(run_.directory) / "store";
  const fs::path artifacts = store / "1" / "run" / "artifacts";
  EXPECT_FALSE(mlflow::is_on_this_machine("http://127.0.0.1:5000", artifacts));
  fs::create_directories(store);
  for (const auto* here : {"http://127.0.0.1:5000", "http://localhost", "https://[::1]:5000/mlflow"})
    EXPECT_TRUE(mlflow::is_on_this_machine(here, artifacts)) << here;
  for (const auto* away : {"http://tracker:5000", "https://localhost.example.org", "http://10.127.0.1", ""})
    EXPECT_FALSE(mlflow::is_on_this_machine(away, artifacts)) << away;
  fs::create_directories(artifacts.parent_path());
  EXPECT_TRUE(mlflow::is_on_this_machine("http://tracker:5000", artifacts));

  testing::StandInMlflow server;
  server.keep_artifacts_in("file://" + store.string());
  log_some({.tracking_uri = server.uri(), .log_model = "all"});
  const auto id = server.runs().begin()->first;
  EXPECT_EQ(testing::read_text(store / "1" / id / "artifacts/checkpoints/last/part/model.safetensors"), "weights");
  EXPECT_EQ(testing::read_text(store / "1" / id / "artifacts/text/note/step_000000001.txt"), "a text");

  fs::remove_all(mlflow_path(""));
  server.keep_artifacts_in(store.string() + "_of_another_machine/store");
  log_some({.tracking_uri = server.uri()});
  EXPECT_FALSE(fs::exists(store.string() + "_of_another_machine"));
  EXPECT_EQ(testing::read_text(mlflow_path("refused/text/note/step_000000001.txt")), "a text");
  EXPECT_NE(all_warnings().find("--serve-artifacts"), std::string::npos) << all_warnings();
}

// ---- Sent later, from elsewhere, to elsewhere.

TEST_F(MlflowSenderTest, CheckpointsOfARunFolderThatWasMovedAreSent) {
  log_some({.tracking_uri = "http://127.0.0.1:1", .log_model = "all"});
  std::filesystem::remove_all(run_.directory + "/checkpoints");
  const std::string moved = run_.directory + "_moved";
  std::filesystem::remove_all(moved);
  std::filesystem::rename(run_.directory, moved);
  const testing::StandInMlflow server;
  const auto result = MlflowLogger::send_unsent(moved, server.uri());
  EXPECT_EQ(result.left, 0);
  EXPECT_EQ(result.refused, 0);
  const std::string id = server.runs().begin()->first;
  EXPECT_EQ(server.artifacts().at("1/" + id + "/artifacts/checkpoints/last/part/model.safetensors"), "weights");
  std::filesystem::remove_all(moved);
}

TEST_F(MlflowSenderTest, ADamagedRunFileIsAsNone) {
  const std::string folder = run_.directory + "/mlflow";
  std::filesystem::create_directories(folder);
  for (const char* text : {"{", "[]", R"({"run_id": 3})", R"({"tags": []})", R"({"start_milliseconds": 1e300})"}) {
    FileSystem::current().replace_file(folder + "/run.json", text);
    EXPECT_FALSE(MlflowRun::kept_in(folder)) << text;
  }
  FileSystem::current().replace_file(folder + "/run.json", R"({"run_id": "a", "start_milliseconds": 5})");
  EXPECT_EQ(MlflowRun::kept_in(folder)->start_milliseconds, 5);
}

TEST_F(MlflowSenderTest, ARunOfAnotherServerIsFoundByItsKeyElseMade) {
  const testing::StandInMlflow first;
  const testing::StandInMlflow second;
  log_some({.tracking_uri = first.uri()});
  const std::string key = run_json()["key"];
  EXPECT_EQ(all_warnings(), "");
  log_some({.tracking_uri = second.uri()});
  log_some({.tracking_uri = second.uri()});
  ASSERT_EQ(second.runs().size(), 1u);
  EXPECT_EQ(loss_of(second), "2 values, FINISHED");
  EXPECT_EQ(second.run().tags.at("levin.key"), key);
  ASSERT_EQ(warnings().size(), 1u) << all_warnings();
  EXPECT_NE(warnings()[0].find(second.uri() + " has no run " + first.runs().begin()->first), std::string::npos)
      << warnings()[0];
  log_some({.tracking_uri = first.uri()});
  ASSERT_EQ(first.runs().size(), 1u);
  EXPECT_EQ(loss_of(first), "2 values, FINISHED");
  EXPECT_EQ(run_json()["run_id"], first.runs().begin()->first);

  // A run that goes on from a checkpoint of it is the same run on any server.
  RunInfo resumed{.directory = run_.directory + "/version_1", .resumed_from = run_.directory + "/checkpoints/last"};
  MlflowLogger logger({.tracking_uri = second.uri()});
  logger.start(resumed);
  log_one(logger, "loss", 1, 3);
  logger.finish(TrainerStatus::kInterrupted);
  ASSERT_EQ(second.runs().size(), 1u);
  EXPECT_EQ(loss_of(second), "3 values, KILLED");
}

TEST_F(MlflowSenderTest, ARunThatTheUserNamedIsNotReplaced) {
  const testing::StandInMlflow server;
  log_some({.tracking_uri = server.uri(), .run_id = "mine"});
  EXPECT_TRUE(server.runs().empty());
  EXPECT_TRUE(has_unsent());
  EXPECT_TRUE(has_unsent_artifacts());
  EXPECT_NE(warnings().front().find(server.uri() + " has no run mine; hint: another run_id"), std::string::npos)
      << all_warnings();
  EXPECT_EQ(MlflowLogger::send_unsent(run_.directory).left, 5);
  EXPECT_TRUE(server.runs().empty());
  // Who names the server wants it there.
  EXPECT_EQ(MlflowLogger::send_unsent(run_.directory, server.uri()).left, 0);
  EXPECT_EQ(loss_of(server), "1 values, FINISHED");
}

// ---- Credentials.

/// Sets a variable as long as it lives.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::string& value) : name_(name) {
    if (const char* former = std::getenv(name)) former_ = former;
    ::setenv(name, value.c_str(), 1);
  }
  ~ScopedVariable() { former_ ? ::setenv(name_, former_->c_str(), 1) : ::unsetenv(name_); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* const name_;
  std::optional<std::string> former_;
};

TEST_F(MlflowSenderTest, CredentialsInAnOptionAreRefused) {
  try {
    const MlflowLogger logger({.tracking_uri = "http://ada:secret@127.0.0.1:5000"});
    FAIL() << "it was taken";
  } catch (const ConfigError& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find("secret"), std::string::npos) << message;
    EXPECT_EQ(message.find("ada"), std::string::npos) << message;
    EXPECT_NE(message.find("MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"), std::string::npos) << message;
  }
}

TEST_F(MlflowSenderTest, CredentialsInTheVariableAreUsedAndKeptNowhere) {
  testing::StandInMlflow server;
  const std::string host = server.uri().substr(7);
  const ScopedVariable uri("MLFLOW_TRACKING_URI", "http://ada:se%2Fcret@" + host + "/");
  const ScopedVariable token("MLFLOW_TRACKING_TOKEN", "of another server");
  const std::string basic = "Authorization: Basic YWRhOnNlL2NyZXQ=";  // ada:se/cret
  log_some({});
  EXPECT_EQ(loss_of(server), "1 values, FINISHED");
  EXPECT_NE(server.latest_head().find(basic), std::string::npos) << server.latest_head();
  EXPECT_EQ(run_json()["tracking_uri"], server.uri());
  {
    // One that is away.
    const ScopedVariable away("MLFLOW_TRACKING_URI", "http://ada:se%2Fcret@127.0.0.1:1");
    log_some({});
    EXPECT_EQ(run_json()["tracking_uri"], "http://127.0.0.1:1");
    EXPECT_EQ(MlflowLogger::send_unsent(run_.directory).left, 5);
  }
  EXPECT_EQ(MlflowLogger::send_unsent(run_.directory, "http://ada:se%2Fcret@" + host).left, 0);
  EXPECT_NE(server.latest_head().find(basic), std::string::npos) << server.latest_head();
  // The address that run.json keeps is the variable's, so that its credentials are meant for it.
  server.refuse_artifacts(503);
  log_some({});
  server.refuse_artifacts(200);
  EXPECT_TRUE(has_unsent_artifacts());
  EXPECT_EQ(MlflowLogger::send_unsent(run_.directory).left, 0);
  EXPECT_NE(server.latest_head().find(basic), std::string::npos) << server.latest_head();

  EXPECT_NE(all_warnings().find("127.0.0.1:1"), std::string::npos) << all_warnings();
  EXPECT_EQ(all_warnings().find("cret"), std::string::npos) << all_warnings();
  for (const auto& item : std::filesystem::recursive_directory_iterator(run_.directory))
    if (item.is_regular_file()) {
      EXPECT_EQ(testing::read_text(item.path()).find("cret"), std::string::npos) << item.path();
    }
}

}  // namespace
}  // namespace levin
