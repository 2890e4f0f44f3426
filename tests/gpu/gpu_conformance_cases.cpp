#include "tests/conformance/loss_weight_conformance.h"
#include "tests/conformance/strategy_conformance.h"
#include "tests/conformance/users_own.h"

/// The strategies' suite on one GPU.
namespace levin::testing {
namespace {

[[maybe_unused]] const bool kAreRegistered = add_users_own();

// One rank, with the device's own backend.
const auto whole = [] {
  return ::testing::Values(StrategyCase{"single_device", 1, 0, "", "cuda"}, StrategyCase{"dp", 1, 0, "", "cuda"},
                           StrategyCase{"ddp_threads", 1, 0, "", "cuda"},
                           StrategyCase{"sharded_threads", 1, 3, "", "cuda"});
};
INSTANTIATE_TEST_SUITE_P(Gpu, StartConformance, whole(), name_of);

// Processes that share the GPU: further runs of this program with the same tests.
StrategyCase shared(const char* strategy, int stage = 0, const char* options = "") {
  return {strategy, 2, stage, options, "cuda", 0, /*shares=*/true};
}
const auto divisions = [] {
  return ::testing::Values(shared("ddp"), shared("sharded", 1), shared("sharded", 2, "offload: true"),
                           shared("sharded", 3),
                           shared("pipeline", 0, "balance_by: parameters, schedule: 1f1b, micro_batches: 4"),
                           shared("pipeline", 0, "balance_by: parameters, schedule: zero_bubble, micro_batches: 4"),
                           shared("parameter_server", 0, "servers: 2"));
};
INSTANTIATE_TEST_SUITE_P(GpuProcesses, StartConformance, divisions(), name_of);
INSTANTIATE_TEST_SUITE_P(GpuProcesses, StrategyConformance, divisions(), name_of);
INSTANTIATE_TEST_SUITE_P(GpuProcesses, GradientConformance,
                         ::testing::Values(shared("ddp"), shared("sharded", 3), shared("parameter_server")), name_of);
// It notes in the program's own memory what was trained on.
INSTANTIATE_TEST_SUITE_P(Gpu, LossWeight, whole(), name_of);

}  // namespace
}  // namespace levin::testing
