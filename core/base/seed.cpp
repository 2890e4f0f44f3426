#include <levin/core/base/seed.h>

#include <levin/core/base/thread_generator.h>

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/Generator.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace levin {
namespace {

std::mutex seed_mutex;
std::optional<uint64_t> seed_in_use;

void seed_generator(at::Generator generator, uint64_t seed) {
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
}

at::Tensor state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

/// CUDA devices that this process uses; those it does not are left alone, so that asking does not start CUDA on them.
std::vector<at::Device> cuda_devices_in_use() {
  std::vector<at::Device> devices;
  const auto& hooks = at::detail::getCUDAHooks();
  if (!hooks.hasCUDA()) return devices;
  for (c10::DeviceIndex index = 0; index < hooks.deviceCount(); ++index)
    if (hooks.hasPrimaryContext(index)) devices.emplace_back(at::kCUDA, index);
  return devices;
}

std::string key_of(const at::Device& device) { return "cuda" + std::to_string(device.index()); }

}  // namespace

void seed_everything(uint64_t seed) {
  {
    const std::lock_guard lock(seed_mutex);
    seed_in_use = seed;
  }
  // As at::manual_seed does, which always seeds the process's CPU generator.
  seed_generator(default_cpu_generator(), seed);
  const auto accelerator = at::getAccelerator();
  if (!accelerator) return;
  const c10::DeviceIndex devices = at::globalContext().getAcceleratorHooksInterface(accelerator).deviceCount();
  for (c10::DeviceIndex index = 0; index < devices; ++index)
    seed_generator(at::globalContext().defaultGenerator(at::Device(*accelerator, index)), seed);
}

uint64_t global_seed() {
  const std::lock_guard lock(seed_mutex);
  if (!seed_in_use) seed_in_use = std::random_device{}();
  return *seed_in_use;
}

uint64_t mix_seed(uint64_t a, uint64_t b, uint64_t c) {
  // SplitMix64's finaliser (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014) over each
  // word.
  uint64_t hash = 0x9e3779b97f4a7c15ULL;
  for (const uint64_t word : {a, b, c}) {
    hash += word + 0x9e3779b97f4a7c15ULL;
    hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9ULL;
    hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebULL;
    hash ^= hash >> 31;
  }
  return hash;
}

State capture_rng_state() {
  const auto leaf = [](const at::Generator& generator) {
    return TensorLeaf{state_of(generator).clone(), {.kind = Placement::Kind::kRankLocal}};
  };
  State state = State::map();
  state["cpu"] = leaf(default_cpu_generator());
  for (const auto& device : cuda_devices_in_use())
    state[key_of(device)] = leaf(at::globalContext().defaultGenerator(device));
  return state;
}

void restore_rng_state(const State& state) {
  if (const State* cpu = state.find("cpu")) set_state(default_cpu_generator(), cpu->as_tensor());
  for (const auto& device : cuda_devices_in_use())
    if (const State* cuda = state.find(key_of(device)))
      set_state(at::globalContext().defaultGenerator(device), cuda->as_tensor());
}

}  // namespace levin
