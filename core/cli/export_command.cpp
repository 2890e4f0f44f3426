#include <levin/core/cli/export_command.h>

#include <levin/core/base/error.h>
#include <levin/core/base/schema.h>
#include <levin/core/data/data_module.h>
#include <levin/core/interfaces/module.h>

#include <fmt/format.h>

#include <functional>
#include <utility>
#include <vector>

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

Batch example_batch(Module& module, DataModule* data) {
  if (data != nullptr) {
    data->prepare_data();
    data->setup(Stage::kPredict);
  } else {
    module.prepare_data();
  }
  const std::vector<std::function<DataLoaders()>> kinds = {
      [&] { return data != nullptr ? data->predict_dataloader() : module.predict_dataloader(); },
      [&] { return data != nullptr ? data->test_dataloader() : module.test_dataloader(); },
      [&] { return data != nullptr ? data->val_dataloader() : module.val_dataloader(); },
      [&] { return DataLoaders(data != nullptr ? data->train_dataloader() : module.train_dataloader()); }};
  for (const auto& loaders_of : kinds) {
    for (const DataLoader& loader : loaders_of()) {
      auto batch = loader.pass({}).next();
      if (!batch || batch->empty()) continue;
      if (data != nullptr) batch = data->on_before_batch_transfer(std::move(*batch), 0);
      batch = module.on_before_batch_transfer(std::move(*batch), 0).to(at::kCPU);
      if (data != nullptr) batch = data->on_after_batch_transfer(std::move(*batch), 0);
      return module.on_after_batch_transfer(std::move(*batch), 0);
    }
  }
  throw Error(
      "export",
      "the model is traced with a batch, and there are no data; valid: a loader of prediction, test, validation "
      "or training; hint: in code, trainer.export_model takes an example");
}

std::string export_ending(const ExportReport& report) {
  return fmt::format("wrote {}: {} of {}{}\n", join(report.files, " and "), join(report.outputs), join(report.inputs),
                     report.fixed.empty() ? ", with any batch size" : "");
}

}  // namespace levin
