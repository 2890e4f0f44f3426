#pragma once

#include <levin/core/checkpoint/remote_checkpoint.h>

#include "../support/s3_server.h"
#include "checkpoint_fixture.h"

#include <memory>
#include <string>
#include <vector>

namespace levin::testing {

/// Tests with a run each in the store of one server, which starts with the first of them.
class RemoteTest : public CheckpointTest {
 protected:
  static void SetUpTestSuite() {
    if (S3Server::missing().empty()) server_ = std::make_unique<S3Server>();
  }
  static void TearDownTestSuite() { server_.reset(); }
  void SetUp() override {
    if (server_ == nullptr) GTEST_SKIP() << S3Server::missing();
    server_->use(server_->key(), server_->secret());
  }

  /// The names of the checkpoints in the test's folder, the newest first.
  std::vector<std::string> names() const {
    ObjectStore store(run_);
    std::vector<std::string> names;
    for (const RemoteCheckpoint& checkpoint : remote_checkpoints(store, run_))
      names.push_back(checkpoint.url.key.substr(run_.key.size() + 1));
    return names;
  }

  inline static std::unique_ptr<S3Server> server_;
  const std::string url_ =
      std::string("s3://bucket/runs/") + ::testing::UnitTest::GetInstance()->current_test_info()->name();
  const RemoteUrl run_ = parse_remote_url(url_, "upload_to");
};

}  // namespace levin::testing
