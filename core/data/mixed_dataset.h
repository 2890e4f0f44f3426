#pragma once

#include <levin/core/data/dataset.h>
#include <levin/core/data/transforms/batch_mix.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace levin::data {

/// Options of MixedDataset.
struct MixedDatasetOptions {
  BatchMixes mixes = {};       ///< one of them, drawn for each batch, mixes it; none: images stay as they are
  int64_t num_classes = 0;     ///< at least 1
  double label_smoothing = 0;  ///< part of each label's probability that all classes share, 0 to 1
};

/// Batches of a data set whose images are mixed with each other and whose labels become probabilities. What is random
/// is drawn where a batch is fetched and travels with it as tensors whose names begin with "mix."; the rest happens on
/// the device, in `finish`:
///
///     DataLoader train_dataloader() override { return DataLoader(mixed_, {.batch_size = 64, .shuffle = true}); }
///     Batch on_after_batch_transfer(Batch batch, int64_t) override { return mixed_->finish(std::move(batch)); }
///
/// Each image is mixed with the one before it in the batch of all ranks, the first one with the last. A rank fetches
/// that one besides, so that the number of ranks changes nothing. Must be the data set that the loader is given, not
/// one inside of another.
class MixedDataset final : public Dataset {
 public:
  /// `dataset`: its examples have "image", floating [channels, height, width] of one size, and "label", a class's
  /// number or the probabilities of all. Throws levin::Error for options out of range.
  MixedDataset(std::shared_ptr<const Dataset> dataset, MixedDatasetOptions options);

  int64_t size() const override { return dataset_->size(); }
  Batch get(int64_t index, Generator& generator) const override { return dataset_->get(index, generator); }
  /// Returns a batch that one rank has alone.
  Batch get_batch(std::span<const int64_t> indices, Generator& generator) const override;
  CollateFunction collate() const override { return dataset_->collate(); }

  /// Returns a rank's part of a batch. `before`: the example before its first one; nothing where the part is the whole
  /// batch. `common`: the same stream on all ranks. Throws levin::Error for a label outside the classes and for images
  /// that cannot be mixed.
  Batch get_part(std::span<const int64_t> indices, std::optional<int64_t> before, Generator& generator,
                 Generator& common) const;

  /// Mixes a batch that was fetched from here, on the device that it is on; returns any other batch as it is.
  Batch finish(Batch batch) const;

 private:
  void check(const Batch& batch) const;
  at::Tensor probabilities(const at::Tensor& label, at::ScalarType type) const;

  std::shared_ptr<const Dataset> dataset_;
  MixedDatasetOptions options_;
};

}  // namespace levin::data
