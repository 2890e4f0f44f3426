#include <levin/core/base/log.h>
#include <levin/core/base/sink_scope.h>

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace levin::log {
namespace {

class SinkScopeTest : public ::testing::Test {
 protected:
  ~SinkScopeTest() override { set_sink(nullptr); }
  SinkScope::Show shown_by(const std::string& name) {
    return [this, name](const std::string& line, const SinkScope::Sink& sink) {
      shown_ += name + (sink ? " over a sink: " : ": ") + line + "\n";
      if (sink) sink(line);
    };
  }
  std::string take() { return std::exchange(shown_, ""); }

  std::string shown_;
};

TEST_F(SinkScopeTest, TheNewestTakesMessagesAndTheSinkIsBackAfterIt) {
  set_sink([this](const std::string& line) { shown_ += "sink: " + line + "\n"; });
  {
    const SinkScope scope(shown_by("bar"));
    info("a");
    EXPECT_EQ(take(), "bar over a sink: [levin] a\nsink: [levin] a\n");
    set_sink(nullptr);
    info("b");
    EXPECT_EQ(take(), "bar: [levin] b\n");
    set_sink([this](const std::string& line) { shown_ += "another: " + line + "\n"; });
  }
  info("c");
  EXPECT_EQ(take(), "another: [levin] c\n");
}

TEST_F(SinkScopeTest, ScopesMayEndInAnyOrder) {
  std::optional<SinkScope> first;
  std::optional<SinkScope> second;
  for (const bool first_ends_first : {true, false}) {
    first.emplace(shown_by("first"));
    second.emplace(shown_by("second"));
    info("a");
    EXPECT_EQ(take(), "second: [levin] a\n");
    (first_ends_first ? first : second).reset();
    info("b");
    EXPECT_EQ(take(), first_ends_first ? "second: [levin] b\n" : "first: [levin] b\n");
    (first_ends_first ? second : first).reset();
    ::testing::internal::CaptureStderr();
    info("c");
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "[levin] c\n");
    EXPECT_EQ(take(), "");
  }
}

}  // namespace
}  // namespace levin::log
