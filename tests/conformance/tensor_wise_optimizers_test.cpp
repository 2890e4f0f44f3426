#include "tests/conformance/strategy_conformance.h"

#include <levin/core/optim/named_optimizer.h>

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace levin::testing {
namespace {

/// Net with the trainer's optimizer.
class NetOfWholeTensors : public Net {
 public:
  explicit NetOfWholeTensors(const Options& options) : Net(options) {}
  OptimizerConfigs configure_optimizers() override { return Module::configure_optimizers(); }
};

/// Optimizers that need whole tensors: of which strategies that divide a model give each to one rank. In 16 bits the
/// order of sums would show in Muon's steps.
const std::vector<std::string>& optimizers_of_whole_tensors() {
  static const std::vector<std::string> all = {
      "{name: muon, lr: 0.02, bfloat16: false}",
      "{name: muon, lr: 0.02, bfloat16: false, groups: [{pattern: '*.4.weight', orthogonalize: false}]}",
      "{name: adafactor, lr: 0.05}", "{name: lamb, lr: 0.02, weight_decay: 0.1}",
      "{name: lars, lr: 0.5, momentum: 0.9, weight_decay: 0.01}"};
  return all;
}

using Configure = std::function<void(TrainerOptions&)>;

std::vector<at::Tensor> trained_by(const std::string& optimizer, const StrategyCase& on, const Configure& configure,
                                   const NetOptions& net = {}) {
  seed_everything(7);
  const auto module = make<NetOfWholeTensors>(net);
  TrainerOptions options = trainer_options({}, on);
  options.optimizer = Spec<optim::NamedOptimizer>(Config::parse(optimizer, {}));
  configure(options);
  Trainer trainer(options);
  trainer.fit(module, DataLoader(tiny_dataset(64), {.shuffle = true, .global_batch_size = 8}));
  return weights(*module);
}

void expect_as_on_one_device(const std::vector<StrategyCase>& layouts, const Configure& configure,
                             const NetOptions& net = {}) {
  for (const std::string& optimizer : optimizers_of_whole_tensors()) {
    const auto expected = trained_by(optimizer, {"single_device", 1}, configure, net);
    for (const StrategyCase& on : layouts) {
      SCOPED_TRACE(::testing::Message() << optimizer << " under " << on);
      EXPECT_EQ(difference(trained_by(optimizer, on, configure, net), expected, kSummationOrder), "");
    }
  }
}

const std::vector<StrategyCase>& divided_layouts() {
  static const std::vector<StrategyCase> layouts = {
      {"sharded_threads", 2, 1},
      {"sharded_threads", 4, 1},
      {"sharded_threads", 2, 2},
      {"sharded_threads", 4, 2},
      {"sharded_threads", 2, 3},
      {"sharded_threads", 4, 3},
      {"mesh", 4, 0, "replicate: 2, shard: {size: 2, stage: 2}"},
      {"mesh", 4, 0, "pipeline: {size: 2, micro_batches: 2}, shard: 2"},
      {"mesh", 8, 0, "pipeline: {size: 2, micro_batches: 1}, replicate: 2, shard: 2"},
  };
  return layouts;
}

TEST(OptimizersOfWholeTensors, TrainAsOnOneDeviceWithWindowsAndClipping) {
  expect_as_on_one_device(divided_layouts(), [](TrainerOptions& options) {
    options.accumulate_grad_batches = 2;
    options.gradient_clip_val = 0.1;
  });
}

TEST(OptimizersOfWholeTensors, TrainAsOnOneDeviceWithAdaptiveClipping) {
  expect_as_on_one_device(
      {{"sharded_threads", 4, 3}, {"mesh", 4, 0, "pipeline: {size: 2, micro_batches: 2}, shard: 2"}},
      [](TrainerOptions& options) {
        options.gradient_clip_val = 0.01;
        options.gradient_clip_algorithm = "adaptive";
      });
}

TEST(OptimizersOfWholeTensors, TrainAsOnOneDeviceWithFrozenParameters) {
  expect_as_on_one_device({{"sharded_threads", 4, 1}, {"sharded_threads", 4, 3}}, [](TrainerOptions&) {},
                          {.freeze_first = true});
}

TEST(OptimizersOfWholeTensors, OptionsOfShardedChangeNothing) {
  for (const std::string& optimizer : optimizers_of_whole_tensors()) {
    std::map<std::string, std::vector<at::Tensor>> expected;
    for (const char* precision : {"32-true", "bf16-mixed"})
      for (const char* options : {"", "offload: true", "prefetch: 0", "min_unit_parameters: 1000"}) {
        SCOPED_TRACE(optimizer + " in " + precision + " with " + options);
        const auto got = trained_by(optimizer, {"sharded_threads", 2, 3, options},
                                    [&](TrainerOptions& trainer) { trainer.precision = precision; });
        const auto& first = expected.try_emplace(precision, got).first->second;
        EXPECT_EQ(difference(got, first, 0), "");
      }
  }
}

}  // namespace
}  // namespace levin::testing
