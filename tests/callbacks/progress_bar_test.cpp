#include <levin/callbacks/progress_bar.h>

#include "screen.h"
#include "tiny_training.h"

#include <gtest/gtest.h>

#include <memory>
#include <regex>
#include <stdexcept>
#include <string>
#include <vector>

namespace levin {
namespace {

using testing::PlainModule;
using testing::quiet_options;
using testing::RunFolder;
using testing::tiny_batches;

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

class ProgressBarTest : public ::testing::Test {
 protected:
  TrainerOptions options(std::shared_ptr<Callback> bar, int64_t max_epochs) {
    auto options = quiet_options(folder_, max_epochs, {std::move(bar)});
    options.enable_progress_bar = true;
    return options;
  }
  /// A bar on a terminal whose output goes to `screen_`.
  std::shared_ptr<ProgressBar> terminal_bar(const ProgressBarOptions& options = {.refresh_rate = 1e6}) {
    return std::make_shared<ProgressBar>(
        options, [this](std::string_view text) { screen_ += text; }, [] { return size_t{100}; });
  }
  bool shown(const std::string& part) const { return screen_.find(part) != screen_.npos; }
  /// The rows that are on the screen, the one with the cursor last. Wide: a block character counts as three here.
  std::vector<std::string> rows() const {
    testing::Screen screen(1000);
    screen.write(screen_);
    return screen.rows();
  }

