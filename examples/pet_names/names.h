#pragma once

#include <levin/levin.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace example {

struct NamesOptions {
  std::optional<std::string> path;
  std::string python = "python3";
  bool surnames = false;
  int64_t window = 8;
  int64_t batch_size = 64;
  std::optional<int64_t> global_batch_size;
  int64_t num_workers = 0;
  double val_share = 0.05;
  std::string beginning;
  int64_t samples = 10;

  static void describe(levin::Schema<NamesOptions>& schema);
};

/// Names, character by character; the end of a line is the stop sign. Batches: "window" int64 [N, window], numbers of
/// the last characters, padded in front where the name has fewer, and "next" int64 [N], the character that follows.
/// Prediction gets windows that end with `beginning`.
class Names : public levin::DataModule {
 public:
  using Options = NamesOptions;
  explicit Names(const Options& options) : options_(options) {}

  void setup(levin::Stage stage) override;
  levin::DataLoader train_dataloader() override { return loader_of(train_, /*shuffle=*/true); }
  levin::DataLoaders val_dataloader() override { return loader_of(validation_, /*shuffle=*/false); }
  levin::DataLoaders predict_dataloader() override { return loader_of(beginnings_, /*shuffle=*/false); }

  /// After setup.
  const levin::data::CharacterVocabulary& vocabulary() const { return *vocabulary_; }
  /// What these numbers spell, up to the first stop sign.
  std::string decode(const torch::Tensor& characters) const;

 private:
  using Dataset = std::shared_ptr<const levin::data::TensorDataset>;

  levin::Batch windows_of(const std::vector<std::string>& names) const;
  levin::DataLoader loader_of(const Dataset& dataset, bool shuffle) const;

  Options options_;
  std::optional<levin::data::CharacterVocabulary> vocabulary_;
  Dataset train_;
  Dataset validation_;
  Dataset beginnings_;
};

}  // namespace example
