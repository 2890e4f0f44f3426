#include "tests/conformance/strategy_conformance.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/core/base/error.h>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <string>
#include <vector>

namespace levin::testing {
namespace {

const std::vector<StrategyCase>& averaging_divisions() {
  static const std::vector<StrategyCase> cases = {
      {"single_device", 1},
      {"ddp_threads", 2},
      {"parameter_server_threads", 2, 0, "servers: 1"},
      {"parameter_server_threads", 4, 0, "servers: 3"},
      {"sharded_threads", 2, 1},
      {"sharded_threads", 4, 3, "shard_group: 2"},
      {"pipeline_threads", 2, 0, "micro_batches: 2"},
      {"mesh", 4, 0, "pipeline: 2, shard: {size: 2, stage: 3}"},
      {"mesh", 4, 0, "replicate: 2, tensor: 2"},
  };
  return cases;
}

/// Averages, and saves after seven batches.
auto averages(const std::string& callback, const std::string& path) {
  return [=](TrainerOptions& options) {
    options.callbacks = {Spec<Callback>(Config::parse(callback, {.source = "test"})),
                         make<LambdaCallback>({.on_train_batch_end = [=](Trainer& trainer, Module&, const StepOutput&,
                                                                         const Batch&, int64_t) {
                           if (trainer.total_batches() + 1 == 7 && !path.empty()) trainer.save_checkpoint(path);
                         }})};
  };
}

/// What is saved under any division goes on under any other, with the averages that one device has.
TEST(AveragedWeights, GoOnUnderOtherDivisions) {
  for (const std::string callback :
       {"{weight_averaging: {decay: 0.7}}", "{weight_averaging: {decay: 0.7, update_every_n_steps: 2, offload: true}}",
        "{stochastic_weight_averaging: {swa_lrs: 0.02, swa_epoch_start: 0}}"}) {
    const Outcome expected = train_on_one_device({.epochs = 3, .configure = averages(callback, "")});
    size_t next = 0;
    for (const StrategyCase& saved : averaging_divisions()) {
      SCOPED_TRACE(fmt::format("{} saved as {}", callback, saved.yaml()));
      const std::string path = fresh_folder("averages") + "/checkpoint";
      const Outcome whole = train({.epochs = 3, .configure = averages(callback, path)}, saved);
      EXPECT_EQ(difference(whole.weights, expected.weights, kSummationOrder), "");
      const Outcome resumed = train({.epochs = 3, .configure = averages(callback, ""), .ckpt = path}, saved);
      EXPECT_TRUE(identical(resumed.weights, whole.weights)) << difference(resumed.weights, whole.weights, 0);
      for (const StrategyCase& other :
           {averaging_divisions()[0], averaging_divisions()[next++ * 4 % averaging_divisions().size()]}) {
        const Outcome there = train({.epochs = 3, .configure = averages(callback, ""), .ckpt = path}, other);
        EXPECT_EQ(difference(there.weights, expected.weights, kSummationOrder), "") << other;
      }
    }
  }
}

TEST(AveragedWeights, AreRefusedWhereWorkersHaveOtherWeights) {
  for (const std::string callback :
       {"{weight_averaging: {decay: 0.7}}", "{stochastic_weight_averaging: {swa_lrs: 0.02, swa_epoch_start: 0}}"})
    EXPECT_THAT(
        [&] {
          train({.configure = averages(callback, "")}, {"parameter_server_threads", 2, 0, "mode: async"});
        },
        ::testing::ThrowsMessage<Error>(::testing::HasSubstr("do not work with strategy 'parameter_server_threads'")));
}

}  // namespace
}  // namespace levin::testing
