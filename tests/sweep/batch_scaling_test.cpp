#include <levin/core/sweep/batch_scaling.h>

#include <levin/core/base/error.h>

#include <gmock/gmock-matchers.h>

#include <functional>
#include <string>

namespace levin::sweep {
namespace {

using ::testing::HasSubstr;

const Config kResolved = Config::parse(
    "{model: {name: mlp, lr: 0.001}, data: {name: x, batch_size: 64}, trainer: {accumulate_grad_batches: 2}}",
    {.source = "test"});

SweepOptions scaling_of(const std::string& yaml) {
  return parse_options<SweepOptions>(Config::parse(yaml, {.source = "test"}), "sweep");
}

std::string scaling_error(const std::function<void()>& action) {
  try {
    action();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(BatchScaling, TheGlobalBatchIsDividedAmongDevicesAndHosts) {
  const auto options = scaling_of("global_batch_size: 1024");
  EXPECT_EQ(describe(batch_size_of(options, kResolved, {.count = 4, .hosts = 2})), "data.batch_size=128");
  EXPECT_THAT(scaling_error([&] { batch_size_of(options, kResolved, {.count = 3}); }),
              HasSubstr("must be a multiple of the number of devices; got 1024 for 3 devices"));
  EXPECT_TRUE(batch_size_of(SweepOptions(), kResolved, {}).empty());
}

TEST(BatchScaling, TheRateFollowsTheBatchOfAllDevicesAndAccumulatedBatches) {
  // 4 devices x 64 examples x 2 batches are 512.
  EXPECT_EQ(describe(learning_rate_of(scaling_of("learning_rate_scaling: {option: model.lr, batch_size: 128}"),
                                      kResolved, {.count = 4})),
            "model.lr=0.004");
  EXPECT_EQ(describe(learning_rate_of(scaling_of("learning_rate_scaling: {batch_size: 128, rule: sqrt}"), kResolved,
                                      {.count = 4})),
            "model.lr=0.002");
  EXPECT_TRUE(learning_rate_of(SweepOptions(), kResolved, {}).empty());
}

TEST(BatchScaling, ARateThatDoesNotExistIsNamed) {
  const auto options = scaling_of("learning_rate_scaling: {option: model.rate, batch_size: 128}");
  EXPECT_THAT(scaling_error([&] { learning_rate_of(options, kResolved, {}); }),
              HasSubstr("there is no option 'model.rate'"));
}

}  // namespace
}  // namespace levin::sweep
