#include "tests/sim_device/sim_net.h"
#include "tests/sim_device/thread_ranks.h"
#include "tests/support/eventually.h"
#include "tests/support/sim_device/hardware.h"
#include "tests/support/sim_device/pinned_memory.h"
#include "tests/support/sim_device/sim_accelerator.h"
#include "tests/support/sim_device/sim_nccl.h"
#include "tests/support/tiny_stream.h"

#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/base/error.h>
#include <levin/core/checkpoint/host_copy.h>
#include <levin/core/interfaces/callback.h>
#include <levin/strategies/comm/device_backends.h>
#include <levin/strategies/comm/process_group.h>
#include <levin/strategies/ddp/ddp.h>
#include <levin/strategies/sharded/sharded.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/batchnorm.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace levin::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

TrainerOptions two_ranks(const std::shared_ptr<Strategy>& strategy) {
  TrainerOptions options = quiet(1);
  options.strategy = Spec<Strategy>(strategy);
  options.accelerator = "sim";
  options.devices = 2;
  options.log_every_n_steps = 1000;
  return options;
}

/// Returns the message of what a call throws; empty where it throws nothing.
template <class Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// ---- Backends.

TEST(SimBackends, AnAcceleratorNamesTheBackendThatServesItsDevices) {
  EXPECT_EQ(resolve_backend({.device = sim::device(0)}), "sim_nccl");
  EXPECT_EQ(resolve_backend({.backend = "gloo", .device = sim::device(0)}), "gloo");
  EXPECT_THAT(error_of([] { resolve_backend({.backend = "sim_nccl"}); }),
              HasSubstr("[config] backend 'sim_nccl' serves sim devices; got the CPU; valid there: auto, gloo, "));
  EXPECT_THAT(error_of([] { resolve_backend({.backend = "shared_memory", .device = sim::device(1)}); }),
              HasSubstr("serves the CPU; got sim:1; valid there: auto, gloo, sim_nccl"));
  EXPECT_THAT(error_of([] { resolve_backend({.backend = "sim_ncc", .device = sim::device(1)}); }),
              HasSubstr("did you mean 'sim_nccl'?"));
}

TEST(SimBackends, ATakenNameIsRefused) {
  for (const char* name : {"", "auto", "gloo", "nccl", "sim_nccl"})
    EXPECT_THAT(error_of([&] { DeviceBackends::instance().add(name, sim::kDeviceType, {}); }),
                HasSubstr("valid: a name that is none of auto, gloo, nccl, shared_memory, sim_nccl"));
}

// ---- Host waits.

/// Of rank 0: how often any rank's host had waited when each of its steps began.
std::vector<int64_t> waits_before_step;

class CountingNet : public SimNet {
 public:
  using SimNet::SimNet;
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    if (trainer().is_global_zero()) waits_before_step.push_back(sim::report().total_waits());
    StepOutput output = SimNet::training_step(batch, batch_idx);
    if (gives_weights) output.weight() = batch["x"].gt(0).sum();
    return output;
  }
  static inline bool gives_weights = false;
};

void expect_steps_without_waits(const std::shared_ptr<Strategy>& strategy, const DataLoader& loader) {
  waits_before_step.clear();
  sim::reset_report();
  Trainer(two_ranks(strategy)).fit(make<CountingNet>(TinyOptions{}), loader);
  ASSERT_GE(waits_before_step.size(), 10);
  // The first steps make the optimizer's state and the buckets, the other rank may be one step behind.
  EXPECT_EQ(waits_before_step.back() - waits_before_step[4], 0) << sim::report().to_string();
  EXPECT_TRUE(sim::report().faults.empty()) << sim::report().to_string();
}

TEST(SimRankWaits, AStepOfSeveralRanksWaitsForTheDeviceNotOnce) {
  const DataLoader sized(tiny_dataset(160), {.batch_size = 8, .pin_memory = true});
  expect_steps_without_waits(thread_ranks<Ddp>(), sized);
  for (int64_t stage = 1; stage <= 3; ++stage) {
    SCOPED_TRACE(stage);
    expect_steps_without_waits(thread_ranks<Sharded>({.stage = stage}), sized);
  }
}

TEST(SimRankWaits, RanksTellEachOtherOnTheHostWhoHasData) {
  const DataLoader unsized(std::make_shared<testing::TinyStream>(160), {.batch_size = 8, .pin_memory = true});
  expect_steps_without_waits(thread_ranks<Ddp>(), unsized);
  expect_steps_without_waits(thread_ranks<Sharded>({.stage = 2}), unsized);
}

