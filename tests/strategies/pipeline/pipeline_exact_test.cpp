#include "tests/support/tiny.h"

#include <levin/core/nn/sequential.h>

#include <fmt/format.h>
#include <torch/nn/modules/activation.h>

#include <memory>
#include <string>
#include <vector>

namespace levin {
namespace {

using testing::identical;
using testing::quiet;
using testing::tiny_dataset;

/// Six elements, of which three are linear.
class Layers : public Module {
 public:
  Layers() {
    net_ = register_module(
        "net", Sequential(
                   torch::nn::Linear(4, 16), torch::nn::Tanh(), torch::nn::Linear(16, 16),
                   [](const at::Tensor& x) { return x.relu(); }, torch::nn::Linear(16, 16), torch::nn::Linear(16, 1)));
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    return torch::nn::functional::mse_loss(net_(batch["x"]), batch["y"]);
  }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 0.02});
  }

 private:
  Sequential net_{nullptr};
};

std::vector<at::Tensor> train(const std::string& strategy, int devices, int64_t global_batch, int64_t accumulate,
                              const char* precision = "32-true") {
  torch::manual_seed(5);
  TrainerOptions options = quiet(2);
  options.strategy = Spec<Strategy>(Config::parse(strategy, {.source = "test"}));
  options.devices = devices;
  options.precision = precision;
  options.accumulate_grad_batches = accumulate;
  const auto module = make<Layers>();
  Trainer(options).fit(module, DataLoader(tiny_dataset(64), {.global_batch_size = global_batch}));
  return testing::weights(*module);
}

// A batch in m micro-batches does the arithmetic of m accumulated batches, where the weight of a micro-batch's loss is
// the same number (m a power of two) and gradients are added up in the same order.
TEST(PipelineExact, EqualsAccumulationOnOneDeviceToTheBit) {
  for (const int64_t micro_batches : {2, 4, 8}) {
    const auto expected = train("single_device", 1, 16 / micro_batches, micro_batches);
    for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zero_bubble"})
      for (const int devices : {2, 3}) {
        SCOPED_TRACE(fmt::format("{} with {} micro-batches on {}", schedule, micro_batches, devices));
        if (std::string(schedule) == "interleaved" && micro_batches % devices != 0) continue;
        const std::string strategy =
            fmt::format("{{name: pipeline_threads, schedule: {}, micro_batches: {}}}", schedule, micro_batches);
        EXPECT_TRUE(identical(train(strategy, devices, 16, 1), expected));
      }
  }
}

TEST(PipelineExact, SchedulesAgreeToTheBitInMixedPrecision) {
  const auto strategy = [](const char* schedule) {
    return fmt::format("{{name: pipeline_threads, schedule: {}, micro_batches: 4}}", schedule);
  };
  const auto expected = train(strategy("1f1b"), 2, 16, 1, "bf16-mixed");
  for (const char* schedule : {"gpipe", "interleaved", "zero_bubble"})
    EXPECT_TRUE(identical(train(strategy(schedule), 2, 16, 1, "bf16-mixed"), expected)) << schedule;
}

TEST(PipelineExact, EqualsOneDeviceToTheBitInOneMicroBatch) {
  const auto expected = train("single_device", 1, 16, 1);
  for (const char* checkpoint : {"never", "always"})
    EXPECT_TRUE(identical(
        train(fmt::format("{{name: pipeline_threads, micro_batches: 1, checkpoint: {}}}", checkpoint), 3, 16, 1),
        expected));
}

}  // namespace
}  // namespace levin
