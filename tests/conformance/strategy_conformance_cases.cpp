#include "tests/conformance/strategy_conformance.h"

namespace levin::testing {
namespace {

// All of StrategyConformance and StartConformance on the cases that differ in kind; the six tests of StartConformance
// on each other way to start ranks. What is left of numbers of ranks, options and start methods is in the suites whose
// names begin with `Long` (scripts/long-tests). A new capability adds at most a dozen cases here, and replaces those it
// covers.
//
// Ranks of `ddp`, `horovod`, `sharded`, `pipeline` and `parameter_server` are further runs of this program: each runs
// the same tests in the same order, and they meet in every fit. They stay as many as they are until the program ends,
// and none outlives the mistake of one. So each number of processes is a suite of its own, which ctest runs by itself
// (tests/suites.txt).

auto case_of(const char* strategy, int ranks, const char* options = "") {
  return ::testing::Values(StrategyCase{strategy, ranks, 0, options});
}

// ---- Ways to divide the work -------------------------------------------------------------------------------------

const auto divisions = [] {
  return ::testing::Values(
      // The reference itself: resumes, predictions and repeated runs where nothing is divided.
      StrategyCase{"single_device", 1},
      // A strategy of the user's: weights are averaged, not gradients.
      StrategyCase{"local_sgd", 2, 0, "start_method: thread, period: 1"},
      // Replicas in one process share a loader and a loss.
      StrategyCase{"dp", 4},
      // Gradients are averaged; with four ranks a last batch has fewer examples than ranks.
      StrategyCase{"ddp_threads", 2}, StrategyCase{"ddp_threads", 4},
      // Optimizer states, then gradients, then parameters are divided; on four ranks some have no part of a small
      // tensor.
      StrategyCase{"sharded_threads", 4, 1}, StrategyCase{"sharded_threads", 4, 2},
      StrategyCase{"sharded_threads", 4, 3},
      // Each order of passes: all forwards first; warm-up that differs by stage, with fewer micro-batches than stages;
      // two chunks of layers a stage; gradients of weights put off.
      StrategyCase{"pipeline_threads", 2, 0, "schedule: gpipe, micro_batches: 4"},
      StrategyCase{"pipeline_threads", 4, 0, "schedule: 1f1b, micro_batches: 3"},
      StrategyCase{"pipeline_threads", 4, 0, "schedule: interleaved, micro_batches: 4"},
      StrategyCase{"pipeline_threads", 4, 0, "schedule: zero_bubble, micro_batches: 4"},
      // A mesh of two dimensions, and of three.
      StrategyCase{"mesh", 4, 0, "replicate: 2, shard: 2"},
      StrategyCase{"mesh", 8, 0, "pipeline: {size: 2, micro_batches: 2}, replicate: 2, shard: 2"},
      // Ranks of a stage divide its parameters, which they gather for each micro-batch.
      StrategyCase{"mesh", 4, 0, "pipeline: {size: 2, micro_batches: 4}, shard: {size: 2, stage: 3}"},
      // Layers are divided; alone, and with replicas of the groups that divide them.
      StrategyCase{"mesh", 2, 0, "tensor: 2"}, StrategyCase{"mesh", 4, 0, "replicate: 2, tensor: 2"},
      // Shares of layers, each divided again.
      StrategyCase{"mesh", 4, 0, "shard: {size: 2, stage: 3}, tensor: 2"},
      // Layers of a stage, whose results pass in shares.
      StrategyCase{"mesh", 4, 0, "pipeline: {size: 2, micro_batches: 2}, tensor: 2"},
      // Parameters live at servers that step for the ranks.
      StrategyCase{"parameter_server_threads", 2, 0, "servers: 2"});
};
INSTANTIATE_TEST_SUITE_P(Divisions, StrategyConformance, divisions(), name_of);
INSTANTIATE_TEST_SUITE_P(Divisions, StartConformance, divisions(), name_of);

const auto gradient_divisions = [] {
  return ::testing::Values(StrategyCase{"ddp_threads", 4}, StrategyCase{"sharded_threads", 4, 1},
                           StrategyCase{"sharded_threads", 4, 2}, StrategyCase{"sharded_threads", 4, 3},
                           StrategyCase{"tensor_threads", 4, 0, "tensor_group: 2"},
                           StrategyCase{"parameter_server_threads", 4, 0, "servers: 3"});
};
INSTANTIATE_TEST_SUITE_P(Divisions, GradientConformance, gradient_divisions(), name_of);

// Failures travel in another way over each of these: an aborted collective, a gathered parameter, a stage that waits
// for its neighbour, several pipelines, a request to a server, another process.
INSTANTIATE_TEST_SUITE_P(Divisions, RankConformance,
                         ::testing::Values(StrategyCase{"ddp_threads", 4}, StrategyCase{"sharded_threads", 4, 3},
                                           StrategyCase{"pipeline_threads", 4, 0,
                                                        "schedule: interleaved, micro_batches: 4"},
                                           StrategyCase{"pipeline_threads", 4, 0, "data_parallel: 2, micro_batches: 2"},
                                           StrategyCase{"tensor_threads", 4, 0, "tensor_group: 2"},
                                           StrategyCase{"parameter_server_threads", 2, 0, "servers: 2"}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Forks, RankConformance, case_of("ddp_spawn", 2), name_of);

INSTANTIATE_TEST_SUITE_P(Threads, LearningRateScale, case_of("ddp_threads", 4), name_of);
INSTANTIATE_TEST_SUITE_P(Replicas, LearningRateScale, case_of("dp", 3), name_of);
INSTANTIATE_TEST_SUITE_P(TwoHorovodProcesses, LearningRateScale, case_of("horovod", 2), name_of);

// ---- Ways to start ranks -----------------------------------------------------------------------------------------

INSTANTIATE_TEST_SUITE_P(TwoProcesses, StartConformance, case_of("ddp", 2), name_of);
INSTANTIATE_TEST_SUITE_P(TwoHorovodProcesses, StartConformance, case_of("horovod", 2, "scale_lr: none"), name_of);
INSTANTIATE_TEST_SUITE_P(TwoShardedProcesses, StartConformance, ::testing::Values(StrategyCase{"sharded", 2, 3}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(TwoPipelineProcesses, StartConformance,
                         case_of("pipeline", 2, "schedule: zero_bubble, micro_batches: 4"), name_of);
INSTANTIATE_TEST_SUITE_P(TwoTensorProcesses, StartConformance, case_of("tensor", 2), name_of);
INSTANTIATE_TEST_SUITE_P(TwoParameterServerProcesses, StartConformance, case_of("parameter_server", 2, "servers: 2"),
                         name_of);
// Replicas on each node, whose gradients are averaged over nodes.
INSTANTIATE_TEST_SUITE_P(ReplicasOfNodes, StartConformance, case_of("ddp2", 2), name_of);
INSTANTIATE_TEST_SUITE_P(Forks, StartConformance,
                         ::testing::Values(StrategyCase{"ddp_spawn", 4}, StrategyCase{"sharded_spawn", 2, 3},
                                           StrategyCase{"pipeline_spawn", 2, 0, "micro_batches: 4"},
                                           StrategyCase{"tensor_spawn", 2},
                                           StrategyCase{"parameter_server_spawn", 2, 0, "servers: 2, backend: gloo"}),
                         name_of);

// ---- The long list -----------------------------------------------------------------------------------------------

// Numbers of ranks and options: one rank is an identity, two divide evenly, `ddp2` has replicas on each of its nodes,
// stages keep no activations.
const auto long_divisions = [] {
  return ::testing::Values(
      StrategyCase{"dp", 1}, StrategyCase{"dp", 2}, StrategyCase{"ddp2", 2}, StrategyCase{"ddp_threads", 1},
      StrategyCase{"sharded_threads", 1, 3}, StrategyCase{"sharded_threads", 2, 1},
      StrategyCase{"sharded_threads", 2, 2}, StrategyCase{"sharded_threads", 2, 3}, StrategyCase{"pipeline_threads", 1},
      StrategyCase{"pipeline_threads", 2, 0, "schedule: 1f1b, micro_batches: 4"},
      StrategyCase{"pipeline_threads", 4, 0, "schedule: gpipe, micro_batches: 4"},
      StrategyCase{"pipeline_threads", 4, 0, "schedule: 1f1b, micro_batches: 4, checkpoint: except_last"},
      StrategyCase{"pipeline_threads", 2, 0, "schedule: interleaved, micro_batches: 4"},
      StrategyCase{"pipeline_threads", 2, 0, "schedule: zero_bubble, micro_batches: 4"},
      StrategyCase{"pipeline_threads", 2, 0, "data_parallel: 2, micro_batches: 2"},
      StrategyCase{"pipeline_threads", 4, 0, "data_parallel: 2, micro_batches: 2"},
      StrategyCase{"pipeline_threads", 4, 0, "data_parallel: 2, schedule: interleaved, micro_batches: 2"},
      StrategyCase{"mesh", 4, 0, "pipeline: {size: 2, schedule: gpipe, micro_batches: 2}, replicate: 2"},
      StrategyCase{"mesh", 4, 0, "pipeline: {size: 2, schedule: zero_bubble, micro_batches: 4}, shard: 2"},
      StrategyCase{"mesh", 8, 0,
                   "pipeline: {size: 2, schedule: interleaved, micro_batches: 2}, replicate: 2, shard: auto"},
      StrategyCase{"mesh", 4, 0, "pipeline: {size: 2, micro_batches: 2}, shard: {size: 2, stage: 2}"},
      StrategyCase{"mesh", 4, 0,
                   "pipeline: {size: 2, schedule: gpipe, micro_batches: 3}, shard: {size: 2, stage: 3, prefetch: 0, "
                   "keep_window_gradients: true}"},
      StrategyCase{"mesh", 8, 0,
                   "pipeline: {size: 2, schedule: interleaved, micro_batches: 2}, replicate: 2, shard: {size: 2, "
                   "stage: 3}"},
      StrategyCase{"mesh", 4, 0, "replicate: 2, shard: {size: 2, stage: 2}"},
      StrategyCase{"mesh", 4, 0, "replicate: auto, shard: {size: 2, stage: 1}"},
      StrategyCase{"mesh", 4, 0, "tensor: 4"}, StrategyCase{"mesh", 8, 0, "replicate: 4, tensor: 2"},
      StrategyCase{"mesh", 4, 0, "shard: {size: 2, stage: 1}, tensor: 2"},
      StrategyCase{"mesh", 8, 0, "replicate: 2, shard: {size: 2, stage: 2}, tensor: 2"},
      StrategyCase{"mesh", 8, 0, "pipeline: {size: 2, micro_batches: 2}, replicate: 2, tensor: 2"},
      StrategyCase{"mesh", 8, 0, "pipeline: {size: 4, schedule: zero_bubble, micro_batches: 4}, tensor: 2"},
      StrategyCase{"mesh", 8, 0, "pipeline: {size: 2, micro_batches: 2}, shard: {size: 2, stage: 3}, tensor: 2"},
      StrategyCase{"parameter_server_threads", 1}, StrategyCase{"parameter_server_threads", 2},
      StrategyCase{"parameter_server_threads", 4, 0, "servers: 2"});
};
INSTANTIATE_TEST_SUITE_P(LongDivisions, StrategyConformance, long_divisions(), name_of);
INSTANTIATE_TEST_SUITE_P(LongDivisions, StartConformance, long_divisions(), name_of);

const auto long_gradient_divisions = [] {
  return ::testing::Values(StrategyCase{"ddp_threads", 1}, StrategyCase{"ddp_threads", 2},
                           StrategyCase{"sharded_threads", 1, 3}, StrategyCase{"sharded_threads", 2, 1},
                           StrategyCase{"sharded_threads", 2, 2}, StrategyCase{"sharded_threads", 2, 3},
                           StrategyCase{"parameter_server_threads", 1},
                           StrategyCase{"parameter_server_threads", 2, 0, "servers: 2"});
};
INSTANTIATE_TEST_SUITE_P(LongDivisions, GradientConformance, long_gradient_divisions(), name_of);
INSTANTIATE_TEST_SUITE_P(LongForks, GradientConformance, case_of("ddp_spawn", 2), name_of);
INSTANTIATE_TEST_SUITE_P(LongTwoProcesses, GradientConformance, case_of("ddp", 2), name_of);
INSTANTIATE_TEST_SUITE_P(LongTwoShardedProcesses, GradientConformance, ::testing::Values(StrategyCase{"sharded", 2, 3}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(LongTwoParameterServerProcesses, GradientConformance, case_of("parameter_server", 2), name_of);

INSTANTIATE_TEST_SUITE_P(LongDivisions, RankConformance,
                         ::testing::Values(StrategyCase{"ddp_threads", 2}, StrategyCase{"sharded_threads", 2, 1},
                                           StrategyCase{"sharded_threads", 2, 2}, StrategyCase{"sharded_threads", 2, 3},
                                           StrategyCase{"pipeline_threads", 2, 0, "micro_batches: 4"},
                                           StrategyCase{"parameter_server_threads", 4, 0, "servers: 3"}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(LongForks, RankConformance, case_of("pipeline_spawn", 2, "micro_batches: 4"), name_of);

INSTANTIATE_TEST_SUITE_P(LongTwoProcesses, LearningRateScale, case_of("ddp", 2), name_of);
INSTANTIATE_TEST_SUITE_P(LongReplicas, LearningRateScale, case_of("dp", 1), name_of);

// Each way to start ranks with all other tests.
const auto long_forks = [] {
  return ::testing::Values(StrategyCase{"ddp_spawn", 2}, StrategyCase{"ddp_spawn", 4},
                           StrategyCase{"sharded_spawn", 2, 2}, StrategyCase{"sharded_spawn", 2, 3},
                           StrategyCase{"pipeline_spawn", 2, 0, "micro_batches: 4"},
                           StrategyCase{"pipeline_spawn", 4, 0, "micro_batches: 4"},
                           StrategyCase{"parameter_server_spawn", 2, 0, "servers: 2, backend: gloo"});
};
INSTANTIATE_TEST_SUITE_P(LongForks, StrategyConformance, long_forks(), name_of);
INSTANTIATE_TEST_SUITE_P(LongForks, StartConformance,
                         ::testing::Values(StrategyCase{"ddp_spawn", 2}, StrategyCase{"sharded_spawn", 2, 2},
                                           StrategyCase{"pipeline_spawn", 4, 0, "micro_batches: 4"}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(LongTwoProcesses, StrategyConformance, case_of("ddp", 2), name_of);
INSTANTIATE_TEST_SUITE_P(LongTwoHorovodProcesses, StrategyConformance, case_of("horovod", 2, "scale_lr: none"),
                         name_of);
INSTANTIATE_TEST_SUITE_P(LongFourProcesses, StrategyConformance, case_of("ddp", 4), name_of);
INSTANTIATE_TEST_SUITE_P(LongFourProcesses, StartConformance, case_of("ddp", 4), name_of);
const auto long_sharded_processes = [] {
  return ::testing::Values(StrategyCase{"sharded", 2, 1}, StrategyCase{"sharded", 2, 2}, StrategyCase{"sharded", 2, 3});
};
INSTANTIATE_TEST_SUITE_P(LongTwoShardedProcesses, StrategyConformance, long_sharded_processes(), name_of);
INSTANTIATE_TEST_SUITE_P(LongTwoShardedProcesses, StartConformance,
                         ::testing::Values(StrategyCase{"sharded", 2, 1}, StrategyCase{"sharded", 2, 2}), name_of);
INSTANTIATE_TEST_SUITE_P(LongTwoPipelineProcesses, StrategyConformance,
                         ::testing::Values(StrategyCase{"pipeline", 2, 0, "schedule: 1f1b, micro_batches: 4"},
                                           StrategyCase{"pipeline", 2, 0, "schedule: zero_bubble, micro_batches: 4"}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(LongTwoPipelineProcesses, StartConformance,
                         case_of("pipeline", 2, "schedule: 1f1b, micro_batches: 4"), name_of);
INSTANTIATE_TEST_SUITE_P(LongTwoParameterServerProcesses, StrategyConformance,
                         ::testing::Values(StrategyCase{"parameter_server", 2},
                                           StrategyCase{"parameter_server", 2, 0, "servers: 2"}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(LongTwoParameterServerProcesses, StartConformance, case_of("parameter_server", 2), name_of);

}  // namespace
}  // namespace levin::testing
