#include <levin/callbacks/top_checkpoints.h>

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace levin {
namespace {

/// Offers checkpoints named a, b, c... and returns the paths that are left, in order of saving.
std::string keep(MonitorMode mode, int64_t limit, const std::vector<double>& scores) {
  TopCheckpoints top(mode, limit);
  char name = 'a';
  for (const double score : scores) {
    if (top.accepts(score)) top.add(std::string(1, name), score);
    ++name;
  }
  std::string kept;
  for (const auto& item : top.items()) kept += item.path;
  return kept + "/" + (top.best() == nullptr ? "" : top.best()->path);
}

TEST(TopCheckpoints, KeepsTheBest) {
  EXPECT_EQ(keep(MonitorMode::kMin, 2, {3, 1, 2, 5, 0}), "be/e");
  EXPECT_EQ(keep(MonitorMode::kMax, 2, {3, 1, 2, 5, 0}), "ad/d");
  EXPECT_EQ(keep(MonitorMode::kMin, 1, {3, 1, 2, 5, 0}), "e/e");
}

TEST(TopCheckpoints, LimitsOfAllAndNone) {
  EXPECT_EQ(keep(MonitorMode::kMin, -1, {3, 1, 2}), "abc/b");
  EXPECT_EQ(keep(MonitorMode::kMin, 0, {3, 1, 2}), "/");
}

TEST(TopCheckpoints, OfEqualValuesTheFirstStays) {
  EXPECT_EQ(keep(MonitorMode::kMin, 1, {1, 1, 1}), "a/a");
  EXPECT_EQ(keep(MonitorMode::kMin, 2, {1, 1, 0.5}), "ac/c");
}

TEST(TopCheckpoints, NanIsTheWorstAndNeverTheBest) {
  const double nan = std::nan("");
  EXPECT_EQ(keep(MonitorMode::kMin, 2, {nan}), "a/");
  EXPECT_EQ(keep(MonitorMode::kMin, 2, {nan, 1, 2}), "bc/b");
  EXPECT_EQ(keep(MonitorMode::kMax, 1, {1, nan}), "a/a");
  EXPECT_EQ(keep(MonitorMode::kMax, 1, {nan, 1}), "b/b");
  EXPECT_EQ(keep(MonitorMode::kMax, 1, {nan, nan}), "a/");
}

TEST(TopCheckpoints, SaysWhatGoesNext) {
  TopCheckpoints top(MonitorMode::kMin, 2);
  top.add("a", 1);
  EXPECT_EQ(top.next_superseded(), "");
  top.add("b", 2);
  EXPECT_EQ(top.next_superseded(), "b");
  EXPECT_EQ(top.worst_of_full()->score, 2);
}

TEST(TopCheckpoints, TheSamePathReplacesItself) {
  TopCheckpoints top(MonitorMode::kMin, 2);
  top.add("a", 2);
  top.add("b", 3);
  top.add("b", 1);
  ASSERT_EQ(top.items().size(), 2u);
  EXPECT_EQ(top.best()->path, "b");
  EXPECT_EQ(top.best()->score, 1);
}

TEST(TopCheckpoints, LoadsWhatStillExists) {
  TopCheckpoints saved(MonitorMode::kMin, -1);
  for (const char* name : {"old/a", "old/b", "old/c", "old/gone"}) saved.add(name, name[4] - 'a');
  const State state = saved.to_state([](const std::string& path) { return path.substr(4); });
  EXPECT_EQ(state.as_list().front().at("path").as_string(), "a");
  TopCheckpoints loaded(MonitorMode::kMin, 2);
  EXPECT_EQ(loaded.load(state, [](const std::string& path) { return path == "gone" ? "" : "new/" + path; }), 1);
  ASSERT_EQ(loaded.items().size(), 2u);
  EXPECT_EQ(loaded.best()->path, "new/a");
  EXPECT_EQ(loaded.next_superseded(), "new/b");
}

}  // namespace
}  // namespace levin
