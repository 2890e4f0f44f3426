#include <levin/core/metrics/metric_collection.h>

#include <levin/core/metrics/accuracy.h>
#include <levin/core/metrics/agreement.h>
#include <levin/core/metrics/auroc.h>
#include <levin/core/metrics/curves.h>
#include <levin/core/metrics/mean_squared_error.h>
#include <levin/core/metrics/precision_recall.h>
#include <levin/core/metrics/regression.h>

#include "metric_oracle.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace levin::metrics {
namespace {

MetricCollection of_classes() {
  MetricCollection metrics;
  metrics.add<Precision>("precision", {.num_classes = 4, .average = "macro"});
  metrics.add<Accuracy>("accuracy", {.num_classes = 4});
  metrics.add<Recall>("recall", {.num_classes = 4, .average = "none"});
  metrics.add<Accuracy>("macro", {.num_classes = 4, .average = "macro"});
  metrics.add<CohenKappa>("kappa", {.num_classes = 4});
  metrics.add<MatthewsCorrelation>("matthews", {.num_classes = 4});
  metrics.add<FBetaScore>("f2", {.num_classes = 4, .beta = 2});
  return metrics;
}

TEST(MetricCollection, GivesWhatItsMetricsGiveAlone) {
  const at::Tensor logits = at::randn({60, 4});
  const at::Tensor labels = at::randint(4, {60}, at::kLong);
  MetricCollection together = of_classes();
  MetricCollection rank = of_classes();
  const auto update = [&](MetricCollection& metrics, int64_t first, int64_t last) {
    metrics.update(logits.slice(0, first, last), labels.slice(0, first, last));
  };
  update(together, 0, 1);
  update(together, 1, 40);
  update(rank, 40, 60);
  together.visit([&](const std::string& name, Metric& metric) { metric.merge_from(rank.at(name)); });

  Precision precision({.num_classes = 4, .average = "macro"});
  Recall recall({.num_classes = 4, .average = "none"});
  Accuracy macro({.num_classes = 4, .average = "macro"});
  Accuracy accuracy({.num_classes = 4});
  MatthewsCorrelation matthews({.num_classes = 4});
  FBetaScore f2({.num_classes = 4, .beta = 2});
  EXPECT_TRUE(at::equal(together.at("precision").compute(), precision.update(logits, labels).compute()));
  EXPECT_TRUE(at::equal(together.at("recall").compute(), recall.update(logits, labels).compute()));
  EXPECT_TRUE(at::equal(together.at("macro").compute(), macro.update(logits, labels).compute()));
  EXPECT_TRUE(at::equal(together.at("accuracy").compute(), accuracy.update(logits, labels).compute()));
  EXPECT_TRUE(at::equal(together.at("matthews").compute(), matthews.update(logits, labels).compute()));
  EXPECT_TRUE(at::equal(together.at("f2").compute(), f2.update(logits, labels).compute()));
}

/// Counts how often it counts.
class Counted : public Metric {
 public:
  struct Options {
    double factor = 1;
  };
  explicit Counted(const Options& options) : options_(options) {
    add_state("sum", at::zeros({}, at::kDouble), Reduction::kSum);
  }
  Counted& update(const at::Tensor& values, const at::Tensor& /*unused*/) {
    const UpdateScope scope(*this);
    ++updates;
    state(0).add_(values.sum());
    return *this;
  }
  at::Tensor compute() const override { return state(0) * options_.factor; }
  std::string update_key() const override { return "sum"; }
  static inline int updates = 0;

 private:
  Options options_;
};

TEST(MetricCollection, CountsOnceForAllThatCountTheSame) {
  MetricCollection metrics;
  metrics.add<Counted>("once", {.factor = 1});
  metrics.add<Counted>("twice", {.factor = 2});
  metrics.add<Counted>("thrice", {.factor = 3});
  Counted::updates = 0;
  const at::Tensor ones = at::ones({4});
  metrics.update(ones, ones).update(ones, ones);
  EXPECT_EQ(Counted::updates, 2);
  EXPECT_EQ(metrics.at("once").compute().item<double>(), 8);
  EXPECT_EQ(metrics.at("thrice").compute().item<double>(), 24);
}

TEST(MetricCollection, KeepsLastBatchesOfThoseThatAreAskedFor) {
  MetricCollection metrics = of_classes();
  const at::Tensor logits = at::randn({30, 4});
  const at::Tensor labels = at::randint(4, {30}, at::kLong);
  metrics.update(logits.slice(0, 0, 10), labels.slice(0, 0, 10));
  Metric& macro = metrics.at("macro");
  macro.end_batch();
  metrics.update(logits.slice(0, 10, 30), labels.slice(0, 10, 30));
  Accuracy batch({.num_classes = 4, .average = "macro"});
  EXPECT_TRUE(at::equal(macro.compute_from(macro.last_batch()),
                        batch.update(logits.slice(0, 10, 30), labels.slice(0, 10, 30)).compute()));
  Accuracy whole({.num_classes = 4, .average = "macro"});
  EXPECT_TRUE(at::equal(macro.compute(), whole.update(logits, labels).compute()));
}

TEST(MetricCollection, EachIsResetByItselfOrWithAll) {
  MetricCollection metrics;
  metrics.add<Auroc>("auroc");
  metrics.add<AveragePrecision>("average_precision");
  const at::Tensor scores = at::rand({20});
  const at::Tensor labels = at::randint(2, {20}, at::kLong);
  metrics.update(scores, labels);
  metrics.at("auroc").reset();
  EXPECT_TRUE(all_nan(metrics.at("auroc").compute()));
  EXPECT_FALSE(all_nan(metrics.at("average_precision").compute()));
  metrics.reset();
  EXPECT_TRUE(all_nan(metrics.at("average_precision").compute()));
  metrics.update(scores, labels);
  EXPECT_TRUE(at::equal(metrics.at("auroc").compute(), Auroc().update(scores, labels).compute()));
}

TEST(MetricCollection, ContinuesFromItsState) {
  MetricCollection metrics;
  metrics.add<R2Score>("r2");
  metrics.add<PearsonCorrelation>("pearson");
  metrics.add<MeanSquaredError>("rmse", {.squared = false});
  const at::Tensor targets = at::randn({20});
  const at::Tensor predictions = targets + 0.1 * at::randn({20});
  metrics.update(predictions.slice(0, 0, 12), targets.slice(0, 0, 12));
  MetricCollection resumed;
  resumed.add<R2Score>("r2");
  resumed.add<PearsonCorrelation>("pearson");
  resumed.add<MeanSquaredError>("rmse", {.squared = false});
  resumed.load_state_dict(metrics.state_dict());
  metrics.update(predictions.slice(0, 12, 20), targets.slice(0, 12, 20));
  resumed.update(predictions.slice(0, 12, 20), targets.slice(0, 12, 20));
  metrics.visit([&](const std::string& name, Metric& metric) {
    EXPECT_TRUE(at::equal(metric.compute(), resumed.at(name).compute())) << name;
  });
}

TEST(MetricCollection, NamesWhatIsWrong) {
  MetricCollection metrics = of_classes();
  expect_error([&] { metrics.add<Recall>("recall", {.num_classes = 4}); }, {"there is a metric 'recall' already"});
  expect_error([&] { metrics.at("recal"); }, {"no metric 'recal'", "did you mean 'recall'"});
  expect_error([&] { metrics.update(at::rand({3, 5}), at::zeros({3}, at::kLong)); }, {"another number of classes"});
}

}  // namespace
}  // namespace levin::metrics
