#include "tests/conformance/loss_weight_conformance.h"
#include "tests/conformance/strategy_conformance.h"
#include "tests/conformance/users_own.h"
#include "tests/support/sim_device/sim_accelerator.h"
#include "tests/support/sim_device/sim_device.h"

#include <levin/core/accelerators/accelerator_registry.h>

#include <string>

namespace levin::testing {
namespace {

[[maybe_unused]] const bool kAreRegistered = add_users_own();

/// No test of the suite leaves a race, a missing record_stream or a kernel of another device than its thread's.
class NoFaults final : public ::testing::EmptyTestEventListener {
  void OnTestEnd(const ::testing::TestInfo& test) override {
    if (test.value_param() == nullptr || test.result()->Skipped()) return;
    // Memory of collectives that were aborted is free again, whatever they may still write.
    if (std::string(test.test_suite_name()).ends_with("RankConformance")) return;
    if (std::string(test.name()).starts_with("MustBe")) return;
    const sim::Report report = sim::report();
    EXPECT_TRUE(report.faults.empty()) << report.to_string();
    EXPECT_EQ(report.kernels_off_current_device, 0) << report.to_string();
    EXPECT_GT(report.kernels, 0) << "nothing ran on the device";
  }
};

[[maybe_unused]] const bool kIsWatched = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new NoFaults);
  return true;
}();

StrategyCase on_sim(const char* strategy, int ranks, int stage = 0, const char* options = "", int first_device = 0) {
  return {strategy, ranks, stage, options, "sim", first_device};
}

/// As a plug-in without kernels for batch normalisation in parts.
class SimPlainBatchNorm : public GradientConformance {
  void SetUp() override { set_parts(false); }
  void TearDown() override { set_parts(true); }
  static void set_parts(bool has_them) {
    dynamic_cast<sim::SimAccelerator&>(accelerator_of(sim::device(0))).set_batch_norm_parts(has_them);
  }
};

TEST_P(SimPlainBatchNorm, IsThatOfTheWholeBatch) {
  TrainingRun run{.net = {.batch_norm = true}, .examples = 44};
  const Outcome expected = train_on_one_device(run);
  run.configure = [](TrainerOptions& options) { options.sync_batchnorm = true; };
  const Outcome got = train_case(run);
  EXPECT_EQ(difference(got.weights, expected.weights, 1e-4), "");
  EXPECT_EQ(difference(got.buffers, expected.buffers, 1e-4), "");
}

INSTANTIATE_TEST_SUITE_P(SimThreads, SimPlainBatchNorm, ::testing::Values(on_sim("ddp_threads", 2)), name_of);

// The cases that run different device code. Schedules, stages and numbers of ranks that differ on the host alone are in
// the long list, as on CPUs.
const auto sim_divisions = [] {
  return ::testing::Values(
      // Another index than 0: whatever takes the current device by mistake.
      on_sim("single_device", 1, 0, "", 1),
      // Buckets of gradients reduced on a stream of their own, devices 2 and 3.
      on_sim("ddp_threads", 2, 0, "", 2),
      // Parameters gathered ahead and freed behind.
      on_sim("sharded_threads", 2, 3));
};
INSTANTIATE_TEST_SUITE_P(SimDivisions, StrategyConformance, sim_divisions(), name_of);
INSTANTIATE_TEST_SUITE_P(SimDivisions, StartConformance, sim_divisions(), name_of);

// With the tests of StartConformance, which train, resume, predict, clip, share unevenly and throw; sim_pipeline_test
// and sim_ranks_test have more of each.
const auto more_sim_divisions = [] {
  return ::testing::Values(
      // Copies of a module, and tensors that cross devices in one process.
      on_sim("dp", 2),
      // The optimizer steps on the host, with copies both ways.
      on_sim("sharded_threads", 2, 2, "offload: true"),
      // Activations sent and received. Stages by measured times would add up norms in another order at each run.
      on_sim("pipeline_threads", 2, 0, "balance_by: parameters, schedule: 1f1b, micro_batches: 4"),
      // Gradients and parameters that pass through the host.
      on_sim("parameter_server_threads", 2, 0, "servers: 2"));
};
INSTANTIATE_TEST_SUITE_P(MoreSimDivisions, StartConformance, more_sim_divisions(), name_of);
INSTANTIATE_TEST_SUITE_P(LongMoreSimDivisions, StrategyConformance, more_sim_divisions(), name_of);

