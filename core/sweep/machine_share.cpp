#include <levin/core/sweep/machine_share.h>

#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/base/error.h>
#include <levin/core/devices/cpu_cores.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <utility>

namespace levin::sweep {
namespace {

const Accelerator& gpus() { return *AcceleratorRegistry::instance().find("cuda"); }

std::vector<std::string> gpu_names() {
  const int64_t count = gpus().device_count();
  std::vector<std::string> names;
  if (const char* visible = std::getenv(gpus().visible_devices_variable().c_str()); visible != nullptr && count > 0) {
    std::istringstream text(visible);
    for (std::string name; std::getline(text, name, ',');) names.push_back(name);
  }
  for (auto i = static_cast<int64_t>(names.size()); i < count; ++i) names.push_back(std::to_string(i));
  names.resize(static_cast<size_t>(count));
  return names;
}

}  // namespace

MachineShare::MachineShare(int64_t parallel, double cores, std::vector<std::string> gpus, bool sets_threads)
    : parallel_(parallel), cores_(cores), gpus_(std::move(gpus)), sets_threads_(sets_threads) {}

MachineShare MachineShare::of_this_machine(int64_t parallel) {
  return {parallel, CpuCores().usable(), gpu_names(), std::getenv("OMP_NUM_THREADS") == nullptr};
}

size_t MachineShare::gpus_for(const RunDevices& devices) const {
  if (!devices.are_gpus) return 0;
  if (devices.all) return std::max<size_t>(1, gpus_.size() / static_cast<size_t>(parallel_));
  return static_cast<size_t>(devices.count);
}

void MachineShare::check(const RunDevices& devices) const {
  if (parallel_ > 1 && devices.are_gpus && devices.are_named)
    throw ConfigError(
        "trainer.devices names GPUs by number, which runs that go on at a time cannot share; valid: how many each run "
        "has, or sweep.parallel=1");
}

std::optional<MachineShare::Variables> MachineShare::take(int64_t run, const RunDevices& devices) {
  Variables variables;
  if (parallel_ > 1 && devices.are_gpus) {
    std::vector<std::string> free;
    for (const std::string& gpu : gpus_)
      if (!taken_.contains(gpu)) free.push_back(gpu);
    const size_t wanted = gpus_for(devices);
    if (free.size() < wanted) return {};
    free.resize(wanted);
    for (const std::string& gpu : free) taken_[gpu] = run;
    variables[gpus().visible_devices_variable()] = join(free, ",");
  }
  if (sets_threads_) {
    const int64_t ranks = devices.all ? std::max<int64_t>(1, static_cast<int64_t>(gpus_for(devices))) : devices.count;
    const double threads = cores_ / static_cast<double>(parallel_) / static_cast<double>(ranks);
    variables["OMP_NUM_THREADS"] = std::to_string(std::max<int64_t>(1, static_cast<int64_t>(threads)));
  }
  return variables;
}

void MachineShare::give_back(int64_t run) {
  std::erase_if(taken_, [run](const auto& entry) { return entry.second == run; });
}

}  // namespace levin::sweep
