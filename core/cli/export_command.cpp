#include <levin/core/cli/export_command.h>

#include <levin/core/base/error.h>
#include <levin/core/base/schema.h>
#include <levin/core/data/data_module.h>
#include <levin/core/interfaces/module.h>

#include <fmt/format.h>

#include <optional>
#include <utility>

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

namespace {

/// The loaders of one kind, set up: of the data, or of the module that has the data hooks.
template <class Source>
DataLoaders loaders_of_kind(Source& source, RunningStage kind) {
  switch (kind) {
    case RunningStage::kPredict:
      return source.predict_dataloader();
    case RunningStage::kTest:
      return source.test_dataloader();
    case RunningStage::kValidate:
      return source.val_dataloader();
    default:
      return source.train_dataloader();
  }
}

}  // namespace

Batch example_batch(Module& module, DataModule* data) {
  if (data != nullptr)
    data->prepare_data();
  else
    module.prepare_data();
  // Each kind after the stage that sets it up; what fits sets up validation too.
  constexpr std::pair<Stage, RunningStage> kKinds[] = {{Stage::kPredict, RunningStage::kPredict},
                                                       {Stage::kTest, RunningStage::kTest},
                                                       {Stage::kFit, RunningStage::kValidate},
                                                       {Stage::kFit, RunningStage::kTrain}};
  std::optional<Stage> stage_set_up;
  for (const auto& [stage, kind] : kKinds) {
    if (stage_set_up != stage) {
      if (data != nullptr) data->setup(stage);
      module.setup(stage);
      stage_set_up = stage;
    }
    for (const DataLoader& loader : data != nullptr ? loaders_of_kind(*data, kind) : loaders_of_kind(module, kind)) {
      if (!loader) continue;
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
