#include <levin/core/devices/device_sampler.h>

#include "../support/eventually.h"
#include "../support/stand_in_nvml.h"
#include "../support/threads.h"
#include "tests/support/tree.h"

#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

namespace levin {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using testing::eventually;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::StandInNvml;

std::map<std::string, double> taken(DeviceSampler& sampler) {
  std::vector<double> values;
  sampler.take(values);
  std::map<std::string, double> named;
  for (size_t i = 0; i < values.size(); ++i)
    if (!std::isnan(values[i])) named[sampler.quantities()[i].name] = values[i];
  return named;
}

/// What is there once the sampler has sampled, from the beginning on, so many more times.
std::map<std::string, double> taken_after(DeviceSampler& sampler, int64_t samples) {
  const int64_t before = sampler.samples();
  EXPECT_TRUE(eventually([&] { return sampler.samples() >= before + samples; }));
  return taken(sampler);
}
std::map<std::string, double> first_taken(DeviceSampler& sampler) {
  EXPECT_TRUE(eventually([&] { return sampler.samples() > 0; }));
  return taken(sampler);
}

/// Be it one that was left to itself.
bool has_sampling_thread() { return testing::has_thread("levin-devices"); }

SampledDevices all_gpus() { return {.process = false, .host = false, .gpus = {}, .other_gpus = true, .except = {}}; }

TEST(DeviceSamplerTest, SamplesAtOnceAndOnceMoreAtTheEnd) {
  DeviceSampler sampler(1h, {.process = true, .host = true, .gpus = {}, .other_gpus = false, .except = {}});
  const auto first = first_taken(sampler);
  EXPECT_EQ(first.count("cpu/resident_memory_mib"), 1u);
  EXPECT_EQ(first.count("host/available_memory_mib"), 1u);
  EXPECT_EQ(first.count("cpu/utilization_percent"), 0u) << "a rate needs two samples";
  EXPECT_THAT(taken(sampler), IsEmpty()) << "nothing was sampled since";
  sampler.stop(/*with_last_sample=*/true);
  const auto last = taken(sampler);
  EXPECT_EQ(last.count("cpu/utilization_percent"), 1u);
  EXPECT_EQ(last.count("cpu/resident_memory_mib"), 1u);
  EXPECT_THAT(sampler.take_messages(), IsEmpty());
}

TEST(DeviceSamplerTest, WithoutALastSampleEndsWithoutOne) {
  DeviceSampler sampler(1h, {});
  first_taken(sampler);
  sampler.stop(/*with_last_sample=*/false);
  EXPECT_THAT(taken(sampler), IsEmpty());
}

TEST(DeviceSamplerTest, SamplesOnceAnInterval) {
  const StandInNvml stand_in("gpus 1");
  DeviceSampler sampler(50ms, all_gpus());
  const auto start = std::chrono::steady_clock::now();
  const auto values = taken_after(sampler, 3);
  EXPECT_GT(std::chrono::steady_clock::now() - start, 90ms) << "two intervals at least";
  EXPECT_EQ(values.at("gpu0/utilization_percent"), 50);
  EXPECT_GT(values.at("gpu0/nvlink_send_mib_per_second"), 0);
  EXPECT_EQ(taken_after(sampler, 1).at("gpu0/memory_used_mib"), 100);
}

TEST(DeviceSamplerTest, WatchesTheGpusThatAreUsedAndNumbersThemAsNvmlDoes) {
  const StandInNvml stand_in("gpus 4\ngpu0.bus 40\ngpu1.bus 30\ngpu2.bus 20\ngpu3.bus 10\ngpu2.utilization 82");
  DeviceSampler sampler(1h, {.process = false,
                             .host = false,
                             .gpus = {{.address = PciAddress{0, 20, 0}, .allocator_of = {}}},
                             .other_gpus = false,
                             .except = {}});
  const auto values = first_taken(sampler);
  EXPECT_EQ(values.at("gpu2/utilization_percent"), 82);
  for (const auto& [name, value] : values) EXPECT_THAT(name, HasSubstr("gpu2/"));
}

TEST(DeviceSamplerTest, WatchesTheOthersButForThoseOfOtherRanks) {
  const StandInNvml stand_in("gpus 4\ngpu0.bus 40\ngpu1.bus 30\ngpu2.bus 20\ngpu3.bus 10");
  SampledDevices devices = all_gpus();
  devices.gpus = {{.address = PciAddress{0, 20, 0}, .allocator_of = {}}};
  devices.except = {{0, 20, 0}, {0, 10, 0}};
  DeviceSampler sampler(1h, devices);
  const auto values = first_taken(sampler);
  EXPECT_EQ(values.count("gpu0/power_watts"), 1u);
  EXPECT_EQ(values.count("gpu1/power_watts"), 1u);
  EXPECT_EQ(values.count("gpu2/power_watts"), 1u);
  EXPECT_EQ(values.count("gpu3/power_watts"), 0u);
}

TEST(DeviceSamplerTest, TellsWhatIsMissingOnce) {
  setenv("LEVIN_NVML_LIBRARY", testing::build_path("tests/no_nvml.so").c_str(), 1);
  DeviceSampler absent(50ms, all_gpus());
  unsetenv("LEVIN_NVML_LIBRARY");
  EXPECT_THAT(absent.take_messages(), ElementsAre(HasSubstr("what GPUs do is not logged: NVML")));
  EXPECT_THAT(taken_after(absent, 3), IsEmpty());
  EXPECT_THAT(absent.take_messages(), IsEmpty());
  EXPECT_THAT(absent.quantities(), IsEmpty());

  const StandInNvml stand_in("gpus 1");
  DeviceSampler elsewhere(50ms, {.process = false,
                                 .host = false,
                                 .gpus = {{.address = PciAddress{0, 99, 0}, .allocator_of = {}}},
                                 .other_gpus = false,
                                 .except = {}});
  EXPECT_THAT(elsewhere.take_messages(), ElementsAre(HasSubstr("does not list the GPU at PCI address 0000:63:00")));
}

TEST(DeviceSamplerTest, AGpuThatFallsOffIsToldOnceAndTheOthersGoOn) {
  const StandInNvml stand_in("gpus 2\ngpu1.lost_after 40");
  DeviceSampler sampler(50ms, all_gpus());
  std::vector<std::string> messages;
  ASSERT_TRUE(eventually([&] { return !(messages = sampler.take_messages()).empty(); }));
  EXPECT_THAT(messages,
              ElementsAre(HasSubstr("GPU 1 (Stand-in 1, GPU-0000-1) cannot be read, NVML says: GPU is lost")));
  EXPECT_EQ(taken_after(sampler, 1).count("gpu1/power_watts"), 1u) << "from before";
  const auto values = taken_after(sampler, 1);
  EXPECT_EQ(values.count("gpu1/power_watts"), 0u);
  EXPECT_EQ(values.count("gpu0/power_watts"), 1u);
  EXPECT_THAT(sampler.take_messages(), IsEmpty());
}

TEST(DeviceSamplerTest, ADriverThatHangsHoldsNobodyUp) {
  const StandInNvml stand_in("gpus 1\ngpu0.bus 7\nhang.power 1");
  DeviceSampler sampler(50ms, {.process = true,
                               .host = false,
                               .gpus = {{.address = PciAddress{0, 7, 0}, .allocator_of = c10::Device("cpu")}},
                               .other_gpus = false,
                               .except = {}});
  EXPECT_THAT(taken(sampler), IsEmpty());
  sampler.stop(/*with_last_sample=*/true);
  EXPECT_THAT(sampler.take_messages(), ElementsAre(HasSubstr("has not answered for 3 s")));
  EXPECT_TRUE(has_sampling_thread()) << "the driver still holds it";
  stand_in.let_go();
  EXPECT_TRUE(eventually([] { return !has_sampling_thread(); }));
  EXPECT_EQ(sampler.samples(), 0) << "let go, it looks at nothing any more";
  EXPECT_THAT(taken(sampler), IsEmpty());
}

TEST(DeviceSamplerTest, ADriverThatDoesNotStartIsDoneWithout) {
  const StandInNvml stand_in("gpus 1\nhang.init 1");
  SampledDevices devices = all_gpus();
  devices.process = true;
  DeviceSampler sampler(50ms, devices);
  EXPECT_THAT(sampler.take_messages(), ElementsAre(HasSubstr("NVML has not answered for 3 s")));
  stand_in.let_go();
  const auto values = first_taken(sampler);
  EXPECT_EQ(values.count("cpu/threads"), 1u) << "once the call has returned";
  EXPECT_EQ(values.count("gpu0/power_watts"), 0u) << "the quantities stay as they were";
}

TEST(DeviceSamplerTest, ADriverThatNeverStartsIsLeftToItself) {
  const StandInNvml stand_in("gpus 1\nhang.init 1");
  SampledDevices devices = all_gpus();
  devices.process = true;
  {
    DeviceSampler sampler(50ms, devices);
    EXPECT_TRUE(has_sampling_thread());
  }
  stand_in.let_go();
  EXPECT_TRUE(eventually([] { return !has_sampling_thread(); }));
}

}  // namespace
}  // namespace levin
