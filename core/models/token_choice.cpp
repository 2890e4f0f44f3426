#include <levin/core/models/token_choice.h>

#include <levin/core/base/error.h>
#include <levin/core/data/generator.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <tuple>

namespace levin {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Leaves out all but the likeliest tokens whose probabilities together reach `most`.
at::Tensor keep_top_p(const at::Tensor& logits, double most) {
  const auto [sorted, places] = logits.sort(1, /*descending=*/true);
  const at::Tensor probabilities = sorted.softmax(1);
  const at::Tensor leaves_out = (probabilities.cumsum(1) - probabilities).ge(most);
  leaves_out.select(1, 0).fill_(false);
  return logits.masked_fill(at::zeros_like(leaves_out).scatter(1, places, leaves_out), -kInfinity);
}

void check_finite(bool is_finite) {
  if (!is_finite)
    throw Error("generate", "the model gives logits that are not finite; hint: its training may have diverged");
}

}  // namespace

at::Tensor penalize_repetition(const at::Tensor& scores, const at::Tensor& seen, double penalty) {
  return at::where(seen, at::where(scores < 0, scores * penalty, scores / penalty), scores);
}

at::Tensor sampling_probabilities(const at::Tensor& logits, const GenerateOptions& options) {
  at::Tensor kept = (logits - logits.amax(1, /*keepdim=*/true)) / options.temperature;
  if (options.top_k > 0 && options.top_k < kept.size(1)) {
    const at::Tensor least = std::get<0>(kept.topk(options.top_k, 1)).narrow(1, options.top_k - 1, 1);
    kept = kept.masked_fill(kept < least, -kInfinity);
  }
  if (options.top_p < 1) kept = keep_top_p(kept, options.top_p);
  at::Tensor probabilities = kept.softmax(1);
  if (options.min_p > 0) {
    probabilities.masked_fill_(probabilities < options.min_p * probabilities.amax(1, /*keepdim=*/true), 0);
    probabilities.div_(probabilities.sum(1, /*keepdim=*/true));
  }
  return probabilities;
}

at::Tensor seen_tokens(const std::vector<std::vector<int64_t>>& prompts, int64_t vocabulary, const at::Device& device) {
  at::Tensor seen = at::zeros({static_cast<int64_t>(prompts.size()), vocabulary}, at::kBool);
  for (size_t row = 0; row < prompts.size(); ++row)
    seen[static_cast<int64_t>(row)].index_fill_(0, at::tensor(prompts[row], at::kLong), true);
  return seen.to(device);
}

TokenChooser::TokenChooser(const GenerateOptions& options, const std::vector<std::vector<int64_t>>& prompts,
                           int64_t vocabulary, const at::Device& device)
    : options_(options) {
  if (options.repetition_penalty != 1) seen_ = seen_tokens(prompts, vocabulary, device);
}

at::Tensor TokenChooser::choose(at::Tensor logits, const std::vector<int64_t>& indices, int64_t step) {
  if (seen_.defined()) logits = penalize_repetition(logits, seen_, options_.repetition_penalty);
  at::Tensor tokens;
  if (options_.temperature == 0) {
    const auto [values, places] = logits.max(1);
    check_finite(values.isfinite().all().item<bool>());
    tokens = places;
  } else {
    const at::Tensor sums = sampling_probabilities(logits, options_).cumsum(1, at::kDouble);
    const at::Tensor totals = sums.narrow(1, sums.size(1) - 1, 1);
    at::Tensor numbers = at::empty({sums.size(0), 1}, at::kDouble);
    for (int64_t row = 0; row < sums.size(0); ++row)
      numbers.data_ptr<double>()[row] =
          data::Generator(options_.seed, step, indices[static_cast<size_t>(row)]).uniform();
    check_finite(totals.isfinite().all().item<bool>());
    // The first token whose sum is above the number: one of probability 0 is never it.
    tokens = at::searchsorted(sums, numbers.to(sums.device()) * totals, /*out_int32=*/false, /*right=*/true).squeeze(1);
    tokens.clamp_max_(sums.size(1) - 1);
  }
  if (seen_.defined()) seen_.scatter_(1, tokens.unsqueeze(1), true);
  return tokens.cpu();
}

void TokenChooser::select_rows(const at::Tensor& rows) {
  if (seen_.defined()) seen_ = seen_.index_select(0, rows);
}

}  // namespace levin