TEST(SimRankWaits, WeightsOfLossesStayOnTheDevice) {
  CountingNet::gives_weights = true;
  const DataLoader sized(tiny_dataset(160), {.batch_size = 8, .pin_memory = true});
  expect_steps_without_waits(thread_ranks<Ddp>(), sized);
  expect_steps_without_waits(thread_ranks<Sharded>({.stage = 3}), sized);
  CountingNet::gives_weights = false;
}

TEST(SimRankWaits, RanksWithUnsizedDataTrainAsOnCpus) {
  const auto train = [](bool on_sim) {
    TrainerOptions options = two_ranks(thread_ranks<Ddp>());
    if (!on_sim) options.accelerator = "cpu";
    seed_everything(7);
    const auto module = make<SimNet>(TinyOptions{});
    Trainer(options).fit(module, DataLoader(std::make_shared<testing::TinyStream>(160), {.batch_size = 8}));
    std::vector<at::Tensor> on_cpu;
    for (const at::Tensor& weight : weights(*module)) on_cpu.push_back(weight.cpu());
    return on_cpu;
  };
  EXPECT_TRUE(identical(train(true), train(false)));
}

// ---- Batch normalisation over ranks.

class NormNet : public CountingNet {
 public:
  explicit NormNet(const Options& options)
      : CountingNet(options), norm_(register_module("norm", torch::nn::BatchNorm1d(4))) {}
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    return CountingNet::training_step({{"x", norm_(batch["x"])}, {"y", batch["y"]}}, batch_idx);
  }

 private:
  torch::nn::BatchNorm1d norm_;
};

TEST(SimSyncBatchNorm, TrainsAsOnCpusAndWaitsForTheDeviceNotOnce) {
  const auto train = [](bool on_sim) {
    TrainerOptions options = two_ranks(thread_ranks<Ddp>({.broadcast_buffers = false}));
    options.sync_batchnorm = true;
    if (!on_sim) options.accelerator = "cpu";
    seed_everything(7);
    waits_before_step.clear();
    const auto module = make<NormNet>(TinyOptions{});
    Trainer(options).fit(module, DataLoader(tiny_dataset(160), {.batch_size = 8, .pin_memory = on_sim}));
    std::vector<at::Tensor> on_cpu;
    for (const at::Tensor& weight : weights(*module)) on_cpu.push_back(weight.cpu());
    for (const at::Tensor& buffer : module->buffers()) on_cpu.push_back(buffer.cpu());
    return on_cpu;
  };
  const auto expected = train(false);
  auto& accelerator = dynamic_cast<sim::SimAccelerator&>(accelerator_of(sim::device(0)));
  // With kernels of parts, as CUDA has them, and without, as a plug-in.
  for (const bool has_parts : {true, false}) {
    SCOPED_TRACE(has_parts);
    accelerator.set_batch_norm_parts(has_parts);
    sim::reset_report();
    const auto got = train(true);
    if (has_parts)
      for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(got[i].allclose(expected.at(i), 1e-4, 1e-5)) << i;
    else
      EXPECT_TRUE(identical(got, expected));
    ASSERT_GE(waits_before_step.size(), 10);
    EXPECT_EQ(waits_before_step.back() - waits_before_step[4], 0) << sim::report().to_string();
    EXPECT_TRUE(sim::report().faults.empty()) << sim::report().to_string();
  }
  accelerator.set_batch_norm_parts(true);
}

// ---- Failures.

std::atomic<bool> another_rank_gave_up{false};

class FailingNet : public SimNet {
 public:
  using SimNet::SimNet;
  enum class Failure { kThrows, kStops };
  static inline Failure failure = Failure::kThrows;

  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    if (trainer().is_global_zero() || batch_idx < 3) return SimNet::training_step(batch, batch_idx);
    if (failure == Failure::kThrows) throw std::runtime_error("the disk is full");
    // It goes on when the others have ended.
    eventually([] { return another_rank_gave_up.load(); });
    return SimNet::training_step(batch, batch_idx);
  }
};

class NotesExceptions : public Callback {
 public:
  void on_exception(Trainer& trainer, Module&, const std::exception_ptr&) override {
    if (trainer.is_global_zero()) another_rank_gave_up = true;
  }
};

