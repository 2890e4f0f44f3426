#include "tests/conformance/text_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

/// Stages of a pipeline that ranks divide and that share weights, in mixed precision.
namespace levin {
namespace {

using testing::fit_text;
using testing::TextOptions;
using testing::Trained;

/// Without biases of keys, whose gradient is rounding alone.
double distance(const Trained& a, const Trained& b) {
  double most = 0;
  for (size_t i = 0; i < a.weights.size(); ++i)
    if (!a.weights[i].first.ends_with("k_proj.bias") && !a.weights[i].first.ends_with("qkv.bias"))
      most = std::max(most, (a.weights[i].second - b.weights[i].second).abs().max().item<double>());
  return most;
}

TEST(MixedStages, ThatShareWeightsTrainAsOneDevice) {
  const auto in = [](const char* precision) {
    return [precision](TrainerOptions& options) {
      options.precision = Spec<Precision>(Config::parse(precision, {}));
      options.max_steps = 5;  // after which roundings have not grown yet
    };
  };
  const TextOptions options{.dropout = 0, .tied = true};
  const Trained narrow = fit_text("single_device", 1, in("bf16-mixed"), options);
  const Trained wide = fit_text("single_device", 1, in("32"), options);
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(stage);
    const Trained cut = fit_text(
        fmt::format("{{pipeline: {{size: 2, micro_batches: 2, balance_by: parameters}}, shard: {{size: 2, stage: {}}}, "
                    "start_method: thread}}",
                    stage),
        4, in("bf16-mixed"), options);
    EXPECT_LT(distance(cut, narrow), 2 * distance(narrow, wide));
    EXPECT_NEAR(cut.metrics.at("train_loss"), narrow.metrics.at("train_loss"), 0.02);
  }
}

/// The last stage is the head alone, whose only weight is the embedding's.
TEST(MixedStages, OfWhichOneHasNoWeightOfItsOwnTrainAsOneDevice) {
  const TextOptions options{.dropout = 0, .tied = true, .head_bias = false};
  const auto usual = [](TrainerOptions&) {};
  const Trained expected = fit_text("single_device", 1, usual, options);
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(stage);
    const Trained cut = fit_text(
        fmt::format("{{pipeline: {{size: 2, micro_batches: 2, balance: [3, 1]}}, shard: {{size: 2, stage: {}}}, "
                    "start_method: thread}}",
                    stage),
        4, usual, options);
    testing::expect_same(cut, expected, 1e-12);
  }
}

}  // namespace
}  // namespace levin
