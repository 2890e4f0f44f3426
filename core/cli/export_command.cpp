#include <levin/core/cli/export_command.h>

#include <levin/core/base/schema.h>

#include <fmt/format.h>

namespace levin {

void ExportCommandOptions::describe(Schema<ExportCommandOptions>& schema) {
  using O = ExportCommandOptions;
  schema.field("output", &O::output, "the file to write; also -o FILE");
  schema.field(
      "format", &O::format,
      "of the file, also --format; by_name: as its name ends, .pt, .pth and .ts for torchscript, .onnx for "
      "onnx",
      {{"by_name", ExportFormat::kByName}, {"torchscript", ExportFormat::kTorchScript}, {"onnx", ExportFormat::kOnnx}});
  schema
      .field("external_data_bytes", &O::external_data_bytes,
             "the weights of an ONNX file lie in a second one, FILE.data, where together they have so many bytes or "
             "more")
      .at_least(1)
      .at_most(1'900'000'000);
}

std::string export_ending(const ExportReport& report) {
  return fmt::format("wrote {}: {} of {}{}\n", join(report.files, " and "), join(report.outputs), join(report.inputs),
                     report.fixed.empty() ? ", with any batch size" : "");
}

}  // namespace levin
