#include <levin/loggers/wandb_client.h>

#include "../support/captured_log.h"
#include "../support/eventually.h"

#include <levin/core/base/error.h>
#include <levin/loggers/wandb_logger.h>

#include <gtest/gtest.h>

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace levin {
namespace {

namespace fs = std::filesystem;

/// A script of a shell stands in for W&B's client.
class WandbClientTest : public ::testing::Test {
 protected:
  WandbClientTest()
      : root_(::testing::TempDir() + "levin_wandb_client_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name() + "_" + std::to_string(::getpid())) {
    fs::remove_all(root_);
    fs::create_directories(root_ + "/run");
  }
  ~WandbClientTest() override { fs::remove_all(root_); }

  /// A client that does this, with the words of its command line in $@ and a folder of its own in $ROOT.
  std::string client_that(const std::string& does) const {
    const std::string path = root_ + "/client";
    std::ofstream(path) << "#!/bin/sh\nROOT='" << root_ << "'\n" << does << "\n";
    fs::permissions(path, fs::perms::owner_all);
    return path;
  }
  std::string content(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(root_ + "/" + name).rdbuf();
    return text.str();
  }
  std::string failure(const WandbClient& client, std::chrono::milliseconds longest) const {
    try {
      client.upload(root_ + "/run", longest);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  const std::string root_;
};

constexpr std::chrono::seconds kLong(240);

TEST_F(WandbClientTest, IsToldToUploadTheFolder) {
  const WandbClient client({client_that("echo \"$@\" > $ROOT/words; echo wandb: done"), "-m", "wandb"});
  EXPECT_TRUE(client.is_given());
  EXPECT_TRUE(client.is_found());
  EXPECT_EQ(failure(client, kLong), "");
  EXPECT_EQ(content("words"), "-m wandb sync " + root_ + "/run\n");
  EXPECT_EQ(content("run/sync.log"), "wandb: done\n");
}

TEST_F(WandbClientTest, ItsLastWordIsInTheError) {
  const std::string program = client_that("echo first; echo 'wandb: ERROR no key' >&2; echo; exit 3");
  EXPECT_EQ(failure(WandbClient({program}), kLong),
            "[wandb] the client ended with status 3, and said last: wandb: ERROR no key; hint: `" + program + " sync " +
                root_ + "/run` uploads the run later");
}

TEST_F(WandbClientTest, IsEndedAfterItsTime) {
  const WandbClient client({client_that("echo $$ > $ROOT/process; sleep 600")});
  // On a busy machine it may be ended before it has begun.
  EXPECT_TRUE(testing::eventually([&] {
    const std::string said = failure(client, std::chrono::milliseconds(500));
    EXPECT_NE(said.find("the client was ended after 0.5 s; hint:"), std::string::npos) << said;
    return !content("process").empty();
  }));
  const pid_t process = std::stoi(content("process"));
  EXPECT_NE(::kill(process, 0), 0) << "it runs still";
}

TEST_F(WandbClientTest, IsLookedForInPath) {
  EXPECT_TRUE(WandbClient({"sh"}).is_found());
  EXPECT_FALSE(WandbClient({"no-such-client"}).is_found());
  EXPECT_FALSE(WandbClient({root_ + "/absent"}).is_found());
  EXPECT_FALSE(WandbClient({}).is_given());
  EXPECT_NE(failure(WandbClient({root_ + "/absent"}), kLong).find("cannot be started (No such file or directory)"),
            std::string::npos);
}

void run_once(WandbLogger& logger, const RunInfo& run) {
  logger.start(run);
  const MetricValue metric{"loss", 1};
  logger.log_metrics({&metric, 1}, 1, 0);
  logger.finish(TrainerStatus::kFinished);
}

TEST_F(WandbClientTest, UploadsWhatTheRunHasWhenACallHasEnded) {
  const testing::CapturedLog log;
  // The client sees the whole file: nothing is added to it afterwards.
  WandbLogger logger({.id = "abc", .client = {client_that("cp $2/run-abc.wandb $ROOT/copy")}});
  run_once(logger, {.directory = root_ + "/version_0", .name = "version_0"});
  std::string folder;
  for (const auto& entry : fs::directory_iterator(root_ + "/version_0/wandb")) folder = entry.path();
  EXPECT_GT(content("copy").size(), 100U);
  EXPECT_EQ(content("copy"), content(fs::relative(folder, root_).string() + "/run-abc.wandb"));
  EXPECT_EQ(log.text(), "[levin] W&B logger: uploading " + folder + ", for 600 s at most\n");
}

TEST_F(WandbClientTest, ThatFailsIsAWarning) {
  const testing::CapturedLog log;
  WandbLogger logger({.client = {client_that("echo offline; exit 1")}});
  run_once(logger, {.directory = root_ + "/version_0", .name = "version_0"});
  EXPECT_NE(log.text().find("W&B logger: [wandb] the client ended with status 1, and said last: offline; hint: `"),
            std::string::npos)
      << log.text();
}

TEST_F(WandbClientTest, ThatIsNotThereIsSaidAtTheStart) {
  const testing::CapturedLog log;
  WandbLogger logger({.client = {"no-such-client"}});
  logger.start({.directory = root_ + "/version_0", .name = "version_0"});
  EXPECT_NE(log.text().find("there is no client 'no-such-client', here or in PATH; what is logged stays in " + root_),
            std::string::npos)
      << log.text();
  const std::string said = log.text();
  logger.finish(TrainerStatus::kFinished);
  EXPECT_EQ(log.text(), said);
}

}  // namespace
}  // namespace levin
