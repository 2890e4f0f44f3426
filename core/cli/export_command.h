#pragma once

#include <levin/core/export/export_options.h>

#include <string>

namespace levin {

template <class T>
class Schema;

/// Options of the command export, the section `export`.
struct ExportCommandOptions {
  std::string output = {};
  ExportFormat format = ExportFormat::kByName;
  int64_t external_data_bytes = ExportOptions{}.external_data_bytes;

  static void describe(Schema<ExportCommandOptions>& schema);
};

/// Returns the lines that end an export.
std::string export_ending(const ExportReport& report);

}  // namespace levin
