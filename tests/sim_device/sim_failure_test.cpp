#include "tests/sim_device/sim_net.h"
#include "tests/sim_device/thread_ranks.h"

#include <levin/callbacks/batch_size_finder.h>
#include <levin/callbacks/model_checkpoint.h>
#include <levin/core/accelerators/device_failure.h>
#include <levin/strategies/ddp/ddp.h>

#include <gmock/gmock-matchers.h>

#include <functional>
#include <string>

namespace levin::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// Loses its rank's device in batch 3.
class VanishingNet : public SimNet {
 public:
  using SimNet::SimNet;
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    if (batch_idx == 3 && device().index() == 1) sim::Hardware::instance().lose(1);
    return SimNet::training_step(batch, batch_idx);
  }
};

struct VanishingRun {
  bool pins = false;
  bool graph = false;
  bool ranks = false;
  bool checkpoints = true;
};

std::string lose_device(const VanishingRun& run) {
  TrainerOptions options = quiet(2);
  options.log_every_n_steps = 1;
  set_device(options, sim::device(1));
  options.graph = run.graph;
  if (run.ranks) {
    options.devices = 2;
    options.strategy = Spec<Strategy>(thread_ranks<Ddp>());
  }
  if (run.checkpoints) {
    options.enable_checkpointing = true;
    options.default_root_dir = fresh_folder("vanishing");
    options.callbacks = {make<ModelCheckpoint>({.save_last = true, .every_n_train_steps = 1, .asynchronous = true})};
  }
  const std::string message = message_of([&] {
    Trainer trainer(options);
    const DataLoader loader(tiny_dataset(), {.pin_memory = run.pins, .global_batch_size = 8});
    trainer.fit(make<VanishingNet>({}), loader, loader);
  });
  sim::Hardware::instance().give_back(1);
  return message;
}

class SimVanishing : public ::testing::Test {
  void TearDown() override { sim::Hardware::instance().give_back(1); }
};

TEST_F(SimVanishing, TheRunEndsWithDeviceBatchAndCheckpoint) {
  for (const bool pins : {false, true})
    EXPECT_THAT(lose_device({.pins = pins}),
                AllOf(HasSubstr("[device] sim:1 was lost"), HasSubstr("batch 3 of epoch 0"),
                      HasSubstr("hint: resume in a new process from "), HasSubstr("/checkpoints/")));
}

TEST_F(SimVanishing, ARunWithoutCheckpointsSaysSo) {
  EXPECT_THAT(lose_device({.checkpoints = false}),
              AllOf(HasSubstr("[device] sim:1 was lost"), HasSubstr("there is no checkpoint yet")));
}

TEST_F(SimVanishing, ARunOfRecordedStepsEnds) {
  EXPECT_THAT(lose_device({.graph = true, .checkpoints = false}), HasSubstr("sim:1"));
}

TEST_F(SimVanishing, AllRanksEnd) { EXPECT_THAT(lose_device({.ranks = true}), HasSubstr("sim:1 was lost")); }

TEST(SimBadInput, AnOperatorThatAPlugInLacksIsNamedWithItsFallback) {
  sim::Hardware::instance().set_missing_operator("aten::threshold_backward");
  const std::string message =
      message_of([] { fit({.configure = [](TrainerOptions& options) { set_device(options, sim::device(1)); }}); });
  sim::Hardware::instance().set_missing_operator("");
  EXPECT_THAT(message, AllOf(HasSubstr("[device] sim lacks the operator aten::threshold_backward"),
                             HasSubstr("m.impl(\"threshold_backward\""), HasSubstr("&at::native::cpu_fallback"),
                             HasSubstr("docs/extending.md"), HasSubstr("batch 0 of epoch 0")));
}

TEST(SimBadInput, AnOperatorThatTheCpuLacksTooIsNamed) {
  const at::Tensor x = at::ones({1, 1, 8, 8}, sim::device(0));
  EXPECT_THAT(message_of([&] { at::_efficient_attention_forward(x, x, x, {}, {}, {}, {}, {}, 0.0, 0); }),
              HasSubstr("Could not run 'aten::_efficient_attention_forward'"));
}

/// Adds a tensor of the host.
class HostNet : public SimNet {
 public:
  using SimNet::SimNet;
  StepOutput training_step(const Batch& batch, int64_t) override {
    return (forward(batch["x"]) + at::ones({batch.size(), 1})).square().mean();
  }
};

TEST(SimBadInput, TensorsOnOtherDevicesThanTheModelAreExplained) {
  TrainerOptions options = quiet(1);
  set_device(options, sim::device(1));
  const std::string message = message_of([&] {
    Trainer trainer(options);
    trainer.fit(make<HostNet>({}), tiny_loader());
  });
  EXPECT_THAT(message,
              AllOf(HasSubstr("[device] tensors of one operation are on different devices"),
                    HasSubstr("valid here: sim:1"), HasSubstr("register_buffer"), HasSubstr("in training_step")));
}

// A checkpoint has no devices: what one kind of device saves, another goes on with.
TEST(SimBadInput, ARunResumesOnAnotherKindOfDevice) {
  const std::string root = fresh_folder("kinds");
  const auto train = [&](const at::Device& device, int64_t epochs, const std::string& from, const std::string& to) {
    seed_everything(7);
    const auto module = make<SimNet>({});
    TrainerOptions options = quiet(epochs);
    set_device(options, device);
    Trainer trainer(options);
    trainer.fit(module, DataLoader(tiny_dataset(), {.batch_size = 8}), DataLoaders{}, from);
    if (!to.empty()) trainer.save_checkpoint(to);
    std::vector<at::Tensor> on_cpu;
    for (const at::Tensor& weight : weights(*module)) on_cpu.push_back(weight.cpu());
    return on_cpu;
  };
  const auto expected = train(at::kCPU, 2, "", "");
  train(at::kCPU, 1, "", root + "/of_cpu");
  train(sim::device(1), 1, "", root + "/of_sim");
  EXPECT_TRUE(identical(train(sim::device(0), 2, root + "/of_cpu", ""), expected));
  EXPECT_TRUE(identical(train(at::kCPU, 2, root + "/of_sim", ""), expected));
}

TEST(SimBadInput, RandomNumbersOfAnotherKindOfDeviceGoOnFromTheSeed) {
  State state = capture_rng_state(sim::device(1));
  state["device"] = TensorLeaf{at::zeros({16}, at::kByte), {.kind = Placement::Kind::kRankLocal}};  // as CUDA's
  EXPECT_NO_THROW(restore_rng_state(state, sim::device(1)));
}

TEST(SimBadInput, TheBatchSizeFinderMeetsAFullDevice) {
  c10::getDeviceAllocator(at::kPrivateUse1)->emptyCache();
  sim::Hardware::instance().set_memory(1 << 20);
  seed_everything(7);
  TrainerOptions options = quiet(1);
  set_device(options, sim::device(1));
  const auto finder = make<BatchSizeFinder>({});
  options.callbacks = {finder};
  Trainer trainer(options);
  const DataLoader loader(tiny_dataset(20000), {.batch_size = 2});
  EXPECT_NO_THROW(trainer.fit(make<SimNet>({}), loader));
  sim::Hardware::instance().set_memory(size_t{1} << 30);
  EXPECT_GE(trainer.global_step(), 20000 / 16384 + 1) << "the largest batch did not fit";
}

}  // namespace
}  // namespace levin::testing
