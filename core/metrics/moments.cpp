#include <levin/core/metrics/moments.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

namespace levin::metrics::detail {
namespace {

/// Moves means towards those of further samples, which are `share` of all.
void move_means(const MomentParts& into, const at::Tensor& mean_step, const at::Tensor& rest_step,
                const at::Tensor& share) {
  const at::Tensor step = mean_step * share;
  const at::Tensor moved = into.means + step;
  into.rests.add_(rest_step * share + (step - (moved - into.means)));
  into.means.copy_(moved);
}

}  // namespace

MomentParts::MomentParts(const at::Tensor& moments)
    : count(moments.select(0, 0).select(0, 0)),
      means(moments.select(0, 0).slice(0, 1)),
      rests(moments.select(1, 0).slice(0, 1)),
      products(moments.slice(0, 1).slice(1, 1)) {}

at::Tensor MomentParts::covariances() const {
  // Samples that differ at all do so by more: a part in 2^53 of one of them.
  constexpr double kRounding = 0x1p-80;
  at::Tensor found = products / count;
  at::Tensor variances = found.diagonal();
  variances.masked_fill_(variances.sqrt() < kRounding * means.abs(), 0);
  return found;
}

at::Tensor no_moments(int64_t variables) { return at::zeros({variables + 1, variables + 1}, at::kDouble); }

void add_samples(at::Tensor& moments, const at::Tensor& samples) {
  const int64_t added = samples.size(0);
  if (added == 0) return;
  const MomentParts into(moments);
  const at::Tensor means = samples.mean(0);
  const at::Tensor rests = (samples - means).mean(0);
  const at::Tensor mean_step = means - into.means;
  const at::Tensor rest_step = rests - into.rests;
  const at::Tensor total = into.count + added;
  // The distance of the means counts as one deviation more.
  const at::Tensor distance = (mean_step + rest_step) * (into.count * added / total).sqrt();
  const at::Tensor deviations = at::cat({samples - means - rests, distance.unsqueeze(0)});
  into.products.addmm_(deviations.t(), deviations);
  move_means(into, mean_step, rest_step, added / total);
  into.count.copy_(total);
}

void merge_moments(at::Tensor& into, const at::Tensor& other) {
  const MomentParts to(into);
  const MomentParts from(other);
  const at::Tensor mean_step = from.means - to.means;
  const at::Tensor rest_step = from.rests - to.rests;
  const at::Tensor total = to.count + from.count;
  const at::Tensor share = from.count / total.clamp_min(1);
  const at::Tensor distance = (mean_step + rest_step) * (to.count * share).sqrt();
  to.products.add_(from.products).add_(at::outer(distance, distance));
  move_means(to, mean_step, rest_step, share);
  to.count.copy_(total);
}

at::Tensor moments_from_sums(const at::Tensor& count, const at::Tensor& sums, const at::Tensor& products) {
  at::Tensor moments = at::zeros({sums.size(0) + 1, sums.size(0) + 1}, sums.options());
  const MomentParts parts(moments);
  parts.count.copy_(count);
  parts.means.copy_(sums / count.clamp_min(1));
  parts.products.copy_(products - count * at::outer(parts.means, parts.means));
  parts.products.diagonal().clamp_min_(0);
  return moments;
}

}  // namespace levin::metrics::detail