const auto long_sim_divisions = [] {
  return ::testing::Values(on_sim("single_device", 1), on_sim("local_sgd", 2, 0, "start_method: thread, period: 1"),
                           on_sim("ddp2", 2), on_sim("ddp_threads", 4), on_sim("sharded_threads", 2, 1),
                           on_sim("sharded_threads", 2, 2), on_sim("sharded_threads", 4, 3),
                           on_sim("parameter_server_threads", 2));
};
INSTANTIATE_TEST_SUITE_P(LongSimDivisions, StrategyConformance, long_sim_divisions(), name_of);
INSTANTIATE_TEST_SUITE_P(LongSimDivisions, StartConformance, long_sim_divisions(), name_of);

const auto long_sim_pipelines = [] {
  return ::testing::Values(
      on_sim("pipeline_threads", 2, 0, "balance_by: parameters, schedule: gpipe, micro_batches: 4"),
      on_sim("pipeline_threads", 2, 0,
             "balance_by: parameters, schedule: interleaved, chunks_per_rank: 2, micro_batches: 4"),
      on_sim("pipeline_threads", 2, 0, "balance_by: parameters, schedule: zero_bubble, micro_batches: 4"),
      on_sim("pipeline_threads", 4, 0,
             "balance_by: parameters, schedule: 1f1b, micro_batches: 3, checkpoint: except_last"),
      on_sim("pipeline_threads", 4, 0, "balance_by: parameters, data_parallel: 2, micro_batches: 2"));
};
INSTANTIATE_TEST_SUITE_P(LongSimPipelines, StrategyConformance, long_sim_pipelines(), name_of);
INSTANTIATE_TEST_SUITE_P(LongSimPipelines, StartConformance, long_sim_pipelines(), name_of);

INSTANTIATE_TEST_SUITE_P(SimThreads, GradientConformance, ::testing::Values(on_sim("ddp_threads", 2)), name_of);
INSTANTIATE_TEST_SUITE_P(LongSimThreads, GradientConformance, ::testing::Values(on_sim("ddp_threads", 4)), name_of);
INSTANTIATE_TEST_SUITE_P(SimSharded, GradientConformance, ::testing::Values(on_sim("sharded_threads", 2, 3)), name_of);
INSTANTIATE_TEST_SUITE_P(LongSimSharded, GradientConformance, ::testing::Values(on_sim("sharded_threads", 2, 1)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(SimParameterServer, GradientConformance,
                         ::testing::Values(on_sim("parameter_server_threads", 2, 0, "servers: 2")), name_of);

INSTANTIATE_TEST_SUITE_P(SimThreads, RankConformance, ::testing::Values(on_sim("ddp_threads", 2)), name_of);
INSTANTIATE_TEST_SUITE_P(SimSharded, RankConformance, ::testing::Values(on_sim("sharded_threads", 2, 3)), name_of);
INSTANTIATE_TEST_SUITE_P(SimPipelines, RankConformance,
                         ::testing::Values(on_sim("pipeline_threads", 2, 0, "micro_batches: 4")), name_of);
INSTANTIATE_TEST_SUITE_P(SimParameterServer, RankConformance, ::testing::Values(on_sim("parameter_server_threads", 2)),
                         name_of);

// Weights that stay on the device, and gradients that are multiplied by one.
INSTANTIATE_TEST_SUITE_P(Sim, LossWeight,
                         ::testing::Values(on_sim("single_device", 1), on_sim("dp", 2), on_sim("ddp_threads", 2),
                                           on_sim("sharded_threads", 2, 3),
                                           on_sim("pipeline_threads", 2, 0, "schedule: 1f1b, micro_batches: 2")),
                         name_of);

INSTANTIATE_TEST_SUITE_P(SimThreads, LearningRateScale, ::testing::Values(on_sim("ddp_threads", 4)), name_of);
INSTANTIATE_TEST_SUITE_P(SimReplicas, LearningRateScale, ::testing::Values(on_sim("dp", 2)), name_of);

}  // namespace
}  // namespace levin::testing
