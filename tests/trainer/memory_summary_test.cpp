#include "tests/support/tiny.h"

#include <levin/core/base/error.h>
#include <levin/core/base/out_of_memory.h>
#include <levin/core/connectors/error_context.h>
#include <levin/core/nn/sequential.h>
#include <levin/core/optim/adamw8bit.h>

#include <gmock/gmock-matchers.h>
#include <torch/nn/modules/activation.h>

#include <functional>

namespace levin::testing {
namespace {

using ::testing::HasSubstr;

/// A module of units whose training_step can be given.
class UnitsModule : public Module {
 public:
  UnitsModule() {
    net_ =
        register_module("net", Sequential(torch::nn::Linear(4, 65536), torch::nn::ReLU(), torch::nn::Linear(65536, 1)));
    scale_ = register_parameter("scale", at::ones({131072}));
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    if (step) step();
    return (torch::nn::functional::mse_loss(net_(batch["x"]), batch["y"]) * scale_.mean());
  }
  OptimizerConfigs configure_optimizers() override {
    if (in_8_bits) return {std::make_shared<optim::AdamW8bit>(parameters())};
    return OptimizerConfig{.optimizer = std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 1e-3})};
  }
  std::function<void()> step;
  bool in_8_bits = false;

 private:
  Sequential net_{nullptr};
  at::Tensor scale_;
};

TEST(MemorySummary, SaysWhatEachUnitHolds) {
  const auto module = std::make_shared<UnitsModule>();
  Trainer trainer(quiet(1));
  std::string summary;
  module->step = [&] {
    if (trainer.global_step() == 1) summary = trainer.memory_summary();
  };
  trainer.fit(module, tiny_loader());
  EXPECT_THAT(summary, HasSubstr("memory of rank 0 on cpu, in MiB: "));
  // Of net.0 5 x 65536 floats, as many of gradients, which wait for the next backward, and twice as many of moments.
  EXPECT_THAT(summary, ::testing::ContainsRegex("net\\.0 +1\\.2 +1\\.2 +2\\.5"));
  EXPECT_THAT(summary, ::testing::ContainsRegex("net\\.2 +0\\.3 +0\\.3 +0\\.5"));
  EXPECT_THAT(summary, ::testing::ContainsRegex("outside of units +0\\.5 +0\\.5 +1\\.0"));
  EXPECT_THAT(summary, ::testing::ContainsRegex("total +2\\.0 +2\\.0 +4\\.0"));
}

TEST(MemorySummary, CountsStateAsItIsHeld) {
  const auto module = std::make_shared<UnitsModule>();
  module->in_8_bits = true;
  Trainer trainer(quiet(1));
  std::string summary;
  module->step = [&] {
    if (trainer.global_step() == 1) summary = trainer.memory_summary();
  };
  trainer.fit(module, tiny_loader());
  // Two bytes a weight, and the scales, for 524,290 weights of four bytes.
  EXPECT_THAT(summary, ::testing::ContainsRegex("total +2\\.0 +2\\.0 +1\\.0"));
}

TEST(MemorySummary, IsPartOfEveryErrorThatMemoryDoesNotSuffice) {
  for (const char* strategy : {"single_device", "ddp_threads", "dp"}) {
    TrainerOptions options = quiet(1);
    options.strategy = strategy;
    options.devices = std::string(strategy) == "single_device" ? 1 : 2;
    Trainer trainer(options);
    class Hungry : public UnitsModule {
     public:
      Hungry() {
        // What LibTorch says when the host has no such memory.
        step = [] { at::empty({int64_t{1} << 50}, at::kByte); };
      }
    };
    try {
      trainer.fit(make<Hungry>(), tiny_loader());
      FAIL() << "nothing was thrown";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), HasSubstr("[memory] "));
      EXPECT_THAT(error.what(), HasSubstr("can't allocate memory"));
      EXPECT_THAT(error.what(), HasSubstr("activation_checkpointing"));
      EXPECT_THAT(error.what(), HasSubstr("net.0"));
      EXPECT_TRUE(is_out_of_memory(std::current_exception()));
    }
  }
}

TEST(MemorySummary, OtherErrorsStayAsTheyAre) {
  const auto module = std::make_shared<UnitsModule>();
  module->step = [] { throw Error("test", "another mistake"); };
  Trainer trainer(quiet(1));
  EXPECT_THROW(
      {
        try {
          trainer.fit(module, tiny_loader());
        } catch (const Error& error) {
          EXPECT_EQ(without_context(error.what()), "[test] another mistake");
          throw;
        }
      },
      Error);
}

}  // namespace
}  // namespace levin::testing
