#include <levin/core/metrics/lambda_metric.h>

#include <levin/core/base/error.h>

#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

namespace levin::metrics::detail {

void check_lambdas(bool has_sums, bool has_value, int64_t count) {
  if (!has_sums || !has_value || count < 1)
    throw Error("metrics", "LambdaMetric: needs two functions, `sums` and `value`, and a count of sums of at least 1");
}

void check_sums(const at::Tensor& sums, int64_t count) {
  if (!sums.defined() || sums.dim() != 1 || sums.size(0) != count)
    throw Error("metrics",
                fmt::format("LambdaMetric: `sums` gave {}; valid: a tensor [{}]; hint: set count",
                            sums.defined() ? c10::str(sums.sizes()) : std::string("an undefined tensor"), count));
}

at::Tensor no_sums(int64_t count) { return at::zeros({count}, at::kDouble); }

}  // namespace levin::metrics::detail
