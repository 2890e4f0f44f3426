#include "tests/sim_device/sim_net.h"
#include "tests/sim_device/thread_ranks.h"
#include "tests/support/sim_device/sim_nccl.h"

#include <levin/strategies/ddp/ddp.h>
#include <levin/strategies/sharded/sharded.h>

#include <string>

namespace levin::testing {
namespace {

template <class Base>
void expect_ranks_as_on_cpu(const typename Base::Options& options, const std::string& precision = "32-true") {
  const auto run = [&](bool on_sim) {
    return fit({.configure = [&](TrainerOptions& trainer) {
      trainer.strategy = Spec<Strategy>(thread_ranks<Base>(options));
      trainer.devices = 2;
      trainer.precision = Spec<Precision>(Config::parse(precision, {}));
      if (on_sim) trainer.accelerator = "sim";
    }});
  };
  const SimResult expected = run(false);
  sim::reset_report();
  expect_equal(run(true), expected);
}

TEST(SimRanks, DdpTrainsAsOnCpus) { expect_ranks_as_on_cpu<Ddp>({}); }

TEST(SimRanks, DdpInBf16TrainsAsOnCpus) { expect_ranks_as_on_cpu<Ddp>({}, "bf16-mixed"); }

TEST(SimRanks, ShardedStagesTrainAsOnCpus) {
  for (int64_t stage = 1; stage <= 3; ++stage) {
    SCOPED_TRACE(stage);
    expect_ranks_as_on_cpu<Sharded>({.stage = stage});
  }
}

TEST(SimRanks, OffloadedShardsTrainAsOnCpus) {
  for (int64_t stage = 1; stage <= 3; ++stage)
    for (const char* precision : {"32-true", "16-mixed"}) {
      SCOPED_TRACE(precision);
      expect_ranks_as_on_cpu<Sharded>({.stage = stage, .offload = true}, precision);
    }
}

TEST(SimRanks, GroupsAreShutDownAtTheEnd) {
  const int64_t before = sim::SimNccl::communicators_alive();
  expect_ranks_as_on_cpu<Ddp>({});
  EXPECT_EQ(sim::SimNccl::communicators_alive(), before);
}

TEST(SimRanks, DataParallelReplicasTrainAsOnCpus) {
  const auto run = [](bool on_sim) {
    return fit({.configure = [on_sim](TrainerOptions& options) {
      options.strategy = "dp";
      options.devices = 2;
      if (on_sim) options.accelerator = "sim";
    }});
  };
  const SimResult expected = run(false);
  sim::reset_report();
  expect_equal(run(true), expected);
}

}  // namespace
}  // namespace levin::testing
