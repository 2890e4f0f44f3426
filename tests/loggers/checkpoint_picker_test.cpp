#include <levin/loggers/checkpoint_picker.h>

#include <gtest/gtest.h>
#include "../support/tiny.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace levin {
namespace {

std::vector<std::string> names(const std::vector<CheckpointEvent>& events) {
  std::vector<std::string> result;
  for (const auto& event : events)
    result.push_back(std::filesystem::path(event.path).filename().string() + (event.is_best ? " best" : ""));
  return result;
}

TEST(CheckpointPicker, AtTheEndThoseThatAreLeftEachOnce) {
  const std::string folder = testing::fresh_folder("checkpoint_picker");
  for (const auto* name : {"a", "b", "last"}) std::filesystem::create_directories(folder + "/" + name);
  CheckpointPicker picker("true");
  for (const auto* name : {"a", "removed", "last", "b", "last"})
    EXPECT_TRUE(picker.after_save({.path = folder + "/" + name, .is_best = *name != 'l'}).empty());
  EXPECT_EQ(names(picker.at_end()), (std::vector<std::string>{"a", "b best", "last"}));
  EXPECT_TRUE(picker.at_end().empty());
  // A further fit: what is the same as before is not picked again.
  std::filesystem::last_write_time(folder + "/last", std::filesystem::file_time_type::clock::now());
  EXPECT_TRUE(picker.after_save({.path = folder + "/a", .is_best = true}).empty());
  EXPECT_TRUE(picker.after_save({.path = folder + "/last"}).empty());
  EXPECT_EQ(names(picker.at_end()), std::vector<std::string>{"last"});
}

TEST(CheckpointPicker, AllAsTheyAreWrittenOrNone) {
  const std::string folder = testing::fresh_folder("checkpoint_picker");
  CheckpointPicker all("all");
  EXPECT_EQ(names(all.after_save({.path = folder, .is_best = true})).size(), 1u);
  EXPECT_TRUE(all.after_save({.path = folder}).empty());
  EXPECT_TRUE(all.after_save({.path = folder + "/nowhere"}).empty());
  EXPECT_TRUE(all.at_end().empty());
  CheckpointPicker none("false");
  EXPECT_TRUE(none.after_save({.path = folder}).empty());
  EXPECT_TRUE(none.at_end().empty());
}

/// To compare each with all others would take so long that it looks like a hang.
TEST(CheckpointPicker, ManyCheckpointsAreNotComparedWithEachOther) {
  const std::string folder = testing::fresh_folder("checkpoint_picker");
  CheckpointPicker picker("true");
  for (int i = 0; i < 500'000; ++i) picker.after_save({.path = folder + "/epoch=" + std::to_string(i)});
  EXPECT_TRUE(picker.at_end().empty());
}

}  // namespace
}  // namespace levin
