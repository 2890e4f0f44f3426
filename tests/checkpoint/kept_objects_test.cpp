// Stores that keep what they were asked to remove: servers and proxies that ignore DELETE, keys that may not remove.

#include <levin/callbacks/model_checkpoint.h>
#include <levin/core/base/seed.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/checkpoint/checkpoint_uploader.h>
#include <levin/core/checkpoint/remote_checkpoint.h>
#include <levin/core/trainer/trainer.h>

#include "../support/captured_log.h"
#include "../support/eventually.h"
#include "../support/tiny.h"
#include "checkpoint_fixture.h"
#include "small_store.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace levin {
namespace {

using testing::Answer;
using testing::CapturedLog;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using ::testing::Not;
using testing::SmallStore;

const ObjectStoreOptions kNoPatience{.pauses = {std::chrono::milliseconds(1)}, .part_bytes = 5 << 20};

/// Says that it has removed what it keeps.
std::optional<Answer> ignores_delete(const std::string& method, const std::string& /*path*/) {
  if (method != "DELETE") return {};
  return Answer{.status = 204};
}

/// Keeps the first version of every object, too.
class FirstVersions {
 public:
  std::optional<Answer> operator()(const std::string& method, const std::string& path) {
    if (method == "PUT" && !written_.insert(path).second) return Answer{.headers = "ETag: \"1\"\r\n"};
    return ignores_delete(method, path);
  }

 private:
  std::set<std::string> written_;
};

class KeptObjects : public testing::CheckpointTest {
 protected:
  std::string save(const std::string& name, int64_t step) const {
    write_checkpoint(path(name), testing::sample_tree(step), {.epoch = step / 10, .global_step = step});
    return path(name);
  }
  std::vector<std::string> names() const {
    ObjectStore store(run_, kNoPatience);
    std::vector<std::string> names;
    for (const RemoteCheckpoint& checkpoint : remote_checkpoints(store, run_)) names.push_back(checkpoint.url.key);
    return names;
  }
  /// The step of the checkpoint at an address.
  int64_t step_at(const std::string& url) const { return read_info(fetch_checkpoint(url, path("remote"))).global_step; }
  /// Trains on a machine with that folder alone. Returns the step that it ends with.
  int64_t train(const std::string& machine, int64_t epochs, const std::string& ckpt,
                ModelCheckpointOptions options) const {
    seed_everything(7);
    options.upload_to = "s3://bucket/run";
    TrainerOptions trainer_options = testing::quiet(epochs);
    trainer_options.enable_checkpointing = true;
    trainer_options.default_root_dir = path(machine);
    trainer_options.callbacks = {make<ModelCheckpoint>(options)};
    Trainer trainer(trainer_options);
    trainer.fit(make<testing::TinyModule>({}), testing::tiny_loader(), {}, ckpt);
    return trainer.global_step();
  }

