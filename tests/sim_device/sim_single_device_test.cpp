#include "tests/sim_device/sim_net.h"

#include <levin/callbacks/weight_averaging.h>

#include <c10/core/CachingDeviceAllocator.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace levin::testing {
namespace {

SimResult fit_on(const at::Device& device, SimRun run) {
  run.configure = [device, configure = std::move(run.configure)](TrainerOptions& options) {
    set_device(options, device);
    configure(options);
  };
  return fit(run);
}

void expect_fit_as_on_cpu(const SimRun& run) {
  const SimResult expected = fit_on(at::kCPU, run);
  for (c10::DeviceIndex index = 0; index < 2; ++index) {
    SCOPED_TRACE("sim:" + std::to_string(index));
    sim::reset_report();
    expect_equal(fit_on(sim::device(index), run), expected);
  }
}

TEST(SimSingleDevice, FitsValidatesAndPredictsAsTheCpu) { expect_fit_as_on_cpu({}); }

TEST(SimSingleDevice, DropsOutAsTheCpu) { expect_fit_as_on_cpu({.net = {.dropout = 0.3}}); }

TEST(SimSingleDevice, PrefetchesPageLockedBatches) { expect_fit_as_on_cpu({.pins = true}); }

TEST(SimSingleDevice, PrefetchesWithEarlyCopies) {
  const sim::EarlyCopies early;
  expect_fit_as_on_cpu({.pins = true});
}

TEST(SimSingleDevice, EveryPrecisionIsThatOfTheCpu) {
  for (const char* precision : {"64-true", "bf16-mixed", "16-mixed", "bf16-true"}) {
    SCOPED_TRACE(precision);
    expect_fit_as_on_cpu({.configure = [&](TrainerOptions& options) { options.precision = precision; }});
  }
}

TEST(SimSingleDevice, ClipsAndAccumulatesAsTheCpu) {
  expect_fit_as_on_cpu({.configure = [](TrainerOptions& options) {
    options.gradient_clip_val = 0.1;
    options.accumulate_grad_batches = 2;
  }});
}

TEST(SimSingleDevice, CheckpointsActivationsWithTheSameMasks) {
  expect_fit_as_on_cpu({.net = {.dropout = 0.3}, .configure = [](TrainerOptions& options) {
                          options.activation_checkpointing.units = {"Block"};
                        }});
}

TEST(SimSingleDevice, OffloadsActivations) {
  expect_fit_as_on_cpu({.net = {.dropout = 0.3}, .configure = [](TrainerOptions& options) {
                          options.activation_checkpointing.units = {"Block"};
                          options.activation_checkpointing.offload = true;
                        }});
}

TEST(SimSingleDevice, RecordedStepsTrainAsOrdinaryOnes) {
  for (const double dropout : {0.0, 0.3}) {
    SCOPED_TRACE(dropout);
    const SimResult expected = fit_on(at::kCPU, {.net = {.dropout = dropout}});
    sim::reset_report();
    const SimResult result =
        fit_on(sim::device(1),
               {.net = {.dropout = dropout}, .configure = [](TrainerOptions& options) { options.graph = true; }});
    // The learning rate is a tensor in float32 there.
    for (size_t i = 0; i < expected.weights.size(); ++i)
      EXPECT_TRUE(result.weights[i].allclose(expected.weights[i], 1e-4, 1e-5));
    EXPECT_TRUE(sim::report().faults.empty()) << sim::report().to_string();
  }
}

TEST(SimSingleDevice, AveragesWeightsInTheHostsMemory) {
  expect_fit_as_on_cpu({.net = {.dropout = 0.3}, .configure = [](TrainerOptions& options) {
                          options.callbacks = {make<WeightAveraging>({.decay = 0.8, .offload = true})};
                        }});
}

/// Notes how often the host had waited when each step began.
class WaitNet : public SimNet {
 public:
  using SimNet::SimNet;
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    training_.push_back(sim::report().total_waits());
    return SimNet::training_step(batch, batch_idx);
  }
  StepOutput validation_step(const Batch& batch, int64_t batch_idx) override {
    validation_.push_back(sim::report().total_waits());
    return SimNet::validation_step(batch, batch_idx);
  }
  std::vector<int64_t> training_, validation_;
};

TEST(SimSingleDevice, AStepAndAValidationBatchWaitForTheDeviceNotOnce) {
  for (const char* precision : {"32-true", "bf16-mixed", "16-mixed"}) {
    SCOPED_TRACE(precision);
    const auto module = make<WaitNet>(TinyOptions{.dropout = 0.2});
    TrainerOptions options = quiet(1);
    options.log_every_n_steps = 1000;
    options.precision = precision;
    options.gradient_clip_val = 0.5;
    set_device(options, sim::device(1));
    Trainer trainer(options);
    const DataLoader loader(tiny_dataset(80), {.batch_size = 8, .pin_memory = true});
    trainer.fit(module, loader, loader);
    ASSERT_EQ(module->training_.size(), 10);
    ASSERT_EQ(module->validation_.size(), 10);
    // The first step makes the optimizer's state, the first value that is logged its place on the device.
    EXPECT_EQ(module->training_.back() - module->training_[2], 0) << sim::report().to_string();
    EXPECT_EQ(module->validation_.back() - module->validation_[1], 0) << sim::report().to_string();
  }
}

TEST(SimSingleDevice, ADeviceThatIsNotThereIsRefused) {
  TrainerOptions options = quiet(1);
  set_device(options, sim::device(4));
  EXPECT_THROW(Trainer{options}, ConfigError);
}

TEST(SimSingleDevice, AFullDeviceIsAnErrorThatCanBeCaught) {
  c10::getDeviceAllocator(at::kPrivateUse1)->emptyCache();
  sim::Hardware::instance().set_memory(64 << 10);
  EXPECT_THROW(fit_on(sim::device(0), {.net = {.dropout = 0.1}}), std::exception);
  sim::Hardware::instance().set_memory(size_t{1} << 30);
  EXPECT_NO_THROW(fit_on(sim::device(0), {}));
}

TEST(SimSingleDevice, AResumedRunOnAnotherIndexGoesOnToTheBit) {
  const std::string root = fresh_folder("sim_resume");
  const auto train = [&](c10::DeviceIndex index, int64_t epochs, const std::string& checkpoint) {
    seed_everything(7);
    const auto module = make<SimNet>(TinyOptions{.dropout = 0.3});
    TrainerOptions options = quiet(epochs);
    set_device(options, sim::device(index));
    Trainer trainer(options);
    const DataLoader loader(tiny_dataset(), {.batch_size = 8});
    trainer.fit(module, loader, DataLoaders{}, checkpoint);
    trainer.save_checkpoint(root + "/after_" + std::to_string(epochs));
    std::vector<at::Tensor> on_cpu;
    for (const at::Tensor& weight : weights(*module)) on_cpu.push_back(weight.cpu());
    return on_cpu;
  };
  const auto expected = train(0, 2, "");
  train(0, 1, "");
  at::Generator(at::globalContext().defaultGenerator(sim::device(1))).set_current_seed(99);
  EXPECT_TRUE(identical(train(1, 2, root + "/after_1"), expected));
}

// A suite of its own, so that ctest gives it a process of its own.
TEST(SimBackwardBeforeFit, TheProgramsOwnBackwardDoesNotHinderTheTrainer) {
  const at::Tensor x = at::ones({2}, sim::device(0));
  x.set_requires_grad(true).mul(2).sum().backward();
  fit_on(sim::device(0), {});
}

}  // namespace
}  // namespace levin::testing
