#include <levin/core/metrics/running_mean.h>

#include <levin/core/metrics/input_checks.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <limits>

namespace levin::metrics {
namespace {
/// A row an update: its number from 0, the sum of its values, and how many they are.
constexpr size_t kUpdates = 0;
}  // namespace

void RunningMeanOptions::describe(Schema<RunningMeanOptions>& schema) {
  schema.field("window", &RunningMeanOptions::window, "updates that count").at_least(1);
}

RunningMean::RunningMean(const Options& options) : options_(detail::checked_options(options, "RunningMean")) {
  add_state("updates", at::empty({0, 3}, at::kDouble), Reduction::kConcatenate);
}

RunningMean& RunningMean::update(const at::Tensor& value) {
  const UpdateScope scope(*this);
  ensure_device(value.device());
  const at::Tensor& rows = state(kUpdates);
  const at::Tensor number = rows.size(0) == 0 ? at::zeros({}, rows.options()) : rows.select(0, -1).select(0, 0) + 1;
  const at::Tensor values = value.detach().to(at::kDouble);
  append_rows(kUpdates,
              at::stack({number, values.sum(), at::full({}, static_cast<double>(values.numel()), rows.options())})
                  .unsqueeze(0));
  return *this;
}

RunningMean& RunningMean::update(double value) { return update(at::full({}, value, state(kUpdates).options())); }

at::Tensor RunningMean::compute() const {
  const at::Tensor& rows = state(kUpdates);
  if (rows.size(0) == 0) return at::full({}, std::numeric_limits<double>::quiet_NaN(), rows.options());
  const at::Tensor numbers = rows.select(1, 0);
  const at::Tensor counts = numbers > numbers.max() - options_.window;
  const at::Tensor sum = at::where(counts, rows.select(1, 1), 0.0).sum();
  return sum / at::where(counts, rows.select(1, 2), 0.0).sum();
}

}  // namespace levin::metrics