std::string failure_of(const std::shared_ptr<Strategy>& strategy, FailingNet::Failure failure) {
  FailingNet::failure = failure;
  another_rank_gave_up = false;
  const int64_t communicators = sim::SimNccl::communicators_alive();
  TrainerOptions options = two_ranks(strategy);
  options.callbacks = {make<NotesExceptions>()};
  const DataLoader loader(tiny_dataset(160), {.batch_size = 8});
  const std::string message = error_of([&] { Trainer(options).fit(make<FailingNet>(TinyOptions{}), loader); });
  EXPECT_EQ(sim::SimNccl::communicators_alive(), communicators);
  return message;
}

TEST(SimRankFailures, ARankThatThrowsEndsTheOthersWithItsError) {
  for (const auto& strategy : {thread_ranks<Ddp>(), thread_ranks<Sharded>({.stage = 3})})
    EXPECT_THAT(failure_of(strategy, FailingNet::Failure::kThrows), HasSubstr("the disk is full"));
}

TEST(SimRankFailures, ARankThatDoesNotComeIsATimeOutOfTheOthers) {
  for (const bool is_sharded : {false, true}) {
    std::string message;
    // In a short time the ranks may not even meet.
    EXPECT_TRUE(with_time_enough([&](std::chrono::seconds time) {
      const auto seconds = static_cast<double>(time.count());
      message = failure_of(is_sharded ? thread_ranks<Sharded>({.stage = 2}, seconds) : thread_ranks<Ddp>({}, seconds),
                           FailingNet::Failure::kStops);
      return message.find(fmt::format(
                 "an operation of nccl timed out after {} s; hint: another rank did not come to it", time.count())) !=
             std::string::npos;
    })) << message;
  }
}

// ---- Copies.

TEST(SimCopiesToHost, ACheckpointPassesThroughTwoBuffersOfPageLockedMemory) {
  const int64_t before = sim::PinnedMemory::instance().allocated();
  State tree = State::map();
  const std::vector<at::Tensor> sources = {at::arange(1000, at::kFloat).to(sim::device(0)),
                                           at::arange(7, at::kDouble).to(sim::device(1)),
                                           at::arange(24, at::kLong).view({2, 3, 4}).to(sim::device(0)).transpose(0, 2),
                                           at::empty({0}, sim::device(0)),
                                           at::arange(10, at::kInt).to(sim::device(0)).slice(0, 0, 10, 2),
                                           at::ones({}, at::kBool).to(sim::device(1))};
  for (size_t i = 0; i < sources.size(); ++i) tree[std::to_string(i)] = State(sources[i]);
  const State copy = host_copy(tree, /*staging_bytes=*/100);
  for (size_t i = 0; i < sources.size(); ++i) {
    const at::Tensor& copied = copy.at(std::to_string(i)).as_tensor();
    EXPECT_TRUE(copied.is_cpu());
    EXPECT_FALSE(sim::PinnedMemory::instance().contains(copied.const_data_ptr()));
    EXPECT_TRUE(copied.equal(sources[i].cpu())) << i;
  }
  EXPECT_EQ(sim::PinnedMemory::instance().allocated(), before);
  EXPECT_TRUE(sim::report().faults.empty()) << sim::report().to_string();
}

TEST(SimCopiesToReplicas, AReplicaTakesTheParametersOverInOneTransfer) {
  TrainerOptions options = quiet(1);
  options.strategy = "dp";
  options.devices = 2;
  options.accelerator = "sim";
  options.log_every_n_steps = 1000;
  const auto module = make<SimNet>(TinyOptions{});
  sim::reset_report();
  Trainer(options).fit(module, DataLoader(tiny_dataset(160), {.batch_size = 8, .pin_memory = true}));
  // The gradients of its 12 parameters come back one by one.
  const int64_t steps = 20, parameters = 12;
  const int64_t copies = sim::report().copies_between_devices;
  EXPECT_GT(copies, steps * parameters);
  EXPECT_LT(copies, steps * 2 * parameters);
}

// A suite of its own, so that ctest gives it a process of its own.
TEST(SimCpuRun, PagesAreNotLockedForADeviceThatTheRunDoesNotUse) {
  if (sim::Hardware::instance().is_started(0)) GTEST_SKIP() << "needs a process of its own";
  Trainer(quiet(1)).fit(make<SimNet>(TinyOptions{}), DataLoader(tiny_dataset(), {.batch_size = 8, .pin_memory = true}));
  EXPECT_EQ(sim::PinnedMemory::instance().allocated(), 0);
  EXPECT_FALSE(sim::Hardware::instance().is_started(0));
  EXPECT_FALSE(sim::Hardware::instance().is_started(1));
}

}  // namespace
}  // namespace levin::testing
