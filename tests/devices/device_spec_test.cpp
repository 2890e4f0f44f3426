#include <levin/core/devices/device_spec.h>

#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/accelerators/visible_devices.h>

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace levin {
namespace {

/// A machine with so many GPUs.
DeviceCount gpus(int64_t count) {
  return [=](const Accelerator& kind) { return kind.type() == at::kCUDA ? count : 0; };
}
const DeviceCount kGpus = gpus(4);

Config parse(const std::string& yaml) { return Config::parse(yaml, {.source = "test.yaml"}); }

DeviceSpec devices_of(const std::string& yaml) {
  return ConfigCodec<DeviceSpec>::parse(parse(yaml), "trainer.devices");
}
GpuSpec gpus_of(const std::string& yaml) { return ConfigCodec<GpuSpec>::parse(parse(yaml), "trainer.gpus"); }

std::vector<at::Device> cpu(size_t ranks = 1) { return std::vector<at::Device>(ranks, at::Device(at::kCPU)); }

std::vector<at::Device> cuda(const std::vector<int>& indices) {
  std::vector<at::Device> devices;
  for (const int index : indices) devices.emplace_back(at::kCUDA, static_cast<at::DeviceIndex>(index));
  return devices;
}

std::vector<at::Device> from_devices(const std::string& yaml, const std::string& accelerator = "cuda",
                                     const DeviceCount& available = kGpus) {
  return resolve_devices(accelerator, devices_of(yaml), GpuSpec(), available);
}

std::vector<at::Device> from_gpus(const std::string& yaml, const DeviceCount& available = kGpus) {
  return resolve_devices("auto", DeviceSpec(), gpus_of(yaml), available);
}

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(DevicesOptionTest, CountTakesTheFirst) {
  EXPECT_EQ(from_devices("2"), cuda({0, 1}));
  EXPECT_EQ(from_devices("\"2\""), cuda({0, 1}));
  EXPECT_EQ(from_devices("1"), cuda({0}));
}

TEST(DevicesOptionTest, MoreThanAHostCanHaveIsRefused) {
  EXPECT_EQ(from_devices("1024", "cpu").size(), 1024U);
  for (const char* yaml : {"1025", "1000000000000", "[0, 1000000000000]", "'0,9223372036854775807'"})
    EXPECT_NE(error_of([&] {
                devices_of(yaml);
              }).find("trainer.devices must be a count of at most 1024, or indices from 0 to 1023; got "),
              std::string::npos)
        << yaml;
  EXPECT_NE(error_of([&] { gpus_of("1000000000000"); }).find("trainer.gpus must be"), std::string::npos);
  EXPECT_NE(error_of([&] { devices_of("100000000000000000000"); }).find("is not understood"), std::string::npos);
}

TEST(DevicesOptionTest, ListTakesExactlyThese) {
  EXPECT_EQ(from_devices("[1, 3]"), cuda({1, 3}));
  EXPECT_EQ(from_devices("\"1,3\""), cuda({1, 3}));
  EXPECT_EQ(from_devices("\"1, 3\""), cuda({1, 3}));
  EXPECT_EQ(from_devices("1,3"), cuda({1, 3}));
  EXPECT_EQ(from_devices("[0]"), cuda({0}));
  EXPECT_EQ(from_devices("\"3,\""), cuda({3}));
  EXPECT_EQ(from_devices("[1, 1]"), cuda({1, 1})) << "ranks that share a device";
}

TEST(DevicesOptionTest, MinusOneTakesAll) {
  EXPECT_EQ(from_devices("-1"), cuda({0, 1, 2, 3}));
  EXPECT_EQ(from_devices("\"-1\""), cuda({0, 1, 2, 3}));
}

TEST(DevicesOptionTest, AutoTakesAllGpusOrTheCpu) {
  EXPECT_EQ(from_devices("auto", "auto"), cuda({0, 1, 2, 3}));
  EXPECT_EQ(from_devices("auto", "gpu"), cuda({0, 1, 2, 3}));
  EXPECT_EQ(from_devices("null", "cuda"), cuda({0, 1, 2, 3}));
  EXPECT_EQ(from_devices("auto", "auto", gpus(0)), cpu());
}

TEST(DevicesOptionTest, OnTheCpuACountIsRanks) {
  EXPECT_EQ(from_devices("1", "cpu"), cpu());
  EXPECT_EQ(from_devices("3", "cpu"), cpu(3));
  EXPECT_EQ(from_devices("auto", "cpu"), cpu());
  EXPECT_EQ(from_devices("2", "auto", gpus(0)), cpu(2));
  EXPECT_NE(error_of([] { from_devices("[0, 1]", "cpu"); }).find("valid: a count of ranks"), std::string::npos);
}

TEST(DevicesOptionTest, WhatIsNotThereIsRefused) {
  EXPECT_NE(error_of([] { from_devices("[1, 4]"); }).find("asks for cuda:4; valid: cuda:0 to cuda:3"),
            std::string::npos);
  EXPECT_NE(error_of([] { from_devices("5"); }).find("asks for cuda:4"), std::string::npos);
  EXPECT_NE(error_of([] { from_devices("1", "cuda", gpus(0)); }).find("none can be used here"), std::string::npos);
}

TEST(DevicesOptionTest, WhatMakesNoSenseIsRefusedWithItsPlace) {
  for (const char* yaml : {"0", "-2", "all", "1.5", "[]", "[-2]", "[x]", "\"1;3\"", "{a: 1}", "\"\"", "true"}) {
    const std::string error = error_of([&] { devices_of(yaml); });
    EXPECT_NE(error.find("test.yaml:1:1: trainer.devices is not understood"), std::string::npos)
        << yaml << ": " << error;
  }
}

TEST(DevicesOptionTest, AnAcceleratorThatIsNotThereNamesTheOthersAndHowToAddOne) {
  const std::string error = error_of([] { resolve_devices("npu", {}, {}); });
  EXPECT_NE(error.find("unknown trainer.accelerator 'npu'"), std::string::npos) << error;
  EXPECT_NE(error.find("valid: auto, cpu, cuda, gpu"), std::string::npos) << error;
  EXPECT_NE(error.find("hint: other kinds of devices come with AcceleratorRegistry::instance().add(...)"),
            std::string::npos)
      << error;
}

TEST(GpusOptionTest, NothingIsTheCpu) {
  EXPECT_EQ(from_gpus("0"), cpu());
  EXPECT_EQ(from_gpus("[]"), cpu());
  // Absent or null leaves the choice to accelerator and devices.
  EXPECT_EQ(resolve_devices("auto", DeviceSpec(), GpuSpec(), gpus(0)), cpu());
  EXPECT_EQ(from_gpus("null", gpus(0)), cpu());
}

TEST(GpusOptionTest, IntegerIsACount) { EXPECT_EQ(from_gpus("3"), cuda({0, 1, 2})); }

TEST(GpusOptionTest, MinusOneIsAll) {
  EXPECT_EQ(from_gpus("-1"), cuda({0, 1, 2, 3}));
  EXPECT_EQ(from_gpus("\"-1\""), cuda({0, 1, 2, 3}));
}

TEST(GpusOptionTest, ListIsExactlyThese) {
  EXPECT_EQ(from_gpus("[0]"), cuda({0}));
  EXPECT_EQ(from_gpus("[1, 3]"), cuda({1, 3}));
}

TEST(GpusOptionTest, StringIsAListOfIndices) {
  EXPECT_EQ(from_gpus("\"0\""), cuda({0}));
  EXPECT_EQ(from_gpus("\"3\""), cuda({3}));
  EXPECT_EQ(from_gpus("\"1, 3\""), cuda({1, 3}));
  EXPECT_EQ(from_gpus("\"1,3\""), cuda({1, 3}));
}

TEST(GpusOptionTest, FromCode) {
  EXPECT_EQ(resolve_devices("auto", {}, 3, kGpus), cuda({0, 1, 2}));
  EXPECT_EQ(resolve_devices("auto", {}, "3", kGpus), cuda({3}));
  EXPECT_EQ(resolve_devices("auto", {}, std::vector<int64_t>{1, 3}, kGpus), cuda({1, 3}));
  EXPECT_EQ(resolve_devices("cuda", 2, {}, kGpus), cuda({0, 1}));
  EXPECT_EQ(resolve_devices("cuda", "2", {}, kGpus), cuda({0, 1}));
  EXPECT_EQ(resolve_devices("cuda", "1,3", {}, kGpus), cuda({1, 3}));
}

TEST(AutoSelectGpusTest, ACountOfGpusIsOfThoseThatWereChosen) {
  std::vector<int64_t> asked;
  const GpuChoice choose = [&](int64_t count) {
    asked.push_back(count);
    return count == 1 ? std::vector<int64_t>{3} : std::vector<int64_t>{1, 3};
  };
  EXPECT_EQ(resolve_devices("auto", {}, 2, kGpus, choose), cuda({1, 3}));
  EXPECT_EQ(resolve_devices("auto", {}, -1, kGpus, choose), cuda({1, 3}));
  EXPECT_EQ(resolve_devices("gpu", 2, {}, kGpus, choose), cuda({1, 3}));
  EXPECT_EQ(resolve_devices("auto", {}, {}, kGpus, choose), cuda({1, 3}));
  EXPECT_EQ(resolve_devices("auto", 1, {}, kGpus, choose), cuda({3}));
  EXPECT_EQ(asked, (std::vector<int64_t>{2, -1, 2, -1, 1}));
}

TEST(AutoSelectGpusTest, NothingIsChosenWhereGpusAreNamedOrThereAreNone) {
  const GpuChoice choose = [](int64_t) -> std::vector<int64_t> { throw ConfigError("chosen"); };
  EXPECT_NE(error_of([&] {
              resolve_devices("auto", "1,3", {}, kGpus, choose);
            }).find("trainer.devices names the GPUs and trainer.auto_select_gpus is true"),
            std::string::npos);
  EXPECT_NE(error_of([&] { resolve_devices("auto", {}, "1", kGpus, choose); }).find("trainer.gpus names the GPUs"),
            std::string::npos);
  EXPECT_NE(error_of([&] { resolve_devices("cpu", {}, {}, kGpus, choose); }).find("trainer.accelerator is cpu and"),
            std::string::npos);
  EXPECT_NE(error_of([&] { resolve_devices("auto", {}, 2, gpus(0), choose); }).find("none can be used here"),
            std::string::npos);
  EXPECT_EQ(resolve_devices("auto", {}, 0, kGpus, choose), cpu());
  EXPECT_EQ(resolve_devices("auto", {}, {}, gpus(0), choose), cpu());
}

TEST(GpusOptionTest, ConflictsAreRefused) {
  EXPECT_NE(
      error_of([] { resolve_devices("auto", 2, 2, kGpus); }).find("trainer.gpus and trainer.devices are both given"),
      std::string::npos);
  EXPECT_NE(error_of([] { resolve_devices("cpu", {}, 2, kGpus); }).find("trainer.accelerator for the CPU"),
            std::string::npos);
  EXPECT_EQ(resolve_devices("cpu", {}, 0, kGpus), cpu());
}

TEST(GpusOptionTest, WhatMakesNoSenseIsRefused) {
  for (const char* yaml : {"-2", "1.5", "[-1, 2]", "\"x\"", "{a: 1}", "\"\"", "true"}) {
    const std::string error = error_of([&] { gpus_of(yaml); });
    EXPECT_NE(error.find("trainer.gpus is not understood"), std::string::npos) << yaml << ": " << error;
  }
  EXPECT_NE(error_of([] { from_gpus("\"4\""); }).find("trainer.gpus asks for cuda:4; valid: cuda:0 to cuda:3"),
            std::string::npos);
  EXPECT_NE(error_of([] { from_gpus("1", gpus(0)); }).find("none can be used here"), std::string::npos);
}

TEST(AcceleratorTest, NamesAreChecked) {
  EXPECT_NE(error_of([] { resolve_devices("cudda", {}, {}, kGpus); }).find("did you mean 'cuda'?"), std::string::npos);
  EXPECT_EQ(resolve_devices("gpu", 1, {}, kGpus), cuda({0}));
}

TEST(AcceleratorTest, TpuSaysWhyNot) {
  EXPECT_NE(error_of([] { resolve_devices("tpu", {}, {}, kGpus); }).find("LibTorch has no XLA back end"),
            std::string::npos);
}

TEST(DeviceCountTest, OfTheProcessorIsOne) {
  EXPECT_EQ(AcceleratorRegistry::instance().find("cpu")->device_count(), 1);
  EXPECT_GE(AcceleratorRegistry::instance().find("cuda")->device_count(), 0);
}

TEST(DeviceCountTest, OfAProcessThatSeesSomeGpus) {
  const std::vector<NvmlGpu> gpus{
      {.index = 0, .uuid = "GPU-1a2b"}, {.index = 1, .uuid = "GPU-1c3d"}, {.index = 2, .uuid = "GPU-9"}};
  EXPECT_EQ(visible_devices({}, gpus), 3);
  EXPECT_EQ(visible_devices("", gpus), 0);
  EXPECT_EQ(visible_devices("2, 0", gpus), 2);
  EXPECT_EQ(visible_devices("GPU-1c,1", gpus), 0) << "twice the same";
  EXPECT_EQ(visible_devices("GPU-9,GPU-1", gpus), 1) << "the second names two";
  EXPECT_EQ(visible_devices("1,-1,0", gpus), 1) << "what follows -1 does not count";
  EXPECT_EQ(visible_devices("0,7,1", gpus), 1);
  EXPECT_EQ(visible_devices("MIG-1234", gpus), std::nullopt);
}

TEST(DeviceSpecCodecTest, DumpReadsBackTheSame) {
  for (const char* yaml : {"2", "\"2\"", "[1, 3]", "auto", "-1"})
    EXPECT_TRUE(ConfigCodec<DeviceSpec>::dump(devices_of(yaml)) == parse(yaml)) << yaml;
  for (const char* yaml : {"null", "3", "\"3\"", "[1, 3]"})
    EXPECT_TRUE(ConfigCodec<GpuSpec>::dump(gpus_of(yaml)) == parse(yaml)) << yaml;
}

}  // namespace
}  // namespace levin
