// Training whose checkpoints are copied to a store: what is there is what is here, and a run on a machine that has
// nothing goes on from it to the same bits.

#include <levin/callbacks/model_checkpoint.h>
#include <levin/core/base/seed.h>
#include <levin/core/checkpoint/remote_checkpoint.h>
#include <levin/core/trainer/trainer.h>

#include "../support/captured_log.h"
#include "../support/tiny.h"
#include "remote_fixture.h"

#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <vector>

namespace levin {
namespace {

using testing::CapturedLog;
using ::testing::HasSubstr;
using testing::message_of;

class RemoteTraining : public testing::RemoteTest {
 protected:
  /// Trains on "a machine" with that folder alone; the weights.
  std::vector<at::Tensor> train(const std::string& machine, int64_t epochs, const std::string& ckpt = "",
                                ModelCheckpointOptions options = {}) {
    options.save_last = true;
    if (options.upload_to.empty()) options.upload_to = url_;
    seed_everything(7);
    TrainerOptions trainer_options = testing::quiet(epochs);
    trainer_options.enable_checkpointing = true;
    trainer_options.default_root_dir = path(machine);
    trainer_options.callbacks = {make<ModelCheckpoint>(options)};
    Trainer trainer(trainer_options);
    auto module = make<testing::TinyModule>({.dropout = 0.3});
    trainer.fit(module, testing::tiny_loader(), {}, ckpt);
    return testing::weights(*module);
  }
};

TEST_F(RemoteTraining, GoesOnElsewhereToTheSameBits) {
  const auto expected = train("whole", 4, "", {.save_top_k = 0, .upload_to = url_ + "-whole"});
  train("first", 2, "", {.asynchronous = true});
  EXPECT_EQ(names().size(), 2U) << "the newest and `last`, of which there is one each";
  EXPECT_TRUE(testing::identical(train("second", 4, "auto"), expected));
  EXPECT_TRUE(testing::identical(train("third", 4, url_ + "/" + names().back()), expected));
}

TEST_F(RemoteTraining, TheNewestOfHereAndThereIsTaken) {
  const auto expected = train("whole", 4, "", {.save_top_k = 0, .upload_to = url_ + "-whole"});
  EXPECT_THAT(message_of([&] { train("first", 2, "last"); }), HasSubstr("cannot find the last checkpoint"));
  train("first", 1, "auto");
  train("second", 3, "auto");
  const CapturedLog log;
  EXPECT_TRUE(testing::identical(train("first", 4, "auto"), expected));
  EXPECT_THAT(log.text(), HasSubstr("/remote/"));
}

TEST_F(RemoteTraining, BeginsNotAnewWhereAllThatIsThereIsDamaged) {
  train("first", 1);
  ObjectStore store(run_);
  for (const std::string& name : names()) store.remove((run_ / name / "state.json").key);
  EXPECT_THAT(message_of([&] { train("second", 2, "auto"); }),
              HasSubstr("cannot find the newest checkpoint: none at " + url_ + " is whole; got "));
}

TEST_F(RemoteTraining, AStoreThatIsAwayOrRefuses) {
  EXPECT_THAT(message_of([&] { train("first", 1, "", {.upload_to = "s3://nothing/a"}); }), HasSubstr("NoSuchBucket"));
  EXPECT_THAT(message_of([&] { train("first", 1, "s3://bucket/none"); }),
              HasSubstr("there is no whole checkpoint at s3://bucket/none"));
  EXPECT_THAT(message_of([&] { train("first", 1, "", {.upload_to = "bucket/none"}); }),
              HasSubstr("model_checkpoint.upload_to is no folder of a store"));
  EXPECT_THAT(message_of([&] { train("first", 1, "", {.dirpath = "s3://bucket/a"}); }),
              HasSubstr("model_checkpoint.dirpath is a folder of this machine"));
  EXPECT_THAT(message_of([&] { train("first", 1, "", {.format = "lightning"}); }),
              HasSubstr("model_checkpoint.upload_to uploads folders"));
  setenv("AWS_ENDPOINT_URL", ("http://127.0.0.1:" + std::to_string(testing::free_port())).c_str(), 1);
  EXPECT_THAT(message_of([&] { train("first", 1, "auto"); }), HasSubstr("cannot list " + url_));
  const CapturedLog log;
  train("first", 1);
  EXPECT_THAT(log.text(), HasSubstr("warning: not uploaded to " + url_ + ": "));
  train("first", 2, "auto");
  EXPECT_THAT(log.text(), HasSubstr("than which the store may have a newer one"));
}

}  // namespace
}  // namespace levin
