#include <levin/core/metrics/mean_squared_error.h>

#include <levin/core/base/error.h>
#include <levin/core/metrics/input_checks.h>
#include <levin/core/metrics/square_sums.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

namespace levin::metrics {
namespace {

constexpr size_t kSquares = 0;
constexpr size_t kElements = 1;

}  // namespace

void MeanSquaredErrorOptions::describe(Schema<MeanSquaredErrorOptions>& schema) {
  schema.field("squared", &MeanSquaredErrorOptions::squared, "false for the root of the mean");
}

MeanSquaredError::MeanSquaredError(const Options& options) : options_(options) {
  add_state("squares", detail::no_squares(), Reduction::kSum);
  add_state("elements", at::zeros({}, at::kLong), Reduction::kSum);
}

MeanSquaredError& MeanSquaredError::update(const at::Tensor& predictions, const at::Tensor& targets) {
  const UpdateScope scope(*this);
  if (predictions.sizes() != targets.sizes())
    throw Error("metrics", fmt::format("MeanSquaredError: predictions and targets do not fit; got predictions {} and "
                                       "targets {}; valid: one shape; hint: squeeze(1) or view_as",
                                       c10::str(predictions.sizes()), c10::str(targets.sizes())));
  detail::check_same_device("MeanSquaredError", "predictions and targets", predictions, targets);
  ensure_device(predictions.device());
  state(kSquares).add_(detail::squares_of(predictions.to(at::kDouble) - targets));
  state(kElements).add_(predictions.numel());
  return *this;
}

at::Tensor MeanSquaredError::compute() const {
  return options_.squared ? detail::mean_square(state(kSquares), state(kElements))
                          : detail::root_mean_square(state(kSquares), state(kElements));
}

State MeanSquaredError::upgraded(const State& saved) const {
  const State* const squares = saved.find("squares");
  if (squares == nullptr || squares->as_tensor().dim() != 0) return saved;
  State sums = saved;
  sums["squares"] = detail::ordinary_squares(squares->as_tensor());
  return sums;
}

}  // namespace levin::metrics
