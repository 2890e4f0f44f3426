#include <levin/core/base/seed.h>

#include <levin/core/base/generator_state.h>
#include <levin/core/base/log.h>
#include <levin/core/base/mutex.h>
#include <levin/core/base/thread_generator.h>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <random>
#include <vector>

namespace levin {
namespace {

Mutex seed_mutex;
std::optional<uint64_t> seed_in_use LEVIN_GUARDED_BY(seed_mutex);
std::vector<at::Device> following LEVIN_GUARDED_BY(seed_mutex);  ///< devices whose generators follow the seed
thread_local std::optional<uint64_t> own_seed;                   ///< of a thread with a generator of its own

void seed_generator(at::Generator generator, uint64_t seed) {
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
}

at::Generator generator_of(const at::Device& device) { return at::globalContext().defaultGenerator(device); }

}  // namespace

void seed_everything(uint64_t seed) {
  claim_generator();
  const MutexLock lock(seed_mutex);
  own_seed = has_own_generator() ? std::optional(seed) : std::nullopt;
  if (!own_seed || !seed_in_use) seed_in_use = seed;
  // As at::manual_seed does, which always seeds the process's CPU generator.
  seed_generator(default_cpu_generator(), seed);
  for (const at::Device& device : following) seed_generator(generator_of(device), seed);
}

void follow_seed(const at::Device& device) {
  if (device.is_cpu()) return;
  const MutexLock lock(seed_mutex);
  if (std::find(following.begin(), following.end(), device) != following.end()) return;
  following.push_back(device);
  if (own_seed)
    seed_generator(generator_of(device), *own_seed);
  else if (seed_in_use)
    seed_generator(generator_of(device), *seed_in_use);
}

void seed_generators(const at::Device& device, uint64_t seed) {
  seed_generator(default_cpu_generator(), seed);
  if (!device.is_cpu()) seed_generator(generator_of(device), seed);
}

uint64_t global_seed() {
  if (own_seed) return *own_seed;
  const MutexLock lock(seed_mutex);
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

State capture_rng_state(const at::Device& device) {
  const auto leaf = [](const at::Generator& generator) {
    return TensorLeaf{generator_state(generator).clone(), {.kind = Placement::Kind::kRankLocal}};
  };
  State state = State::map();
  state["cpu"] = leaf(default_cpu_generator());
  if (!device.is_cpu()) state["device"] = leaf(generator_of(device));
  return state;
}

void restore_rng_state(const State& state, const at::Device& device) {
  if (const State* cpu = state.find("cpu")) set_generator_state(default_cpu_generator(), cpu->as_tensor());
  if (device.is_cpu()) return;
  const State* own = state.find("device");
  // Older checkpoints have each device of the process.
  if (own == nullptr) own = state.find(fmt::format("cuda{}", device.index()));
  if (own == nullptr) return;
  try {
    set_generator_state(generator_of(device), own->as_tensor());
  } catch (const c10::Error&) {
    // Generators of different kinds of devices have states of different forms.
    log::warning(
        fmt::format("the state of the device's random numbers is of another kind of device than {}; numbers "
                    "drawn there go on from the seed of the run, not from the checkpoint",
                    device.str()));
  }
}

}  // namespace levin
