// Checkpoints in a store of objects: against a server that checks signatures, uploads that end half-way, objects that
// are damaged, a server that is away.

#include <levin/core/checkpoint/remote_checkpoint.h>

#include <levin/core/base/file_system.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/checkpoint/checkpoint_uploader.h>
#include <levin/core/checkpoint/manifest.h>

#include "../support/captured_log.h"
#include "../support/eventually.h"
#include "remote_fixture.h"
#include "tests/support/tree.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace levin {
namespace {

using ::testing::AllOf;
using testing::CapturedLog;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using ::testing::Not;
using testing::S3Server;

const ObjectStoreOptions kImpatient{.pauses = {std::chrono::milliseconds(1)}, .part_bytes = 5 << 20};

TEST(RemoteUrl, IsTakenApart) {
  const RemoteUrl url = parse_remote_url("s3://my.bucket/a/b=c/", "upload_to");
  EXPECT_EQ(url.bucket, "my.bucket");
  EXPECT_EQ(url.key, "a/b=c");
  EXPECT_EQ((url / "last").text(), "s3://my.bucket/a/b=c/last");
  EXPECT_EQ((parse_remote_url("gs://b", "upload_to") / "x").text(), "gs://b/x");
  for (const char* wrong : {"s3://", "s3:///a", "https://host/a", "s3://b//a", "folder", "s3://b/a//c"})
    EXPECT_THAT(message_of([&] { parse_remote_url(wrong, "upload_to"); }),
                HasSubstr("upload_to is no folder of a store; got '" + std::string(wrong)))
        << wrong;
  const std::string message = message_of([] { parse_remote_url("s3://key:secret@bucket/a", "upload_to"); });
  EXPECT_THAT(message, HasSubstr("is no folder of a store"));
  EXPECT_THAT(message, Not(HasSubstr("secret")));
}

/// The folders directly below "k" that a store names which gives this answer to each of its requests.
std::vector<std::string> listed_folders(const std::function<std::string(const std::string& line)>& answer) {
  testing::StandInServer server(
      [&](const testing::Request& request) { return testing::Answer{.body = answer(request.line())}; });
  const testing::StoreVariables variables("key", "secret", server.uri());
  return ObjectStore(parse_remote_url("s3://bucket", "upload_to"), kImpatient).folders("k");
}

TEST(RemoteList, OfSeveralPagesIsReadToItsEnd) {
  EXPECT_THAT(
      listed_folders([](const std::string& line) -> std::string {
        if (line.find("continuation-token=a%2B%2F%3D&delimiter=%2F") != std::string::npos)
          return "<ListBucketResult><IsTruncated>false</IsTruncated><CommonPrefixes><Prefix>k/c&amp;d/</Prefix>"
                 "</CommonPrefixes></ListBucketResult>";
        return "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>a+/=</NextContinuationToken>"
               "<CommonPrefixes><Prefix>k/b/</Prefix></CommonPrefixes><Contents><Key>k/x</Key></Contents>"
               "</ListBucketResult>";
      }),
      ElementsAre("b", "c&d"));
}

TEST(RemoteList, WithoutAnEndIsAnError) {
  EXPECT_THAT(message_of([] {
                listed_folders([](const std::string&) {
                  return "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>again"
                         "</NextContinuationToken></ListBucketResult>";
                });
              }),
              HasSubstr("the server sends the same page of the list again and again"));
}

TEST(RemoteList, WhosePagesNeverEndIsAnError) {
  int pages = 0;
  EXPECT_THAT(
      message_of([&] {
        listed_folders([&](const std::string&) {
          return fmt::format(
              "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>{0}"
              "</NextContinuationToken><CommonPrefixes><Prefix>k/{0}/</Prefix></CommonPrefixes></ListBucketResult>",
              ++pages);
        });
      }),
      HasSubstr("the server sends a list without end; got 1001 pages"));
}

class RemoteCheckpointTest : public testing::RemoteTest {
 protected:
  void SetUp() override {
    RemoteTest::SetUp();
    if (!IsSkipped()) store_ = std::make_unique<ObjectStore>(run_, kImpatient);
  }

  std::string save(const std::string& name, int64_t step) const {
    write_checkpoint(path(name), testing::sample_tree(step), {.epoch = step / 10, .global_step = step});
    return path(name);
  }
  void upload(const std::string& name, int64_t step) { upload_checkpoint(*store_, run_, name, save(name, step)); }
  std::string fetch(const std::string& name = "") const {
    return fetch_checkpoint((name.empty() ? run_ : run_ / name).text(), path("remote"));
  }
  void damage(const std::string& key) {
    testing::write_bytes(path("damaged"), "something else");
    store_->put(run_.key + "/" + key, path("damaged"));
  }

