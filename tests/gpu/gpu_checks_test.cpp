#include "tests/gpu/gpu_device.h"
#include "tests/support/captured_log.h"

#include <levin/callbacks/batch_size_finder.h>
#include <levin/core/accelerators/nvml.h>
#include <levin/core/base/seed.h>
#include <levin/core/nn/unit.h>
#include <levin/core/options/registries.h>
#include <levin/core/profilers/pytorch_profiler.h>

#include <gmock/gmock-matchers.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

/// What only a device can show. On the simulated one the same checks run, so that they stay right.
namespace levin::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class GpuChecks : public OnDevice {};
/// A process of its own: forks must come before the driver is started.
class GpuSpawn : public OnDevice {};

std::vector<at::Tensor> trained(TrainerOptions options, double dropout = 0) {
  seed_everything(4);
  const auto module = make<TinyModule>({.dropout = dropout});
  Trainer trainer(std::move(options));
  trainer.fit(module, tiny_loader(44), tiny_loader(16));
  std::vector<at::Tensor> on_cpu;
  for (const at::Tensor& weight : weights(*module)) on_cpu.push_back(weight.cpu().to(at::kFloat));
  return on_cpu;
}

void expect_near(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected, double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_TRUE(got[i].allclose(expected[i], tolerance, tolerance))
        << "tensor " << i << " differs by " << (got[i] - expected[i]).abs().max().item<double>();
}

TEST_F(GpuSpawn, ForksAfterDevicesWereCountedAndSeeded) {
  if (checked_accelerator().has_started()) GTEST_SKIP() << "needs a process of its own, before others use the device";
  seed_everything(4);
  TrainerOptions on_cpu = quiet(1);
  on_cpu.strategy = "ddp_spawn";
  on_cpu.devices = 2;
  EXPECT_NO_THROW(trained(on_cpu));
  if (is_simulated()) return;  // memory of a simulated device is that of one process
  TrainerOptions options = on_device(1);
  options.strategy = "ddp_spawn";
  EXPECT_NO_THROW(trained(options));
}

TEST_F(GpuChecks, EveryPrecisionTrainsNearlyAsTheCpu) {
  const auto expected = trained(quiet(2));
  for (const char* precision :
       {"32-true", "64-true", "bf16-mixed", "{name: 16-mixed, init_scale: 256}", "bf16-true", "16-true"}) {
    SCOPED_TRACE(precision);
    TrainerOptions options = on_device(2);
    options.precision = Spec<Precision>(Config::parse(precision, {}));
    const bool is_exact = std::string(precision).starts_with("32") || std::string(precision).starts_with("64");
    expect_near(trained(options), expected, is_exact ? 1e-3 : 0.1);
  }
}

TEST_F(GpuChecks, RecordedStepsWithDropoutTrainAndDrawNewMasks) {
  TrainerOptions options = on_device(3);
  options.graph = true;
  CapturedLog log;
  const auto first = trained(options, 0.4);
  EXPECT_THAT(log.text(), HasSubstr("[graph] recorded the step"));
  for (const at::Tensor& weight : first) EXPECT_TRUE(weight.isfinite().all().item<bool>());
  const at::Tensor mask = at::dropout(at::ones({256}, checked_device()), 0.5, true).cpu();
  EXPECT_FALSE(at::dropout(at::ones({256}, checked_device()), 0.5, true).cpu().equal(mask));
}

/// Waits for the device in its step, which no recording allows.
class WaitingModule : public TinyModule {
 public:
  using TinyModule::TinyModule;
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    if (first_->weight.sum().item<float>() > 1e9) throw std::runtime_error("too large");
    return TinyModule::training_step(batch, batch_idx);
  }
};

TEST_F(GpuChecks, AfterAFailedRecordingDropoutAndTrainingGoOn) {
  TrainerOptions options = on_device(2);
  options.graph = true;
  CapturedLog log;
  Trainer trainer(options);
  trainer.fit(make<WaitingModule>({.dropout = 0.3}), tiny_loader());
  EXPECT_EQ(trainer.global_step(), 10);
  EXPECT_THAT(log.text(), HasSubstr("[graph] steps are not recorded"));
  EXPECT_NO_THROW(at::dropout(at::ones({8}, checked_device()), 0.5, true).cpu());
  EXPECT_NO_THROW(trained(options, 0.3)) << "the next run records";
}

