// An upload that is refused while a newer checkpoint of its name waits.

#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/checkpoint/checkpoint_uploader.h>
#include <levin/core/checkpoint/remote_checkpoint.h>

#include "checkpoint_fixture.h"
#include "small_store.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace levin {
namespace {

using testing::Answer;
using testing::SmallStore;

class RefusedUpload : public testing::CheckpointTest {
 protected:
  std::string save(const std::string& name, int64_t step) const {
    write_checkpoint(path(name), testing::sample_tree(step), {.epoch = step / 10, .global_step = step});
    return path(name);
  }
};

TEST_F(RefusedUpload, IsNotTriedAgainInThePlaceOfANewerOne) {
  std::promise<void> under_way;
  std::promise<void> newer_waits;
  std::atomic<bool> was_refused = false;
  std::mutex mutex;
  std::map<std::string, std::string> manifests;  // by path, what was stored last
  const SmallStore store(
      [&](const std::string& method, const std::string& path) -> std::optional<Answer> {
        if (method != "PUT" || path.find("/last") == std::string::npos || was_refused.exchange(true)) return {};
        under_way.set_value();
        newer_waits.get_future().wait();
        return Answer{.status = 403, .body = "<Error><Code>RequestTimeTooSkewed</Code></Error>"};
      },
      [&](const std::string& path, const std::string& bytes) {
        const std::lock_guard lock(mutex);
        if (path.find("manifest") != std::string::npos) manifests[path] = bytes;
        return bytes;
      });
  const ObjectStoreOptions impatient{.pauses = {std::chrono::milliseconds(1)}, .part_bytes = 5 << 20};
  const std::string url = "s3://bucket/run";
  CheckpointUploader uploader(url, impatient);
  uploader.add(save("last", 10), "");
  under_way.get_future().wait();
  uploader.add(save("last", 20), "");
  newer_waits.set_value();
  uploader.finish();
  ObjectStore objects(parse_remote_url(url, "upload_to"), impatient);
  const auto there = remote_checkpoints(objects, parse_remote_url(url, "upload_to"));
  ASSERT_EQ(there.size(), 1U);
  EXPECT_EQ(manifests.size(), 1U) << "the one that was refused is not uploaded behind it";
}

}  // namespace
}  // namespace levin
