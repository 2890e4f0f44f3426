// Something else than a store of objects that answers its requests with success: a network's login page, a proxy.

#include <levin/core/checkpoint/object_store.h>

#include <levin/callbacks/model_checkpoint.h>
#include <levin/core/base/seed.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/checkpoint/checkpoint_uploader.h>
#include <levin/core/checkpoint/remote_checkpoint.h>
#include <levin/core/trainer/trainer.h>

#include "../support/captured_log.h"
#include "../support/s3_server.h"
#include "../support/tiny.h"
#include "checkpoint_fixture.h"
#include "small_store.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace levin {
namespace {

using ::testing::AllOf;
using testing::Answer;
using testing::CapturedLog;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::message_of;
using ::testing::Not;
using testing::SmallStore;

const ObjectStoreOptions kNoPatience{.pauses = {std::chrono::milliseconds(1)}, .part_bytes = 5 << 20};
const std::string kStranger = "is no store of objects; hint: a proxy, a network's login page";

/// What strangers say, some of them with a header as a store has it.
std::vector<Answer> pages() {
  const std::string html = "<!DOCTYPE html><html><body>Welcome. Please log in.</body></html>";
  return {{.body = html, .headers = "Content-Type: text/html; charset=utf-8\r\n"},
          {.body = html, .headers = "Content-Type: text/html\r\nETag: \"5f\"\r\n"},
          {.body = "OK"},
          {.body = ""},
          {.body = R"({"status": "login"})", .headers = "Content-Type: application/json\r\n"},
          {.status = 302, .body = html, .headers = "Location: http://login.example/\r\n"},
          {.status = 404, .body = html, .headers = "Content-Type: text/html\r\n"}};
}

class StorePage : public testing::CheckpointTest {
 protected:
  std::string save(const std::string& name, int64_t step) const {
    write_checkpoint(path(name), testing::sample_tree(step), {.epoch = step / 10, .global_step = step});
    return path(name);
  }

  const RemoteUrl run_ = parse_remote_url("s3://bucket/run", "upload_to");
};

TEST_F(StorePage, IsNoAnswerToAnyRequest) {
  testing::write_bytes(path("small"), "bytes");
  testing::write_bytes(path("large"), std::string(6 << 20, 'x'));
  for (const Answer& page : pages()) {
    SCOPED_TRACE(fmt::format("{} {} {}", page.status, page.headers, page.body));
    const testing::StandInServer server([&](const testing::Request&) { return page; });
    const testing::StoreVariables variables("key", "secret", server.uri());
    ObjectStore store(run_, kNoPatience);
    const auto expect_unavailable = [&](const char* what, const std::function<void()>& ask) {
      try {
        ask();
        ADD_FAILURE() << what;
      } catch (const StoreUnavailable& error) {
        EXPECT_THAT(error.what(), HasSubstr(kStranger)) << what;
      }
    };
    expect_unavailable("folders", [&] { store.folders("run"); });
    expect_unavailable("get", [&] { store.get("run/a"); });
    expect_unavailable("download", [&] { store.download("run/a", path("copy"), 1000); });
    expect_unavailable("put", [&] { store.put("run/a", path("small")); });
    expect_unavailable("put in parts", [&] { store.put("run/a", path("large")); });
    // An empty answer with success is what a store says to this.
    if (page.status != 200 || !page.body.empty()) expect_unavailable("remove", [&] { store.remove("run/a"); });
  }
}

/// Uploads a second checkpoint of a name, and something else answers the requests of a method whose address has `part`.
void expect_no_upload(const Answer& page, const std::string& method, const std::string& part, const RemoteUrl& run,
                      const std::string& former, const std::string& next) {
  SCOPED_TRACE(fmt::format("{} {}: {} {} {}", method, part, page.status, page.headers, page.body));
  bool is_there = false;
  const SmallStore small([&](const std::string& of_method, const std::string& of_path) -> std::optional<Answer> {
    if (!is_there || of_method != method || of_path.find(part) == std::string::npos) return {};
    return page;
  });
  ObjectStore store(run, kNoPatience);
  upload_checkpoint(store, run, "last", former);
  is_there = true;
  EXPECT_THAT(message_of([&] { upload_checkpoint(store, run, "last", next); }), HasSubstr(kStranger));
  is_there = false;
  const auto found = remote_checkpoints(store, run);
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found.back().manifest.info.global_step, 4) << "the former one is still there";
}

