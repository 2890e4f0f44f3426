#include <levin/core/checkpoint/finder.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/checkpoint/checkpoint.h>

#include "checkpoint_fixture.h"

namespace levin {
namespace {

using testing::message_of;

class FinderTest : public testing::CheckpointTest {
 protected:
  FinderTest() {
    log::set_sink([this](const std::string& line) { warnings_.push_back(line); });
  }
  ~FinderTest() override { log::set_sink(nullptr); }

  std::string checkpoint(int version, const std::string& name) const {
    return path("version_" + std::to_string(version) + "/checkpoints/" + name);
  }
  std::string save(int version, const std::string& name, int64_t step, const std::string& best = "",
                   const std::string& created = "") const {
    State tree = testing::sample_tree(step);
    tree["callbacks"]["early_stopping"]["wait"] = int64_t{3};
    if (!best.empty()) tree["callbacks"]["model_checkpoint"]["best_model_path"] = best;
    const std::string where = checkpoint(version, name);
    write_checkpoint(where, tree, {.epoch = step / 10, .global_step = step, .created = created});
    return where;
  }

  std::vector<std::string> warnings_;
};

TEST_F(FinderTest, NewestRunHasTheHighestNumberWithACheckpoint) {
  EXPECT_EQ(newest_run(path("none")), std::nullopt);
  EXPECT_EQ(newest_run(folder_), std::nullopt);
  save(2, "last", 1);
  save(10, "last", 1);
  std::filesystem::create_directories(path("version_11/checkpoints/.last.tmp-0a1b2c3d-5-0"));
  testing::write_bytes(path("version_11/checkpoints/.last.tmp-0a1b2c3d-5-0/model.safetensors"), "half");
  std::filesystem::create_directories(path("version_12"));
  std::filesystem::create_directories(path("version_13/checkpoints/notes"));
  std::filesystem::create_directories(path("version_99x/checkpoints"));
  EXPECT_EQ(newest_run(folder_), path("version_10"));
}

TEST_F(FinderTest, CheckpointsAreSortedNewestFirst) {
  const auto early = save(0, "epoch=0-step=5", 5);
  const auto late = save(0, "epoch=1-step=12", 12, "", "2026-01-01T00:00:00.000000Z");
  const auto last = save(0, "last", 12, "", "2026-01-01T00:00:00.000001Z");
  const auto middle = save(0, "a", 7);
  EXPECT_EQ(checkpoints_of(path("version_0")), (std::vector<std::string>{last, late, middle, early}));
  testing::flip_bit(middle + "/manifest.json", 5);
  EXPECT_EQ(checkpoints_of(path("version_0")), (std::vector<std::string>{middle, last, late, early}));
}

TEST_F(FinderTest, LastIsTheNewestThatIsWhole) {
  const auto first = save(3, "epoch=0", 5);
  const auto second = save(3, "epoch=1", 15);
  const auto last = save(3, "last", 25);
  EXPECT_EQ(find_last(folder_), last);
  EXPECT_TRUE(warnings_.empty());

  testing::flip_bit(last + "/optimizer.safetensors", 20);
  EXPECT_EQ(find_last(folder_), second);
  ASSERT_EQ(warnings_.size(), 1U);
  EXPECT_NE(warnings_[0].find("falling back to " + second), std::string::npos);
  EXPECT_NE(warnings_[0].find(last + "/optimizer.safetensors is damaged"), std::string::npos);

  std::filesystem::remove(second + "/manifest.json");
  EXPECT_EQ(find_last(folder_), first);
  EXPECT_EQ(warnings_.size(), 3U);

  std::filesystem::remove(first + "/state.json");
  const std::string message = message_of([&] { find_last(folder_); });
  EXPECT_NE(message.find("none in " + path("version_3/checkpoints") + " is whole; got "), std::string::npos) << message;
  for (const char* part : {"manifest.json", "state.json is missing", "optimizer.safetensors is damaged"})
    EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST_F(FinderTest, WeightsAloneAreNotGoneOnFrom) {
  const auto save_weights = [&](const char* name, int64_t step) {
    State tree = testing::sample_tree(step);
    std::erase_if(tree.as_map(), [](const auto& item) { return item.first != "model"; });
    write_checkpoint(checkpoint(1, name), tree, {.global_step = step});
    return checkpoint(1, name);
  };
  const auto whole = save(1, "whole", 5, checkpoint(1, "whole"));
  const auto weights = save_weights("weights", 9);
  EXPECT_EQ(find_last(folder_, "", CheckpointUse::kResume), whole);
  EXPECT_EQ(find_last(folder_), weights);
  EXPECT_EQ(find_best(folder_), whole);
  EXPECT_TRUE(warnings_.empty());
  std::filesystem::remove_all(whole);
  EXPECT_EQ(find_last(folder_, "", CheckpointUse::kResume), weights) << "whoever reads it says what it lacks";
  EXPECT_NE(message_of([&] { find_best(folder_); }).find("without save_weights_only"), std::string::npos);
}

TEST_F(FinderTest, NothingThereSaysWhatWasLookedForWhere) {
  for (const bool best : {false, true}) {
    const std::string message = message_of([&] { best ? find_best(folder_) : find_last(folder_); });
    EXPECT_NE(message.find("version_N/checkpoints"), std::string::npos) << message;
    EXPECT_NE(message.find("below " + folder_), std::string::npos) << message;
  }
}

TEST_F(FinderTest, BestIsWhatTheNewestNames) {
  const auto best = save(1, "epoch=0", 5);
  save(1, "epoch=1", 15, "somewhere else");
  save(1, "last", 25, best);
  EXPECT_EQ(find_best(folder_), best);
  testing::flip_bit(best + "/model.safetensors", 20);
  EXPECT_NE(message_of([&] { find_best(folder_); }).find(best + "/model.safetensors is damaged"), std::string::npos);
}

TEST_F(FinderTest, BestOfARunThatWasMoved) {
  const auto best = save(1, "epoch=0", 5);
  const std::string moved = path("nowhere/version_7/checkpoints/epoch=0");
  save(1, "last", 25, moved);
  EXPECT_EQ(find_best(folder_), best);
  std::filesystem::remove_all(best);
  const std::string message = message_of([&] { find_best(folder_); });
  EXPECT_NE(message.find("got none at " + moved + " nor at " + best), std::string::npos) << message;
}

TEST_F(FinderTest, BestWithoutAMonitor) {
  save(1, "last", 25);
  EXPECT_NE(message_of([&] { find_best(folder_); }).find("no best_model_path among the callbacks"), std::string::npos);
}

TEST_F(FinderTest, BestIsOfACallbackThatKnowsAScore) {
  const auto best = save(1, "epoch=0", 5);
  State tree = testing::sample_tree(9);
  tree["callbacks"]["a"]["best_model_path"] = "the newest, without a monitor";
  tree["callbacks"]["a"]["best_model_score"] = State();
  tree["callbacks"]["b"]["best_model_path"] = best;
  tree["callbacks"]["b"]["best_model_score"] = 0.5;
  write_checkpoint(checkpoint(1, "last"), tree, {.global_step = 9});
  EXPECT_EQ(find_best(folder_), best);
}

TEST_F(FinderTest, RunsOfOtherModulesArePassedOver) {
  const auto save_of = [&](int version, const char* type) {
    State tree = testing::sample_tree(5);
    tree["hyper_parameters"]["type"] = type;
    write_checkpoint(checkpoint(version, "last"), tree, {.global_step = 5});
  };
  save(0, "last", 1);
  save_of(1, "Classifier");
  save_of(2, "Gan");
  save_of(3, "Vit");
  EXPECT_EQ(newest_run(folder_), path("version_3"));
  EXPECT_EQ(newest_run(folder_, "Gan"), path("version_2"));
  EXPECT_EQ(newest_run(folder_, "Classifier"), path("version_1"));
  EXPECT_EQ(find_last(folder_, "Classifier"), checkpoint(1, "last"));
  EXPECT_EQ(newest_run(folder_, "Lstm"), path("version_0")) << "it does not tell its module";
  std::filesystem::remove_all(path("version_0"));
  EXPECT_EQ(newest_run(folder_, "Lstm"), std::nullopt);
  for (const bool best : {false, true}) {
    const std::string message = message_of([&] { best ? find_best(folder_, "Lstm") : find_last(folder_, "Lstm"); });
    EXPECT_NE(message.find("checkpoint of Lstm; got only runs of other modules below " + folder_ +
                           ": version_3 (Vit), version_2 (Gan), version_1 (Classifier)"),
              std::string::npos)
        << message;
  }
  const auto said = std::find_if(warnings_.begin(), warnings_.end(), [](const std::string& line) {
    return line.find("passed over runs of other modules than Classifier: version_3 (Vit), version_2 (Gan)") !=
           std::string::npos;
  });
  EXPECT_NE(said, warnings_.end());
}

TEST_F(FinderTest, CallbacksInAList) {
  const auto best = save(1, "epoch=0", 5);
  State tree = testing::sample_tree(9);
  tree["callbacks"] = State::List{State(), State(State::Map{{"best_model_path", State(best)}})};
  write_checkpoint(checkpoint(1, "last"), tree, {.global_step = 9});
  EXPECT_EQ(find_best(folder_), best);
}

}  // namespace
}  // namespace levin
