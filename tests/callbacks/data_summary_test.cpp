#include <levin/callbacks/data_summary.h>

#include "tiny_training.h"

#include "../support/run_program.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <memory>
#include <string>

namespace levin {
namespace {

using testing::PlainModule;
using testing::quiet_options;
using testing::read_text;
using testing::RunFolder;

/// Ten batches of two examples, of the classes 0 and 1 in turn.
DataLoader images() {
  constexpr int64_t kExamples = 20;
  return {std::make_shared<data::TensorDataset>(Batch{{"x", torch::ones({kExamples, 2})},
                                                      {"image", torch::rand({kExamples, 3, 5, 7})},
                                                      {"label", torch::arange(kExamples).remainder(2)}}),
          {.batch_size = 2}};
}

nlohmann::json summary_of(const Trainer& trainer) {
  return nlohmann::json::parse(read_text(trainer.run_directory() + "/data.json"));
}

TEST(DataSummary, WritesWhatTheFirstBatchesHold) {
  const RunFolder folder;
  auto options = quiet_options(folder, 1, {make<DataSummary>({.batches = 3})});
  options.logger = "csv";
  Trainer trainer(options);
  trainer.fit(std::make_shared<PlainModule>(), images());
  const auto summary = summary_of(trainer);
  EXPECT_EQ(summary["examples"], 6);
  ASSERT_EQ(summary["tensors"].size(), 3U);
  EXPECT_EQ(summary["tensors"][1]["name"], "image");
  EXPECT_EQ(summary["tensors"][1]["shape"], nlohmann::json({2, 3, 5, 7}));
  EXPECT_EQ(summary["tensors"][1]["type"], "float32");
  EXPECT_EQ(summary["tensors"][0]["max"], 1.0);
  EXPECT_EQ(summary["classes"], nlohmann::json::parse(R"([{"name": "0", "count": 3}, {"name": "1", "count": 3}])"));
  EXPECT_EQ(read_text(trainer.run_directory() + "/data.png").substr(0, 4), "\x89PNG");
}

TEST(DataSummary, AShorterTrainingIsSummarizedAtItsEnd) {
  const RunFolder folder;
  auto options = quiet_options(folder, 1, {make<DataSummary>({.batches = 100})});
  options.logger = "csv";
  Trainer trainer(options);
  trainer.fit(std::make_shared<PlainModule>(), images());
  EXPECT_EQ(summary_of(trainer)["examples"], 20);
}

TEST(DataSummary, WritesNothingWhereNothingIsWritten) {
  const RunFolder folder;
  Trainer(quiet_options(folder, 1, {make<DataSummary>()})).fit(std::make_shared<PlainModule>(), images());
  EXPECT_TRUE(folder.list("").empty());
}

}  // namespace
}  // namespace levin
