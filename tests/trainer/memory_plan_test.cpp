#include <levin/core/planning/memory_plan.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

namespace levin {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kPsi = 64'000'000;
constexpr int64_t kPlenty = int64_t{1} << 50;

/// On GPUs: Adam in fp32, 10 units of a tenth of the parameters each, 1000 bytes of activations and one more for each
/// example.
TrainingNeeds adam(int64_t frozen = 0) {
  const auto weights = [&](int64_t elements, int64_t of_frozen) {
    const int64_t trained = elements - of_frozen;
    return WeightNeeds{
        .elements = elements, .bytes = 4 * elements, .trainable_elements = trained, .trainable_bytes = 4 * trained};
  };
  TrainingNeeds needs;
  needs.weights = weights(kPsi, frozen);
  needs.units.assign(10, weights(kPsi / 10, frozen / 10));
  needs.optimizer_state = 8 * (kPsi - frozen);
  needs.batch_size = 16;
  needs.activations.bytes = {.fixed = 1000, .per_example = 1000};
  needs.kept.bytes = {.fixed = 0, .per_example = 100};
  needs.inside.assign(3, {.bytes = {.fixed = 0, .per_example = 50}});
  needs.inside[1].bytes.per_example = 200;
  return needs;
}

PlanRow row_of(const MemoryPlan& plan, int64_t stage, bool checkpoints = false, bool offload = false) {
  for (const PlanRow& row : plan.rows)
    if (row.stage == stage && row.checkpoints == checkpoints && row.offload == offload) return row;
  throw std::logic_error("no such row");
}

int64_t held(const PlanRow& row) { return row.parameters + row.gradients + row.optimizer; }

TEST(MemoryPlan, HoldsTheBytesOfThePaper) {
  for (const int64_t ranks : {2, 4, 64}) {
    const MemoryPlan plan = plan_memory(adam(), ranks, kPlenty);
    EXPECT_EQ(held(row_of(plan, 0)), 16 * kPsi);
    EXPECT_EQ(held(row_of(plan, 1)), 8 * kPsi + 8 * kPsi / ranks);
    EXPECT_EQ(held(row_of(plan, 2)), 4 * kPsi + 12 * kPsi / ranks);
    EXPECT_EQ(held(row_of(plan, 3)), 16 * kPsi / ranks);
  }
}

TEST(MemoryPlan, OneDeviceHasOneStrategy) {
  const MemoryPlan plan = plan_memory(adam(), 1, kPlenty);
  ASSERT_EQ(plan.rows.size(), 2);
  EXPECT_EQ(plan.rows[0].strategy(), "single_device");
  EXPECT_EQ(held(plan.rows[0]), 16 * kPsi);
  EXPECT_EQ(plan.rows[0].sent(), 0);
  EXPECT_TRUE(plan.rows[1].checkpoints);
}

TEST(MemoryPlan, MixedPrecisionHalvesWhatIsWholeAndDividesTheMasters) {
  TrainingNeeds needs = adam();
  needs.compute_size = 2;
  needs.activations.weight_copies = 400;
  needs.activations.bytes.fixed += 400;
  const MemoryPlan plan = plan_memory(needs, 4, kPlenty);
  EXPECT_EQ(held(row_of(plan, 0)), 16 * kPsi);
  // Whole parameters and gradients in 16 bits; a quarter of the parameters in 32 bits, and of two moments.
  EXPECT_EQ(row_of(plan, 1).parameters, 2 * kPsi + kPsi);
  EXPECT_EQ(row_of(plan, 1).gradients, 2 * kPsi);
  EXPECT_EQ(row_of(plan, 1).optimizer, 2 * kPsi);
  EXPECT_EQ(held(row_of(plan, 2)), 2 * kPsi + 14 * kPsi / 4);
  EXPECT_EQ(held(row_of(plan, 3)), 14 * kPsi / 4);
  // A quarter of the gradients in 32 bits is there while the optimizer steps, and activations are not.
  EXPECT_EQ(row_of(plan, 2).widened, kPsi);
  EXPECT_EQ(row_of(plan, 2).total(),
            held(row_of(plan, 2)) + std::max(row_of(plan, 2).activations + row_of(plan, 2).gathered, kPsi));
  EXPECT_EQ(row_of(plan, 0).sent(), 2 * 4 * kPsi * 3 / 4);
  EXPECT_EQ(row_of(plan, 1).sent(), 2 * 2 * kPsi * 3 / 4);
  // Autocast converts nothing that has the type already.
  EXPECT_EQ(row_of(plan, 0).activations, 1000 + 400 + 16 * 1000);
  EXPECT_EQ(row_of(plan, 1).activations, 1000 + 16 * 1000);
}

TEST(MemoryPlan, OffloadMovesWhatIsDividedToTheHost) {
  TrainingNeeds needs = adam(kPsi / 2);
  needs.buffers = 300;
  needs.counters = 40;
  const MemoryPlan plan = plan_memory(needs, 4, kPlenty);
  for (const bool checkpoints : {false, true}) {
    const PlanRow row = row_of(plan, 3, checkpoints, /*offload=*/true);
    const PlanRow on_device = row_of(plan, 3, checkpoints);
    // A quarter of all parameters, and of half of the gradients and moments.
    EXPECT_EQ(row.host, (4 * kPsi + (4 + 8) * kPsi / 2) / 4 + 40);
    EXPECT_EQ(row.host, held(on_device) - 300);
    EXPECT_EQ(held(row), 300);
    EXPECT_EQ(row.gathered, on_device.gathered);
    EXPECT_EQ(row.activations, on_device.activations);
    EXPECT_EQ(row.total(), 300 + row.gathered + row.activations);
    EXPECT_EQ(row.sent(), on_device.sent());
    EXPECT_GT(row.largest_batch, 0);
    EXPECT_EQ(on_device.host, 0);
  }
  needs.element_wise = needs.tensor_wise = false;
  EXPECT_FALSE(row_of(plan_memory(needs, 4, kPlenty), 3, false, /*offload=*/true).is_possible);
}

TEST(MemoryPlan, OffloadHasWideGradientsOnTheHost) {
  TrainingNeeds needs = adam();
  needs.compute_size = 2;
  const PlanRow row = row_of(plan_memory(needs, 4, kPlenty), 3, false, /*offload=*/true);
  // Parameters in 32 bits, gradients in 16 bits and, while the optimizer steps, in 32 bits, two moments.
  EXPECT_EQ(row.host, (4 + 2 + 4 + 8) * kPsi / 4);
  EXPECT_EQ(row.total(), row.gathered + row.activations);
}

TEST(MemoryPlan, OffloadIsForDevicesOfTheirOwn) {
  TrainingNeeds needs = adam();
  const auto offloads = [&](int64_t devices) {
    int64_t rows = 0;
    for (const PlanRow& row : plan_memory(needs, devices, kPlenty).rows) rows += row.offload ? 1 : 0;
    return rows;
  };
  EXPECT_EQ(offloads(1), 0);
  EXPECT_EQ(offloads(2), 2);
  EXPECT_EQ(offloads(4), 2);  // in groups the host would hold several copies
  needs.is_on_host = true;
  EXPECT_EQ(offloads(2), 0);
  EXPECT_THAT(plan_table({plan_memory(needs, 2, kPlenty)}), ::testing::Not(HasSubstr("on host")));
}

TEST(MemoryPlan, CommunicatesTwiceOrThreeTimesTheParameters) {
  TrainingNeeds needs = adam();
  const int64_t once = 4 * kPsi * 7 / 8;
  MemoryPlan plan = plan_memory(needs, 8, kPlenty);
  for (const int64_t stage : {0, 1, 2}) EXPECT_EQ(row_of(plan, stage).sent(), 2 * once) << stage;
  EXPECT_EQ(row_of(plan, 3).sent(), 3 * once);
  // Gradients that are not kept whole are reduced after each micro-batch.
  needs.micro_batches = 4;
  plan = plan_memory(needs, 8, kPlenty);
  EXPECT_EQ(row_of(plan, 0).sent(), 2 * once);
  EXPECT_EQ(row_of(plan, 1).sent(), 2 * once);
  EXPECT_EQ(row_of(plan, 2).sent(), (4 + 1) * once);
  EXPECT_EQ(row_of(plan, 3).sent(), (4 + 8) * once);
}

TEST(MemoryPlan, FrozenParametersHaveNoGradientsAndState) {
  const MemoryPlan plan = plan_memory(adam(kPsi / 2), 2, kPlenty);
  EXPECT_EQ(held(row_of(plan, 0)), 4 * kPsi + 12 * kPsi / 2);
  EXPECT_EQ(held(row_of(plan, 3)), (4 * kPsi + 12 * kPsi / 2) / 2);
  EXPECT_EQ(row_of(plan, 0).sent(), 2 * 4 * kPsi / 2 / 2);
}

TEST(MemoryPlan, Stage3HasTwoUnitsAndWhatIsOutsideOfUnitsWhole) {
  TrainingNeeds needs = adam();
  needs.units[7].bytes *= 2;
  needs.units[7].trainable_bytes *= 2;
  needs.outside = {.elements = 100, .bytes = 400, .trainable_elements = 50, .trainable_bytes = 200};
  EXPECT_EQ(row_of(plan_memory(needs, 2, kPlenty), 3).gathered, 3 * (4 + 4) * kPsi / 10 + 400 + 200);
  EXPECT_EQ(row_of(plan_memory(needs, 2, kPlenty), 2).gathered, int64_t{50} << 20);
  EXPECT_EQ(row_of(plan_memory(needs, 2, kPlenty), 1).gathered, 0);
}

TEST(MemoryPlan, CheckpointingKeepsInputsAndOneUnit) {
  const MemoryPlan plan = plan_memory(adam(), 2, kPlenty);
  EXPECT_EQ(row_of(plan, 0).activations, 1000 + 16 * 1000);
  EXPECT_EQ(row_of(plan, 0, true).activations, 16 * (100 + 200));
  TrainingNeeds without_units = adam();
  without_units.inside.clear();
  for (const PlanRow& row : plan_memory(without_units, 2, kPlenty).rows) EXPECT_FALSE(row.checkpoints);
}

TEST(MemoryPlan, FindsTheLargestBatch) {
  TrainingNeeds needs = adam();
  const int64_t memory = 16 * kPsi + 1'000'000;
  for (const PlanRow& row : plan_memory(needs, 2, memory).rows) {
    needs.batch_size = row.largest_batch;
    EXPECT_TRUE(row_of(plan_memory(needs, 2, memory), row.stage, row.checkpoints, row.offload).fits);
    needs.batch_size = row.largest_batch + 1;
    EXPECT_FALSE(row_of(plan_memory(needs, 2, memory), row.stage, row.checkpoints, row.offload).fits);
  }
  EXPECT_EQ(row_of(plan_memory(needs, 2, memory), 0).largest_batch, 999);
  EXPECT_EQ(row_of(plan_memory(needs, 2, kPsi), 0).largest_batch, 0);
  needs.activations.bytes = {.fixed = 0, .per_example = 1e8};
  EXPECT_EQ(row_of(plan_memory(needs, 2, memory + 200'000'000), 0).largest_batch, 2);
  needs.activations.bytes.per_example = 0;
  EXPECT_EQ(row_of(plan_memory(needs, 2, memory), 0).largest_batch, PlanRow::kAnyBatch);
}

TEST(MemoryPlan, ABatchOfAllRanksIsDividedOverThem) {
  TrainingNeeds needs = adam();
  needs.divides_batch = true;
  EXPECT_EQ(plan_memory(needs, 4, kPlenty).batch_size, 4);
  EXPECT_EQ(row_of(plan_memory(needs, 4, kPlenty), 0).activations, 1000 + 4 * 1000);
}

TEST(MemoryPlan, TheCheapestCommunicatesLeastThenRecomputesNothingThenIsSimplest) {
  TrainingNeeds needs = adam();
  const auto cheapest = [&](int64_t memory) {
    const MemoryPlan plan = plan_memory(needs, 8, memory);
    const PlanRow* row = plan.cheapest();
    EXPECT_TRUE(row == nullptr || !row->offload);
    return row == nullptr ? std::pair<int64_t, bool>(-1, false) : std::pair(row->stage, row->checkpoints);
  };
  using Choice = std::pair<int64_t, bool>;
  EXPECT_EQ(cheapest(kPlenty), Choice(0, false));
  EXPECT_EQ(cheapest(16 * kPsi + 10'000), Choice(1, false));
  EXPECT_EQ(cheapest(7 * kPsi), Choice(2, false));
  EXPECT_EQ(cheapest(5 * kPsi), Choice(3, false));
  EXPECT_EQ(cheapest(kPsi), Choice(-1, false));
  // All else is alike: what fits only with checkpointing has it.
  needs.activations.bytes.per_example = 1e12;
  EXPECT_EQ(cheapest(17 * kPsi), Choice(0, true));
}

TEST(MemoryPlan, OffloadIsChosenWhereNothingElseFits) {
  TrainingNeeds needs = adam();
  // Two of ten units whole are 1.6 bytes a parameter, an eighth of everything 2 bytes.
  const MemoryPlan plan = plan_memory(needs, 8, 3 * kPsi);
  ASSERT_NE(plan.cheapest(), nullptr);
  EXPECT_TRUE(plan.cheapest()->offload);
  EXPECT_FALSE(plan.cheapest()->checkpoints);
  const std::string table = plan_table({plan});
  EXPECT_THAT(table, HasSubstr("largest batch    on host\n"));
  EXPECT_THAT(table, HasSubstr("cheapest that fits: sharded, stage 3, offload\n"
                               "  to set it: --trainer.strategy='{name: sharded, stage: 3, offload: true}' "
                               "--trainer.devices=8\n"));
  // Rather than to put anything on the host, units are recomputed.
  needs.activations.bytes.per_example = 1e7;
  const MemoryPlan of_large_batch = plan_memory(needs, 8, 5 * kPsi);
  EXPECT_TRUE(row_of(of_large_batch, 3, false, /*offload=*/true).fits);
  ASSERT_NE(of_large_batch.cheapest(), nullptr);
  EXPECT_FALSE(of_large_batch.cheapest()->offload);
  EXPECT_TRUE(of_large_batch.cheapest()->checkpoints);
}

TEST(MemoryPlan, AnOptimizerOfWholeTensorsHoldsWhatTheRankWithMostHas) {
  TrainingNeeds needs = adam();
  needs.element_wise = false;
  // A quarter of the parameters is one tensor.
  needs.weights.tensors = {kPsi / 4};
  needs.weights.tensors.insert(needs.weights.tensors.end(), 12, kPsi / 16);
  const MemoryPlan of_four = plan_memory(needs, 4, kPlenty);
  EXPECT_TRUE(row_of(of_four, 3).is_possible);
  EXPECT_EQ(held(row_of(of_four, 1)), 8 * kPsi + 8 * kPsi / 4);
  EXPECT_EQ(held(row_of(of_four, 3)), 16 * kPsi / 4);
  const MemoryPlan of_eight = plan_memory(needs, 8, kPlenty);
  EXPECT_EQ(held(row_of(of_eight, 2)), 4 * kPsi + 12 * kPsi / 4) << "the largest tensor is on one rank";
  EXPECT_EQ(held(row_of(of_eight, 3)), 16 * kPsi / 4);
  // Gradients are all-reduced; parameters are gathered twice.
  EXPECT_EQ(row_of(of_eight, 1).sent(), 3 * 4 * kPsi / 8 * 7);
  EXPECT_EQ(row_of(of_eight, 3).sent(), 4 * 4 * kPsi / 8 * 7);
}

TEST(MemoryPlan, AnOptimizerThatCannotBeDividedRulesShardingOut) {
  TrainingNeeds needs = adam();
  needs.element_wise = needs.tensor_wise = false;
  const MemoryPlan plan = plan_memory(needs, 8, 15 * kPsi);
  EXPECT_EQ(plan.cheapest(), nullptr);
  EXPECT_FALSE(row_of(plan, 3).is_possible);
  EXPECT_THAT(plan_table({plan}), HasSubstr("nothing fits, not even with one example in a batch"));
}

TEST(MemoryPlan, TheTableSaysHowToSetTheCheapest) {
  TrainingNeeds needs = adam();
  EXPECT_THAT(plan_table({plan_memory(needs, 8, 5 * kPsi)}),
              HasSubstr("cheapest that fits: sharded, stage 3\n"
                        "  to set it: --trainer.strategy='{name: sharded, stage: 3}' --trainer.devices=8\n"));
  needs.batch_size = 1'000'000;
  EXPECT_THAT(plan_table({plan_memory(needs, 1, 16 * kPsi + 300'000)}),
              HasSubstr("nothing fits; hint: a batch of at most 1000 examples on a rank, with single_device + "
                        "checkpointing\n"));
}

/// The same model as a sequential of 10 units, each of which saves 100 bytes for each example and gives 40, with a head
/// outside of them. The loss saves 10 bytes for each example.
TrainingNeeds chain() {
  TrainingNeeds needs = adam();
  const WeightNeeds head{.elements = 50, .bytes = 200, .trainable_elements = 50, .trainable_bytes = 200};
  needs.weights += head;
  needs.optimizer_state += 400;
  needs.chain.outside = head;
  needs.chain.elements.assign(
      10, {.weights = needs.units.front(), .saved = {.fixed = 0, .per_example = 100}, .result = {0, 40}});
  needs.chain.saved_after = {.fixed = 0, .per_example = 10};
  return needs;
}

/// The row without shard that has most stages.
const PlanRow* pipeline_of(const MemoryPlan& plan, bool checkpoints = false) {
  const PlanRow* found = nullptr;
  for (const PlanRow& row : plan.rows)
    if (row.pipeline > (found == nullptr ? 1 : found->pipeline) && row.shard == 1 && row.checkpoints == checkpoints)
      found = &row;
  return found;
}

PlanRow row_of_mesh(const MemoryPlan& plan, const PlanRow& sizes) {
  for (const PlanRow& row : plan.rows)
    if (row.pipeline == sizes.pipeline && row.replicate == sizes.replicate && row.shard == sizes.shard &&
        row.stage == sizes.stage && !row.checkpoints && !row.offload)
      return row;
  throw std::logic_error("no such mesh");
}

TEST(MemoryPlan, APipelineHasAStageOnEachDevice) {
  const MemoryPlan plan = plan_memory(chain(), 5, kPlenty);
  const PlanRow* row = pipeline_of(plan);
  ASSERT_NE(row, nullptr);
  EXPECT_EQ(row->pipeline, 5);
  EXPECT_EQ(row->batches(), 1);
  // Two units and the head; the head's state is on the last stage.
  EXPECT_EQ(row->parameters, 2 * 4 * kPsi / 10 + 200);
  EXPECT_EQ(row->gradients, 2 * 4 * kPsi / 10 + 200);
  EXPECT_EQ(row->optimizer, 2 * 8 * kPsi / 10);
  // The first stage holds 5 of 8 micro-batches of two examples, with what each unit saves and what the second gives.
  EXPECT_EQ(row->activations, 5 * 2 * (2 * 100 + 40));
  // Those in the middle send results to the one side, gradients to the other.
  EXPECT_EQ(row->sent(), 16 * 2 * 40);
  EXPECT_DOUBLE_EQ(row->bubble, 4.0 / 12);
  EXPECT_TRUE(row->fits);
  // All that stays of a stage that is recomputed is what it got and gave: most on the second, which has 4 in flight.
  EXPECT_EQ(pipeline_of(plan, /*checkpoints=*/true)->activations, 4 * 2 * (40 + 40) + 2 * (2 * 100 + 40));
}

TEST(MemoryPlan, APipelineIsCutByParameters) {
  TrainingNeeds needs = chain();
  needs.chain.elements.resize(4);
  const auto largest_of = [&](const std::vector<int64_t>& elements, int64_t devices) {
    for (size_t i = 0; i < elements.size(); ++i)
      needs.chain.elements[i].weights = {.elements = elements[i], .bytes = 1000 * elements[i]};
    return pipeline_of(plan_memory(needs, devices, kPlenty))->parameters - needs.chain.outside.bytes;
  };
  EXPECT_EQ(largest_of({3, 1, 1, 1}, 2), 3000);
  EXPECT_EQ(largest_of({1, 1, 1, 3}, 2), 3000);
  EXPECT_EQ(largest_of({1, 2, 3, 4}, 2), 6000);
  EXPECT_EQ(largest_of({0, 0, 5, 0}, 4), 5000);
}

TEST(MemoryPlan, PipelinesSideBySide) {
  TrainingNeeds needs = chain();
  // The most stages that divide the devices and have an element each.
  const auto shape = [&](int64_t devices) {
    const MemoryPlan plan = plan_memory(needs, devices, kPlenty);
    const PlanRow* row = pipeline_of(plan);
    return row == nullptr ? std::pair<int64_t, int64_t>(0, 0) : std::pair(row->pipeline, row->replicate);
  };
  using Shape = std::pair<int64_t, int64_t>;
  EXPECT_EQ(shape(1), Shape(0, 0));
  EXPECT_EQ(shape(10), Shape(10, 1));
  EXPECT_EQ(shape(11), Shape(0, 0));
  EXPECT_EQ(shape(12), Shape(6, 2));
  EXPECT_EQ(shape(64), Shape(8, 8));
  const MemoryPlan plan = plan_memory(needs, 20, kPlenty);
  // Gradients of a stage are averaged over the pipelines; those of the head, on the last stage.
  EXPECT_EQ(pipeline_of(plan)->sent_pipeline, 16 * 2 * 40);
  EXPECT_EQ(pipeline_of(plan)->sent_replicate, 4 * kPsi / 10);
  // A batch that is divided goes to the pipelines.
  needs.divides_batch = true;
  EXPECT_EQ(pipeline_of(plan_memory(needs, 20, kPlenty))->sent(), 8 * 2 * 40 + 4 * kPsi / 10);
  needs.chain.elements.clear();
  EXPECT_EQ(pipeline_of(plan_memory(needs, 20, kPlenty)), nullptr);
}

TEST(MemoryPlan, APipelineIsNamedWhereNothingElseFits) {
  TrainingNeeds needs = chain();
  const MemoryPlan roomy = plan_memory(needs, 10, kPlenty);
  EXPECT_EQ(roomy.cheapest()->pipeline, 1);
  // Stage 3 has two units whole beside its part; the optimizer cannot be divided anyway. A stage has 1.6 psi, and its
  // gradients in the buckets of its replicas once more.
  needs.element_wise = needs.tensor_wise = false;
  EXPECT_EQ(plan_memory(needs, 20, 2 * kPsi).cheapest(), nullptr);
  const MemoryPlan plan = plan_memory(needs, 20, 2 * kPsi + 100'000);
  ASSERT_NE(plan.cheapest(), nullptr);
  EXPECT_EQ(plan.cheapest()->pipeline, 10);
  const std::string table = plan_table({plan});
  EXPECT_THAT(table, ContainsRegex("\n  .pipeline: 10, replicate: 2. .* 52\\.9%  yes "));
  EXPECT_THAT(table, HasSubstr("cheapest that fits: {pipeline: 10, replicate: 2}\n"
                               "  to set it: --trainer.strategy='{pipeline: {size: 10, balance_by: parameters}, "
                               "replicate: 2}' --trainer.devices=20\n"));
}

TEST(MemoryPlan, MeshesAreAllFactorizationsThatTheModelAllows) {
  TrainingNeeds needs = chain();
  const auto texts = [&](int64_t devices) {
    std::vector<std::string> all;
    for (const PlanRow& row : meshes(needs, devices, {"1f1b"})) {
      EXPECT_EQ(row.devices(), devices);
      all.push_back(strategy_text(row));
    }
    return all;
  };
  EXPECT_THAT(texts(1), ElementsAre("single_device"));
  EXPECT_THAT(texts(2),
              ElementsAre("ddp", "sharded, stage 1", "sharded, stage 2", "sharded, stage 3", "pipeline, 2 stages"));
  EXPECT_THAT(texts(4),
              ElementsAre("ddp", "sharded, stage 1", "sharded, stage 2", "sharded, stage 3", "pipeline, 4 stages",
                          "{replicate: 2, shard: {size: 2, stage: 1}}", "{replicate: 2, shard: {size: 2, stage: 2}}",
                          "{replicate: 2, shard: 2}", "{pipeline: 2, replicate: 2}", "{pipeline: 2, shard: 2}",
                          "{pipeline: 2, shard: {size: 2, stage: 2}}", "{pipeline: 2, shard: {size: 2, stage: 3}}"));
  // 30 has eight divisors. Shards of three stages; 2, 3, 5, 6 or 10 stages of a pipeline.
  EXPECT_EQ(texts(30).size(), 1 + 7 * 3 + 3 * (1 + 3 * 3) + 2 * (1 + 1 * 3));
  EXPECT_EQ(texts(11).size(), 4);
  needs.chain.elements.clear();
  for (const PlanRow& row : meshes(needs, 8, {"1f1b"})) EXPECT_EQ(row.pipeline, 1);
  needs = chain();
  // Two chunks a rank need two elements each.
  for (const PlanRow& row : meshes(needs, 8, {"interleaved"})) EXPECT_LE(row.pipeline, 4);
}

TEST(MemoryPlan, ReplicasOfShardsHoldWhatAShardHolds) {
  const MemoryPlan plan = plan_memory(adam(), 8, kPlenty);
  for (int64_t stage = 1; stage <= 3; ++stage) {
    const PlanRow mesh = row_of_mesh(plan, {.replicate = 4, .shard = 2, .stage = stage});
    EXPECT_EQ(held(mesh), held(row_of(plan_memory(adam(), 2, kPlenty), stage)));
    // Within a shard group as without replicas; a half of the gradients over four.
    EXPECT_EQ(mesh.sent_shard, (stage == 3 ? 3 : 2) * 4 * kPsi / 2);
    EXPECT_EQ(mesh.sent_replicate, 2 * 4 * kPsi / 2 * 3 / 4);
    EXPECT_EQ(mesh.sent_pipeline, 0);
  }
  // Stage 1 sends as much as ddp, however it is divided.
  EXPECT_EQ(row_of_mesh(plan, {.replicate = 4, .shard = 2, .stage = 1}).sent(), row_of(plan, 0).sent());
}

TEST(MemoryPlan, ShardsOfAStageDivideWhatItsOptimizerHas) {
  const MemoryPlan plan = plan_memory(chain(), 10, kPlenty);
  const PlanRow mesh = row_of_mesh(plan, {.pipeline = 5, .shard = 2, .stage = 1});
  // The last stage, which steps the head beside two units, has most.
  constexpr int64_t kWhole = 2 * 4 * kPsi / 10 + 200;
  EXPECT_EQ(mesh.parameters, kWhole);
  EXPECT_EQ(mesh.gradients, kWhole / 2);
  EXPECT_EQ(mesh.optimizer, 2 * kWhole / 2);
  EXPECT_EQ(mesh.activations, 2 * (2 * 100 + 10));
  // While the batch runs gradients are whole, and at its end there twice.
  EXPECT_EQ(mesh.gathered, kWhole - mesh.gradients);
  EXPECT_EQ(mesh.widened, 2 * kWhole - mesh.gradients);
  EXPECT_EQ(mesh.total(), 2 * kWhole + 2 * kWhole);
  // A stage in the middle sends most: its gradients and parameters, and messages to both sides.
  EXPECT_EQ(mesh.sent_pipeline, 16 * 2 * 40);
  EXPECT_EQ(mesh.sent_shard, 2 * 2 * 4 * kPsi / 10 / 2);
  EXPECT_EQ(mesh.sent_replicate, 0);
  // Four ranks of a stage: each of two replicas sends its half of the gradients once more.
  const MemoryPlan of_20 = plan_memory(chain(), 20, kPlenty);
  const PlanRow triple = row_of_mesh(of_20, {.pipeline = 5, .replicate = 2, .shard = 2, .stage = 1});
  EXPECT_EQ(triple.total(), mesh.total());
  EXPECT_EQ(triple.sent_shard, mesh.sent_shard);
  EXPECT_EQ(triple.sent_replicate, 2 * 4 * kPsi / 10 / 2);
}

TEST(MemoryPlan, ShardsOfAStageDivideGradientsAndParameters) {
  TrainingNeeds needs = chain();
  for (size_t i = 0; i < needs.chain.elements.size(); ++i) needs.chain.elements[i].units = {i};
  // Of the first stage: two units, and the head, which stays whole and which the last stage steps.
  constexpr int64_t kUnits = 2 * 4 * kPsi / 10;
  const PlanRow second = plan_row(needs, kPlenty, {.pipeline = 5, .shard = 2, .stage = 2});
  EXPECT_EQ(second.parameters, kUnits + 200);
  EXPECT_EQ(second.gradients, kUnits / 2);
  EXPECT_EQ(second.optimizer, kUnits);
  EXPECT_EQ(second.gathered, kUnits + 200);
  // Backward ends with the place of the reduced half, and without the activations of one of five micro-batches.
  EXPECT_EQ(second.activations, 5 * 2 * (2 * 100 + 40));
  EXPECT_EQ(second.backward, kUnits / 2 - 2 * (2 * 100 + 40));
  // A stage in the middle sends most: eight micro-batches of gradients, and its parameters once.
  EXPECT_EQ(second.sent_shard, (8 + 1) * kUnits / 2);

  const PlanRow third = plan_row(needs, kPlenty, {.pipeline = 5, .replicate = 2, .shard = 2, .stage = 3});
  EXPECT_EQ(third.parameters, kUnits / 2 + 200);
  EXPECT_EQ(third.gradients, kUnits / 2);
  EXPECT_EQ(third.gathered, 2 * kUnits + 200);
  EXPECT_EQ(third.sent_shard, (8 + 2 * 8) * kUnits / 2);
  EXPECT_EQ(third.sent_replicate, 8 * 2 * (kUnits / 2) / 2);

  // Weights that several elements have stay as with stage 1.
  const PlanRow first = plan_row(chain(), kPlenty, {.pipeline = 5, .shard = 2, .stage = 1});
  for (const int64_t stage : {2, 3}) {
    const PlanRow tied = plan_row(chain(), kPlenty, {.pipeline = 5, .shard = 2, .stage = stage});
    EXPECT_EQ(tied.total(), first.total());
    EXPECT_EQ(tied.parameters, first.parameters);
    EXPECT_EQ(tied.sent(), first.sent());
  }

  // Whole parameters have the type that autocast would convert them to.
  TrainingNeeds mixed = chain();
  mixed.compute_size = 2;
  for (size_t i = 0; i < mixed.chain.elements.size(); ++i) {
    mixed.chain.elements[i].units = {i};
    mixed.chain.elements[i].saved.fixed = mixed.chain.elements[i].weight_copies = 70;
  }
  const PlanRow narrow = plan_row(mixed, kPlenty, {.pipeline = 5, .shard = 2, .stage = 2});
  EXPECT_EQ(narrow.parameters, kUnits / 2 + kUnits / 2 + 200);
  EXPECT_EQ(narrow.gradients, kUnits / 2);
  EXPECT_EQ(narrow.activations, 5 * 2 * (2 * 100 + 40));
  EXPECT_EQ(narrow.sent_shard, (8 + 1) * kUnits / 2 / 2);
}

TEST(MemoryPlan, ShardsOfAStageDivideWholeTensorsWhereTheOptimizerNeedsThem) {
  TrainingNeeds needs = chain();
  needs.element_wise = false;
  constexpr int64_t kUnit = kPsi / 10;
  // Two thirds of a unit are one tensor; the other third, and the head, are one each.
  for (auto& element : needs.chain.elements) element.weights.tensors = {kUnit * 2 / 3, kUnit - kUnit * 2 / 3};
  needs.chain.outside.tensors = {50};
  const PlanRow row = plan_row(needs, kPlenty, {.pipeline = 10, .shard = 2, .stage = 1});
  // Of the last stage, whose ranks have the large tensor, and the small one with the head.
  EXPECT_NEAR(static_cast<double>(row.optimizer), 8.0 * kUnit * 2 / 3, 16);
  EXPECT_NEAR(static_cast<double>(row.gradients), 4.0 * kUnit * 2 / 3, 16);
  EXPECT_EQ(row.parameters, 4 * kUnit + 200);
}

/// Ten units, in each of which a half of the gradients comes before the other. A unit saves 100 for backward, which
/// needs 30 besides.
TrainingNeeds in_parts() {
  TrainingNeeds needs = adam();
  needs.weights = {};
  needs.units.assign(10, {.elements = 100, .bytes = 400, .trainable_elements = 100, .trainable_bytes = 400});
  for (const WeightNeeds& unit : needs.units) needs.weights += unit;
  needs.outside = {};
  needs.optimizer_state = 8000;
  needs.buffers = 0;
  needs.batch_size = 1;
  needs.activations = {.bytes = {.fixed = 0, .per_example = 1000}};
  needs.inside.clear();
  for (size_t unit = 10; unit-- > 0;)
    for (const double freed : {0.0, 50.0})
      needs.step.push_back({.most = {.fixed = 0, .per_example = 100.0 * static_cast<double>(unit + 1) - freed + 30},
                            .at_end = {.fixed = 200, .per_example = 100.0 * static_cast<double>(unit + 1) - freed - 50},
                            .unit = unit,
                            .gradient = 200});
  return needs;
}

TEST(MemoryPlan, BackwardNeedsMoreThanActivations) {
  const TrainingNeeds needs = in_parts();
  const auto planned = [&](const PlanRow& way) { return plan_row(needs, kPlenty, way); };
  for (const PlanRow& way : {PlanRow{.replicate = 2}, PlanRow{.shard = 2, .stage = 1}, PlanRow{.shard = 2, .stage = 2}})
    EXPECT_EQ(planned(way).backward, 30) << strategy_text(way);
  EXPECT_EQ(planned({.shard = 2, .stage = 1}).total(), 4000 + 4000 + 4000 + 1000 + 30);
  // Alone gradients come one by one, and are all there at the end, when nothing else is.
  EXPECT_EQ(planned({}).backward, 0);
  EXPECT_EQ(planned({}).total(), 4000 + 4000 + 8000 + 1000);
  // A window keeps them from the first batch on.
  TrainingNeeds window = needs;
  window.micro_batches = 2;
  EXPECT_EQ(plan_row(window, kPlenty, {}).backward, 30);
  // Backward of the last unit but one: it and the one ahead of it whole, its gradients and those of the last, and this
  // rank's part of these.
  const PlanRow row = planned({.shard = 2, .stage = 3});
  EXPECT_EQ(row.gathered, 4 * 400 + 400 / 2);
  EXPECT_EQ(row.activations, 1000);
  EXPECT_EQ(row.backward, 900 - 50 + 200 - 1000);
  // With more examples, when backward begins: two units, without gradients.
  TrainingNeeds large = needs;
  large.batch_size = 100;
  const PlanRow of_many = plan_row(large, kPlenty, {.shard = 2, .stage = 3});
  EXPECT_EQ(of_many.gathered, 2 * 400);
  EXPECT_EQ(of_many.backward, 3000);
}

TEST(MemoryPlan, TheTableLeavesOutMeshesThatOthersBeat) {
  const MemoryPlan plan = plan_memory(adam(), 8, kPlenty);
  std::vector<double> sent;
  for (const PlanRow& row : plan.rows) sent.push_back(static_cast<double>(row.sent()));
  const std::vector<size_t> shown = rows_to_show(plan.rows, sent);
  std::vector<std::string> texts;
  for (const size_t index : shown)
    if (!plan.rows[index].checkpoints && !plan.rows[index].offload) texts.push_back(strategy_text(plan.rows[index]));
  // In groups stages 1 and 2 send as much and hold more; stage 3 sends less and holds more.
  EXPECT_THAT(texts, ElementsAre("ddp", "sharded, stage 1", "sharded, stage 2", "sharded, stage 3",
                                 "{replicate: 2, shard: 4}"));
  EXPECT_THAT(plan_table({plan}), HasSubstr("  not shown: "));
  for (size_t one = 0; one < plan.rows.size(); ++one) {
    if (std::ranges::find(shown, one) != shown.end()) continue;
    EXPECT_TRUE(std::ranges::any_of(shown, [&](size_t other) {
      return plan.rows[other].total() <= plan.rows[one].total() && sent[other] <= sent[one] * 1.001;
    })) << strategy_text(plan.rows[one]);
  }
}

TEST(MemoryPlan, ALineThroughTwoBatches) {
  const BatchBytes line = BatchBytes::through(8, 1800, 4, 1000);
  EXPECT_EQ(line.fixed, 200);
  EXPECT_EQ(line.at(32), 6600);
  EXPECT_EQ(BatchBytes::through(8, 1600, 8, 1600).at(4), 800);
  // What does not grow with the batch is never less for a larger one.
  EXPECT_EQ(BatchBytes::through(8, 1000, 4, 1200).at(100), 1000);
}

}  // namespace
}  // namespace levin
