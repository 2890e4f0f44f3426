#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/data/data_module.h>
#include <levin/core/data/dataset.h>
#include <levin/core/data/sampling.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin::data {

/// Options of NumpyArrays, explained in describe().
struct NumpyArraysOptions {
  std::string path = {};
  std::optional<std::string> val_path = {};
  std::optional<std::string> test_path = {};
  double val_fraction = 0.1;
  double test_fraction = 0;
  uint64_t split_seed = 0;
  std::optional<std::string> stratify = {};
  std::optional<Spec<Sampling>> sampler = {};
  int64_t batch_size = 64;
  std::optional<int64_t> global_batch_size = {};
  int64_t num_workers = 0;
  int64_t prefetch_factor = 2;
  bool shuffle = true;
  bool drop_last = false;
  bool pin_memory = false;
  double timeout = 0;
  bool persistent_workers = true;
  OnError on_error = OnError::kRaise;

  static void describe(Schema<NumpyArraysOptions>& schema);
};

/// Arrays that NumPy saved, whose first dimensions count the examples: those of an .npz file, which are in memory, or
/// of .npy files, which are read as they are used. Batches have a tensor for each, under its name in the .npz file or
/// the .npy file's name without its ending. Unsigned numbers of 16 bits become int32, those of 32 and 64 bits int64.
class NumpyArrays : public DataModule {
 public:
  using Options = NumpyArraysOptions;
  explicit NumpyArrays(const Options& options);

  void setup(Stage stage) override;
  DataLoader train_dataloader() override;
  DataLoaders val_dataloader() override;
  DataLoaders test_dataloader() override;
  DataLoaders predict_dataloader() override;

 private:
  using Examples = std::shared_ptr<const Dataset>;
  DataLoader evaluation_loader(const Examples& examples) const;

  Options options_;
  std::shared_ptr<const Sampling> sampling_;  ///< nullptr: as shuffle says
  Examples train_;
  Examples validation_;
  Examples test_;
};

}  // namespace levin::data
