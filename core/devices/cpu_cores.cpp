#include <levin/core/devices/cpu_cores.h>

#include <levin/core/devices/process_stats.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>
#include <utility>

namespace levin {
namespace {

constexpr std::chrono::milliseconds kLook{100};

/// "0-3,8" as numbers.
std::set<int64_t> numbers_of_list(const std::string& list) {
  std::set<int64_t> numbers;
  std::istringstream ranges(list);
  for (std::string range; std::getline(ranges, range, ',');) {
    std::istringstream words(range);
    int64_t first = 0;
    int64_t last = 0;
    char dash = 0;
    if (!(words >> first)) continue;
    if (!(words >> dash >> last)) last = first;
    for (int64_t number = first; number <= last; ++number) numbers.insert(number);
  }
  return numbers;
}

/// Ticks since the host started.
struct CoreTicks {
  double idle = 0;
  double all = 0;
};

/// Of some cores together, from the lines "cpuN user nice system idle iowait irq softirq steal ..." of /proc/stat.
CoreTicks ticks_of(const std::string& stat, const std::set<int64_t>& cores) {
  CoreTicks sum;
  std::istringstream lines(stat);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    std::array<double, 8> ticks{};
    words >> name;
    for (double& value : ticks) words >> value;
    if (!words || name.size() < 4 || !name.starts_with("cpu") || !cores.contains(std::atoll(name.c_str() + 3)))
      continue;
    for (const double value : ticks) sum.all += value;
    sum.idle += ticks[3] + ticks[4];
  }
  return sum;
}

/// The number after a word at the start of a line, or nothing.
std::optional<double> number_after(const std::string& text, const std::string& word) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    double number = 0;
    if (line.starts_with(word) && std::istringstream(line.substr(word.size())) >> number) return number;
  }
  return std::nullopt;
}

void take_smaller(std::optional<double>& quota, double time, double period) {
  if (time > 0 && period > 0) quota = std::min(quota.value_or(time / period), time / period);
}

}  // namespace

CpuCores::CpuCores(std::string root) : root_(std::move(root)) {
  const std::string status = text_of("/proc/self/status");
  const std::string name = "Cpus_allowed_list:";
  if (const size_t found = status.find(name); found != std::string::npos)
    allowed_ = numbers_of_list(status.substr(found + name.size(), status.find('\n', found) - found - name.size()));
  if (allowed_.empty())
    for (int64_t core = 0; core < std::max<int64_t>(1, std::thread::hardware_concurrency()); ++core)
      allowed_.insert(core);
}

std::string CpuCores::text_of(const std::string& path) const {
  std::ifstream file(root_ + path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// The least of the process' control group and those around it. Inside a container the group's path may be that outside
/// of it, but the container's own group is then where the hierarchy begins.
std::optional<double> CpuCores::quota() const {
  std::optional<double> quota;
  std::istringstream groups(text_of("/proc/self/cgroup"));
  // "0::/path" in version 2; "4:cpu,cpuacct:/path" in version 1.
  for (std::string line; std::getline(groups, line);) {
    const size_t colon = line.find(':');
    const size_t next = line.find(':', colon + 1);
    if (next == std::string::npos) continue;
    const std::string controllers = "," + line.substr(colon + 1, next - colon - 1) + ",";
    const bool version_2 = controllers == ",,";
    if (!version_2 && controllers.find(",cpu,") == std::string::npos) continue;
    const std::string hierarchy = version_2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu";
    for (std::string path = line.substr(next + 1);; path.erase(path.rfind('/'))) {
      while (path.ends_with('/')) path.pop_back();
      const std::string group = hierarchy + path;
      if (version_2) {
        double time = 0;
        double period = 0;
        if (std::istringstream(text_of(group + "/cpu.max")) >> time >> period) take_smaller(quota, time, period);
      } else {
        take_smaller(quota, number_after(text_of(group + "/cpu.cfs_quota_us"), "").value_or(0),
                     number_after(text_of(group + "/cpu.cfs_period_us"), "").value_or(0));
      }
      if (path.rfind('/') == std::string::npos) break;
    }
  }
  return quota;
}

double CpuCores::usable() const {
  const auto cores = static_cast<double>(allowed_.size());
  return std::min(cores, quota().value_or(cores));
}

double CpuCores::free(double enough) const {
  const double most = usable();
  const std::string before = text_of("/proc/stat");
  // All threads of the host that run or wait for a core, this one among them.
  const double running = number_after(before, "procs_running ").value_or(1);
  if (static_cast<double>(allowed_.size()) - (running - 1) >= enough) return most;
  ProcessStats own;
  own.read_process();
  std::this_thread::sleep_for(kLook);
  const auto idle = idle_cores(before, text_of("/proc/stat"), allowed_);
  if (!idle) return most;
  return std::min(most, *idle + own.read_process().utilization_percent.value_or(0) / 100);
}

std::optional<double> idle_cores(const std::string& before, const std::string& after, const std::set<int64_t>& cores) {
  const CoreTicks first = ticks_of(before, cores);
  const CoreTicks last = ticks_of(after, cores);
  if (last.all <= first.all) return std::nullopt;
  // Counters of the idle time may step back.
  return static_cast<double>(cores.size()) * std::max(0.0, last.idle - first.idle) / (last.all - first.all);
}

int64_t threads_of_rank(int64_t local_ranks) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return 0;
  return std::max<int64_t>(1, static_cast<int64_t>(CpuCores().usable()) / local_ranks);
}

}  // namespace levin
