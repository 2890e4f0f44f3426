#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/data/data_module.h>
#include <levin/core/data/sampling.h>
#include <levin/core/data/tokens/tokenizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace levin::data {

/// What an example of a text is: a block of so many tokens, or a line.
enum class TextExample { kBlock, kLine };

/// What a line is padded to: so many tokens, or the longest line of its batch.
enum class TextPadding { kLength, kLongest };

/// Options of TokenText, explained in describe().
struct TokenTextOptions {
  std::string path = {};
  std::optional<std::string> val_path = {};
  std::optional<std::string> test_path = {};
  std::string tokenizer = {};
  TextExample example = TextExample::kBlock;
  int64_t length = 128;
  int64_t padding = 0;
  TextPadding pad_to = TextPadding::kLength;
  std::optional<Spec<Sampling>> sampler = {};
  double val_fraction = 0.1;
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

  static void describe(Schema<TokenTextOptions>& schema);
};

/// A text file as tokens. Batches of blocks: "tokens" int64 [N, length], and "next" int64 [N, length], the
/// token that follows each; blocks follow each other without overlap, and what is left at the end is left out. Batches
/// of lines: "text" int64 [N, length], cut or padded, and "length" int64 [N], tokens before the padding; with
/// pad_to: longest [N, longest of the batch].
class TokenText : public DataModule {
 public:
  using Options = TokenTextOptions;
  explicit TokenText(const Options& options);

  void setup(Stage stage) override;
  DataLoader train_dataloader() override;
  DataLoaders val_dataloader() override;
  DataLoaders test_dataloader() override;
  DataLoaders predict_dataloader() override;

  /// Returns the tokenizer; known after setup.
  const Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  using Examples = std::shared_ptr<const Dataset>;
  Examples read(const std::string& path) const;
  DataLoader evaluation_loader(const Examples& examples) const;

  Options options_;
  std::shared_ptr<const Sampling> sampling_;  ///< nullptr: as shuffle says
  std::shared_ptr<const Tokenizer> tokenizer_;
  Examples train_;
  Examples validation_;
  Examples test_;
};

}  // namespace levin::data
