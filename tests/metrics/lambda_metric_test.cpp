#include <levin/core/metrics/lambda_metric.h>

#include "metric_oracle.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <string>

namespace levin::metrics {
namespace {

using Distance = LambdaMetric<at::Tensor, at::Tensor>;

Distance distance() {
  return Distance({.sums =
                       [](const at::Tensor& found, const at::Tensor& meant) {
                         return at::stack({(found - meant).norm(2, 1).sum(),
                                           at::full({}, static_cast<double>(found.size(0)), found.options())});
                       },
                   .value = [](const at::Tensor& sums) { return sums[0] / sums[1]; }});
}

TEST(LambdaMetric, AddsUpWhatItsFunctionGives) {
  Distance metric = distance();
  EXPECT_TRUE(all_nan(metric.compute()));
  const at::Tensor origin = at::zeros({2, 2});
  metric.update(at::tensor({3.0F, 4.0F, 0.0F, 1.0F}).reshape({2, 2}), origin);
  Distance other = distance();
  other.update(at::tensor({0.0F, 3.0F}).reshape({1, 2}).requires_grad_(), origin.narrow(0, 0, 1));
  metric.merge_from(other);
  EXPECT_DOUBLE_EQ(metric.compute().item<double>(), 3);
  EXPECT_FALSE(metric.compute().requires_grad());
  Distance loaded = distance();
  loaded.load_state_dict(metric.state_dict());
  EXPECT_DOUBLE_EQ(loaded.compute().item<double>(), 3);
}

TEST(LambdaMetric, TakesAnyInputs) {
  LambdaMetric<std::string, int64_t> letters({.sums =
                                                  [](const std::string& text, const int64_t& times) {
                                                    return at::full({1}, static_cast<double>(text.size()) * times,
                                                                    at::kDouble);
                                                  },
                                              .value = [](const at::Tensor& sums) { return sums[0]; },
                                              .count = 1});
  EXPECT_EQ(letters.update("abc", 2).update("d", 3).compute().item<double>(), 9);
}

TEST(LambdaMetric, NamesWhatIsWrong) {
  expect_error([] { Distance({}); }, {"LambdaMetric: needs two functions"});
  expect_error(
      [] {
        Distance({.sums = [](const at::Tensor& a, const at::Tensor&) { return a; },
                  .value = [](const at::Tensor& sums) { return sums; }})
            .update(at::zeros({3}), at::zeros({3}));
      },
      {"`sums` gave [3]", "valid: a tensor [2]"});
}

}  // namespace
}  // namespace levin::metrics