TEST_F(StorePage, IsNoUpload) {
  const std::string former = save("former", 4);
  const std::string next = save("next", 8);
  const auto expect_none = [&](const Answer& page, const char* method, const char* part) {
    expect_no_upload(page, method, part, run_, former, next);
  };
  for (const Answer& page : pages()) expect_none(page, "PUT", "state.json");
  for (const auto& [method, part] : {std::pair("GET", "list-type=2"), std::pair("GET", "manifest.json"),
                                     std::pair("PUT", "model.safetensors"), std::pair("PUT", "manifest.json")})
    expect_none(pages().front(), method, part);
}

/// Whatever says that it has stored the manifest: it is read back.
TEST_F(StorePage, AnUploadIsDoneWhenItsManifestCanBeRead) {
  bool lies = false;
  const SmallStore small([&](const std::string& method, const std::string& path) -> std::optional<Answer> {
    if (!lies || method != "PUT" || path.find("manifest.json") == std::string::npos) return {};
    return Answer{.headers = "ETag: \"1\"\r\n"};
  });
  ObjectStore store(run_, kNoPatience);
  upload_checkpoint(store, run_, "last", save("last", 4));
  lies = true;
  EXPECT_THAT(message_of([&] { upload_checkpoint(store, run_, "last", save("last", 8)); }),
              HasSubstr("last~1/manifest.json is read back as something else"));
  const CapturedLog log;
  CheckpointUploader uploader("s3://bucket/run", kNoPatience);
  uploader.add(path("last"), "");
  uploader.finish();
  EXPECT_THAT(log.text(), HasSubstr("warning: not uploaded to s3://bucket/run: last"));
  ASSERT_EQ(remote_checkpoints(store, run_).size(), 1U);
  lies = false;
  upload_checkpoint(store, run_, "last", path("last"));
  EXPECT_EQ(remote_checkpoints(store, run_).front().manifest.info.global_step, 8);
}

/// Whatever says that it has stored a file: a manifest vouches only for what is there.
TEST_F(StorePage, AnUploadOfWhichFilesAreDroppedOrCutDoesNotCount) {
  const std::string former = save("former", 4);
  const std::string next = save("next", 8);
  std::string file;
  std::optional<size_t> kept_bytes;
  bool lies = false;
  std::vector<std::string> written;
  const SmallStore small([](const std::string&, const std::string&) { return std::nullopt; },
                         [&](const std::string& path, const std::string& bytes) -> std::optional<std::string> {
                           written.push_back(path.substr(path.rfind('/') + 1));
                           if (!lies || written.back() != file) return bytes;
                           if (!kept_bytes) return std::nullopt;
                           return bytes.substr(0, *kept_bytes);
                         });
  ObjectStore store(run_, kNoPatience);
  upload_checkpoint(store, run_, "last", former);
  for (const char* name : {"model.safetensors", "state.json"}) {
    const size_t size = testing::read_bytes(next + "/" + name).size();
    for (const std::optional<size_t> kept :
         {std::optional<size_t>(), std::optional<size_t>(0), std::optional(size - 1)}) {
      SCOPED_TRACE(fmt::format("{} {}", name, kept ? std::to_string(*kept) : "dropped"));
      file = name;
      kept_bytes = kept;
      lies = true;
      written.clear();
      EXPECT_THAT(message_of([&] { upload_checkpoint(store, run_, "last", next); }),
                  AllOf(HasSubstr(fmt::format("has stored {}; got {}; valid: {} bytes", name,
                                              kept ? fmt::format("{} bytes", *kept) : "no object", size))));
      EXPECT_THAT(written, Not(::testing::Contains("manifest.json")));
      lies = false;
      const auto found = remote_checkpoints(store, run_);
      ASSERT_EQ(found.size(), 1U);
      EXPECT_EQ(found.front().manifest.info.global_step, 4) << "the former one is still there";
    }
  }
  lies = true;
  const CapturedLog log;
  CheckpointUploader uploader("s3://bucket/run", kNoPatience);
  uploader.add(next, "");
  uploader.finish();
  EXPECT_THAT(log.text(), HasSubstr("warning: not uploaded to s3://bucket/run: next"));
  lies = false;
  upload_checkpoint(store, run_, "last", next);
  EXPECT_EQ(remote_checkpoints(store, run_).front().manifest.info.global_step, 8);
}

