#include <levin/core/metrics/retrieval.h>

#include "metric_oracle.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>

namespace levin::metrics {
namespace {

struct Results {
  at::Tensor scores = oracle_input("result_scores", {60});
  at::Tensor relevance = oracle_classes("relevance", {60});
  at::Tensor queries = oracle_classes("queries", {60});
};

/// Whole, in another order, in uneven batches, merged as of three ranks of which one has no data, and loaded.
template <class T>
void expect_everywhere(const std::string& name, const RetrievalOptions& options, const Results& results) {
  SCOPED_TRACE(name);
  const auto& [scores, relevance, queries] = results;
  const auto update = [&](T& metric, int64_t first, int64_t last) {
    metric.update(scores.slice(0, first, last), relevance.slice(0, first, last), queries.slice(0, first, last));
  };
  T whole(options);
  EXPECT_TRUE(all_nan(whole.compute()));
  update(whole, 0, 60);
  expect_oracle(whole.compute(), name);
  const at::Tensor order = at::randperm(60);
  T shuffled(options);
  shuffled.update(scores.index_select(0, order), relevance.index_select(0, order), queries.index_select(0, order));
  expect_oracle(shuffled.compute(), name);
  T first(options);
  T second(options);
  T merged(options);
  update(first, 0, 13);
  update(second, 13, 14);
  update(second, 14, 60);
  merged.merge_from(second);
  merged.merge_from(first);
  expect_oracle(merged.compute(), name);
  T loaded(options);
  loaded.load_state_dict(merged.state_dict());
  EXPECT_TRUE(at::equal(loaded.compute(), merged.compute()));
}

TEST(Retrieval, EqualsTorchmetrics) {
  const Results results;
  Results tied;
  tied.scores = tied.scores.mul(5).round().div(5) + 0.1;
  for (const std::string action : {"neg", "pos", "skip"}) {
    for (const std::optional<int64_t> top_k : {std::optional<int64_t>{}, {1}, {3}}) {
      const std::string name = fmt::format("{}/{}", action, top_k ? std::to_string(*top_k) : "all");
      const RetrievalOptions options{.top_k = top_k, .empty_target_action = action};
      expect_everywhere<RetrievalMRR>("mrr/" + name, options, results);
      expect_everywhere<RetrievalMAP>("map/" + name, options, results);
      expect_everywhere<RetrievalNDCG>("ndcg/" + name, options, results);
      expect_everywhere<RetrievalNDCG>("ndcg/ties/" + name, options, tied);
    }
  }
}

TEST(Retrieval, OfTiesTheIrrelevantComeFirst) {
  for (const auto& relevance : {at::tensor({1L, 0L}), at::tensor({0L, 1L})}) {
    EXPECT_EQ(RetrievalMRR().update(at::full({2}, 0.5), relevance, at::zeros({2}, at::kLong)).compute().item<double>(),
              0.5);
    EXPECT_EQ(RetrievalMAP().update(at::full({2}, 0.5), relevance, at::zeros({2}, at::kLong)).compute().item<double>(),
              0.5);
  }
}

TEST(Retrieval, ReadsLogitsAndAnyNumbersOfQueries) {
  EXPECT_EQ(RetrievalMRR()
                .update(at::tensor({-3.0F, -1.0F, -2.0F, -5.0F}), at::tensor({0L, 1L, 0L, 1L}),
                        at::tensor({-7L, -7L, 900L, 900L}))
                .compute()
                .item<double>(),
            0.75);
}

TEST(Retrieval, KnowsTheCornerCases) {
  const at::Tensor none = at::zeros({3}, at::kLong);
  EXPECT_EQ(RetrievalMAP().update(at::rand({3}), none, none).compute().item<double>(), 0);
  EXPECT_TRUE(all_nan(RetrievalNDCG({.empty_target_action = "skip"}).update(at::rand({3}), none, none).compute()));
  const at::Tensor with_nan = at::tensor({0.1F, std::numeric_limits<float>::quiet_NaN(), 0.3F});
  EXPECT_TRUE(all_nan(RetrievalMRR().update(with_nan, none + 1, none).compute()));
}

TEST(Retrieval, NamesWhatIsWrong) {
  const at::Tensor none = at::zeros({3}, at::kLong);
  expect_error([&] { RetrievalMRR().update(at::rand({3}), none, at::zeros({4}, at::kLong)); },
               {"RetrievalMRR: results do not fit", "[4]"});
  expect_error([&] { RetrievalMAP().update(at::rand({3}), at::rand({3}), none); }, {"integers for the others"});
  expect_error([] { RetrievalNDCG({.top_k = 0}); }, {"RetrievalNDCG.top_k", "at least 1"});
}

}  // namespace
}  // namespace levin::metrics
