#include "tests/support/tiny.h"

#include <levin/core/options/mesh_strategy.h>
#include <levin/core/planning/choose_strategy.h>
#include <levin/core/planning/strategy_choice.h>

#include <gmock/gmock.h>

#include <functional>
#include <string>

namespace levin::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kMiB = int64_t{1} << 20;

/// Of 16 MiB of parameters in eight elements of a sequential, trained by Adam, with 1 MiB of activations for an example
/// of eight.
TrainingNeeds needs_of_64_mib() {
  constexpr int64_t kUnits = 8;
  const WeightNeeds unit{
      .elements = kMiB / 2, .bytes = 2 * kMiB, .trainable_elements = kMiB / 2, .trainable_bytes = 2 * kMiB};
  TrainingNeeds needs;
  needs.units.assign(kUnits, unit);
  for (const WeightNeeds& each : needs.units) needs.weights += each;
  needs.optimizer_state = 32 * kMiB;
  needs.is_on_host = true;
  needs.batch_size = 8;
  needs.activations.bytes = {.fixed = 0, .per_example = static_cast<double>(kMiB)};
  needs.flops_per_example = 1e9;
  needs.chain.elements.assign(kUnits, {.weights = unit,
                                       .saved = {.fixed = 0, .per_example = static_cast<double>(kMiB) / kUnits},
                                       .result = {.fixed = 0, .per_example = 1e6}});
  return needs;
}

AutoStrategyOptions limited_to(int64_t mebibytes) { return {.memory = {mebibytes * kMiB}}; }

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(StrategyChoices, TheOneThatSendsLeastOfThoseThatFit) {
  const TrainingNeeds needs = needs_of_64_mib();
  const auto chosen = [&](int64_t memory) {
    return strategy_text(choose_mesh(needs, limited_to(memory), 4, /*only_checkpoints=*/false).way);
  };
  EXPECT_EQ(chosen(72), "ddp");               // 16 + 16 + 32, and 8 of activations
  EXPECT_EQ(chosen(71), "sharded, stage 1");  // 16 + 16 + 8
  EXPECT_EQ(chosen(47), "sharded, stage 3");  // 4 + 4 + 8, two units with their gradients and activations
  EXPECT_EQ(chosen(31), "pipeline, 4 stages");
  // Replicas of shards send less than shards over all ranks where a group of two has room: 16 + 8 + 16, and two units.
  TrainingNeeds large = needs;
  large.activations.bytes.per_example = 0;
  large.chain.elements.clear();
  large.weights.bytes *= 2;
  EXPECT_EQ(strategy_text(choose_mesh(large, limited_to(48), 4, false).way), "{replicate: 2, shard: 2}");
}

TEST(StrategyChoices, TheTableSaysWhyOthersAreNotTaken) {
  const StrategyChoice choice = choose_mesh(needs_of_64_mib(), limited_to(71), 4, /*only_checkpoints=*/false);
  EXPECT_THAT(
      choice.table,
      HasSubstr("strategy auto: sharded, stage 1 for 4 devices of 71.0 MiB each, batches of 8 on each; memory in "
                "MiB\n"));
  EXPECT_THAT(choice.table, ContainsRegex("sent/step  why\n  sharded, stage 1 +48\\.0 +24\\.0  chosen: of those that "
                                          "fit, it sends least\n"));
  EXPECT_THAT(choice.table, ContainsRegex("\n  ddp +72\\.0 +24\\.0  does not fit: 1\\.0 MiB too much\n"));
  EXPECT_THAT(choice.table, ContainsRegex("\n  sharded, stage 2 +[0-9.]+ +24\\.0  sends as much, and divides more\n"));
  EXPECT_THAT(choice.table, ContainsRegex("\n  sharded, stage 3 +[0-9.]+ +36\\.0  sends 12\\.000 MiB more a step\n"));
  EXPECT_THAT(choice.table,
              ContainsRegex("\n  pipeline, 4 stages +[0-9.]+ +[0-9.]+  its ranks are idle for 27\\.3 % of a step\n"));
  TrainingNeeds needs = needs_of_64_mib();
  needs.element_wise = needs.tensor_wise = false;
  EXPECT_THAT(choose_mesh(needs, limited_to(72), 4, false).table,
              ContainsRegex("\n  sharded, stage 3 .*  the optimizer cannot be divided\n"));
  EXPECT_THAT(choose_mesh(needs, limited_to(71), 4, false).table,
              HasSubstr("chosen: without a pipeline nothing fits\n"));
}

TEST(StrategyChoices, WithAClusterTheFastest) {
  AutoStrategyOptions options = limited_to(1000);
  options.cluster =
      Cluster{.hosts = 2, .devices = 2, .intra_gb_s = 100, .inter_gb_s = 0.1, .latency_us = 5, .flops = 1e12};
  const StrategyChoice choice = choose_mesh(needs_of_64_mib(), options, 4, /*only_checkpoints=*/false);
  EXPECT_THAT(choice.table, ContainsRegex("examples/s  why\n  .* chosen: of those that fit, the fastest\n"));
  EXPECT_THAT(choice.table, ContainsRegex("\n  ddp .*[0-9.]+ % slower\n"));
  // What is sent between hosts takes longest: all but the halves of the gradients stays inside.
  EXPECT_EQ(choice.way.shard, 2);
  EXPECT_EQ(choice.way.replicate, 2);
  EXPECT_THAT(
      message_of([&] { choose_mesh(needs_of_64_mib(), options, 8, false); }),
      HasSubstr("trainer.strategy.cluster does not fit the ranks; got 4 ranks = 2 hosts x 2 devices, and 8 ranks "
                "in the run; hint: "));
}