/// A list without what has just been written: nothing that is there is overwritten.
TEST_F(StorePage, AListThatLagsBehindHidesNoCheckpointFromAnUpload) {
  bool lags = false;
  std::vector<std::string> written;
  const SmallStore small([&](const std::string& method, const std::string& path) -> std::optional<Answer> {
    if (method == "PUT") written.push_back(path);
    if (!lags || path.find("list-type=2") == std::string::npos) return {};
    return Answer{.body = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"};
  });
  ObjectStore store(run_, kNoPatience);
  upload_checkpoint(store, run_, "last", save("first", 4));
  for (const auto& [step, version] : {std::pair(8, "/run/last~1/"), std::pair(12, "/run/last/")}) {
    lags = true;
    written.clear();
    upload_checkpoint(store, run_, "last", save("next", step));
    EXPECT_THAT(written, AllOf(Not(IsEmpty()), Each(HasSubstr(version))));
    lags = false;
    const auto found = remote_checkpoints(store, run_);
    ASSERT_FALSE(found.empty());
    EXPECT_EQ(found.front().manifest.info.global_step, step);
  }
  upload_checkpoint(store, run_, "last", save("next", 16));
  EXPECT_EQ(remote_checkpoints(store, run_).size(), 1U) << "former ones are removed once they are listed";
}

/// Pages that overlap, as where something is written while they are read.
TEST_F(StorePage, AListThatHasAFolderTwiceHidesNotTheNewest) {
  const SmallStore small([](const std::string&, const std::string& path) -> std::optional<Answer> {
    if (path.find("list-type=2") == std::string::npos) return {};
    const auto page = [](const std::string& name, const std::string& next) {
      return fmt::format(
          "<ListBucketResult><IsTruncated>{}</IsTruncated>{}<CommonPrefixes><Prefix>run/last/</Prefix></CommonPrefixes>"
          "<CommonPrefixes><Prefix>run/{}/</Prefix></CommonPrefixes></ListBucketResult>",
          !next.empty(), next, name);
    };
    const bool is_second = path.find("continuation-token") != std::string::npos;
    return Answer{.body = is_second ? page("ranked", "")
                                    : page("other", "<NextContinuationToken>second</NextContinuationToken>")};
  });
  ObjectStore store(run_, kNoPatience);
  for (const auto& [name, step] : {std::pair("other", 4), std::pair("ranked", 8), std::pair("last", 12)})
    upload_checkpoint(store, run_, name, save(name, step));
  EXPECT_THAT(store.folders("run"), ElementsAre("last", "other", "ranked"));
  const auto found = remote_checkpoints(store, run_);
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found.front().manifest.info.global_step, 12);
}

/// Without an end, the upload and the end of training would wait for ever.
TEST_F(StorePage, AServerThatHasEveryManifestIsNoStore) {
  const SmallStore small([](const std::string& method, const std::string& path) -> std::optional<Answer> {
    if (method != "GET" || path.find("manifest.json") == std::string::npos) return {};
    return Answer{.body = "{}", .headers = "ETag: \"1\"\r\n"};
  });
  ObjectStore store(run_, kNoPatience);
  const std::string checkpoint = save("last", 4);
  EXPECT_THAT(message_of([&] { upload_checkpoint(store, run_, "last", checkpoint); }),
              HasSubstr("last and 100 names after it are taken"));
}