  const RemoteUrl run_ = parse_remote_url("s3://bucket/run", "upload_to");
};

TEST_F(KeptObjects, OfOneNameThereIsOneCheckpoint) {
  const SmallStore small(ignores_delete);
  ObjectStore store(run_, kNoPatience);
  const CapturedLog log;
  upload_checkpoint(store, run_, "last", save("last", 100));
  EXPECT_THAT(names(), ElementsAre("run/last"));
  // Another run that begins anew: its steps are fewer.
  upload_checkpoint(store, run_, "last", save("last", 4));
  EXPECT_THAT(names(), ElementsAre("run/last~1"));
  EXPECT_EQ(step_at("s3://bucket/run"), 4);
  upload_checkpoint(store, run_, "last", save("last", 8));
  upload_checkpoint(store, run_, "last", save("last", 12));
  EXPECT_THAT(names(), ElementsAre("run/last~1"));
  EXPECT_EQ(store.folders("run").size(), 2U) << "names are used again";
  EXPECT_EQ(step_at("s3://bucket/run"), 12);
  remove_remote_checkpoint(store, run_, "last");
  EXPECT_THAT(names(), ElementsAre());
  EXPECT_THAT(log.text(), HasSubstr("the store of s3://bucket keeps objects that it was asked to remove"));
  EXPECT_THAT(log.text(), Not(HasSubstr("damaged")));
}

TEST_F(KeptObjects, TheNewestUploadOfANameCountsWhereNothingIsOverwritten) {
  const SmallStore small([keeps = std::make_shared<FirstVersions>()](const auto& method, const auto& path) {
    return (*keeps)(method, path);
  });
  ObjectStore store(run_, kNoPatience);
  upload_checkpoint(store, run_, "best", save("best", 50));
  for (const int64_t step : {100, 4, 8}) upload_checkpoint(store, run_, "last", save("last", step));
  EXPECT_THAT(names(), ElementsAre("run/best", "run/last~2", "run/last", "run/last~1")) << "superseded ones come last";
  EXPECT_EQ(step_at("s3://bucket/run/last"), 8);
  EXPECT_EQ(step_at("s3://bucket/run/last~1"), 4) << "that very one";
  upload_checkpoint(store, run_, "best", save("best", 6));
  EXPECT_EQ(step_at("s3://bucket/run"), 8);
}

TEST_F(KeptObjects, ARunLeavesTheSameCheckpointsAsElsewhere) {
  const ModelCheckpointOptions options{.monitor = "train_loss", .mode = "max", .save_top_k = 1, .save_last = true};
  std::vector<std::string> expected;
  for (const bool is_kept : {false, true}) {
    const std::string machine = is_kept ? "kept" : "removed";
    const SmallStore small([&](const auto& method, const auto& path) -> std::optional<Answer> {
      return is_kept ? ignores_delete(method, path) : std::nullopt;
    });
    const int64_t steps = train(machine, 4, "", options);
    std::vector<std::string> found = names();
    for (std::string& name : found) name = name.substr(0, name.find('~'));
    if (!is_kept) expected = found;
    EXPECT_EQ(found, expected);
    EXPECT_EQ(step_at("s3://bucket/run"), steps);
  }
}

TEST_F(KeptObjects, ARunThatBeganAnewGoesOnFromItsOwn) {
  for (const bool is_overwritten : {true, false}) {
    const SmallStore small([=, keeps = std::make_shared<FirstVersions>()](const auto& method, const auto& path) {
      return is_overwritten ? ignores_delete(method, path) : (*keeps)(method, path);
    });
    const std::string name = is_overwritten ? "a" : "b";
    const ModelCheckpointOptions options{.save_top_k = 0, .save_last = true};
    const int64_t former = train(name + "1", 6, "", options);
    const int64_t anew = train(name + "2", 2, "", options);
    for (const char* ckpt : {"auto", "last", "s3://bucket/run", "s3://bucket/run/last"}) {
      const CapturedLog log;
      // On a machine that has nothing: no further epoch.
      EXPECT_EQ(train(name + ckpt[0] + std::to_string(std::string(ckpt).size()), 2, ckpt, options), anew) << ckpt;
      EXPECT_THAT(log.text(), HasSubstr("nothing was trained"));
    }
    EXPECT_LT(anew, former);
  }
}

TEST_F(KeptObjects, KeysThatMayNotRemoveUploadEachCheckpointOnce) {
  std::multiset<std::string> written;
  const SmallStore small([&](const std::string& method, const std::string& path) -> std::optional<Answer> {
    if (method == "PUT" && path.ends_with("manifest.json")) written.insert(path);
    if (method != "DELETE") return {};
    return Answer{.status = 403, .body = "<Error><Code>AccessDenied</Code></Error>"};
  });
  const CapturedLog log;
  {
    CheckpointUploader uploader("s3://bucket/run", kNoPatience);
    uploader.add(save("a", 4), "");
    uploader.add(save("last", 4), "");
    uploader.finish();
    uploader.add(save("b", 8), path("a"));
    uploader.add(save("last", 8), "");
    uploader.finish();
    uploader.add(save("c", 12), path("b"));
    uploader.add(save("last", 12), "");
  }
  EXPECT_THAT(written, ElementsAre("/bucket/run/a/manifest.json", "/bucket/run/b/manifest.json",
                                   "/bucket/run/c/manifest.json", "/bucket/run/last/manifest.json",
                                   "/bucket/run/last~1/manifest.json", "/bucket/run/last~2/manifest.json"));
  EXPECT_EQ(step_at("s3://bucket/run"), 12);
  EXPECT_EQ(step_at("s3://bucket/run/last"), 12);
  EXPECT_THAT(log.text(), HasSubstr("superseded checkpoints stay in the store: "));
  EXPECT_THAT(log.text(), HasSubstr("AccessDenied"));
  EXPECT_THAT(log.text(), Not(HasSubstr("not uploaded")));
  EXPECT_THAT(log.text(), Not(HasSubstr("could not be uploaded")));
}

/// One that goes away when a checkpoint is there, and what it supersedes is still to be removed.
TEST_F(KeptObjects, WhatCouldNotBeRemovedIsRemovedAtTheNextSave) {
  std::atomic<bool> is_away = false;
  std::atomic<int> uploads = 0;
  const SmallStore small([&](const std::string& method, const std::string& path) -> std::optional<Answer> {
    if (method == "PUT" && path.ends_with("b/manifest.json")) ++uploads;
    if (!is_away || method != "DELETE") return {};
    return Answer{.status = 503};
  });
  const CapturedLog log;
  CheckpointUploader uploader("s3://bucket/run", kNoPatience);
  uploader.add(save("a", 4), "");
  uploader.finish();
  is_away = true;
  uploader.add(save("b", 8), path("a"));
  EXPECT_TRUE(testing::eventually([&] {
    return log.text().find("what is superseded by the checkpoint b could not be removed, which is tried again") !=
           std::string::npos;
  }));
  EXPECT_THAT(names(), ElementsAre("run/b", "run/a"));
  is_away = false;
  uploader.add(save("c", 12), "");
  uploader.finish();
  EXPECT_THAT(names(), ElementsAre("run/c", "run/b"));
  EXPECT_EQ(uploads, 1);
}

}  // namespace
}  // namespace levin