  RunFolder folder_;
  std::string screen_;
};

TEST_F(ProgressBarTest, PlainLinesWhereThereIsNoTerminal) {
  ::testing::internal::CaptureStderr();
  auto bar = make<ProgressBar>({.plain_interval = 1e5});
  Trainer trainer(options(bar, 2));
  trainer.fit(std::make_shared<PlainModule>(std::vector<double>{0.5, 0.25}), tiny_batches(), tiny_batches(1));
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(count(text, "\n"), 3u) << text;  // and why training ended
  EXPECT_EQ(text.find('\r'), text.npos);
  EXPECT_TRUE(std::regex_search(text, std::regex(R"(^Epoch 0: 100% 4/4 \[[0-9:]+<00:00, )"))) << text;
  EXPECT_NE(text.find("train_loss=0.000, val_loss=0.500]\nEpoch 1: 100% 4/4 ["), text.npos) << text;
  EXPECT_NE(text.find("train_loss=1.000, val_loss=0.250]\n"), text.npos) << text;
}

TEST_F(ProgressBarTest, PlainLinesNowAndThenInLongEpochs) {
  ::testing::internal::CaptureStderr();
  Trainer trainer(options(make<ProgressBar>({.plain_interval = 1e-9}), 1));
  trainer.fit(std::make_shared<PlainModule>(), tiny_batches());
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(count(text, "\n"), 6u) << text;
  EXPECT_NE(text.find("Epoch 0:  25% 1/4"), text.npos) << text;
}

TEST_F(ProgressBarTest, ATerminalShowsEveryStage) {
  auto trainer_options = options(terminal_bar(), 2);
  trainer_options.num_sanity_val_steps = 1;
  Trainer trainer(trainer_options);
  auto module = std::make_shared<PlainModule>();
  trainer.fit(module, tiny_batches(), tiny_batches(2));
  EXPECT_TRUE(shown("Epoch 0:  25%|")) << screen_;
  EXPECT_TRUE(shown("\nValidation:  50%|")) << screen_;
  // Only the epochs' lines and why training ended stay, and the cursor is below them.
  ASSERT_EQ(rows().size(), 4u) << screen_;
  EXPECT_TRUE(rows()[0].starts_with("Epoch 0: 100%|")) << screen_;
  EXPECT_TRUE(rows()[1].starts_with("Epoch 1: 100%|")) << screen_;
  EXPECT_TRUE(rows()[2].starts_with("[levin] training ended after 2 epochs")) << screen_;
  EXPECT_EQ(rows()[3], "");

  screen_.clear();
  trainer.validate(module, DataLoaders(tiny_batches(3)));
  ASSERT_EQ(rows().size(), 2u) << screen_;
  EXPECT_TRUE(rows()[0].starts_with("Validation: 100%|")) << screen_;
  EXPECT_NE(rows()[0].find("val_loss="), std::string::npos) << screen_;
  screen_.clear();
  trainer.test(module, DataLoaders(tiny_batches(3)));
  EXPECT_TRUE(rows()[0].starts_with("Test: 100%|")) << screen_;
  screen_.clear();
  trainer.predict(module, DataLoaders(tiny_batches(3)));
  EXPECT_TRUE(rows()[0].starts_with("Prediction: 100%|")) << screen_;
  EXPECT_EQ(rows()[1], "");
}

TEST_F(ProgressBarTest, RefreshesNoMoreOftenThanAsked) {
  Trainer trainer(options(terminal_bar({.refresh_rate = 1e-5}), 1));
  trainer.fit(std::make_shared<PlainModule>(), tiny_batches(500));
  // The first batch, and the line at the end.
  EXPECT_EQ(count(screen_, "Epoch 0:"), 2u) << screen_;
}

TEST_F(ProgressBarTest, LogMessagesAppearAbove) {
  Trainer trainer(options(terminal_bar(), 1));
  auto module = std::make_shared<PlainModule>();
  module->before_step = [](int64_t batch_idx) {
    if (batch_idx == 2) log::info("hello");
  };
  trainer.fit(module, tiny_batches());
  EXPECT_TRUE(shown("\r\033[J[levin] hello\nEpoch 0:  50%|")) << screen_;
  // Afterwards they go to standard error again.
  ::testing::internal::CaptureStderr();
  log::info("later");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "[levin] later\n");
}

/// Resets the sink where a test ends early, too.
struct SinkReset {
  ~SinkReset() { log::set_sink(nullptr); }
};

TEST_F(ProgressBarTest, MakesWayForTheSinkOfTheProgramWhichStays) {
  const SinkReset reset;
  log::set_sink([this](const std::string& line) { screen_ += "<" + line + ">\n"; });
  for (const bool fails : {false, true}) {
    SCOPED_TRACE(fails);
    screen_.clear();
    Trainer trainer(options(terminal_bar(), 1));
    auto module = std::make_shared<PlainModule>();
    module->before_step = [fails](int64_t batch_idx) {
      if (batch_idx == 2) log::info("hello");
      if (batch_idx == 3 && fails) throw std::domain_error("the user's");
    };
    if (fails)
      EXPECT_THROW(trainer.fit(module, tiny_batches()), std::domain_error);
    else
      trainer.fit(module, tiny_batches());
    EXPECT_TRUE(shown("\r\033[J<[levin] hello>\nEpoch 0:  50%|")) << screen_;
    screen_.clear();
    log::info("later");
    EXPECT_EQ(screen_, "<[levin] later>\n");
  }
}

TEST_F(ProgressBarTest, ASinkThatIsSetMeanwhileStays) {
  const SinkReset reset;
  std::string lines;
  Trainer trainer(options(terminal_bar(), 1));
  auto module = std::make_shared<PlainModule>();
  module->before_step = [&](int64_t batch_idx) {
    if (batch_idx == 1) log::set_sink([&](const std::string& line) { lines += line + "\n"; });
    if (batch_idx == 2) log::info("hello");
  };
  trainer.fit(module, tiny_batches());
  log::info("later");
  EXPECT_TRUE(lines.starts_with("[levin] hello\n")) << lines;
  EXPECT_TRUE(lines.ends_with("[levin] later\n")) << lines;
}

TEST_F(ProgressBarTest, AnExceptionLeavesTheTerminalUsable) {
  Trainer trainer(options(terminal_bar(), 1));
  auto module = std::make_shared<PlainModule>();
  module->before_step = [](int64_t batch_idx) {
    if (batch_idx == 2) throw std::domain_error("the user's");
  };
  EXPECT_THROW(trainer.fit(module, tiny_batches()), std::domain_error);
  ASSERT_EQ(rows().size(), 2u) << screen_;
  EXPECT_TRUE(rows()[0].starts_with("Epoch 0:  50%|")) << screen_;
  EXPECT_EQ(rows()[1], "");
  ::testing::internal::CaptureStderr();
  log::info("later");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "[levin] later\n");
}

TEST_F(ProgressBarTest, LeavesNothingIfAsked) {
  Trainer trainer(options(terminal_bar({.refresh_rate = 1e6, .leave = false}), 3));
  trainer.fit(std::make_shared<PlainModule>(), tiny_batches());
  EXPECT_EQ(rows(),
            (std::vector<std::string>{"[levin] training ended after 3 epochs, 12 steps: max_epochs 3 is reached", ""}))
      << screen_;
}

TEST_F(ProgressBarTest, RefusesASenselessRate) { EXPECT_THROW(make<ProgressBar>({.refresh_rate = 0}), ConfigError); }

}  // namespace
}  // namespace levin
