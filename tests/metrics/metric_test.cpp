#include <levin/core/metrics/metric.h>

#include <levin/core/metrics/accuracy.h>
#include <levin/core/metrics/auroc.h>
#include <levin/core/metrics/calibration_error.h>
#include <levin/core/metrics/confusion_matrix.h>
#include <levin/core/metrics/curves.h>
#include <levin/core/metrics/image_quality.h>
#include <levin/core/metrics/mean.h>
#include <levin/core/metrics/mean_squared_error.h>
#include <levin/core/metrics/perplexity.h>
#include <levin/core/metrics/precision_recall.h>
#include <levin/core/metrics/retrieval.h>

#include "metric_oracle.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/rand_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <utility>
#include <vector>

namespace levin::metrics {
namespace {

constexpr int64_t kSamples = 103;

/// A metric of some class and options, with what it is given.
struct Case {
  const char* name;
  std::function<std::unique_ptr<Metric>()> make;
  std::function<void(Metric&, const at::Tensor& predictions, const at::Tensor& targets)> update;
  at::Tensor predictions;
  at::Tensor targets;
};

std::ostream& operator<<(std::ostream& stream, const Case& metric) { return stream << metric.name; }

template <class T>
Case make_case(const char* name, const typename T::Options& options, at::Tensor predictions, at::Tensor targets) {
  return {name, [options] { return std::make_unique<T>(options); },
          [](Metric& metric, const at::Tensor& predictions, const at::Tensor& targets) {
            dynamic_cast<T&>(metric).update(predictions, targets);
          },
          std::move(predictions), std::move(targets)};
}

std::vector<Case> make_cases() {
  // Of this seed every batch has every class: a value that is undefined equals nothing.
  at::manual_seed(1);
  const at::Tensor logits = at::randn({kSamples, 4});
  const at::Tensor labels = at::randint(4, {kSamples}, at::kLong);
  const at::Tensor scores = at::rand({kSamples}).mul(20).round().div(20);
  const at::Tensor binary = at::randint(2, {kSamples}, at::kLong);
  const at::Tensor pictures = at::rand({kSamples, 2, 7, 9});
  Case retrieval{"RetrievalNDCG", [] { return std::make_unique<RetrievalNDCG>(); },
                 [](Metric& metric, const at::Tensor& scores, const at::Tensor& relevance) {
                   dynamic_cast<RetrievalNDCG&>(metric).update(scores, relevance, (relevance * 0).view_as(scores));
                 },
                 scores, labels};
  Case mean{"Mean", [] { return std::make_unique<Mean>(); },
            [](Metric& metric, const at::Tensor& values, const at::Tensor& weights) {
              dynamic_cast<Mean&>(metric).update(values, weights);
            },
            at::randn({kSamples, 3}), at::rand({kSamples, 1})};
  return {
      std::move(mean),
      std::move(retrieval),
      make_case<AveragePrecision>("AveragePrecision", {}, scores, binary),
      make_case<AveragePrecision>("AveragePrecisionBinned", {.thresholds = 10}, scores, binary),
      make_case<AveragePrecision>("AveragePrecisionClasses",
                                  {.num_classes = 4, .average = "weighted", .from_logits = true}, logits, labels),
      make_case<PrecisionAtFixedRecall>("PrecisionAtFixedRecall", {.min_recall = 0.3}, scores, binary),
      make_case<RecallAtFixedPrecision>("RecallAtFixedPrecision", {.min_precision = 0.2, .thresholds = 10}, scores,
                                        binary),
      make_case<CalibrationError>("CalibrationError", {.n_bins = 7}, scores, binary),
      make_case<CalibrationError>("CalibrationErrorClasses", {.num_classes = 4, .norm = "l2", .from_logits = true},
                                  logits, labels),
      make_case<StructuralSimilarity>("StructuralSimilarity", {.sigma = 0.8}, pictures + 0.1 * at::rand_like(pictures),
                                      pictures),
      make_case<Accuracy>("AccuracyMicro", {.num_classes = 4}, logits, labels),
      make_case<Accuracy>("AccuracyTopK", {.num_classes = 4, .top_k = 2}, logits, labels),
      make_case<Accuracy>("AccuracyMacro", {.num_classes = 4, .average = "macro"}, logits, labels),
      make_case<Accuracy>("AccuracyNone", {.num_classes = 4, .average = "none"}, logits, labels),
      make_case<ConfusionMatrix>("ConfusionMatrix", {.num_classes = 4, .normalize = "all"}, logits, labels),
      make_case<Precision>("Precision", {.num_classes = 4}, logits, labels),
      make_case<Recall>("Recall", {.num_classes = 4, .average = "micro"}, logits, labels),
      make_case<F1Score>("F1Score", {.num_classes = 4, .average = "weighted"}, logits, labels),
      make_case<Auroc>("Auroc", {}, scores, binary),
      make_case<Auroc>("AurocBinned", {.thresholds = 10}, scores, binary),
      make_case<Auroc>("AurocClasses", {.num_classes = 4, .from_logits = true}, logits, labels),
      make_case<Auroc>("AurocClassesBinned",
                       {.num_classes = 4, .thresholds = 10, .average = "none", .from_logits = true}, logits, labels),
      make_case<MeanSquaredError>("MeanSquaredError", {}, at::randn({kSamples, 3}), at::randn({kSamples, 3})),
      make_case<MeanSquaredError>("RootMeanSquaredError", {.squared = false}, logits.select(1, 0), logits.select(1, 1)),
      make_case<Perplexity>("Perplexity", {.ignore_index = 3}, logits, labels),
  };
}

class EveryMetric : public ::testing::TestWithParam<Case> {
 protected:
  std::unique_ptr<Metric> make() const { return GetParam().make(); }
  void update(Metric& metric, int64_t first, int64_t last) const {
    GetParam().update(metric, GetParam().predictions.slice(0, first, last), GetParam().targets.slice(0, first, last));
  }
  /// Of all samples in one update.
  at::Tensor expected() const {
    auto metric = make();
    update(*metric, 0, kSamples);
    return metric->compute();
  }
  static void expect_equal(const at::Tensor& actual, const at::Tensor& expected) {
    EXPECT_TRUE(at::allclose(actual, expected, 1e-12, 1e-12)) << "got " << actual << "\nexpected " << expected;
  }
};

TEST_P(EveryMetric, IsFiniteAndInFloat64) {
  EXPECT_TRUE(expected().isfinite().all().item<bool>());
  EXPECT_EQ(expected().scalar_type(), at::kDouble);
}

TEST_P(EveryMetric, IsNanBeforeAnyUpdateAndAfterAnEmptyOne) {
  auto metric = make();
  EXPECT_TRUE(all_nan(metric->compute()));
  update(*metric, 0, 0);
  EXPECT_TRUE(all_nan(metric->compute()));
  update(*metric, 0, kSamples);
  update(*metric, 7, 7);
  expect_equal(metric->compute(), expected());
}

TEST_P(EveryMetric, IsTheSameForUnevenBatches) {
  auto metric = make();
  for (const auto& [first, last] : std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {1, 50}, {50, 52}, {52, kSamples}})
    update(*metric, first, last);
  expect_equal(metric->compute(), expected());
}

TEST_P(EveryMetric, IsTheSameInAnyOrder) {
  const at::Tensor order = at::randperm(kSamples);
  auto metric = make();
  GetParam().update(*metric, GetParam().predictions.index_select(0, order), GetParam().targets.index_select(0, order));
  expect_equal(metric->compute(), expected());
}

TEST_P(EveryMetric, MergesTheStatesOfRanks) {
  std::vector<std::unique_ptr<Metric>> ranks;
  for (int i = 0; i < 3; ++i) ranks.push_back(make());
  update(*ranks[0], 0, 30);
  update(*ranks[1], 30, 31);
  update(*ranks[1], 31, kSamples);  // rank 2 had no data
  ranks[2]->merge_from(*ranks[0]);
  ranks[2]->merge_from(*ranks[1]);
  expect_equal(ranks[2]->compute(), expected());
}

TEST_P(EveryMetric, ContinuesFromItsStateBitForBit) {
  auto straight = make();
  update(*straight, 0, 40);
  const State saved = straight->state_dict();
  update(*straight, 40, kSamples);

  auto resumed = make();
  update(*resumed, 3, 9);  // is forgotten
  resumed->load_state_dict(saved);
  update(*resumed, 40, kSamples);
  EXPECT_TRUE(at::equal(resumed->compute(), straight->compute()));
  ASSERT_EQ(resumed->states().size(), straight->states().size());
  for (size_t i = 0; i < resumed->states().size(); ++i)
    EXPECT_TRUE(at::equal(resumed->states()[i].value, straight->states()[i].value)) << resumed->states()[i].name;
}

TEST_P(EveryMetric, KeepsItsLastBatchBesideTheWhole) {
  auto metric = make();
  EXPECT_TRUE(metric->last_batch().empty());
  update(*metric, 0, 20);
  metric->end_batch();
  const auto last = [&] { return metric->compute_from(metric->last_batch()); };
  const auto of = [&](int64_t first, int64_t end) {
    auto batch = make();
    update(*batch, first, end);
    return batch->compute();
  };
  EXPECT_TRUE(at::equal(last(), of(0, 20)));
  for (const auto& [first, end] : std::vector<std::pair<int64_t, int64_t>>{{20, 50}, {50, 81}, {81, kSamples}}) {
    update(*metric, first, end);
    EXPECT_TRUE(at::equal(last(), of(first, end)));
    expect_equal(metric->compute(), of(0, end));
    metric->end_batch();
  }
  metric->reset();
  update(*metric, 0, 10);
  metric->end_batch();
  update(*metric, 10, 20);  // of a batch in parts
  update(*metric, 20, 81);
  update(*metric, 81, 81);
  expect_equal(last(), of(10, 81));
  expect_equal(metric->compute(), of(0, 81));
  metric->end_batch();
  update(*metric, 81, kSamples);
  auto other = make();
  update(*other, 0, 81);
  metric->merge_from(*other);  // as of a replica, that has another part of the same batch
  expect_equal(last(), expected());
  metric->reset();
  EXPECT_TRUE(all_nan(last()));
  metric->load_state_dict(other->state_dict());
  EXPECT_TRUE(all_nan(last()));
  update(*metric, 81, kSamples);
  EXPECT_TRUE(at::equal(last(), of(81, kSamples)));
  expect_equal(metric->compute(), expected());
}

TEST_P(EveryMetric, ForgetsOnReset) {
  auto metric = make();
  update(*metric, 5, 60);
  metric->reset();
  EXPECT_TRUE(all_nan(metric->compute()));
  update(*metric, 0, kSamples);
  expect_equal(metric->compute(), expected());
}

TEST_P(EveryMetric, IsUpdatedUnderInferenceModeAndOutside) {
  std::unique_ptr<Metric> metric;
  {
    const c10::InferenceMode inference;
    metric = make();
    GetParam().update(*metric, GetParam().predictions.slice(0, 0, 10).clone(),
                      GetParam().targets.slice(0, 0, 10).clone());
  }
  update(*metric, 10, 20);
  {
    const c10::InferenceMode inference;
    update(*metric, 20, 50);
  }
  update(*metric, 50, kSamples);
  expect_equal(metric->compute(), expected());
  metric->reset();
  for (const auto& state : metric->states()) EXPECT_FALSE(state.value.is_inference()) << state.name;
}

TEST_P(EveryMetric, KeepsNoGraph) {
  auto metric = make();
  GetParam().update(*metric, GetParam().predictions.clone().requires_grad_(), GetParam().targets);
  for (const auto& state : metric->states()) EXPECT_FALSE(state.value.requires_grad()) << state.name;
  EXPECT_FALSE(metric->compute().requires_grad());
}

TEST_P(EveryMetric, ReadsHalfPrecision) {
  auto metric = make();
  GetParam().update(*metric, GetParam().predictions.to(at::kBFloat16), GetParam().targets);
  EXPECT_TRUE(at::allclose(metric->compute(), expected(), 0.05, 0.05)) << metric->compute() << expected();
}

INSTANTIATE_TEST_SUITE_P(Metrics, EveryMetric, ::testing::ValuesIn(make_cases()),
                         [](const auto& info) { return std::string(info.param.name); });

/// The smallest and the largest value, and all of them.
class Extrema : public Metric {
 public:
  Extrema() {
    add_state("low", at::full({}, 1e9), Reduction::kMin);
    add_state("high", at::full({}, -1e9), Reduction::kMax);
    add_state("values", at::zeros({0, 2}), Reduction::kConcatenate);
  }
  Extrema& update(const at::Tensor& values) {
    const UpdateScope scope(*this);
    ensure_device(values.device());
    state(0).copy_(at::minimum(state(0), values.min()));
    state(1).copy_(at::maximum(state(1), values.max()));
    append_rows(2, values);
    return *this;
  }
  at::Tensor compute() const override { return state(1) - state(0); }
  const at::Tensor& values() const { return state(2); }
};

TEST(Metric, MergesEachStateByItsReduction) {
  Extrema a;
  Extrema b;
  a.update(at::tensor({1.0F, 5.0F}).reshape({1, 2}));
  b.update(at::tensor({-2.0F, 3.0F, 0.0F, 4.0F}).reshape({2, 2}));
  a.merge_from(b);
  EXPECT_EQ(a.compute().item<double>(), 7);
  EXPECT_TRUE(at::equal(a.values(), at::tensor({1.0F, 5.0F, -2.0F, 3.0F, 0.0F, 4.0F}).reshape({3, 2})));
}

TEST(Metric, RefusesToMergeWhatDiffers) {
  Accuracy four({.num_classes = 4, .average = "none"});
  Accuracy five({.num_classes = 5, .average = "none"});
  Mean mean;
  expect_error([&] { four.merge_from(five); }, {"[metrics] cannot merge", "[3, 5]", "[3, 6]", "hint"});
  expect_error([&] { four.merge_from(mean); }, {"[metrics] cannot merge"});
  expect_error([&] { four.merge_from(four); }, {"another object"});
}

TEST(Metric, MergesASavedState) {
  Extrema a;
  Extrema b;
  a.update(at::tensor({1.0F, 5.0F}).reshape({1, 2}));
  b.merge_state(a.state_dict());
  b.update(at::tensor({9.0F, 9.0F}).reshape({1, 2}));
  EXPECT_EQ(b.compute().item<double>(), 8);
  EXPECT_EQ(b.values().size(0), 2);
  expect_error([&] { b.merge_state(State::map()); }, {"no entry 'low'"});
}

TEST(Metric, AnUpdateThatThrowsAddsNothing) {
  Accuracy accuracy({.num_classes = 3});
  accuracy.update(at::tensor({0L, 1L}), at::tensor({0L, 2L}));
  accuracy.end_batch();
  const void* address = accuracy.states()[0].value.data_ptr();
  expect_error([&] { accuracy.update(at::tensor({0L}), at::tensor({0L, 1L})); }, {"Accuracy"});
  EXPECT_EQ(accuracy.compute().item<double>(), 0.5);
  EXPECT_EQ(accuracy.states()[0].value.data_ptr(), address);
  accuracy.update(at::tensor({1L}), at::tensor({1L}));
  EXPECT_EQ(accuracy.compute_from(accuracy.last_batch()).item<double>(), 1);
  EXPECT_DOUBLE_EQ(accuracy.compute().item<double>(), 2.0 / 3);
}

TEST(Metric, ALastBatchOfExtremesAndRows) {
  Extrema metric;
  metric.update(at::tensor({1.0F, 9.0F}).reshape({1, 2}));
  metric.end_batch();
  metric.update(at::tensor({2.0F, 5.0F, 3.0F, 4.0F}).reshape({2, 2}));
  EXPECT_EQ(metric.compute_from(metric.last_batch()).item<double>(), 3);
  EXPECT_EQ(metric.last_batch()[2].size(0), 2);
  EXPECT_EQ(metric.compute().item<double>(), 8);
  EXPECT_EQ(metric.values().size(0), 3);
}

TEST(Metric, RefusesAStateThatDoesNotFit) {
  Accuracy accuracy({.num_classes = 4, .average = "none"});
  expect_error([&] { accuracy.load_state_dict(Mean().state_dict()); }, {"counts"});
  expect_error([&] { accuracy.load_state_dict(Accuracy({.num_classes = 5, .average = "none"}).state_dict()); },
               {"'counts' does not fit"});
  Auroc auroc({.num_classes = 3});
  expect_error([&] { auroc.load_state_dict(Auroc({.num_classes = 4}).state_dict()); },
               {"[metrics]", "'scores' does not fit", "[0, 4]", "[0, 3]"});
}

TEST(Metric, StateDictIsASnapshotOfThisRank) {
  Mean mean;
  mean.update(3.0);
  const State saved = mean.state_dict();
  mean.update(100.0);
  EXPECT_EQ(saved.at("total").as_tensor().item<double>(), 3);
  EXPECT_EQ(saved.at("total").as_leaf().placement.kind, Placement::Kind::kRankLocal);
}

TEST(Metric, ResetKeepsAddresses) {
  Mean mean;
  mean.update(3.0);
  const void* address = mean.states()[0].value.data_ptr();
  mean.reset();
  mean.update(4.0);
  EXPECT_EQ(mean.states()[0].value.data_ptr(), address);
}

TEST(Metric, RowsGrowInAmortisedConstantTime) {
  Extrema metric;
  int moves = 0;
  const void* address = nullptr;
  for (int i = 0; i < 1000; ++i) {
    metric.update(at::full({1, 2}, i));
    moves += metric.values().data_ptr() == address ? 0 : 1;
    address = metric.values().data_ptr();
  }
  EXPECT_LE(moves, 11);
  EXPECT_EQ(metric.values().size(0), 1000);
  EXPECT_EQ(metric.values()[999][1].item<double>(), 999);
}

TEST(Metric, RowsOfAReplacedStateAreNotWrittenOver) {
  Extrema metric;
  metric.update(at::full({3, 2}, 1.0));
  at::Tensor gathered = at::full({10, 2}, 7.0);
  metric.states()[2].value = gathered.narrow(0, 0, 4);
  metric.update(at::full({1, 2}, 2.0));
  EXPECT_EQ(metric.values().size(0), 5);
  EXPECT_EQ(gathered[4][0].item<double>(), 7);
}

TEST(Metric, MovesWithItsState) {
  std::vector<Mean> means(2);
  means[0].update(3.0);
  means.emplace_back();
  EXPECT_EQ(means[0].compute().item<double>(), 3);
}

}  // namespace
}  // namespace levin::metrics
