#include <levin/core/checkpoint/manifest.h>

#include <levin/core/base/error.h>

#include "checkpoint_fixture.h"

namespace levin {
namespace {

using testing::message_of;

class ManifestTest : public testing::CheckpointTest {
 protected:
  std::string refusal(const std::string& text) const {
    testing::write_bytes(path("manifest.json"), text);
    return message_of([&] { read_manifest(folder_); });
  }
  /// The text with one part replaced and the checksum made right again.
  std::string forged(const std::string& from, const std::string& to) const {
    std::string text = manifest_text(manifest_);
    text.replace(text.find(from), from.size(), to);
    const size_t end = text.rfind(",\n  \"manifest_xxh3_128\"");
    const std::string body = text.substr(0, end);
    return body + ",\n  \"manifest_xxh3_128\": \"" + checksum_of(body) + "\"\n}\n";
  }

  const Manifest manifest_{{.epoch = 1,
                            .global_step = 20,
                            .world_size = 2,
                            .monitor = "val \"loss\"",
                            .score = 0.25,
                            .levin_version = "9.8.7",
                            .created = "2026-01-31T12:00:00.000000Z"},
                           {{"state.json", {12, checksum_of("state")}}, {"a b", {0, checksum_of("")}}}};
};

TEST_F(ManifestTest, RoundTrip) {
  testing::write_bytes(path("manifest.json"), manifest_text(manifest_));
  const Manifest back = read_manifest(folder_);
  EXPECT_EQ(back.files, manifest_.files);
  EXPECT_EQ(back.info.monitor, manifest_.info.monitor);
  EXPECT_EQ(back.info.score, manifest_.info.score);
  EXPECT_EQ(back.info.created, manifest_.info.created);
  EXPECT_EQ(manifest_text(back), manifest_text(manifest_));
}

TEST_F(ManifestTest, RefusesALaterFormat) {
  EXPECT_EQ(refusal(forged("\"format_version\": 1", "\"format_version\": 3")),
            "[checkpoint] " + path("manifest.json") +
                " has an unknown format version; got 3; valid: 1, 2; hint: Levin 9.8.7 wrote it");
  EXPECT_NE(refusal(forged("levin-checkpoint", "other")).find("unknown format; got 'other'"), std::string::npos);
}

TEST_F(ManifestTest, RefusesFilesOutsideItsFolder) {
  EXPECT_NE(refusal(forged("a b", "../b")).find("lists '../b', which is no file of its folder"), std::string::npos);
  EXPECT_NE(refusal(forged("a b", "..")).find("lists '..'"), std::string::npos);
}

TEST_F(ManifestTest, RefusesDamage) {
  const std::string text = manifest_text(manifest_);
  for (const auto& damaged : {std::string(), text.substr(0, 10), text + "\n", " " + text})
    EXPECT_NE(refusal(damaged).find("manifest.json is damaged"), std::string::npos);
  EXPECT_NE(refusal(forged("\"epoch\"", "\"age\"")).find("epoch"), std::string::npos);
}

TEST_F(ManifestTest, KnowsCheckpointsByTheirFiles) {
  EXPECT_FALSE(looks_like_checkpoint(folder_));
  testing::write_bytes(path("notes.txt"), "");
  EXPECT_FALSE(looks_like_checkpoint(folder_));
  testing::write_bytes(path("model.safetensors"), "");
  EXPECT_TRUE(looks_like_checkpoint(folder_));
}

}  // namespace
}  // namespace levin
