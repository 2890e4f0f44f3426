#pragma once

#include <levin/core/export/export_options.h>

#include <string>

namespace levin {

template <class T>
class Schema;

class Batch;
class DataModule;
class Module;

/// Options of the command export, the section `export`.
struct ExportCommandOptions {
  std::string output = {};
  ExportFormat format = ExportFormat::kByName;
  int64_t external_data_bytes = ExportOptions{}.external_data_bytes;

  static void describe(Schema<ExportCommandOptions>& schema);
};

/// Returns the first batch of the data, which is prepared for it, as steps get it: that of the prediction loaders, else
/// of test, validation or training. `data`: nullptr where the module has the data hooks. Throws levin::Error where
/// there is none.
Batch example_batch(Module& module, DataModule* data);

/// Returns the lines that end an export.
std::string export_ending(const ExportReport& report);

}  // namespace levin
