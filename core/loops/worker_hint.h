#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace levin {

/// What an epoch's wait for its batches was like.
struct DataWait {
  std::chrono::nanoseconds waited{0};
  std::chrono::nanoseconds total{0};
  int64_t workers = 0;     ///< of the loader
  int64_t cores = 1;       ///< that the process may use
  bool is_stream = false;  ///< of an unsized data set, which may be made by the module itself
};

/// Returns a line that suggests more workers; empty where the wait was short, or there is no core for them.
std::string worker_hint(const DataWait& wait);

}  // namespace levin
