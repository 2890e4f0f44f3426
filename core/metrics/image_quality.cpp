#include <levin/core/metrics/image_quality.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>

namespace levin::metrics {

void PeakSignalNoiseRatioOptions::describe(Schema<PeakSignalNoiseRatioOptions>& schema) {
  schema
      .field("data_range", &PeakSignalNoiseRatioOptions::data_range,
             "from the smallest to the largest value that a pixel can have")
      .above(0);
}

PeakSignalNoiseRatio::PeakSignalNoiseRatio(const Options& options)
    : SumMetric("PeakSignalNoiseRatio", 2), options_(options) {
  schema_of<Options>().validate(options, "PeakSignalNoiseRatio");
}

at::Tensor PeakSignalNoiseRatio::sums_of(const at::Tensor& predictions, const at::Tensor& targets) const {
  return at::stack(
      {(predictions - targets).square().sum(), at::full({}, static_cast<double>(targets.numel()), targets.options())});
}

at::Tensor PeakSignalNoiseRatio::compute() const {
  const at::Tensor mean_squared_error = sums()[0] / sums()[1];
  return 10 * (options_.data_range * options_.data_range / mean_squared_error).log10();
}

}  // namespace levin::metrics
