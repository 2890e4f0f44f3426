// A million scalars through each logger: how fast they are written, what the one who logs pays, and whether memory
// grows.
//
//   build/bin/logging_benchmark [SCALARS] [LOGGER...]      default: 1000000, every logger that needs no server, and
//   mlflow
//                                                          with a server that is not there (all is kept on disk)
#include "measure.h"

#include <levin/core/base/config.h>
#include <levin/core/interfaces/logger.h>
#include <levin/core/options/registries.h>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace {

using levin::benchmarks::Clock;
using levin::benchmarks::seconds_since;

constexpr int64_t kMetrics = 10;

double resident_mib() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0;
  int64_t resident = 0;
  file >> total >> resident;
  return static_cast<double>(resident * sysconf(_SC_PAGESIZE)) / (1 << 20);
}

double folder_mib(const std::filesystem::path& folder) {
  double bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) bytes += static_cast<double>(entry.file_size());
  return bytes / (1 << 20);
}

void run(const std::string& name, int64_t scalars) {
  const auto folder = std::filesystem::temp_directory_path() / "levin_logging_benchmark" / name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  // Nothing answers on that port.
  const levin::Config options =
      levin::Config::parse(name == "mlflow" ? "{tracking_uri: 'http://127.0.0.1:9', finish_seconds: 5}" : "{}", {});
  const auto logger = levin::registries().loggers.make(name, options, "logger");
  std::vector<levin::MetricValue> values(kMetrics);
  for (int64_t i = 0; i < kMetrics; ++i) values[static_cast<size_t>(i)].name = fmt::format("train/metric_{}", i);
  logger->start({.directory = folder.string(), .name = name});
  const int64_t rows = scalars / kMetrics;
  double early = 0;
  const auto started = Clock::now();
  for (int64_t row = 0; row < rows; ++row) {
    for (auto& value : values) value.value = std::sin(static_cast<double>(row) * 1e-3) + 1;
    logger->log_metrics(values, row, row / 1000);
    if (row == rows / 5) early = resident_mib();
  }
  const double logged = seconds_since(started);
  const double grown = resident_mib() - early;
  logger->finish(levin::TrainerStatus::kFinished);
  const double finished = seconds_since(started);
  std::printf(
      "%-12s %8.2f us a row of %lld   %10.0f scalars/s logged   %10.0f scalars/s on disk   %6.1f MiB written   "
      "memory grew by %.1f MiB in the last four fifths\n",
      name.c_str(), 1e6 * logged / static_cast<double>(rows), static_cast<long long>(kMetrics),
      static_cast<double>(scalars) / logged, static_cast<double>(scalars) / finished, folder_mib(folder), grown);
  std::fflush(stdout);
  std::filesystem::remove_all(folder);
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t scalars = argc > 1 ? std::stoll(argv[1]) : 1'000'000;
  std::vector<std::string> names(argv + std::min(argc, 2), argv + argc);
  if (names.empty()) names = {"csv", "tensorboard", "wandb", "mlflow"};
  for (const std::string& name : names) run(name, scalars);
  return 0;
}
