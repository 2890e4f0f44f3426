#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

namespace levin::nn {

/// How frequencies are changed so that a model reaches further than it was trained for.
enum class RotaryScaling {
  kNone,
  kLinear,   ///< positions are divided by `factor`
  kDynamic,  ///< NTK: `theta` grows with a sequence that is longer than `max_position`
  kLlama3,   ///< low frequencies are divided by `factor`, high ones stay, those between are interpolated
  kYarn,     ///< Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", 2023
};

/// The names are those of `rope_parameters` in config.json.
struct RotaryOptions {
  int64_t dim = 0;        ///< features of a head that are rotated, the first ones; even
  double theta = 10'000;  ///< wavelengths go from 2π to 2π · theta
  RotaryScaling scaling = RotaryScaling::kNone;
  double factor = 1;
  int64_t max_position = 0;                     ///< of kDynamic: positions that need no scaling
  int64_t original_max_position = 0;            ///< of kLlama3 and kYarn: positions the model was trained with at first
  double low_freq_factor = 1;                   ///< of kLlama3
  double high_freq_factor = 4;                  ///< of kLlama3
  double beta_fast = 32;                        ///< of kYarn: turns from which on a frequency stays
  double beta_slow = 1;                         ///< of kYarn: turns up to which a frequency is divided by `factor`
  std::optional<double> attention_factor = {};  ///< of kYarn: of cosines and sines; nullopt: follows from the others
  double mscale = 0;                            ///< of kYarn
  double mscale_all_dim = 0;                    ///< of kYarn
  bool truncate = true;  ///< of kYarn: whole numbers of features between `beta_slow` and `beta_fast`
};

/// Rotates pairs of features by angles that grow with the position: Su et al., "RoFormer: Enhanced Transformer with
/// Rotary Position Embedding", 2021. A pair is feature i and i + dim / 2, as in transformers. Has no parameters. One
/// serves all layers of a model, which inside of a RotaryScope share its cosines and sines. Thread-safe.
class RotaryEmbeddingImpl : public torch::nn::Module {
 public:
  explicit RotaryEmbeddingImpl(const RotaryOptions& options);
  /// Rotates x [N, heads, T, D], D at least `dim`, by positions [T] or [N, T], integers; negative ones count as 0.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& positions);

  /// Rotates the one token of each row in place: x [N, 1, heads, D], contiguous float32 on the CPU, without gradients.
  void rotate_(const at::Tensor& x, const at::Tensor& positions) const;

  /// Returns the angle of each pair for one step, [dim / 2], with positions `places`, in float32.
  at::Tensor frequencies(const at::Tensor& places) const;
  /// Returns what cosines and sines are multiplied by.
  double attention_factor() const;
  const RotaryOptions& options() const { return options_; }
  void pretty_print(std::ostream& stream) const override;

 private:
  friend class RotaryScope;
  /// Cosines and sines, [T, dim / 2] or [N, 1, T, dim / 2], in the type of x.
  using Tables = std::pair<at::Tensor, at::Tensor>;
  Tables tables_at(const at::Tensor& positions, const at::Tensor& x) const;
  Tables compute_tables(const at::Tensor& positions, const at::Tensor& x) const;

  const RotaryOptions options_;
};
TORCH_MODULE(RotaryEmbedding);

/// Scope of one forward on this thread, in which a RotaryEmbedding computes its cosines and sines once for each tensor
/// of positions, which must not change meanwhile. The stacks and CausalLanguageModel open one; within another it does
/// nothing. Nothing outlives it, so that steps can be recorded.
class [[nodiscard]] RotaryScope {
 public:
  RotaryScope();
  ~RotaryScope();
  RotaryScope(const RotaryScope&) = delete;
  RotaryScope& operator=(const RotaryScope&) = delete;

 private:
  friend class RotaryEmbeddingImpl;
  struct Entry {
    at::Tensor positions;
    RotaryEmbeddingImpl::Tables tables;
  };
  std::map<const RotaryEmbeddingImpl*, Entry> entries_ = {};  ///< of the last positions
  bool is_outermost_;
};

}  // namespace levin::nn
