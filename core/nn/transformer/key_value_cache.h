#pragma once

#include <levin/core/nn/transformer/attention_mask.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>

namespace levin::nn {

struct KeyValueCacheOptions {
  int64_t step = 256;    ///< places that are added when there are too few
  int64_t capacity = 0;  ///< places to begin with; 0: a step
};

/// Keys and values of the tokens that attention has seen, so that a model computes only the new ones:
///
///     levin::nn::KeyValueCache cache;
///     {
///       const levin::nn::KeyValueCache::Step step(cache, positions);
///       logits = model(tokens, positions);  // the Attention layers in it attend to all tokens so far
///     }
///
/// Belongs to one module and one batch of texts. Rows may have padding on either side, in any step: positions [N, T]
/// with −1. Layers with a sliding window keep their window alone. Not thread-safe; for forwards without gradients.
class KeyValueCache {
 public:
  explicit KeyValueCache(KeyValueCacheOptions options = {}) : options_(options) {}

  /// What the queries of a layer attend to. The places of a row and head follow each other in memory where one token
  /// was added.
  struct Attended {
    at::Tensor keys = {};    ///< [N, heads, S, D]
    at::Tensor values = {};  ///< [N, heads, S, D]
    at::Tensor mask = {};    ///< as reach_mask; undefined: all of them, or with `is_causal` those up to the query
    bool is_causal = false;
  };

  /// Scope of one forward on this thread, over tokens at `positions`, as AttentionInputs has them: [T] follow the
  /// tokens so far, of every row; [N, T] are increasing in a row but for padding, −1, and of one document.
  class [[nodiscard]] Step {
   public:
    Step(KeyValueCache& cache, const at::Tensor& positions);
    ~Step();
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

    /// Returns the innermost one of this thread; nullptr outside of all.
    static Step* current();
    /// Adds keys and values [N, heads, T, D] of a layer, and returns what its T queries attend to. Once a layer.
    Attended extend(const void* layer, int64_t sliding_window, const at::Tensor& keys, const at::Tensor& values);

   private:
    KeyValueCache& cache_;
    Step* outer_;
  };

  /// Returns how many tokens were added, padding included.
  int64_t length() const { return length_; }
  int64_t nbytes() const;
  /// Keeps only these rows of the batch, int64 [M], in this order: for beams, and for texts that have ended.
  void select_rows(const at::Tensor& rows);
  void clear();

 private:
  struct Layer {
    at::Tensor keys = {};  ///< [N, heads, places, D]
    at::Tensor values = {};
    int64_t used = 0;  ///< places that hold something
  };
  /// What a step does in all layers of one window, worked out by the first of them.
  struct Plan {
    at::Tensor mask = {};
    bool is_causal = false;
    bool replaces = false;  ///< one place of each row in a full window
    at::Tensor places =
        {};                 ///< of a window: those that are kept, [N, window], or replaced, [N, 1]; undefined: all kept
    at::Tensor after = {};  ///< positions of places after the step, [N, places]; undefined while rows are plain
  };

  void begin(const at::Tensor& positions);
  void commit();
  Plan& plan_of(int64_t window, int64_t rows, const at::Device& device);
  Plan plan_all(int64_t rows, const at::Device& device) const;
  Plan plan_window(int64_t window, int64_t rows, const at::Device& device) const;
  at::Tensor positions_of_places(int64_t window, int64_t rows, const at::Device& device) const;
  Attended extend_all(Layer& layer, const Plan& plan, const at::Tensor& keys, const at::Tensor& values);
  Attended extend_window(Layer& layer, int64_t window, const Plan& plan, const at::Tensor& keys,
                         const at::Tensor& values);
  void reserve(Layer& layer, int64_t places, int64_t most, const at::Tensor& like) const;

  KeyValueCacheOptions options_;
  std::map<const void*, Layer> layers_ = {};
  int64_t length_ = 0;
  bool is_plain_ = true;                          ///< every step so far had positions [T]
  std::map<int64_t, at::Tensor> positions_ = {};  ///< by window (0: none), once a step was not plain
  at::Tensor new_positions_ = {};                 ///< of the step that is open
  std::map<int64_t, Plan> plans_ = {};            ///< of the step that is open
};

/// Returns whether x [N, 1, width] is the one new token of each row inside of a KeyValueCache::Step, in the form that
/// kernels of this folder take: contiguous float32 on the CPU, without gradients.
bool takes_token_kernels(const at::Tensor& x);

}  // namespace levin::nn
