#include "tests/sim_device/sim_net.h"
#include "tests/sim_device/thread_ranks.h"
#include "tests/support/sim_device/sim_nccl.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/strategies/ddp/ddp.h>
#include <levin/strategies/sharded/sharded.h>

#include <gmock/gmock.h>

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

// Stages 1 and 2 gather the parameters behind the step; on the CPU a thread that reads them then would have to wait.
TEST(SimRanks, HooksReadShardedParametersAfterTheStep) {
  for (const int64_t stage : {1, 2}) {
    SCOPED_TRACE(stage);
    fit({.configure = [stage](TrainerOptions& options) {
      options.strategy = Spec<Strategy>(thread_ranks<Sharded>({.stage = stage}));
      options.devices = 2;
      options.accelerator = "sim";
      options.callbacks = {make<LambdaCallback>(LambdaCallbackOptions{
          .on_train_batch_end = [](Trainer&, Module& module, const StepOutput&, const Batch&, int64_t) {
            for (const at::Tensor& parameter : module.parameters())
              EXPECT_TRUE(parameter.detach().cpu().isfinite().all().item<bool>());
          }})};
    }});
    EXPECT_TRUE(sim::report().faults.empty()) << sim::report().to_string();
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

TEST(SimRanks, ADeviceThatIsNamedTwiceIsRefusedWhereRanksCannotShareIt) {
  const auto error_of = [](const std::string& strategy) -> std::string {
    TrainerOptions options = quiet(1);
    options.accelerator = "sim";
    options.devices = std::vector<int64_t>{1, 2, 1};
    options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
    try {
      Trainer(options).fit(make<SimNet>({}), DataLoader(tiny_dataset(8), {.batch_size = 2}));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  };
  for (const char* strategy : {"ddp_threads", "{name: sharded_threads, backend: gloo}", "dp", "ddp2"})
    EXPECT_THAT(
        error_of(strategy),
        ::testing::HasSubstr("trainer.devices names sim:1 twice, and threads of one process need a device each"))
        << strategy;
  EXPECT_THAT(error_of("ddp"), ::testing::HasSubstr("backend 'sim_nccl' needs a device of its own for each rank; hint: "
                                                    "trainer.strategy.backend: gloo"));
}

}  // namespace
}  // namespace levin::testing
