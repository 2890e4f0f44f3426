#pragma once

#include <levin/levin.h>

#include <cstdint>

/// A decoder-only transformer (Radford et al., 2019, "Language Models are Unsupervised Multitask Learners"), in units.
namespace example {

struct GptOptions {
  int64_t vocabulary = 80;
  int64_t context = 128;
  int64_t layers = 4;
  int64_t width = 128;
  int64_t heads = 4;
  double dropout = 0;
  bool tie_weights = true;
  double lr = 1e-3;
  double weight_decay = 0.1;
  int64_t warmup_steps = 50;
  int64_t sample_length = 300;
  double temperature = 0.8;

  static void describe(levin::Schema<GptOptions>& schema);
};

/// Tokens int64 [N, T], T at most `context`, become [N, T, width]: what they are, and where.
struct EmbeddingImpl : torch::nn::Module, levin::HasTensorPlan {
  explicit EmbeddingImpl(const GptOptions& options);
  torch::Tensor forward(const torch::Tensor& tokens);
  levin::TensorPlan tensor_plan() const override;

  torch::nn::Embedding tokens{nullptr};
  torch::Tensor positions;  ///< [context, width]
  torch::nn::Dropout dropout{nullptr};
};
LEVIN_UNIT(Embedding);

/// Causal self-attention and two linear layers, each added to its input after a norm: [N, T, width] stays so.
struct BlockImpl : torch::nn::Module, levin::HasTensorPlan {
  explicit BlockImpl(const GptOptions& options);
  torch::Tensor forward(const torch::Tensor& x);
  levin::TensorPlan tensor_plan() const override;

  torch::nn::LayerNorm attention_norm{nullptr};
  torch::nn::Linear queries_keys_values{nullptr};
  torch::nn::Linear attention_out{nullptr};
  torch::nn::LayerNorm mlp_norm{nullptr};
  torch::nn::Linear mlp_in{nullptr};
  torch::nn::Linear mlp_out{nullptr};
  torch::nn::Dropout dropout{nullptr};

 private:
  torch::Tensor attention(const torch::Tensor& x);

  int64_t heads_;
  int64_t head_width_;
  double attention_dropout_;
};
LEVIN_UNIT(Block);

/// [N, T, width] becomes logits [N, T, vocabulary].
struct HeadImpl : torch::nn::Module, levin::HasTensorPlan {
  /// `tied`: the weight [vocabulary, width] of another layer, to be shared; undefined for one of its own.
  HeadImpl(const GptOptions& options, const torch::Tensor& tied);
  torch::Tensor forward(const torch::Tensor& x);
  levin::TensorPlan tensor_plan() const override;

  torch::nn::LayerNorm norm{nullptr};
  torch::Tensor weight;
};
LEVIN_UNIT(Head);

/// Batches have "input" and "target", int64 [N, T]: numbers of tokens, and of those that follow each. Logs train_loss,
/// val_loss and val_perplexity. Prediction continues "input": "text" is int64 [N, T + sample_length].
class Gpt : public levin::Module {
 public:
  using Options = GptOptions;
  explicit Gpt(const Options& options);

  void configure_model() override;
  levin::StepOutput training_step(const levin::Batch& batch, int64_t batch_idx) override;
  levin::StepOutput validation_step(const levin::Batch& batch, int64_t batch_idx) override;
  levin::Batch predict_step(const levin::Batch& batch, int64_t batch_idx) override;
  levin::Batch export_step(const levin::Batch& batch) override { return {{"logits", net_(batch["input"])}}; }
  levin::OptimizerConfigs configure_optimizers() override;

  const Options& options() const { return options_; }

 private:
  /// What follows each of the texts [N, T]: [N, 1].
  torch::Tensor next_token(const torch::Tensor& text);

  Options options_;
  levin::Sequential net_{nullptr};
  levin::metrics::Perplexity perplexity_;
};

}  // namespace example
