#include <levin/core/devices/process_stats.h>

#include <levin/core/accelerators/byte_units.h>

#include <time.h>
#include <array>
#include <cstdlib>
#include <fstream>
#include <string>

namespace levin {
namespace {

/// The number after a name such as "VmRSS:" in a file of lines "NAME NUMBER ...".
class NamedNumbers {
 public:
  explicit NamedNumbers(const char* path) : file_(path) {}
  /// The next line's name and number; false at the end.
  bool next() {
    std::string line;
    while (std::getline(file_, line)) {
      const size_t colon = line.find(':');
      if (colon == std::string::npos) continue;
      name = line.substr(0, colon);
      char* end = nullptr;
      value = std::strtod(line.c_str() + colon + 1, &end);
      if (end != line.c_str() + colon + 1) return true;
    }
    return false;
  }
  std::string name;
  double value = 0;

 private:
  std::ifstream file_;
};

double cpu_seconds() {
  timespec spent{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
  return static_cast<double>(spent.tv_sec) + static_cast<double>(spent.tv_nsec) * 1e-9;
}

/// Per second, of a counter that both readings have.
std::optional<double> rate(std::optional<double> now, std::optional<double> before, double seconds) {
  if (!now || !before || *now < *before) return std::nullopt;
  return (*now - *before) / seconds;
}

}  // namespace

ProcessReading ProcessStats::read_process() {
  ProcessReading reading;
  for (NamedNumbers status("/proc/self/status"); status.next();) {
    if (status.name == "VmRSS") reading.resident_memory_mib = status.value / kKibibytesInMebibyte;
    if (status.name == "VmHWM") reading.resident_memory_peak_mib = status.value / kKibibytesInMebibyte;
    if (status.name == "Threads") reading.threads = status.value;
  }
  Process now{.time = Clock::now(), .cpu_seconds = cpu_seconds(), .read_mib = {}, .written_mib = {}};
  for (NamedNumbers io("/proc/self/io"); io.next();) {
    if (io.name == "read_bytes") now.read_mib = io.value / kMebibyte;
    if (io.name == "write_bytes") now.written_mib = io.value / kMebibyte;
  }
  if (process_) {
    const double seconds = std::chrono::duration<double>(now.time - process_->time).count();
    if (seconds <= 0) return reading;
    reading.utilization_percent = 100 * (now.cpu_seconds - process_->cpu_seconds) / seconds;
    reading.read_mib_per_second = rate(now.read_mib, process_->read_mib, seconds);
    reading.written_mib_per_second = rate(now.written_mib, process_->written_mib, seconds);
  }
  process_ = now;
  return reading;
}

HostReading ProcessStats::read_host() {
  HostReading reading;
  for (NamedNumbers memory("/proc/meminfo"); memory.next();)
    if (memory.name == "MemAvailable") reading.available_memory_mib = memory.value / kKibibytesInMebibyte;

  // "cpu  user nice system idle iowait irq softirq steal guest guest_nice", in ticks of all cores; guests' time is part
  // of the users'.
  std::ifstream stat("/proc/stat");
  std::string name;
  std::array<double, 8> ticks{};
  stat >> name;
  for (double& value : ticks) stat >> value;
  if (!stat || name != "cpu") return reading;
  Host now;
  for (const double value : ticks) now.all += value;
  now.busy = now.all - ticks[3] - ticks[4];
  // Ticks are a hundredth of a second; counters of the idle time may step back.
  if (host_ && now.all <= host_->all) return reading;
  if (host_ && now.busy >= host_->busy)
    reading.utilization_percent = 100 * (now.busy - host_->busy) / (now.all - host_->all);
  host_ = now;
  return reading;
}

}  // namespace levin