TEST(StrategyChoices, NothingThatFitsIsExplainedWithTheArithmetic) {
  TrainingNeeds needs = needs_of_64_mib();
  needs.chain.elements.clear();
  EXPECT_THAT(
      message_of([&] { choose_mesh(needs, limited_to(28), 4, false); }),
      HasSubstr(
          "trainer.strategy.memory: nothing fits; got 28.0 MiB on each of 4 devices; the least is 32.0 = "
          "parameters 4.0 + gradients 4.0 + optimizer 8.0 + activations 8.0 + backward 0.0 + gathered 8.0 "
          "in MiB, with sharded, stage 3: 4.0 too much; hint: a batch of at most 4 examples on a rank, with sharded, "
          "stage 3, or more devices"));
  EXPECT_THAT(message_of([&] { choose_mesh(needs, limited_to(9), 4, false); }),
              HasSubstr("hint: more devices, or more memory: not even one example in a batch fits"));
}

TEST(StrategyChoices, CheckpointingThatIsConfiguredStays) {
  TrainingNeeds needs = needs_of_64_mib();
  needs.kept.bytes = {.fixed = 0, .per_example = 1000};
  needs.inside.assign(8, {.bytes = {.fixed = 0, .per_example = static_cast<double>(kMiB) / 8}});
  EXPECT_FALSE(choose_mesh(needs, limited_to(100), 4, false).way.checkpoints);
  EXPECT_TRUE(choose_mesh(needs, limited_to(100), 4, /*only_checkpoints=*/true).way.checkpoints);

  TrainerOptions options = quiet(1);
  options.devices = 4;
  options.accelerator = "cpu";
  options.strategy = Spec<Strategy>(Config::parse("{name: auto, memory: 66MiB, start_method: thread}", {}));
  // Beside ddp's 64 MiB one MiB of recomputed activations has room.
  const auto chosen_for = [&](const TrainerOptions& run) { return with_mesh(run, choose_mesh(needs, run).way); };
  const TrainerOptions chosen = chosen_for(options);
  EXPECT_EQ(chosen.strategy.config().to_flow(), "{name: sharded, stage: 1, start_method: thread}");
  EXPECT_TRUE(chosen.activation_checkpointing.units.empty());
  needs.element_wise = needs.tensor_wise = false;
  const TrainerOptions recomputing = chosen_for(options);
  EXPECT_EQ(recomputing.strategy.config().to_flow(), "{name: ddp, start_method: thread}");
  EXPECT_EQ(recomputing.activation_checkpointing.units, std::vector<std::string>{"*"});
  options.activation_checkpointing.units = {"Block"};
  EXPECT_EQ(chosen_for(options).activation_checkpointing.units, std::vector<std::string>{"Block"});
}

TEST(StrategyChoices, MisspeltDimensionsAreRefusedWithoutACommandLineToo) {
  TrainerOptions options = quiet(1);
  options.devices = 2;
  options.strategy = Spec<Strategy>(Config::parse("{pipelin: 2}", {}));
  EXPECT_THAT(
      message_of([&] { Trainer trainer(options); }),
      HasSubstr("trainer.strategy.pipelin is no dimension of a mesh, and no strategy; did you mean 'pipeline'?"));
}

TEST(StrategyChoices, OptionsAreCheckedAndOtherStrategiesStay) {
  const auto resolved = [](const std::string& yaml) { return resolve_limited_auto(Config::parse(yaml, {})).to_flow(); };
  EXPECT_EQ(resolved("{name: auto, memory: 24GiB}"), "{name: auto, memory: 24GiB}");
  EXPECT_EQ(resolved("{name: auto, backend: gloo, memory: 24GiB}"), "{name: auto, memory: 24GiB, backend: gloo}");
  EXPECT_THAT(message_of([&] { resolved("{name: auto, start_method: thread}"); }),
              HasSubstr("trainer.strategy: 'auto' has no options without a memory limit; valid: auto, or {name: auto, "
                        "memory: 24GiB}"));
  EXPECT_THAT(message_of([&] { resolved("{name: auto, pipelin: 2}"); }),
              HasSubstr("trainer.strategy.pipelin is no dimension of a mesh, and no option of auto; did you mean "
                        "'pipeline'?; valid: pipeline, replicate, shard, context, tensor, memory, cluster"));
  EXPECT_THAT(message_of([&] { resolved("{name: auto, memroy: 1GiB}"); }), HasSubstr("did you mean 'memory'?"));
  EXPECT_THAT(message_of([&] { resolved("{name: auto, memory: plenty}"); }),
              HasSubstr("trainer.strategy.memory: expected a size such as 80GiB"));
  EXPECT_THAT(message_of([&] { resolved("{name: auto, memory: 1GiB, stage: 2}"); }),
              HasSubstr("unknown key 'stage' in 'trainer.strategy'"));
  EXPECT_THAT(message_of([&] { resolved("{name: auto, memory: 1GiB, cluster: {hosts: 2}}"); }),
              HasSubstr("trainer.strategy.cluster needs devices, intra_gb_s"));
  EXPECT_THAT(message_of([&] { resolved("{name: auto, memory: 1GiB, start_method: magic}"); }),
              HasSubstr("trainer.strategy.start_method"));

  TrainerOptions options = quiet(1);
  options.strategy = "ddp_threads";
  options.devices = 2;
  EXPECT_EQ(choose_strategy(options, make<TinyModule>()).strategy.config().to_flow(), "ddp_threads");
  options.strategy = Spec<Strategy>(Config::parse("{name: auto, memory: 1GiB}", {}));
  EXPECT_THAT(
      message_of([&] { Trainer trainer(options); }),
      AllOf(HasSubstr("trainer.strategy is auto with a memory limit"), HasSubstr("hint: options = choose_strategy(")));
}

}  // namespace
}  // namespace levin::testing
