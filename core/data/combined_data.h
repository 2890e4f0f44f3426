#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/base/spec.h>
#include <levin/core/data/combined_plan.h>
#include <levin/core/data/data_parts.h>

#include <cstdint>
#include <map>
#include <string>

namespace levin::data {

/// Options of CombinedData, explained in describe().
struct CombinedDataOptions {
  CombinedMode mode = CombinedMode::kMaxSizeCycle;
  std::map<std::string, Spec<DataModule>> parts = {};

  static void describe(Schema<CombinedDataOptions>& schema);
};

/// Several data modules, of which each training batch has a part: see DataLoader::combined. Hooks of the transfer see
/// their own part of it.
class CombinedData : public DataParts {
 public:
  using Options = CombinedDataOptions;
  explicit CombinedData(const Options& options);

  DataLoader train_dataloader() override;
  Batch on_before_batch_transfer(Batch batch, int64_t dataloader_idx) override;
  Batch on_after_batch_transfer(Batch batch, int64_t dataloader_idx) override;

 private:
  Batch transferred(Batch batch, int64_t dataloader_idx, Batch (DataModule::*hook)(Batch, int64_t));

  CombinedMode mode_;
};

}  // namespace levin::data
