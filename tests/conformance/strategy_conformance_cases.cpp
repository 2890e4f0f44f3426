#include "tests/conformance/strategy_conformance.h"

namespace levin::testing {
namespace {

// Ranks of `ddp`, `horovod`, `sharded` and `pipeline` are further runs of this program: each runs the same tests in the
// same order, and they meet in every fit. They stay as many as they are until the program ends, and none outlives the
// mistake of one.
INSTANTIATE_TEST_SUITE_P(UsersOwn, StrategyConformance,
                         ::testing::Values(StrategyCase{"local_sgd", 2, 0, "start_method: thread, period: 1"}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(OneDevice, StrategyConformance, ::testing::Values(StrategyCase{"single_device", 1}), name_of);
INSTANTIATE_TEST_SUITE_P(Threads, StrategyConformance,
                         ::testing::Values(StrategyCase{"ddp_threads", 1}, StrategyCase{"ddp_threads", 2},
                                           StrategyCase{"ddp_threads", 4}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(TwoProcesses, StrategyConformance, ::testing::Values(StrategyCase{"ddp", 2}), name_of);
INSTANTIATE_TEST_SUITE_P(TwoHorovodProcesses, StrategyConformance,
                         ::testing::Values(StrategyCase{"horovod", 2, 0, "scale_lr: none"}), name_of);
INSTANTIATE_TEST_SUITE_P(FourProcesses, StrategyConformance, ::testing::Values(StrategyCase{"ddp", 4}), name_of);
INSTANTIATE_TEST_SUITE_P(Forks, StrategyConformance,
                         ::testing::Values(StrategyCase{"ddp_spawn", 2}, StrategyCase{"ddp_spawn", 4}), name_of);
INSTANTIATE_TEST_SUITE_P(Replicas, StrategyConformance,
                         ::testing::Values(StrategyCase{"dp", 1}, StrategyCase{"dp", 2}, StrategyCase{"dp", 4},
                                           StrategyCase{"ddp2", 2}),
                         name_of);

INSTANTIATE_TEST_SUITE_P(ShardedThreads, StrategyConformance,
                         ::testing::Values(StrategyCase{"sharded_threads", 1, 3}, StrategyCase{"sharded_threads", 2, 1},
                                           StrategyCase{"sharded_threads", 2, 2}, StrategyCase{"sharded_threads", 2, 3},
                                           StrategyCase{"sharded_threads", 4, 1}, StrategyCase{"sharded_threads", 4, 2},
                                           StrategyCase{"sharded_threads", 4, 3}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(ShardedForks, StrategyConformance,
                         ::testing::Values(StrategyCase{"sharded_spawn", 2, 2}, StrategyCase{"sharded_spawn", 2, 3}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(TwoShardedProcesses, StrategyConformance,
                         ::testing::Values(StrategyCase{"sharded", 2, 1}, StrategyCase{"sharded", 2, 2},
                                           StrategyCase{"sharded", 2, 3}),
                         name_of);

INSTANTIATE_TEST_SUITE_P(PipelineThreads, StrategyConformance,
                         ::testing::Values(StrategyCase{"pipeline_threads", 1},
                                           StrategyCase{"pipeline_threads", 2, 0, "schedule: gpipe, micro_batches: 4"},
                                           StrategyCase{"pipeline_threads", 2, 0, "schedule: 1f1b, micro_batches: 4"},
                                           StrategyCase{"pipeline_threads", 4, 0, "schedule: gpipe, micro_batches: 4"},
                                           StrategyCase{"pipeline_threads", 4, 0, "schedule: 1f1b, micro_batches: 3"},
                                           StrategyCase{"pipeline_threads", 4, 0,
                                                        "schedule: 1f1b, micro_batches: 4, checkpoint: except_last"}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(
    PipelineSchedules, StrategyConformance,
    ::testing::Values(StrategyCase{"pipeline_threads", 2, 0, "schedule: interleaved, micro_batches: 4"},
                      StrategyCase{"pipeline_threads", 2, 0, "schedule: zero_bubble, micro_batches: 4"},
                      StrategyCase{"pipeline_threads", 4, 0, "schedule: interleaved, micro_batches: 4"},
                      StrategyCase{"pipeline_threads", 4, 0, "schedule: zero_bubble, micro_batches: 4"}),
    name_of);
INSTANTIATE_TEST_SUITE_P(PipelinesSideBySide, StrategyConformance,
                         ::testing::Values(StrategyCase{"pipeline_threads", 2, 0, "data_parallel: 2, micro_batches: 2"},
                                           StrategyCase{"pipeline_threads", 4, 0, "data_parallel: 2, micro_batches: 2"},
                                           StrategyCase{"pipeline_threads", 4, 0,
                                                        "data_parallel: 2, schedule: interleaved, micro_batches: 2"}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(PipelineForks, StrategyConformance,
                         ::testing::Values(StrategyCase{"pipeline_spawn", 2, 0, "micro_batches: 4"},
                                           StrategyCase{"pipeline_spawn", 4, 0, "micro_batches: 4"}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(TwoPipelineProcesses, StrategyConformance,
                         ::testing::Values(StrategyCase{"pipeline", 2, 0, "schedule: 1f1b, micro_batches: 4"},
                                           StrategyCase{"pipeline", 2, 0, "schedule: zero_bubble, micro_batches: 4"}),
                         name_of);

INSTANTIATE_TEST_SUITE_P(ParameterServerThreads, StrategyConformance,
                         ::testing::Values(StrategyCase{"parameter_server_threads", 1},
                                           StrategyCase{"parameter_server_threads", 2},
                                           StrategyCase{"parameter_server_threads", 2, 0, "servers: 2"},
                                           StrategyCase{"parameter_server_threads", 4, 0, "servers: 2"}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(ParameterServerForks, StrategyConformance,
                         ::testing::Values(StrategyCase{"parameter_server_spawn", 2, 0, "servers: 2, backend: gloo"}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(TwoParameterServerProcesses, StrategyConformance,
                         ::testing::Values(StrategyCase{"parameter_server", 2},
                                           StrategyCase{"parameter_server", 2, 0, "servers: 2"}),
                         name_of);

INSTANTIATE_TEST_SUITE_P(Threads, LearningRateScale, ::testing::Values(StrategyCase{"ddp_threads", 4}), name_of);
INSTANTIATE_TEST_SUITE_P(TwoProcesses, LearningRateScale, ::testing::Values(StrategyCase{"ddp", 2}), name_of);
INSTANTIATE_TEST_SUITE_P(TwoHorovodProcesses, LearningRateScale, ::testing::Values(StrategyCase{"horovod", 2}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Replicas, LearningRateScale, ::testing::Values(StrategyCase{"dp", 1}, StrategyCase{"dp", 3}),
                         name_of);

INSTANTIATE_TEST_SUITE_P(Threads, GradientConformance,
                         ::testing::Values(StrategyCase{"ddp_threads", 1}, StrategyCase{"ddp_threads", 2},
                                           StrategyCase{"ddp_threads", 4}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(TwoProcesses, GradientConformance, ::testing::Values(StrategyCase{"ddp", 2}), name_of);
INSTANTIATE_TEST_SUITE_P(ShardedThreads, GradientConformance,
                         ::testing::Values(StrategyCase{"sharded_threads", 1, 3}, StrategyCase{"sharded_threads", 2, 1},
                                           StrategyCase{"sharded_threads", 2, 2}, StrategyCase{"sharded_threads", 2, 3},
                                           StrategyCase{"sharded_threads", 4, 3}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(TwoShardedProcesses, GradientConformance, ::testing::Values(StrategyCase{"sharded", 2, 3}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(ParameterServerThreads, GradientConformance,
                         ::testing::Values(StrategyCase{"parameter_server_threads", 1},
                                           StrategyCase{"parameter_server_threads", 2, 0, "servers: 2"},
                                           StrategyCase{"parameter_server_threads", 4, 0, "servers: 3"}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(TwoParameterServerProcesses, GradientConformance,
                         ::testing::Values(StrategyCase{"parameter_server", 2}), name_of);
INSTANTIATE_TEST_SUITE_P(Forks, GradientConformance, ::testing::Values(StrategyCase{"ddp_spawn", 2}), name_of);

INSTANTIATE_TEST_SUITE_P(Threads, RankConformance,
                         ::testing::Values(StrategyCase{"ddp_threads", 1}, StrategyCase{"ddp_threads", 2},
                                           StrategyCase{"ddp_threads", 4}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(TwoProcesses, RankConformance, ::testing::Values(StrategyCase{"ddp", 2}), name_of);
INSTANTIATE_TEST_SUITE_P(ShardedThreads, RankConformance,
                         ::testing::Values(StrategyCase{"sharded_threads", 1, 3}, StrategyCase{"sharded_threads", 2, 1},
                                           StrategyCase{"sharded_threads", 2, 2}, StrategyCase{"sharded_threads", 2, 3},
                                           StrategyCase{"sharded_threads", 4, 3}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(TwoShardedProcesses, RankConformance, ::testing::Values(StrategyCase{"sharded", 2, 3}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(ParameterServerThreads, RankConformance,
                         ::testing::Values(StrategyCase{"parameter_server_threads", 1},
                                           StrategyCase{"parameter_server_threads", 2, 0, "servers: 2"},
                                           StrategyCase{"parameter_server_threads", 4, 0, "servers: 3"}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(TwoParameterServerProcesses, RankConformance,
                         ::testing::Values(StrategyCase{"parameter_server", 2}), name_of);
INSTANTIATE_TEST_SUITE_P(Forks, RankConformance, ::testing::Values(StrategyCase{"ddp_spawn", 2}), name_of);
INSTANTIATE_TEST_SUITE_P(
    PipelineThreads, RankConformance,
    ::testing::Values(StrategyCase{"pipeline_threads", 2, 0, "micro_batches: 4"},
                      StrategyCase{"pipeline_threads", 4, 0, "schedule: interleaved, micro_batches: 4"},
                      StrategyCase{"pipeline_threads", 4, 0, "data_parallel: 2, micro_batches: 2"}),
    name_of);
INSTANTIATE_TEST_SUITE_P(PipelineForks, RankConformance,
                         ::testing::Values(StrategyCase{"pipeline_spawn", 2, 0, "micro_batches: 4"}), name_of);

}  // namespace
}  // namespace levin::testing
