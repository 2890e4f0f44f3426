#include <levin/callbacks/checkpoint_name.h>

#include <levin/core/base/error.h>

#include "../support/captured_log.h"

#include <gtest/gtest.h>

#include <string>

namespace levin {
namespace {

std::string render(const std::string& pattern, bool insert_names = true) {
  return CheckpointName(pattern, insert_names, "filename")
      .render(1, 938, {{"val_loss", 0.12345}, {"val/acc", 0.5}, {"ok", 1.0}});
}

TEST(CheckpointName, InsertsNames) {
  EXPECT_EQ(render("{epoch}-{step}"), "epoch=1-step=938");
  EXPECT_EQ(render("best-{epoch:02d}-{val_loss:.2f}"), "best-epoch=01-val_loss=0.12");
  EXPECT_EQ(render("{val_loss}"), "val_loss=0.12345");
}

TEST(CheckpointName, LeavesNamesOut) {
  EXPECT_EQ(render("{epoch}-{step:06d}-{val_loss:.3f}", false), "1-000938-0.123");
  EXPECT_EQ(render("plain", false), "plain");
}

TEST(CheckpointName, AMetricWithASlashMakesNoFolder) {
  EXPECT_EQ(render("{epoch}-{val/acc:.1f}"), "epoch=1-val_acc=0.5");
}

TEST(CheckpointName, AMetricThatIsNotThereIsNoneAndNamedOnce) {
  const testing::CapturedLog log;
  const CheckpointName name("{val_los:.2f}x", true, "model_checkpoint.filename");
  EXPECT_EQ(name.render(0, 1, {{"val_loss", 1.0}}), "val_los=nonex");
  EXPECT_EQ(name.render(0, 2, {{"val_loss", 1.0}, {"more", 1.0}}), "val_los=nonex");
  const std::string text = log.text();
  EXPECT_NE(
      text.find("model_checkpoint.filename names the metric 'val_los', which was not logged so far: 'none' stands "
                "in its place; did you mean 'val_loss'?; valid: epoch, step, val_loss"),
      text.npos)
      << text;
  EXPECT_EQ(text.find("val_los'"), text.rfind("val_los'")) << text;
}

TEST(CheckpointName, RefusesNamesThatNoFileSystemTakes) {
  EXPECT_EQ(render("{epoch:099d}", false), std::string(98, '0') + "1");
  const auto message_of = [](const std::string& pattern) {
    try {
      render(pattern);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  for (const char* pattern : {"{epoch:999999999}", "{epoch:0100d}", "{step:>99999999999999999999}", "{val_loss:.100f}"})
    EXPECT_NE(message_of(pattern).find("a width or precision beyond 99"), std::string::npos) << pattern;
  EXPECT_NE(message_of(std::string(300, 'x')).find("it makes names of 300 bytes; valid: at most 200"),
            std::string::npos);
}

TEST(CheckpointName, RefusesWhatIsNoName) {
  for (const char* pattern : {"", ".hidden", "a/{epoch}", "{epoch", "epoch}", "{}", "{:d}", "{epoch:.2f}",
                              "{val_loss:d}", "{val_loss:.2q}"}) {
    try {
      render(pattern);
      ADD_FAILURE() << "accepted '" << pattern << "'";
    } catch (const ConfigError& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find("filename must be a name"), message.npos) << message;
      EXPECT_NE(message.find("got '" + std::string(pattern) + "'"), message.npos) << message;
    }
  }
}

}  // namespace
}  // namespace levin
