#include <levin/core/devices/gpu_selection.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string>

namespace levin {
namespace {

constexpr const char* kSelected = "LEVIN_SELECTED_GPUS";
/// A GPU that nobody uses may have a little memory in use: by the driver, or by a screen.
constexpr double kIdleMemoryMib = 1024;

/// "PID NUMBER NUMBER ..." of this process, or of the one that has started it as a rank; else nothing.
std::vector<int64_t> selected_before() {
  const char* const text = std::getenv(kSelected);
  if (text == nullptr) return {};
  std::istringstream words(text);
  int64_t process = 0;
  words >> process;
  if (process != getpid() && std::getenv("LEVIN_RANK") == nullptr) return {};
  std::vector<int64_t> selected;
  for (int64_t gpu = 0; words >> gpu;) selected.push_back(gpu);
  return selected;
}

void remember(const std::vector<int64_t>& selected) {
  std::string text = std::to_string(getpid());
  for (const int64_t gpu : selected) text += " " + std::to_string(gpu);
  setenv(kSelected, text.c_str(), /*overwrite=*/1);
}

/// Who uses a GPU, in words; an empty string when nobody does.
std::string users_of(Nvml& nvml, size_t gpu) {
  if (const std::string& fault = nvml.gpus()[gpu].fault; !fault.empty())
    return fmt::format("cannot be used, NVML says: {}", fault);
  const auto processes = nvml.processes(gpu);
  if (processes && !processes->empty()) {
    std::vector<std::string> others;
    for (const GpuProcess& process : *processes)
      if (process.pid != getpid())
        others.push_back(fmt::format("process {}{}", process.pid,
                                     process.memory_mib ? fmt::format(" ({:.0f} MiB)", *process.memory_mib) : ""));
    return others.empty() ? "" : "is used by " + join(others);
  }
  // In a container, those outside of it may not be listed either.
  const auto used = nvml.memory_used_mib(gpu);
  if (used && *used > kIdleMemoryMib)
    return fmt::format("has {:.0f} MiB in use by processes that NVML does not list", *used);
  if (!used && !processes) return "does not say who uses it";
  return "";
}

}  // namespace

std::vector<int64_t> select_free_gpus(int64_t count, const std::vector<PciAddress>& cuda_gpus) {
  const std::vector<int64_t> before = selected_before();
  if (!before.empty() && (count == -1 || std::cmp_equal(count, before.size()))) return before;

  const auto [nvml, reason] = Nvml::open();
  if (nvml == nullptr)
    throw ConfigError(
        fmt::format("trainer.auto_select_gpus cannot find out which GPUs are free: {}; hint: name them: "
                    "trainer.devices: [0, 2]",
                    reason));
  std::vector<int64_t> free;
  std::vector<std::string> used;
  for (size_t ordinal = 0; ordinal < cuda_gpus.size(); ++ordinal) {
    const auto is_it = [&](const NvmlGpu& gpu) { return gpu.address == cuda_gpus[ordinal]; };
    const auto found = std::find_if(nvml->gpus().begin(), nvml->gpus().end(), is_it);
    const bool is_ours = std::find(before.begin(), before.end(), ordinal) != before.end();
    std::string users;
    if (found == nvml->gpus().end())
      users = fmt::format("cuda:{} is not listed by NVML", ordinal);
    else if (const std::string by = users_of(*nvml, static_cast<size_t>(found - nvml->gpus().begin())); !by.empty())
      users = fmt::format("cuda:{}, {}, {}", ordinal, found->describe(), by);
    if (is_ours || users.empty())
      free.push_back(static_cast<int64_t>(ordinal));
    else
      used.push_back(users);
  }
  const int64_t wanted = std::max<int64_t>(count, 1);
  if (std::cmp_less(free.size(), wanted))
    throw ConfigError(
        fmt::format("trainer.auto_select_gpus: {} free GPU{} wanted; got {} of {}: {}; hint: end those processes, ask "
                    "for fewer GPUs, or name the GPUs to share: trainer.devices: [0]",
                    wanted, wanted == 1 ? " is" : "s are", free.size(), cuda_gpus.size(), join(used, "; ")));
  if (count != -1) free.resize(static_cast<size_t>(wanted));
  remember(free);
  return free;
}

}  // namespace levin
