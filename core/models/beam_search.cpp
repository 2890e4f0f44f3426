#include <levin/core/models/beam_search.h>

#include <levin/core/base/error.h>
#include <levin/core/models/token_choice.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <tuple>

namespace levin {
namespace {

/// Instead of −∞, so that a beam that counts for nothing can still be told from NaN.
constexpr double kNever = -1e9;

/// Sequences and their scores, of each prompt the best first.
struct Beams {
  at::Tensor scores = {};  ///< [N, beams]
  at::Tensor tokens = {};  ///< [N, beams, steps]
};

/// Of each prompt the entries at `places` [N, M] of values [N, K] or [N, K, steps].
at::Tensor entries_at(const at::Tensor& values, const at::Tensor& places) {
  return values.gather(1, values.dim() == 2 ? places : places.unsqueeze(-1).expand({-1, -1, values.size(2)}));
}

}  // namespace

std::vector<std::vector<int64_t>> search_beams(Decoding& decoding, const std::vector<std::vector<int64_t>>& prompts,
                                               const std::vector<int64_t>& end_tokens, int64_t most_new,
                                               const GenerateOptions& options) {
  const auto count = static_cast<int64_t>(prompts.size());
  const int64_t beams = options.beams;
  const auto ends = static_cast<int64_t>(end_tokens.size());
  const at::Device device = decoding.device();
  const auto integers = at::TensorOptions(at::kLong).device(device);
  const auto numbers = at::TensorOptions(at::kFloat).device(device);

  at::Tensor logits = decoding.prompt_logits();
  const int64_t vocabulary = logits.size(1);
  const at::Tensor first_rows = at::arange(count, integers).repeat_interleave(beams);
  decoding.select_rows(first_rows);
  logits = logits.index_select(0, first_rows);
  at::Tensor seen;
  if (options.repetition_penalty != 1) seen = seen_tokens(prompts, vocabulary, device).index_select(0, first_rows);
  at::Tensor is_end = at::zeros({vocabulary}, integers.dtype(at::kBool));
  for (const int64_t token : end_tokens)
    if (token >= 0 && token < vocabulary) is_end[token] = true;

  // All beams of a prompt begin as one.
  Beams running{at::full({count, beams}, kNever, numbers), at::empty({count, beams, 0}, integers)};
  running.scores.select(1, 0).zero_();
  Beams ended{at::full({count, beams}, kNever, numbers), at::zeros({count, beams, 0}, integers)};
  at::Tensor has_ended = at::zeros({count, beams}, integers.dtype(at::kBool));
  at::Tensor is_open = at::ones({count, 1}, integers.dtype(at::kBool));  // by prompt: results may still get better
  // Enough that as many go on if all others end.
  const int64_t candidates = std::min(std::max<int64_t>(2, 1 + ends) * beams, beams * vocabulary);
  const at::Tensor is_among_first = at::arange(candidates, integers) < beams;

  for (int64_t length = 1; length <= most_new; ++length) {
    at::Tensor scores = at::log_softmax(logits, 1);
    if (!scores.isfinite().any(1).all().item<bool>())
      throw Error("generate", "the model gives logits that are not finite; hint: its training may have diverged");
    if (seen.defined()) scores = penalize_repetition(scores, seen, options.repetition_penalty);
    scores = (scores.view({count, beams, vocabulary}) + running.scores.unsqueeze(-1)).flatten(1);
    const auto [best, places] = scores.topk(candidates, 1);
    const at::Tensor beam = places.div(vocabulary, "floor");
    const at::Tensor token = places.remainder(vocabulary);
    const at::Tensor tokens = at::cat({entries_at(running.tokens, beam), token.unsqueeze(-1)}, 2);
    at::Tensor ends_now = is_end.index_select(0, token.flatten()).view_as(token);
    if (length == most_new) ends_now = at::ones_like(ends_now);

    // Of those that end, the ones among the best are results.
    const double divisor = std::pow(static_cast<double>(length), options.length_penalty);
    const at::Tensor counts = ends_now.logical_and(is_among_first).logical_and(is_open);
    const at::Tensor result = best / divisor + counts.logical_not() * kNever;
    const at::Tensor all_scores = at::cat({ended.scores, result}, 1);
    const at::Tensor padding = at::zeros({count, beams, tokens.size(2) - ended.tokens.size(2)}, integers).sub_(1);
    const at::Tensor all_tokens = at::cat({at::cat({ended.tokens, padding}, 2), tokens}, 1);
    const at::Tensor all_ended = at::cat({has_ended, counts}, 1);
    const auto [kept_scores, kept] = all_scores.topk(beams, 1);
    ended = {kept_scores, entries_at(all_tokens, kept)};
    has_ended = entries_at(all_ended, kept);

    const auto [going_scores, going] = (best + ends_now * kNever).topk(beams, 1);
    running = {going_scores, entries_at(tokens, going)};
    const at::Tensor worst = at::where(has_ended, ended.scores.amin(1, /*keepdim=*/true), kNever);
    is_open = is_open.logical_and((running.scores.narrow(1, 0, 1) / divisor).gt(worst).any(1, /*keepdim=*/true));
    if (length == most_new || !is_open.any().item<bool>() || ends_now.all().item<bool>()) break;

    const at::Tensor source = (entries_at(beam, going) + at::arange(count, integers).unsqueeze(1) * beams).flatten();
    const at::Tensor chosen = entries_at(token, going).flatten();
    decoding.select_rows(source);
    if (seen.defined()) seen = seen.index_select(0, source).scatter(1, chosen.unsqueeze(1), true);
    logits = decoding.next_logits(chosen);
  }

  const at::Tensor best = ended.tokens.select(1, 0).cpu();
  std::vector<std::vector<int64_t>> results;
  for (int64_t row = 0; row < count; ++row) {
    const at::Tensor tokens = best[row].masked_select(best[row] >= 0);
    results.emplace_back(tokens.data_ptr<int64_t>(), tokens.data_ptr<int64_t>() + tokens.numel());
  }
  return results;
}

}  // namespace levin
