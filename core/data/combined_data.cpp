#include <levin/core/data/combined_data.h>

#include <utility>

namespace levin::data {

void CombinedDataOptions::describe(Schema<CombinedDataOptions>& schema) {
  using O = CombinedDataOptions;
  schema.field("mode", &O::mode,
               "end of an epoch: min_size: first part; max_size: longest; max_size_cycle: shorter parts repeat; "
               "sequential: one part after the other",
               {{"min_size", CombinedMode::kMinSize},
                {"max_size_cycle", CombinedMode::kMaxSizeCycle},
                {"max_size", CombinedMode::kMaxSize},
                {"sequential", CombinedMode::kSequential}});
  schema.field("parts", &O::parts, "data modules by name; a batch has their tensors as `NAME.TENSOR`");
}

CombinedData::CombinedData(const Options& options) : DataParts(options.parts), mode_(options.mode) {}

DataLoader CombinedData::train_dataloader() { return DataLoader::combined(training_loaders(), mode_); }

Batch CombinedData::transferred(Batch batch, int64_t dataloader_idx, Batch (DataModule::*hook)(Batch, int64_t)) {
  bool is_combined = false;
  for (const auto& [name, part] : parts()) {
    const Batch own = batch.part(name);
    if (own.empty()) continue;
    is_combined = true;
    batch.set_part(name, (part.get()->*hook)(own, 0));
  }
  const auto place = static_cast<size_t>(dataloader_idx);
  if (is_combined || place >= evaluated().size()) return batch;
  const auto [part, own_idx] = evaluated()[place];
  return (parts()[part].second.get()->*hook)(std::move(batch), own_idx);
}

Batch CombinedData::on_before_batch_transfer(Batch batch, int64_t dataloader_idx) {
  return transferred(std::move(batch), dataloader_idx, &DataModule::on_before_batch_transfer);
}
Batch CombinedData::on_after_batch_transfer(Batch batch, int64_t dataloader_idx) {
  return transferred(std::move(batch), dataloader_idx, &DataModule::on_after_batch_transfer);
}

}  // namespace levin::data
