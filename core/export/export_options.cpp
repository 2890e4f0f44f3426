#include <levin/core/export/export_options.h>

#include <levin/core/base/schema.h>

namespace levin {

void ExportOptions::describe(Schema<ExportOptions>& schema) {
  using O = ExportOptions;
  schema.field(
      "format", &O::format,
      "of the file; by_name: as the file's name ends, .pt, .pth and .ts for torchscript, .onnx for onnx",
      {{"by_name", ExportFormat::kByName}, {"torchscript", ExportFormat::kTorchScript}, {"onnx", ExportFormat::kOnnx}});
  schema
      .field("external_data_bytes", &O::external_data_bytes,
             "the weights of an ONNX file lie in a second one, FILE.data, where together they have so many bytes or "
             "more")
      .at_least(1)
      .at_most(1'900'000'000);
}

}  // namespace levin
