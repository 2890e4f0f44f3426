#pragma once

#include <levin/levin.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace example {

struct TextOptions {
  std::optional<std::string> path;
  int64_t context = 128;
  int64_t batch_size = 16;
  std::optional<int64_t> global_batch_size;
  int64_t num_workers = 0;
  double val_share = 0.05;
  std::string prompt = "And God said";
  int64_t samples = 1;

  static void describe(levin::Schema<TextOptions>& schema);
};

/// A text, character by character, cut into rows. Batches: "input" int64 [N, context], numbers of characters, and
/// "target", those that follow each of them. Prediction gets the prompt as "input".
class Text : public levin::DataModule {
 public:
  using Options = TextOptions;
  explicit Text(const Options& options) : options_(options) {}

  void setup(levin::Stage stage) override;
  levin::DataLoader train_dataloader() override { return loader_of(train_, /*shuffle=*/true); }
  levin::DataLoaders val_dataloader() override { return loader_of(validation_, /*shuffle=*/false); }
  levin::DataLoaders predict_dataloader() override { return loader_of(prompts_, /*shuffle=*/false); }

  /// After setup.
  const levin::data::CharacterVocabulary& vocabulary() const { return *vocabulary_; }

 private:
  using Dataset = std::shared_ptr<const levin::data::TensorDataset>;

  levin::DataLoader loader_of(const Dataset& dataset, bool shuffle) const;

  Options options_;
  std::optional<levin::data::CharacterVocabulary> vocabulary_;
  Dataset train_;
  Dataset validation_;
  Dataset prompts_;
};

}  // namespace example
