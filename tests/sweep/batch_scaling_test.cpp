#include <levin/core/sweep/batch_scaling.h>

#include <levin/core/base/error.h>

#include <gmock/gmock-matchers.h>

#include <cstdint>
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

Config resolved_with(const std::string& trainer, const std::string& data = "batch_size: 64") {
  return Config::parse("{model: {lr: 0.001}, data: {" + data + "}, trainer: {" + trainer + "}}", {.source = "test"});
}

TEST(BatchScaling, TheGlobalBatchIsDividedAmongRanksAndAccumulatedBatches) {
  const auto options = scaling_of("global_batch_size: 1024");
  EXPECT_EQ(describe(batch_size_of(options, kResolved, {.count = 4, .hosts = 2})), "data.batch_size=64");
  EXPECT_THAT(scaling_error([&] { batch_size_of(options, kResolved, {.count = 3}); }),
              HasSubstr("got 1024 for 3 ranks with batches of their own x 2 accumulated"));
  EXPECT_TRUE(batch_size_of(SweepOptions(), kResolved, {}).empty());
}

/// Whatever divides the model shares a batch, and what divides a batch has one.
TEST(BatchScaling, OnlyRanksWithBatchesOfTheirOwnCount) {
  const struct {
    const char* strategy;
    RunDevices devices;
    int64_t ranks;
  } cases[] = {
      {"auto", {.count = 8}, 8},
      {"auto", {.count = 1}, 1},
      {"ddp", {.count = 4, .hosts = 2}, 8},
      {"ddp_threads", {.count = 4}, 4},
      {"single_device", {.count = 8, .all = true}, 1},
      {"dp", {.count = 4}, 1},
      {"ddp2", {.count = 4, .hosts = 2}, 2},
      {"sharded", {.count = 4, .hosts = 2}, 8},
      {"{sharded: {shard_group: 2}}", {.count = 8}, 8},
      {"{sharded: {tensor_group: 2}}", {.count = 8}, 4},
      {"parameter_server", {.count = 4}, 4},
      {"{parameter_server: {mode: async}}", {.count = 4}, 1},
      {"pipeline", {.count = 4}, 1},
      {"{pipeline: {data_parallel: 2}}", {.count = 8}, 2},
      {"{tensor: 4}", {.count = 4}, 1},
      {"{tensor: 2, replicate: 4}", {.count = 8}, 4},
      {"{tensor: 2, shard: 2}", {.count = 4}, 2},
      {"{pipeline: 2, replicate: 2, shard: 2}", {.count = 8}, 4},
      {"{pipeline: 2, shard: auto, tensor: 2}", {.count = 4, .hosts = 4}, 4},
  };
  for (const auto& [strategy, devices, ranks] : cases) {
    SCOPED_TRACE(strategy);
    const Config resolved = resolved_with(std::string("accumulate_grad_batches: 1, strategy: ") + strategy);
    EXPECT_EQ(describe(batch_size_of(scaling_of("global_batch_size: 960"), resolved, devices)),
              "data.batch_size=" + std::to_string(960 / ranks));
    const Settings rate =
        learning_rate_of(scaling_of("learning_rate_scaling: {option: model.lr, batch_size: 64}"), resolved, devices);
    EXPECT_DOUBLE_EQ(std::stod(rate.at(0).value.text()), 0.001 * static_cast<double>(ranks));
  }
}

TEST(BatchScaling, ABatchOfAllRanksIsNotMultipliedByThem) {
  const auto scaling = scaling_of("learning_rate_scaling: {option: model.lr, batch_size: 128}");
  const Config resolved = resolved_with("accumulate_grad_batches: 2", "batch_size: 64, global_batch_size: 256");
  EXPECT_EQ(describe(learning_rate_of(scaling, resolved, {.count = 4})), "model.lr=0.004");
  EXPECT_THAT(scaling_error([&] { batch_size_of(scaling_of("global_batch_size: 1024"), resolved, {.count = 4}); }),
              HasSubstr("for which data.global_batch_size stands; got 1024 and 256"));
  const Config unset = resolved_with("accumulate_grad_batches: 2", "batch_size: 64, global_batch_size: null");
  EXPECT_EQ(describe(learning_rate_of(scaling, unset, {.count = 4})), "model.lr=0.004");
}

TEST(BatchScaling, WhatIsNotKnownBeforehandIsRefused) {
  for (const char* yaml : {"global_batch_size: 1024", "learning_rate_scaling: {batch_size: 128}"}) {
    SCOPED_TRACE(yaml);
    const auto error_with = [&](const std::string& trainer) {
      return scaling_error([&] {
        batch_size_of(scaling_of(yaml), resolved_with(trainer), {.count = 2});
        learning_rate_of(scaling_of(yaml), resolved_with(trainer), {.count = 2});
      });
    };
    EXPECT_THAT(error_with("accumulate_grad_batches: {0: 2, 4: 1}"), HasSubstr("must be one number"));
    EXPECT_THAT(error_with("accumulate_grad_batches: 1, callbacks: [gradient_accumulation_scheduler: {scheduling: "
                           "{0: 8}}]"),
                HasSubstr("the callback gradient_accumulation_scheduler chooses in the run what this sets"));
    EXPECT_THAT(error_with("accumulate_grad_batches: 1, callbacks: [batch_size_finder]"),
                HasSubstr("the callback batch_size_finder chooses in the run what this sets"));
    EXPECT_THAT(error_with("accumulate_grad_batches: 1, strategy: {name: auto, memory: 24GiB}"),
                HasSubstr("trainer.strategy is chosen when a run starts"));
  }
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
