#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/metrics/metric.h>

#include <cstdint>

namespace levin::metrics {

struct PerplexityOptions {
  int64_t ignore_index = -100;  ///< as in LibTorch's cross_entropy

  static void describe(Schema<PerplexityOptions>& schema);
};

/// Exponential of the mean negative log likelihood of the targets over all tokens seen, summed in float64;
/// that of a token is as exact as its logits, float32 at least.
class Perplexity : public Metric {
 public:
  using Options = PerplexityOptions;

  explicit Perplexity(const Options& options = {});

  /// Adds a batch: logits [N, T, V] with targets [N, T], or [N, V] with [N]. Throws levin::Error for shapes that do not
  /// fit and, on the CPU, for targets outside [0, V) that are not ignore_index; on a GPU LibTorch ends the process for
  /// those, as its cross_entropy does, unless there are levin::DebugChecks.
  Perplexity& update(const at::Tensor& logits, const at::Tensor& targets);

  /// Returns a scalar, float64. NaN when no target counted.
  at::Tensor compute() const override;

 private:
  Options options_;
};

}  // namespace levin::metrics
