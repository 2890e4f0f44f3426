#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/data/data_module.h>
#include <levin/core/data/documents/document_options.h>
#include <levin/core/data/tokens/tokenizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin::data {

class JsonRows;
class RowSelection;
class TokenDocuments;
struct DocumentFormat;

/// Options of InstructionData, explained in describe().
struct InstructionDataOptions {
  std::vector<std::string> files = {};
  std::vector<std::string> val_files = {};
  std::vector<std::string> test_files = {};
  double val_fraction = 0;
  std::string tokenizer = {};
  std::optional<std::string> chat_template = {};
  std::optional<std::string> messages = {};
  std::optional<std::string> prompt = {};
  std::optional<std::string> answer = {};
  std::optional<std::string> system = {};
  std::optional<std::string> text = {};
  std::optional<std::string> end = {};
  LearnedAnswers loss_on = LearnedAnswers::kAll;
  int64_t context = 1024;
  bool pack = true;
  int64_t pack_window = 8192;
  LongDocuments long_documents = LongDocuments::kTruncate;
  std::optional<std::string> cache_folder = {};
  int64_t batch_size = 8;
  std::optional<int64_t> global_batch_size = {};
  int64_t num_workers = 0;
  int64_t prefetch_factor = 2;
  bool shuffle = true;
  bool drop_last = false;
  bool pin_memory = false;
  double timeout = 0;
  bool persistent_workers = true;
  OnError on_error = OnError::kRaise;

  static void describe(Schema<InstructionDataOptions>& schema);
};

/// Texts, prompts with answers, or chats of JSON lines as tokens for a language model: "tokens", "next" and
/// "positions", int64 [N, T], as CausalLm takes them. Of chats the answers alone are learned. Packed, documents share
/// rows of `context` places, which are made once, by prepare_data, and kept; else each has a row, padded to the longest
/// of the batch. Neither files nor rows are held in memory.
class InstructionData : public DataModule {
 public:
  using Options = InstructionDataOptions;
  explicit InstructionData(const Options& options);

  void prepare_data() override;
  void setup(Stage stage) override;
  DataLoader train_dataloader() override;
  DataLoaders val_dataloader() override;
  DataLoaders test_dataloader() override;
  DataLoaders predict_dataloader() override;

  /// Returns the tokenizer; known after setup.
  const Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  using Examples = std::shared_ptr<const Dataset>;
  DocumentFormat format_of(const JsonRows& rows) const;
  std::string cache_folder() const;
  Examples examples_of(const std::shared_ptr<const JsonRows>& rows, const RowSelection& selection) const;
  Examples all_of(const std::vector<std::string>& files) const;
  void open_tokenizer();
  DataLoader evaluation_loader(const Examples& examples) const;

  Options options_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  Examples train_;
  Examples validation_;
  Examples test_;
};

}  // namespace levin::data