class DeepLayersImpl : public torch::nn::Module {
 public:
  DeepLayersImpl()
      : widen_(register_module("widen", torch::nn::Linear(4, 64))),
        narrow_(register_module("narrow", torch::nn::Linear(64, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return narrow_(widen_(x).tanh()); }

 private:
  torch::nn::Linear widen_, narrow_;
};
LEVIN_UNIT(DeepLayers);

class DeepModule : public TinyModule {
 public:
  explicit DeepModule(const Options& options) : TinyModule(options) {
    layers_ = register_module("layers", DeepLayers());
  }
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    const Batch deeper = {{"x", layers_(batch["x"])}, {"y", batch["y"]}};
    return TinyModule::training_step(deeper, batch_idx);
  }

 private:
  DeepLayers layers_{nullptr};
};

TEST_F(GpuChecks, OffloadedActivationsAndOptimizerStateChangeNothing) {
  const auto train = [](TrainerOptions options) {
    seed_everything(4);
    const auto module = make<DeepModule>({});
    Trainer(std::move(options)).fit(module, tiny_loader(44));
    std::vector<at::Tensor> on_cpu;
    for (const at::Tensor& weight : weights(*module)) on_cpu.push_back(weight.cpu());
    return on_cpu;
  };
  const auto expected = train(on_device(2));
  TrainerOptions options = on_device(2);
  options.activation_checkpointing.units = {"DeepLayers"};
  options.activation_checkpointing.offload = true;
  expect_near(train(options), expected, 1e-5);
  TrainerOptions sharded = on_device(2);
  sharded.strategy = Spec<Strategy>(Config::parse("{name: sharded_threads, stage: 2, offload: true}", {}));
  expect_near(train(sharded), expected, 1e-5);
}

/// Needs 64 MiB for each example.
class HungryModule : public TinyModule {
 public:
  using TinyModule::TinyModule;
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    const at::Tensor large = at::empty({batch.size(), 1 << 24}, batch["x"].options());
    return TinyModule::training_step(batch, batch_idx);
  }
};

TEST_F(GpuChecks, TheBatchSizeFinderMeetsARealOutOfMemory) {
  const auto finder = make<BatchSizeFinder>({});
  TrainerOptions options = on_device(1);
  options.callbacks = {finder};
  options.max_steps = 1;
  Trainer trainer(options);
  trainer.fit(make<HungryModule>({}), DataLoader(tiny_dataset(8192), {.batch_size = 2}));
  ASSERT_TRUE(finder->batch_size());
  const double gibibytes = static_cast<double>(checked_accelerator().memory_stats(checked_device()).total) / (1 << 30);
  EXPECT_LE(static_cast<double>(*finder->batch_size()) / 16, gibibytes) << "more than there is";
  EXPECT_GE(static_cast<double>(*finder->batch_size()) / 16, gibibytes / 8) << "far less than there is";
}

/// What a program prints; empty where it cannot be run.
std::string output_of(const char* command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command, "r"), &pclose);
  std::string text;
  std::array<char, 256> part;
  while (pipe != nullptr && std::fgets(part.data(), part.size(), pipe.get()) != nullptr) text += part.data();
  return text;
}

TEST_F(GpuChecks, NvmlSaysWhatNvidiaSmiSays) {
  if (is_simulated()) GTEST_SKIP() << "NVML knows no simulated device";
  std::istringstream lines(
      output_of("nvidia-smi --query-gpu=uuid,name,memory.total,power.limit --format=csv,noheader,nounits 2>/dev/null"));
  const Nvml::Opened opened = Nvml::open();
  ASSERT_NE(opened.nvml, nullptr) << opened.reason;
  size_t index = 0;
  for (std::string line; std::getline(lines, line); ++index) {
    ASSERT_LT(index, opened.nvml->gpus().size());
    const NvmlGpu& gpu = opened.nvml->gpus()[index];
    const GpuReading reading = opened.nvml->read(index);
    EXPECT_THAT(line, HasSubstr(gpu.uuid));
    EXPECT_THAT(line, HasSubstr(gpu.name));
    ASSERT_TRUE(reading.memory_total_mib);
    std::istringstream cells(line);
    std::vector<std::string> row;
    for (std::string cell; std::getline(cells, cell, ',');) row.push_back(cell);
    ASSERT_EQ(row.size(), 4) << line;
    EXPECT_NEAR(*reading.memory_total_mib, std::stod(row[2]), 1) << line;
    if (reading.power_limit_watts) EXPECT_NEAR(*reading.power_limit_watts, std::stod(row[3]), 1) << line;
  }
  if (index == 0) GTEST_SKIP() << "nvidia-smi is not here";
  EXPECT_EQ(index, opened.nvml->gpus().size());
}

TEST_F(GpuChecks, KinetoTracesHaveKernelsOfTheDevice) {
  if (is_simulated()) GTEST_SKIP() << "Kineto knows no simulated device";
  const std::string folder = fresh_folder("kineto");
  TrainerOptions options = on_device(1);
  options.profiler = Spec<Profiler>(Config::parse(
      "{name: pytorch, dirpath: " + folder + ", schedule: {wait: 0, warmup: 1, active: 2, repeat: 1}}", {}));
  trained(options);
  int traces = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    ++traces;
    std::ostringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    EXPECT_THAT(text.str(), HasSubstr("\"cat\": \"kernel\""));
  }
  EXPECT_EQ(traces, 1);
}

}  // namespace
}  // namespace levin::testing
