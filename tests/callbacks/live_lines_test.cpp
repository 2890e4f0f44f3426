#include <levin/callbacks/live_lines.h>

#include "screen.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace levin {
namespace {

using testing::Screen;

class LiveLinesTest : public ::testing::Test {
 protected:
  using Rows = std::vector<std::string>;
  Screen screen_{20};
  LiveLines lines_{[this](std::string_view text) { screen_.write(text); }, [this] { return screen_.columns(); }};
};

TEST_F(LiveLinesTest, RedrawsInPlace) {
  lines_.draw({"train 1", "val 1"});
  EXPECT_EQ(screen_.rows(), (Rows{"train 1", "val 1"}));
  lines_.draw({"train 22", "val 2"});
  EXPECT_EQ(screen_.rows(), (Rows{"train 22", "val 2"}));
  lines_.draw({"train 3"});
  EXPECT_EQ(screen_.rows(), (Rows{"train 3"}));
  lines_.erase();
  EXPECT_EQ(screen_.rows(), (Rows{""}));
}

TEST_F(LiveLinesTest, PrintsAbove) {
  lines_.print("before");
  lines_.draw({"train 1", "val 1"});
  lines_.print("[levin] two\nlines");
  EXPECT_EQ(screen_.rows(), (Rows{"before", "[levin] two", "lines", "train 1", "val 1"}));
  lines_.draw({"train 2"});
  EXPECT_EQ(screen_.rows(), (Rows{"before", "[levin] two", "lines", "train 2"}));
}

TEST_F(LiveLinesTest, LeavesNoCrumbsAfterANarrowerWindow) {
  lines_.print("before");
  lines_.draw({"a line of 19 columns", "second"});
  screen_.resize(7);
  lines_.draw({"new"});
  EXPECT_EQ(screen_.rows(), (Rows{"before", "new"}));
}

TEST_F(LiveLinesTest, KeepsTheLastColumnFree) { EXPECT_EQ(lines_.usable_columns(), 19u); }

}  // namespace
}  // namespace levin