std::string train(const std::string& folder, int64_t epochs, const std::string& ckpt,
                  const std::string& upload_to = "s3://bucket/run") {
  seed_everything(7);
  TrainerOptions options = testing::quiet(epochs);
  options.enable_checkpointing = true;
  options.default_root_dir = folder;
  options.callbacks = {make<ModelCheckpoint>({.save_last = true, .upload_to = upload_to})};
  Trainer trainer(options);
  return message_of([&] { trainer.fit(make<testing::TinyModule>({}), testing::tiny_loader(), {}, ckpt); });
}

TEST_F(StorePage, NoRunBeginsAnewByMistake) {
  const testing::StandInServer server([](const testing::Request&) { return pages().front(); });
  const testing::StoreVariables variables("key", "secret", server.uri());
  EXPECT_THAT(train(path("first"), 1, "auto"), HasSubstr(kStranger)) << "nothing is here";
  EXPECT_THAT(message_of([&] { fetch_checkpoint("s3://bucket/run", path("remote")); }), HasSubstr(kStranger));
  const CapturedLog log;
  EXPECT_EQ(train(path("first"), 1, "", /*upload_to=*/""), "");
  EXPECT_EQ(train(path("first"), 2, "auto"), "") << "goes on from what is here";
  EXPECT_THAT(log.text(), HasSubstr("than which the store may have a newer one"));
}

/// Manifests that are damaged, all of them.
TEST_F(StorePage, NoRunBeginsAnewWhereManifestsAreDamaged) {
  const SmallStore small([](const std::string& method, const std::string& path) -> std::optional<Answer> {
    if (method != "GET" || path.find("manifest.json") == std::string::npos) return {};
    return Answer{.body = "{", .headers = "ETag: \"1\"\r\n"};
  });
  ObjectStore store(run_, kNoPatience);
  store.put("run/last/manifest.json", save("last", 4) + "/manifest.json");
  EXPECT_THAT(train(path("first"), 1, "auto"), HasSubstr("cannot find the newest checkpoint: none at s3://bucket/run"));
}

/// As one that was killed before its uploads.
TEST_F(StorePage, ARunThatResumesUploadsWhatItKeepsAndTheStoreLacks) {
  bool refuses = true;
  int written = 0;
  const SmallStore small([&](const std::string& method, const std::string& path) -> std::optional<Answer> {
    if (method != "PUT") return {};
    if (refuses) return Answer{.status = 403, .body = "<Error><Code>AccessDenied</Code></Error>"};
    ++written;
    return {};
  });
  const auto train_to = [&](int64_t epochs) {
    seed_everything(7);
    TrainerOptions options = testing::quiet(epochs);
    options.enable_checkpointing = true;
    options.default_root_dir = path("run");
    options.callbacks = {make<ModelCheckpoint>({.monitor = "train_loss",
                                                .save_top_k = 2,
                                                .save_last = true,
                                                .filename = "kept{epoch}",
                                                .auto_insert_metric_name = false,
                                                .upload_to = "s3://bucket/run"})};
    Trainer trainer(options);
    trainer.fit(make<testing::TinyModule>({}), testing::tiny_loader(), {}, "auto");
  };
  const auto names = [&] {
    ObjectStore store(run_, kNoPatience);
    std::set<std::string> names;
    for (const RemoteCheckpoint& checkpoint : remote_checkpoints(store, run_)) names.insert(checkpoint.url.key);
    return names;
  };
  const CapturedLog log;
  train_to(2);
  EXPECT_THAT(log.text(), HasSubstr("not uploaded to s3://bucket/run: kept0, kept1, last"));
  EXPECT_THAT(names(), IsEmpty());
  refuses = false;
  train_to(2);
  EXPECT_THAT(names(), ElementsAre("run/kept0", "run/kept1", "run/last"));
  const int once = written;
  train_to(2);
  EXPECT_EQ(written, once) << "what is there is not uploaded again";
}

}  // namespace
}  // namespace levin
