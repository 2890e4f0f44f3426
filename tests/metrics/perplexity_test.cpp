#include <levin/core/metrics/perplexity.h>

#include "metric_oracle.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

namespace levin::metrics {
namespace {

TEST(Perplexity, EqualsTorchmetrics) {
  const at::Tensor logits = oracle_input("token_logits", {3, 5, 7});
  const at::Tensor targets = oracle_classes("token_targets", {3, 5});
  expect_oracle(Perplexity().update(logits, targets).compute(), "perplexity");
  const int64_t ignored = oracle_classes("ignored_token", {}).item<int64_t>();
  Perplexity ignoring({.ignore_index = ignored});
  ignoring.update(logits[0].narrow(0, 0, 3), targets[0].narrow(0, 0, 3));
  expect_oracle(ignoring.compute(), "perplexity/ignored_token");
}

TEST(Perplexity, IgnoredTokensChangeNothing) {
  const at::Tensor logits = at::rand({4, 6, 5});
  at::Tensor targets = at::zeros({4, 6}, at::kLong);
  targets.select(0, 3).fill_(-100);
  const at::Tensor all = Perplexity().update(logits, targets).compute();
  const at::Tensor counted = Perplexity().update(logits.narrow(0, 0, 3), targets.narrow(0, 0, 3)).compute();
  EXPECT_TRUE(at::allclose(all, counted, 1e-12, 1e-12));
  EXPECT_TRUE(all_nan(Perplexity().update(logits[3], targets[3]).compute())) << "nothing counted";
}

TEST(Perplexity, OfAUniformModelIsTheVocabulary) {
  const at::Tensor value = Perplexity().update(at::zeros({2, 3, 11}), at::full({2, 3}, 4, at::kLong)).compute();
  EXPECT_NEAR(value.item<double>(), 11, 1e-5);
}

TEST(Perplexity, NamesWhatIsWrong) {
  expect_error(
      [] {
        Perplexity().update(at::rand({2, 7, 3}), at::zeros({2, 3}, at::kLong));
      },
      {"[metrics] Perplexity", "[2, 7, 3]", "[2, 3]", "last dimension"});
  expect_error([] { Perplexity().update(at::rand({2, 7}), at::full({2}, 7, at::kLong)); }, {"got 7", "0 to 6"});
  expect_error([] { Perplexity().update(at::rand({2, 7}), at::rand({2})); }, {"integer targets"});
}

}  // namespace
}  // namespace levin::metrics
