#include <levin/core/metrics/moments.h>

#include <levin/core/base/permanent_library.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/frexp.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <tuple>
#include <utility>

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

/// Units stay where they and what they divide are far from float64's ends.
constexpr double kLeastUnit = 0x1p-1000;
constexpr double kLargestUnit = 0x1p1000;

/// What to divide by for a unit.
at::Tensor divisor(const at::Tensor& unit) { return at::where(unit == 0, 1.0, unit); }

/// Sums of products in units, in others.
at::Tensor in_units(const MomentParts& parts, const at::Tensor& divisors) {
  const at::Tensor shares = parts.units / divisors;
  return parts.products * at::outer(shares, shares);
}

/// The power of two above a value, as unit_above has it.
double unit_above(double value) {
  if (!(value > 0)) return value;
  int exponent = 0;
  std::frexp(value, &exponent);
  return std::isfinite(value) ? std::clamp(std::ldexp(1.0, exponent), kLeastUnit, kLargestUnit) : value;
}

constexpr int64_t kFewVariables = 4;
/// Samples whose moments are computed at once: sums of more of them round more.
constexpr int64_t kBlock = 1024;

/// Sum of terms 0 to count - 1, in several sums that do not wait for each other.
template <class Term>
double sum_of(int64_t count, const Term& term) {
  std::array<double, 4> sums{};
  int64_t i = 0;
  for (; i + 4 <= count; i += 4)
    for (int64_t k = 0; k < 4; ++k) sums[static_cast<size_t>(k)] += term(i + k);
  for (; i < count; ++i) sums[0] += term(i);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/// Adds a block of samples, by the formulas of add_samples.
void add_block(double* moments, size_t variables, const std::array<const double*, kFewVariables>& columns,
               int64_t samples) {
  const auto added = static_cast<double>(samples);
  const double total = moments[0] + added;
  const double share = added / total;
  const double weight = std::sqrt(moments[0] * share);
  const size_t width = variables + 2;
  std::array<double, kFewVariables> means{};
  std::array<double, kFewVariables> rests{};
  std::array<double, kFewVariables> distances{};
  std::array<double, kFewVariables> shares{};   // of the former units in the present ones
  std::array<double, kFewVariables> factors{};  // into units
  const auto deviation = [&](size_t variable, int64_t s) {
    return columns[variable][s] - means[variable] - rests[variable];
  };
  for (size_t i = 0; i < variables; ++i) {
    const double* const x = columns[i];
    const double mean = means[i] = sum_of(samples, [x](int64_t s) { return x[s]; }) / added;
    rests[i] = sum_of(samples, [x, mean](int64_t s) { return x[s] - mean; }) / added;
    double& former = moments[1 + i];
    double& former_rest = moments[(1 + i) * width];
    const double mean_step = mean - former;
    const double rest_step = rests[i] - former_rest;
    distances[i] = (mean_step + rest_step) * weight;
    const double step = mean_step * share;
    const double moved = former + step;
    former_rest += rest_step * share + (step - (moved - former));
    former = moved;
    double largest = std::abs(distances[i]);
    for (int64_t s = 0; s < samples; ++s) largest = std::max(largest, std::abs(deviation(i, s)));
    double& unit = moments[(1 + i) * width + variables + 1];
    const double former_unit = std::exchange(unit, std::max(unit, unit_above(largest)));
    shares[i] = unit == 0 ? 1 : former_unit / unit;
    factors[i] = unit == 0 ? 1 : 1 / unit;
    distances[i] *= factors[i];
  }
  for (size_t i = 0; i < variables; ++i)
    for (size_t j = 0; j <= i; ++j) {
      const double sum =
          sum_of(samples, [&](int64_t s) { return (deviation(i, s) * factors[i]) * (deviation(j, s) * factors[j]); });
      double& product = moments[(1 + i) * width + 1 + j];
      product = product * (shares[i] * shares[j]) + (sum + distances[i] * distances[j]);
      moments[(1 + j) * width + 1 + i] = product;
    }
  moments[0] = total;
}

void add_blocks(const at::Tensor& moments, at::TensorList variables) {
  const int64_t samples = variables.front().size(0);
  for (int64_t begin = 0; begin < samples; begin += kBlock) {
    std::array<const double*, kFewVariables> columns{};
    for (size_t i = 0; i < variables.size(); ++i) columns[i] = variables[i].const_data_ptr<double>() + begin;
    add_block(moments.mutable_data_ptr<double>(), variables.size(), columns, std::min(kBlock, samples - begin));
  }
}

using AddOperator = c10::TypedOperatorHandle<decltype(add_blocks)>;

/// Registered when it is first asked for. An operator, so that steps can be recorded.
const AddOperator& add_operator() {
  static const AddOperator made = [] {
    torch::Library& library = permanent_library(torch::Library::FRAGMENT, "levin", std::nullopt);
    library.def("add_moments_(Tensor(a!) moments, Tensor[] variables) -> ()");
    library.impl("add_moments_", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(add_blocks)));
    return c10::Dispatcher::singleton().findSchemaOrThrow("levin::add_moments_", "").typed<decltype(add_blocks)>();
  }();
  return made;
}

}  // namespace

