#include <levin/core/metrics/perplexity.h>

#include <levin/core/base/error.h>
#include <levin/core/metrics/input_checks.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

namespace levin::metrics {
namespace {
constexpr size_t kNegativeLogLikelihood = 0;
constexpr size_t kTokens = 1;
}  // namespace

void PerplexityOptions::describe(Schema<PerplexityOptions>& schema) {
  schema.field("ignore_index", &PerplexityOptions::ignore_index, "targets that do not count");
}

Perplexity::Perplexity(const Options& options) : options_(options) {
  add_state("negative_log_likelihood", at::zeros({}, at::kDouble), Reduction::kSum);
  add_state("tokens", at::zeros({}, at::kLong), Reduction::kSum);
}

Perplexity& Perplexity::update(const at::Tensor& logits, const at::Tensor& targets) {
  const UpdateScope scope(*this);
  if (!logits.is_floating_point() || !at::isIntegralType(targets.scalar_type(), /*includeBool=*/false) ||
      logits.dim() < 2 || logits.sizes().slice(0, logits.dim() - 1) != targets.sizes())
    throw Error("metrics",
                fmt::format("Perplexity: logits and targets do not fit; got logits {} and targets {}; valid: "
                            "floating-point logits [N, T, V] with integer targets [N, T], or [N, V] with [N]; "
                            "hint: the vocabulary is the last dimension here, not the second",
                            c10::str(logits.sizes(), " ", logits.scalar_type()),
                            c10::str(targets.sizes(), " ", targets.scalar_type())));
  detail::check_same_device("Perplexity", "logits and targets", logits, targets);
  ensure_device(logits.device());
  const int64_t vocabulary = logits.size(-1);
  const at::Tensor flat_targets = targets.reshape(-1).to(at::kLong);
  const at::Tensor counts = flat_targets != options_.ignore_index;
  if (detail::may_look_at(flat_targets))
    detail::check_classes("Perplexity", flat_targets.masked_select(counts), vocabulary);
  const auto precision = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor log_likelihood = at::log_softmax(logits.reshape({-1, vocabulary}), 1, precision);
  const at::Tensor losses =
      at::nll_loss(log_likelihood, flat_targets, /*weight=*/{}, at::Reduction::None, options_.ignore_index);
  state(kNegativeLogLikelihood).add_(losses.sum(at::kDouble));
  state(kTokens).add_(counts.sum());
  return *this;
}

at::Tensor Perplexity::compute() const { return (state(kNegativeLogLikelihood) / state(kTokens)).exp(); }

}  // namespace levin::metrics
