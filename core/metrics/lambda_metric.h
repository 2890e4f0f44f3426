#pragma once

#include <levin/core/metrics/metric.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <utility>

namespace levin::metrics {

namespace detail {
void check_lambdas(bool has_sums, bool has_value, int64_t count);
void check_sums(const at::Tensor& sums, int64_t count);
/// Zeros, float64.
at::Tensor no_sums(int64_t count);
}  // namespace detail

/// Options of LambdaMetric: two functions.
template <class... Inputs>
struct LambdaMetricOptions {
  /// Returns what a batch adds to the sums, [sums], on the device of its inputs.
  std::function<at::Tensor(const Inputs&...)> sums = {};
  /// Returns the value of all sums so far, [sums], float64.
  std::function<at::Tensor(const at::Tensor&)> value = {};
  int64_t count = 2;  ///< number of sums
};

/// A metric from functions: what a batch adds to some sums, and their value. The mean of the distances of points:
///
///     levin::metrics::LambdaMetric<at::Tensor, at::Tensor> distance_{
///         {.sums = [](const at::Tensor& found, const at::Tensor& meant) {
///            return torch::stack({(found - meant).norm(2, 1).sum(), torch::full({}, found.size(0), found.options())});
///          },
///          .value = [](const at::Tensor& sums) { return sums[0] / sums[1]; }}};
template <class... Inputs>
class LambdaMetric : public Metric {
 public:
  using Options = LambdaMetricOptions<Inputs...>;

  explicit LambdaMetric(Options options) : options_(std::move(options)) {
    detail::check_lambdas(static_cast<bool>(options_.sums), static_cast<bool>(options_.value), options_.count);
    add_state("sums", detail::no_sums(options_.count), Reduction::kSum);
  }

  /// Adds a batch. Throws levin::Error when the function does not give [sums].
  LambdaMetric& update(const Inputs&... inputs) {
    const UpdateScope scope(*this);
    const at::Tensor added = options_.sums(inputs...);
    detail::check_sums(added, options_.count);
    ensure_device(added.device());
    state(0).add_(added.detach());
    return *this;
  }

  at::Tensor compute() const override { return options_.value(state(0)); }

 private:
  Options options_;
};

}  // namespace levin::metrics
