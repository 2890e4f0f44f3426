#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/interfaces/adapter_files.h>
#include <levin/core/interfaces/foreign_weights.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/nn/adapter_options.h>
#include <levin/core/nn/transformer/language_model.h>

#include <cstdint>
#include <string>

namespace levin {

struct CausalLmOptions {
  std::string path = {};   ///< a folder of Hugging Face, or a config.json
  bool pretrained = true;  ///< false: random weights, as config.json alone gives
  AdapterOptions adapters = {};

  static void describe(Schema<CausalLmOptions>& schema);
};

/// A language model of a folder of Hugging Face, to be trained on tokens: `model: {name: causal_lm, path: FOLDER}`.
/// Batches have "tokens" and "next", int64 [N, T], the token that follows each, −100 where none counts, and may have
/// "positions" (see nn::AttentionInputs). Logs train_loss, val_loss and test_loss, means over the tokens that count.
/// Prediction gives "logits" [N, T, vocabulary]. The optimizer is the trainer's. Folders of Hugging Face serve as its
/// checkpoints.
class CausalLm : public Module, public ForeignWeights {
 public:
  using Options = CausalLmOptions;
  explicit CausalLm(const Options& options);

  StepOutput training_step(const Batch& batch, int64_t batch_idx) override;
  StepOutput validation_step(const Batch& batch, int64_t batch_idx) override;
  StepOutput test_step(const Batch& batch, int64_t batch_idx) override;
  Batch predict_step(const Batch& batch, int64_t batch_idx) override;
  WeightRules rules_of(const std::string& path) const override;

  const nn::CausalLanguageModel& model() const { return model_; }
  /// Whether it began with the folder's weights.
  bool is_pretrained() const { return is_pretrained_; }
  /// Returns the folder of the config.json, where a tokenizer.json may be.
  std::string folder() const;
  /// Writes a folder for from_pretrained, with the config.json of `path`; see save_language_model.
  void save_folder(const std::string& folder) const;
  /// Writes the active adapter as PEFT does, or adds that of a folder of PEFT; see save_adapter and load_adapter.
  void save_adapter(const std::string& folder) const;
  void load_adapter(const std::string& folder, const std::string& adapter = "default");

 private:
  StepOutput step(const Batch& batch, const std::string& name);
  AdapterFilesOptions adapter_files(const std::string& adapter) const;

  std::string config_;  ///< the config.json
  bool is_pretrained_;
  nn::CausalLanguageModel model_{nullptr};
};

}  // namespace levin
