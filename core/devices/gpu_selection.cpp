#include <levin/core/devices/gpu_selection.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <future>
#include <memory>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

namespace levin {
namespace {

using Selected = std::map<int64_t, std::vector<int64_t>>;

constexpr const char* kVariable = "LEVIN_SELECTED_GPUS";
/// A GPU that nobody uses may have a little memory in use: by the driver, or by a screen.
constexpr double kIdleMemoryMib = 1024;

/// "PID COUNT:GPU,GPU COUNT:GPU ..." of this process, or of the one that has started it as a rank; else nothing.
Selected selected_before() {
  const char* const text = std::getenv(kVariable);
  if (text == nullptr) return {};
  std::istringstream words(text);
  int64_t process = 0;
  words >> process;
  if (process != getpid() && std::getenv("LEVIN_RANK") == nullptr) return {};
  Selected selected;
  char separator = ':';
  for (int64_t count = 0; words >> count;) {
    std::vector<int64_t>& gpus = selected[count];
    for (int64_t gpu = 0; words.get(separator) && separator != ' ' && words >> gpu;) gpus.push_back(gpu);
  }
  return selected;
}

void tell_ranks(const Selected& selected) {
  std::string text = std::to_string(getpid());
  for (const auto& [count, gpus] : selected) text += fmt::format(" {}:{}", count, fmt::join(gpus, ","));
  setenv(kVariable, text.c_str(), /*overwrite=*/1);
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

/// What NVML says.
struct Survey {
  std::string why_none;            ///< there is no NVML, for this reason
  std::vector<std::string> users;  ///< of each GPU, in CUDA's order, in words; empty where nobody uses it
};

Survey survey(const std::vector<PciAddress>& cuda_gpus, const std::atomic<bool>& is_abandoned) {
  const auto [nvml, reason] = Nvml::open(&is_abandoned);
  if (nvml == nullptr) return {.why_none = reason, .users = {}};
  Survey result;
  for (size_t ordinal = 0; ordinal < cuda_gpus.size(); ++ordinal) {
    const auto is_it = [&](const NvmlGpu& gpu) { return gpu.address == cuda_gpus[ordinal]; };
    const auto found = std::find_if(nvml->gpus().begin(), nvml->gpus().end(), is_it);
    std::string& users = result.users.emplace_back();
    if (found == nvml->gpus().end())
      users = fmt::format("cuda:{} is not listed by NVML", ordinal);
    else if (const std::string by = users_of(*nvml, static_cast<size_t>(found - nvml->gpus().begin())); !by.empty())
      users = fmt::format("cuda:{}, {}, {}", ordinal, found->describe(), by);
  }
  return result;
}

/// The same, from a thread that is left to itself where the driver holds it: nothing then.
std::optional<Survey> survey_within(std::chrono::milliseconds patience, const std::vector<PciAddress>& cuda_gpus) {
  struct Inquiry {
    std::vector<PciAddress> cuda_gpus;
    std::atomic<bool> is_abandoned{false};
    std::promise<Survey> answer;
  };
  const auto inquiry = std::make_shared<Inquiry>();
  inquiry->cuda_gpus = cuda_gpus;
  auto answer = inquiry->answer.get_future();
  std::thread([inquiry] {
    pthread_setname_np(pthread_self(), "levin-gpus");
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    try {
      inquiry->answer.set_value(survey(inquiry->cuda_gpus, inquiry->is_abandoned));
    } catch (...) {
      inquiry->answer.set_exception(std::current_exception());
    }
  }).detach();
  if (answer.wait_for(patience) == std::future_status::ready) return answer.get();
  inquiry->is_abandoned = true;
  return std::nullopt;
}

}  // namespace

GpuSelection::GpuSelection(std::chrono::milliseconds patience) : patience_(patience), selected_(selected_before()) {}

GpuSelection& GpuSelection::of_process() {
  static GpuSelection selection;
  return selection;
}

std::vector<int64_t> GpuSelection::select(int64_t count, const std::vector<PciAddress>& cuda_gpus) {
  const MutexLock lock(mutex_);
  const auto before = selected_.find(count);
  if (before != selected_.end()) return before->second;
  std::vector<int64_t> gpus = choose(count, cuda_gpus);
  selected_[count] = gpus;
  tell_ranks(selected_);
  return gpus;
}

bool GpuSelection::was_selected(int64_t gpu) const {
  return std::any_of(selected_.begin(), selected_.end(), [gpu](const auto& selected) {
    return std::find(selected.second.begin(), selected.second.end(), gpu) != selected.second.end();
  });
}

std::vector<int64_t> GpuSelection::choose(int64_t count, const std::vector<PciAddress>& cuda_gpus) const {
  const auto all = static_cast<int64_t>(cuda_gpus.size());
  const auto answer = survey_within(patience_, cuda_gpus);
  if (!answer) {
    std::vector<int64_t> first(static_cast<size_t>(count == -1 ? all : count));
    std::iota(first.begin(), first.end(), 0);
    log::warning(
        fmt::format("trainer.auto_select_gpus: the GPUs' driver has not said for {} s who uses them, so cuda:{} {} "
                    "taken; hint: see whether nvidia-smi gets an answer, or name the GPUs: trainer.devices: [0, 2]",
                    std::chrono::duration<double>(patience_).count(), fmt::join(first, ", cuda:"),
                    first.size() == 1 ? "is" : "are"));
    return first;
  }
  if (!answer->why_none.empty())
    throw ConfigError(
        fmt::format("trainer.auto_select_gpus cannot find out which GPUs are free: {}; hint: name them: "
                    "trainer.devices: [0, 2]",
                    answer->why_none));
  std::vector<int64_t> free;
  std::vector<int64_t> selected;
  std::vector<std::string> used;
  for (int64_t gpu = 0; gpu < all; ++gpu) {
    const std::string& users = answer->users[static_cast<size_t>(gpu)];
    if (was_selected(gpu))
      selected.push_back(gpu);
    else if (users.empty())
      free.push_back(gpu);
    else
      used.push_back(users);
  }
  free.insert(free.end(), selected.begin(), selected.end());
  const int64_t wanted = std::max<int64_t>(count, 1);
  if (std::cmp_less(free.size(), wanted))
    throw ConfigError(
        fmt::format("trainer.auto_select_gpus: {} free GPU{} wanted; got {} of {}: {}; hint: end those processes, ask "
                    "for fewer GPUs, or name the GPUs to share: trainer.devices: [0]",
                    wanted, wanted == 1 ? " is" : "s are", free.size(), all, join(used, "; ")));
  if (count != -1) free.resize(static_cast<size_t>(count));
  std::sort(free.begin(), free.end());
  return free;
}

}  // namespace levin
