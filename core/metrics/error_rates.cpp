#include <levin/core/metrics/error_rates.h>

#include <levin/core/metrics/text_units.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>

namespace levin::metrics {
namespace {

constexpr size_t kEdits = 0;
constexpr size_t kUnits = 1;

using Units = detail::TextUnits;

/// Levenshtein's distance by dynamic programming, one row at a time.
int64_t edits_between(const Units& from, const Units& to) {
  std::vector<int64_t> edits(to.size() + 1);  // that make the units of `from` so far the first n of `to`
  std::iota(edits.begin(), edits.end(), 0);
  for (const auto& unit : from) {
    int64_t diagonal = edits[0]++;
    for (size_t n = 0; n < to.size(); ++n) {
      const int64_t replaced = diagonal + (unit == to[n] ? 0 : 1);
      diagonal = edits[n + 1];
      edits[n + 1] = std::min({replaced, diagonal + 1, edits[n] + 1});
    }
  }
  return edits.back();
}

}  // namespace

EditMetric::EditMetric(const char* name) : name_(name) {
  add_state("edits", at::zeros({}, at::kLong), Reduction::kSum);
  add_state("units", at::zeros({}, at::kLong), Reduction::kSum);
}

EditMetric& EditMetric::update(const std::vector<std::string>& predictions, const std::vector<std::string>& targets) {
  const UpdateScope scope(*this);
  detail::check_text_pairs(name_, predictions.size(), targets.size());
  int64_t edits = 0;
  int64_t units = 0;
  for (size_t text = 0; text < targets.size(); ++text) {
    const Units target = units_of(targets[text]);
    edits += edits_between(units_of(predictions[text]), target);
    units += static_cast<int64_t>(target.size());
  }
  state(kEdits).add_(edits);
  state(kUnits).add_(units);
  return *this;
}

at::Tensor EditMetric::compute() const { return state(kEdits).to(at::kDouble) / state(kUnits).to(at::kDouble); }

Units WordErrorRate::units_of(std::string_view text) const { return detail::words_of(text); }

Units CharacterErrorRate::units_of(std::string_view text) const { return detail::characters_of(text); }

}  // namespace levin::metrics
