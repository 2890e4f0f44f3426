#include <levin/core/devices/device_sampler.h>

#include "../support/stand_in_nvml.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <thread>

namespace levin {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::StandInNvml;

/// Seconds that something takes.
template <class Function>
double seconds_of(Function&& function) {
  const auto start = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::map<std::string, double> taken(DeviceSampler& sampler) {
  std::vector<double> values;
  sampler.take(values);
  std::map<std::string, double> named;
  for (size_t i = 0; i < values.size(); ++i)
    if (!std::isnan(values[i])) named[sampler.quantities()[i].name] = values[i];
  return named;
}

SampledDevices all_gpus() { return {.process = false, .host = false, .gpus = {}, .other_gpus = true, .except = {}}; }

TEST(DeviceSamplerTest, SamplesAtOnceAndOnceMoreAtTheEnd) {
  DeviceSampler sampler(1h, {.process = true, .host = true, .gpus = {}, .other_gpus = false, .except = {}});
  std::this_thread::sleep_for(100ms);
  const auto first = taken(sampler);
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
  std::this_thread::sleep_for(100ms);
  taken(sampler);
  sampler.stop(/*with_last_sample=*/false);
  EXPECT_THAT(taken(sampler), IsEmpty());
}

TEST(DeviceSamplerTest, SamplesOnceAnInterval) {
  const StandInNvml stand_in("gpus 1");
  DeviceSampler sampler(50ms, all_gpus());
  std::this_thread::sleep_for(300ms);
  const auto values = taken(sampler);
  EXPECT_EQ(values.at("gpu0/utilization_percent"), 50);
  EXPECT_NEAR(values.at("gpu0/nvlink_send_mib_per_second"), 1024, 100);
  std::this_thread::sleep_for(150ms);
  EXPECT_EQ(taken(sampler).at("gpu0/memory_used_mib"), 100);
}

TEST(DeviceSamplerTest, WatchesTheGpusThatAreUsedAndNumbersThemAsNvmlDoes) {
  const StandInNvml stand_in("gpus 4\ngpu0.bus 40\ngpu1.bus 30\ngpu2.bus 20\ngpu3.bus 10\ngpu2.utilization 82");
  DeviceSampler sampler(1h, {.process = false,
                             .host = false,
                             .gpus = {{.address = PciAddress{0, 20, 0}, .allocator_of = {}}},
                             .other_gpus = false,
                             .except = {}});
  std::this_thread::sleep_for(100ms);
  const auto values = taken(sampler);
  EXPECT_EQ(values.at("gpu2/utilization_percent"), 82);
  for (const auto& [name, value] : values) EXPECT_THAT(name, HasSubstr("gpu2/"));
}

TEST(DeviceSamplerTest, WatchesTheOthersButForThoseOfOtherRanks) {
  const StandInNvml stand_in("gpus 4\ngpu0.bus 40\ngpu1.bus 30\ngpu2.bus 20\ngpu3.bus 10");
  SampledDevices devices = all_gpus();
  devices.gpus = {{.address = PciAddress{0, 20, 0}, .allocator_of = {}}};
  devices.except = {{0, 20, 0}, {0, 10, 0}};
  DeviceSampler sampler(1h, devices);
  std::this_thread::sleep_for(100ms);
  const auto values = taken(sampler);
  EXPECT_EQ(values.count("gpu0/power_watts"), 1u);
  EXPECT_EQ(values.count("gpu1/power_watts"), 1u);
  EXPECT_EQ(values.count("gpu2/power_watts"), 1u);
  EXPECT_EQ(values.count("gpu3/power_watts"), 0u);
}

TEST(DeviceSamplerTest, TellsWhatIsMissingOnce) {
  setenv("LEVIN_NVML_LIBRARY", "/nowhere/nvml.so", 1);
  DeviceSampler absent(50ms, all_gpus());
  unsetenv("LEVIN_NVML_LIBRARY");
  EXPECT_THAT(absent.take_messages(), ElementsAre(HasSubstr("what GPUs do is not logged: NVML")));
  std::this_thread::sleep_for(150ms);
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
  std::this_thread::sleep_for(400ms);
  EXPECT_EQ(taken(sampler).count("gpu1/power_watts"), 1u) << "from before";
  EXPECT_THAT(sampler.take_messages(),
              ElementsAre(HasSubstr("GPU 1 (Stand-in 1, GPU-0000-1) cannot be read, NVML says: GPU is lost")));
  std::this_thread::sleep_for(150ms);
  const auto values = taken(sampler);
  EXPECT_EQ(values.count("gpu1/power_watts"), 0u);
  EXPECT_EQ(values.count("gpu0/power_watts"), 1u);
  EXPECT_THAT(sampler.take_messages(), IsEmpty());
}

TEST(DeviceSamplerTest, ADriverThatHangsHoldsNobodyUp) {
  const StandInNvml stand_in("gpus 1\nhang.power 5");
  std::optional<DeviceSampler> sampler;
  EXPECT_LT(seconds_of([&] { sampler.emplace(50ms, all_gpus()); }), 1);
  std::this_thread::sleep_for(50ms);
  EXPECT_LT(seconds_of([&] { EXPECT_THAT(taken(*sampler), IsEmpty()); }), 0.1);
  EXPECT_LT(seconds_of([&] { sampler->stop(/*with_last_sample=*/true); }), 4);
  EXPECT_THAT(sampler->take_messages(), ElementsAre(HasSubstr("has not answered for 3 s")));
  EXPECT_LT(seconds_of([&] { sampler.reset(); }), 0.1);
  std::this_thread::sleep_for(2500ms);  // the thread ends when its call returns
}

TEST(DeviceSamplerTest, ADriverThatDoesNotStartIsDoneWithout) {
  const StandInNvml stand_in("gpus 1\nhang.init 4");
  std::optional<DeviceSampler> sampler;
  SampledDevices devices = all_gpus();
  devices.process = true;
  EXPECT_LT(seconds_of([&] { sampler.emplace(50ms, devices); }), 4);
  EXPECT_THAT(sampler->take_messages(), ElementsAre(HasSubstr("NVML has not answered for 3 s")));
  std::this_thread::sleep_for(1500ms);
  const auto values = taken(*sampler);
  EXPECT_EQ(values.count("cpu/threads"), 1u) << "once the call has returned";
  EXPECT_EQ(values.count("gpu0/power_watts"), 0u) << "the quantities stay as they were";
}

}  // namespace
}  // namespace levin