MomentParts::MomentParts(const at::Tensor& moments)
    : count(moments.select(0, 0).select(0, 0)),
      means(moments.select(0, 0).slice(0, 1, -1)),
      rests(moments.select(1, 0).slice(0, 1)),
      products(moments.slice(0, 1).slice(1, 1, -1)),
      units(moments.slice(0, 1).select(1, -1)) {}

at::Tensor MomentParts::covariances() const {
  // Samples that differ at all do so by more: a part in 2^53 of one of them.
  constexpr double kRounding = 0x1p-80;
  at::Tensor found = products / count;
  at::Tensor variances = found.diagonal();
  variances.masked_fill_(variances.sqrt() * units < kRounding * means.abs(), 0);
  return found;
}

at::Tensor no_moments(int64_t variables) { return at::zeros({variables + 1, variables + 2}, at::kDouble); }

at::Tensor unit_above(const at::Tensor& values) {
  const at::Tensor mantissas = std::get<0>(at::frexp(values));
  return at::where(values > 0, (values / mantissas).clamp(kLeastUnit, kLargestUnit), values);
}

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
  const at::Tensor units = at::maximum(into.units, unit_above(deviations.abs().amax(0)));
  const at::Tensor divisors = divisor(units);
  const at::Tensor scaled = deviations / divisors;
  into.products.copy_(in_units(into, divisors)).addmm_(scaled.t(), scaled);
  into.units.copy_(units);
  move_means(into, mean_step, rest_step, added / total);
  into.count.copy_(total);
}

void add_variables(at::Tensor& moments, at::TensorList variables) {
  const auto is_on_host = [](const at::Tensor& values) { return values.is_cpu() && values.is_contiguous(); };
  const bool are_few = std::ssize(variables) <= kFewVariables && is_on_host(moments) &&
                       std::all_of(variables.begin(), variables.end(), is_on_host);
  if (!are_few) return add_samples(moments, at::stack(variables, 1));
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  add_operator().call(moments, variables);
}

void merge_moments(at::Tensor& into, const at::Tensor& other) {
  const MomentParts to(into);
  const MomentParts from(other);
  const at::Tensor mean_step = from.means - to.means;
  const at::Tensor rest_step = from.rests - to.rests;
  const at::Tensor total = to.count + from.count;
  const at::Tensor share = from.count / total.clamp_min(1);
  const at::Tensor distance = (mean_step + rest_step) * (to.count * share).sqrt();
  const at::Tensor units = at::maximum(at::maximum(to.units, from.units), unit_above(distance.abs()));
  const at::Tensor divisors = divisor(units);
  const at::Tensor scaled = distance / divisors;
  to.products.copy_(in_units(to, divisors) + in_units(from, divisors)).add_(at::outer(scaled, scaled));
  to.units.copy_(units);
  move_means(to, mean_step, rest_step, share);
  to.count.copy_(total);
}

at::Tensor moments_from_sums(const at::Tensor& count, const at::Tensor& sums, const at::Tensor& products) {
  at::Tensor moments = at::zeros({sums.size(0) + 1, sums.size(0) + 2}, sums.options());
  const MomentParts parts(moments);
  parts.count.copy_(count);
  parts.means.copy_(sums / count.clamp_min(1));
  parts.products.copy_(products - count * at::outer(parts.means, parts.means));
  parts.products.diagonal().clamp_min_(0);
  parts.units.fill_(1);
  return moments;
}

}  // namespace levin::metrics::detail
