#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace levin {

/// Reading of this process. What cannot be read is absent; rates span the time since the last reading and are absent in
/// the first.
struct ProcessReading {
  std::optional<double> utilization_percent;  ///< of one core: 400 is four cores' time
  std::optional<double> resident_memory_mib;
  std::optional<double> resident_memory_peak_mib;  ///< since the process began
  std::optional<double> read_mib_per_second;       ///< from storage, without hits of the page cache
  std::optional<double> written_mib_per_second;    ///< to storage
  std::optional<double> threads;
};
/// Reading of the host, alike.
struct HostReading {
  std::optional<double> utilization_percent;  ///< of all cores together: 100 is all of them busy
  std::optional<double> available_memory_mib;
};

/// Reads from Linux' /proc. One thread at a time may use an object.
class ProcessStats {
 public:
  ProcessReading read_process();
  HostReading read_host();

 private:
  using Clock = std::chrono::steady_clock;

  /// The counters of the last reading.
  struct Process {
    Clock::time_point time;
    double cpu_seconds = 0;
    std::optional<double> read_mib;
    std::optional<double> written_mib;
  };
  struct Host {
    double busy = 0;
    double all = 0;
  };
  std::optional<Process> process_;
  std::optional<Host> host_;
};

}  // namespace levin
