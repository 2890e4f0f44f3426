#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/base/spec.h>
#include <levin/core/data/combined_plan.h>
#include <levin/core/data/data_module.h>

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace levin::data {

/// Options of CombinedData, explained in describe().
struct CombinedDataOptions {
  CombinedMode mode = CombinedMode::kMaxSizeCycle;
  std::map<std::string, Spec<DataModule>> parts = {};

  static void describe(Schema<CombinedDataOptions>& schema);
};

/// Several data modules, of which each training batch has a part: see DataLoader::combined. Hooks of the transfer see
/// their own part of it. The loaders of evaluation are those of all parts, one behind the other in the order of names.
class CombinedData : public DataModule {
 public:
  using Options = CombinedDataOptions;
  explicit CombinedData(const Options& options);

  /// Makes the parts that are given by name; levin::Cli does so with its own registry.
  void make_parts(const Registry<DataModule>& registry);

  void prepare_data() override;
  void setup(Stage stage) override;
  void teardown(Stage stage) override;
  DataLoader train_dataloader() override;
  DataLoaders val_dataloader() override;
  DataLoaders test_dataloader() override;
  DataLoaders predict_dataloader() override;
  Batch on_before_batch_transfer(Batch batch, int64_t dataloader_idx) override;
  Batch on_after_batch_transfer(Batch batch, int64_t dataloader_idx) override;
  State state_dict() const override;
  void load_state_dict(const State& state) override;

  using Part = std::pair<std::string, std::shared_ptr<DataModule>>;
  /// By name. Throws levin::Error where they were given by name and have not been made.
  const std::vector<Part>& parts() const;

 private:
  /// Tears down the first `count` parts; returns the first error.
  std::exception_ptr tear_down_parts(size_t count, Stage stage);
  DataLoaders loaders_of(DataLoaders (DataModule::*hook)());
  Batch transferred(Batch batch, int64_t dataloader_idx, Batch (DataModule::*hook)(Batch, int64_t));

  Options options_;
  std::vector<Part> parts_;
  /// Of each loader of evaluation that was handed out last, the part that it is of and its number there.
  std::vector<std::pair<size_t, int64_t>> evaluated_;
};

}  // namespace levin::data