  std::unique_ptr<ObjectStore> store_;
};

TEST_F(RemoteCheckpointTest, ObjectsOfAnyNameAndSize) {
  const std::string large = testing::read_bytes(testing::source_path("CMakeLists.txt"));
  std::string bytes;
  while (bytes.size() < (12U << 20)) bytes += large;
  testing::write_bytes(path("large"), bytes);
  const std::string name = "epoch=1-val_loss=0.5 é+&<~1";
  for (const std::string& key : {name + "/x", "plain/" + name, std::string("large")}) {
    EXPECT_EQ(store_->get((run_ / key).key), std::nullopt);
    store_->put((run_ / key).key, path("large"));
    EXPECT_TRUE(store_->download((run_ / key).key, path("copy"), bytes.size()));
    EXPECT_EQ(testing::read_bytes(path("copy")), bytes);
  }
  EXPECT_THAT(store_->folders(run_.key), ElementsAre(name, "plain"));
  EXPECT_FALSE(store_->download("none", path("copy"), 10));
  EXPECT_THAT(message_of([&] { store_->download((run_ / "large").key, path("copy"), 10); }), HasSubstr("no answer"));
  store_->remove((run_ / "large").key);
  store_->remove((run_ / "large").key);
  EXPECT_EQ(store_->get((run_ / "large").key), std::nullopt);
}

TEST_F(RemoteCheckpointTest, WhatIsRefusedIsOneMessageWithoutASecret) {
  const auto error = [&](const std::string& url) {
    return message_of([&] { ObjectStore(parse_remote_url(url, "upload_to"), kImpatient).folders("a"); });
  };
  EXPECT_THAT(error("s3://nothing/a"), HasSubstr("cannot list s3://nothing/a: NoSuchBucket"));
  EXPECT_THAT(message_of([&] { check_remote_folder("s3://nothing/a"); }), HasSubstr("NoSuchBucket"));
  server_->use(server_->key(), "a-wrong-secret");
  const std::string wrong = error("s3://bucket/a");
  EXPECT_THAT(wrong, HasSubstr("SignatureDoesNotMatch"));
  EXPECT_THAT(wrong, HasSubstr("hint: AWS_ACCESS_KEY_ID"));
  EXPECT_THAT(wrong, Not(HasSubstr("a-wrong-secret")));
  server_->use("nobody", "x");
  EXPECT_THAT(error("s3://bucket/a"), HasSubstr("InvalidAccessKeyId"));
  server_->use("", "");
  EXPECT_THAT(error("s3://bucket/a"), HasSubstr("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set"));
}

TEST_F(RemoteCheckpointTest, ComesBackAsItWas) {
  upload("epoch=0-step=4", 4);
  upload("last", 8);
  const std::string fetched = fetch("last");
  testing::expect_same(read_checkpoint(fetched), read_checkpoint(path("last")));
  EXPECT_EQ(fetch(), fetched) << "the newest, which is here already";
  EXPECT_EQ(read_info(fetch("epoch=0-step=4")).global_step, 4);
  EXPECT_THAT(message_of([&] { fetch("lats"); }),
              HasSubstr("there is no whole checkpoint at " + url_ + "/lats nor in a folder below it"));
}

TEST_F(RemoteCheckpointTest, ANameThatIsUploadedAgainIsWholeAtEveryMoment) {
  upload("last", 4);
  EXPECT_THAT(names(), ElementsAre("last"));
  upload("last", 8);
  EXPECT_THAT(names(), ElementsAre("last~1"));
  upload("last", 12);
  EXPECT_THAT(names(), ElementsAre("last"));
  EXPECT_EQ(read_info(fetch()).global_step, 12);
  upload("latest", 13);
  upload("last", 14);
  remove_remote_checkpoint(*store_, run_, "last");
  EXPECT_THAT(names(), ElementsAre("latest"));
  EXPECT_THAT(store_->folders(run_.key), ElementsAre("latest")) << "nothing is left of the others";
}

TEST_F(RemoteCheckpointTest, DamageIsFoundAndTheOneBeforeTaken) {
  upload("a", 4);
  upload("b", 8);
  upload("c", 12);
  damage("b/model.safetensors");
  damage("c/manifest.json");
  EXPECT_THAT(message_of([&] { fetch("b"); }), HasSubstr(url_ + "/b/model.safetensors is damaged"));
  EXPECT_THAT(message_of([&] { fetch("c"); }), HasSubstr(url_ + "/c/manifest.json is damaged"));
  const CapturedLog log;
  EXPECT_EQ(read_info(fetch()).global_step, 4);
  EXPECT_THAT(log.text(), HasSubstr("falling back to " + url_ + "/a: "));
  store_->remove((run_ / "a" / "state.json").key);
  EXPECT_THAT(message_of([&] { fetch_checkpoint(url_, path("elsewhere")); }), HasSubstr("state.json is missing"));
  // What is damaged is replaced.
  upload("c", 16);
  EXPECT_EQ(read_info(fetch()).global_step, 16);
  EXPECT_THAT(names(), ElementsAre("c~1", "b", "a"));
}

TEST_F(RemoteCheckpointTest, ADamagedCopyIsFetchedAgain) {
  upload("a", 4);
  const std::string copy = fetch("a");
  testing::flip_bit(copy + "/model.safetensors", 200);
  const CapturedLog log;
  EXPECT_EQ(fetch("a"), copy);
  EXPECT_THAT(log.text(), AllOf(HasSubstr("the copy " + copy + " of a checkpoint is damaged"), HasSubstr("again")));
  EXPECT_EQ(testing::read_bytes(copy + "/model.safetensors"), testing::read_bytes(path("a") + "/model.safetensors"));
}

TEST_F(RemoteCheckpointTest, SizesAreComparedWithTheManifestBeforeAnythingIsFetched) {
  upload("a", 4);
  const auto object = store_->find((run_ / "a" / "state.json").key);
  ASSERT_TRUE(object);
  EXPECT_EQ(object->size, std::filesystem::file_size(path("a") + "/state.json"));
  EXPECT_FALSE(store_->find((run_ / "a" / "none").key));
  // One of a tebibyte, which a manifest may well say.
  Manifest manifest = read_manifest(path("a"));
  manifest.files.at("state.json").size = uint64_t{1} << 40;
  testing::write_bytes(path("tebibyte"), manifest_text(manifest));
  store_->put((run_ / "a" / "manifest.json").key, path("tebibyte"));
  const CapturedLog log;
  EXPECT_THAT(message_of([&] { fetch("a"); }),
              HasSubstr(url_ + "/a/state.json is damaged; got " +
                        std::to_string(std::filesystem::file_size(path("a") + "/state.json")) +
                        " bytes; valid: 1099511627776"));
  EXPECT_TRUE(std::filesystem::is_empty(path("remote"))) << "nothing is left of it";
}

TEST_F(RemoteCheckpointTest, AnUploadThatIsKilledIsNeverTaken) {
  upload("a", 4);
  // The file that comes last is long.
  State tree = testing::sample_tree(8);
  tree["extra"]["long"] = at::rand({8, 1 << 20});
  write_checkpoint(path("b"), tree, {.epoch = 1, .global_step = 8});
  const pid_t child = fork();
  if (child == 0) {
    ObjectStore store(run_, kImpatient);
    upload_checkpoint(store, run_, "b", path("b"));
    _exit(0);
  }
  const bool has_begun =
      testing::eventually([&] { return store_->get((run_ / "b" / "model.safetensors").key).has_value(); });
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(has_begun);
  ASSERT_TRUE(WIFSIGNALED(status)) << "it was quicker than this test";
  EXPECT_THAT(names(), ElementsAre("a"));
  EXPECT_EQ(read_info(fetch()).global_step, 4);
  EXPECT_THAT(message_of([&] { fetch("b"); }), HasSubstr("there is no whole checkpoint"));
  upload_checkpoint(*store_, run_, "b", path("b"));
  EXPECT_THAT(names(), ElementsAre("b", "a"));
}

TEST_F(RemoteCheckpointTest, TheUploaderRemovesWhatIsSuperseded) {
  CheckpointUploader uploader(url_, kImpatient);
  uploader.add(save("a", 4), "");
  uploader.add(save("b", 8), "");
  uploader.add(save("last", 8), "");
  uploader.finish();
  EXPECT_THAT(names(), ElementsAre("last", "b", "a"));
  uploader.add(save("c", 12), path("a"));
  remove_checkpoint(path("a"));
  save("c", 16);  // what was taken over stays what it was
  uploader.finish();
  EXPECT_THAT(names(), ElementsAre("c", "last", "b"));
  EXPECT_EQ(read_info(fetch("c")).global_step, 12);
  EXPECT_THAT(FileSystem::current().list(folder_), ElementsAre("b", "c", "last", "remote"));
}

TEST_F(RemoteCheckpointTest, AServerThatIsAwayIsTriedAgainAtTheNextSave) {
  const int port = testing::free_port();
  setenv("AWS_ENDPOINT_URL", ("http://127.0.0.1:" + std::to_string(port)).c_str(), 1);
  CapturedLog log;
  check_remote_folder(url_);
  EXPECT_THAT(log.text(), HasSubstr("warning: checkpoints are kept here until the store answers"));
  {
    CheckpointUploader lost(url_, kImpatient);
    lost.add(save("z", 1), "");
  }
  EXPECT_THAT(log.text(), HasSubstr("the checkpoint z could not be uploaded"));
  EXPECT_THAT(log.text(), HasSubstr("warning: not uploaded to " + url_ + ": z"));

  CheckpointUploader uploader(url_, kImpatient);
  uploader.add(save("a", 4), "");
  ASSERT_TRUE(testing::eventually([&] {
    return log.text().find("the checkpoint a could not be uploaded, which is tried again at the next save") !=
           std::string::npos;
  }));
  uploader.add(save("last", 4), "");
  uploader.add(save("b", 8), path("a"));
  remove_checkpoint(path("a"));
  uploader.add(save("last", 8), "");
  const S3Server there(port);
  uploader.add(save("c", 12), "");
  uploader.finish();
  store_ = std::make_unique<ObjectStore>(run_, kImpatient);
  EXPECT_THAT(names(), ElementsAre("c", "last", "b")) << "a was removed before its turn";
  EXPECT_THAT(message_of([&] { CheckpointUploader("folder"); }), HasSubstr("upload_to is no folder of a store"));
  EXPECT_THAT(FileSystem::current().list(folder_), ElementsAre("b", "c", "last", "z"));
}

}  // namespace
}  // namespace levin
