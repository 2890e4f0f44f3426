#include <levin/core/trainer/example_batch.h>

#include <levin/core/base/error.h>
#include <levin/core/data/data_module.h>
#include <levin/core/interfaces/loaders_of.h>
#include <levin/core/interfaces/module.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace levin {
namespace {

std::optional<Batch> first_batch(Module& module, DataModule* data, Stage kind) {
  DataLoaders loaders;
  if (data != nullptr) loaders = loaders_of(*data, kind);
  if (loaders.empty()) loaders = loaders_of(module, kind);
  for (const DataLoader& loader : loaders) {
    if (!loader) continue;
    auto batch = loader.pass({}).next();
    if (!batch || batch->empty()) continue;
    if (data != nullptr) batch = data->on_before_batch_transfer(std::move(*batch), 0);
    batch = module.on_before_batch_transfer(std::move(*batch), 0).to(at::kCPU);
    if (data != nullptr) batch = data->on_after_batch_transfer(std::move(*batch), 0);
    return module.on_after_batch_transfer(std::move(*batch), 0);
  }
  return std::nullopt;
}

}  // namespace

ExampleBatch find_example_batch(Module& module, DataModule* data) {
  if (data != nullptr) data->prepare_data();
  module.prepare_data();
  // What fits sets up validation too.
  const std::vector<std::pair<Stage, std::vector<Stage>>> kinds = {{Stage::kPredict, {Stage::kPredict}},
                                                                   {Stage::kTest, {Stage::kTest}},
                                                                   {Stage::kFit, {Stage::kValidate, Stage::kFit}}};
  for (const auto& [stage, kinds_of_stage] : kinds) {
    auto set_up = std::make_unique<SetUpScope>(module, data, stage);
    for (const Stage kind : kinds_of_stage)
      if (auto batch = first_batch(module, data, kind))
        return {.batch = std::move(*batch), .stage = stage, .set_up = std::move(set_up)};
    set_up->tear_down();
  }
  throw Error(
      "export",
      "the model is traced with a batch, and there are no data; valid: a loader of prediction, test, validation "
      "or training; hint: in code, trainer.export_model takes an example");
}

}  // namespace levin
