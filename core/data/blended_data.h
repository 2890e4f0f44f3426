#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/base/spec.h>
#include <levin/core/data/blend_sampler.h>
#include <levin/core/data/data_parts.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace levin::data {

/// Options of BlendedData, explained in describe().
struct BlendedDataOptions {
  std::map<std::string, Spec<DataModule>> parts = {};
  std::map<std::string, double> mix = {};
  double temperature = 1;
  BlendEnd at_end = BlendEnd::kRepeat;
  int64_t examples = 0;
  int64_t batch_size = 64;
  std::optional<int64_t> global_batch_size = {};
  int64_t num_workers = 0;
  int64_t prefetch_factor = 2;
  bool drop_last = false;
  bool pin_memory = false;
  double timeout = 0;
  bool persistent_workers = true;
  OnError on_error = OnError::kRaise;

  static void describe(Schema<BlendedDataOptions>& schema);
};

/// Several data modules whose training examples are drawn by weight, each batch of all of them: see BlendSampler, and
/// BlendStream where one has no size. Their examples must have the same tensors. Of the parts' options those of their
/// loaders do not matter, but for the orders that they say; nor do their hooks of the transfer.
class BlendedData : public DataParts {
 public:
  using Options = BlendedDataOptions;
  explicit BlendedData(const Options& options);

  DataLoader train_dataloader() override;

 private:
  std::vector<double> weights(const std::vector<DataLoader::Part>& loaders) const;

  Options options_;
};

}  // namespace levin::data
