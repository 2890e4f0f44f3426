#pragma once

#include <levin/core/base/events.h>
#include <levin/core/base/schema.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace levin {

class DataModule;
class Module;

/// Options of the command data, the section `inspect`.
struct DataCommandOptions {
  Stage stage = Stage::kFit;
  std::string output = "batch.png";
  int64_t images = 64;
  std::optional<std::vector<int64_t>> num_workers = {};
  double seconds = 3;

  static void describe(Schema<DataCommandOptions>& schema);
};

/// Prepares the data, writes a picture of a batch and returns what the command prints: what a batch holds, how often
/// each class occurs, examples a second by number of workers, and where the time of one thread goes. `data`: nullptr
/// where the module has the data hooks. `seed`: of the order and of random transforms. Throws levin::Error where there
/// are no data, and where the picture cannot be written.
std::string inspect_data(Module& module, DataModule* data, const DataCommandOptions& options, uint64_t seed);

}  // namespace levin
