#include "tests/support/sim_device/sim_device.h"

#include <levin/core/base/debug_checks.h>
#include <levin/core/metrics/accuracy.h>
#include <levin/core/metrics/agreement.h>
#include <levin/core/metrics/auroc.h>
#include <levin/core/metrics/calibration_error.h>
#include <levin/core/metrics/confusion_matrix.h>
#include <levin/core/metrics/curves.h>
#include <levin/core/metrics/extremes.h>
#include <levin/core/metrics/image_quality.h>
#include <levin/core/metrics/mean.h>
#include <levin/core/metrics/mean_squared_error.h>
#include <levin/core/metrics/metric_collection.h>
#include <levin/core/metrics/perplexity.h>
#include <levin/core/metrics/precision_recall.h>
#include <levin/core/metrics/regression.h>
#include <levin/core/metrics/running_mean.h>
#include <levin/core/nn/functional.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>

namespace levin::testing {
namespace {

using sim::device;
using ::testing::HasSubstr;

constexpr int64_t kClasses = 5;

struct DeviceBatch {
  at::Tensor scores = at::randn({8, kClasses}).softmax(1).to(device(0));
  at::Tensor labels = at::randint(kClasses, {8}).to(device(0));
  at::Tensor wrong = at::full({8}, kClasses + 2).to(device(0));
  at::Tensor values = at::rand({8}).to(device(0));
  at::Tensor binary = at::randint(2, {8}).to(device(0));
  at::Tensor images = at::rand({2, 3, 16, 16}).to(device(0));
};

std::string what_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

/// The waits of an update that is not the first.
template <class T, class... Inputs>
void expect_no_waits(T metric, const Inputs&... inputs) {
  SCOPED_TRACE(typeid(T).name());
  for (int i = 0; i < 2; ++i) metric.update(inputs...);
  sim::reset_report();
  for (int i = 0; i < 3; ++i) metric.update(inputs...);
  EXPECT_EQ(sim::report().total_waits(), 0) << sim::report().to_string();
}

TEST(SimMetrics, AnUpdateWaitsForNothing) {
  using namespace metrics;
  const DeviceBatch batch;
  expect_no_waits(Accuracy({.num_classes = kClasses}), batch.scores, batch.labels);
  expect_no_waits(Accuracy({.num_classes = kClasses, .top_k = 2}), batch.scores, batch.labels);
  expect_no_waits(F1Score({.num_classes = kClasses, .average = "macro"}), batch.scores, batch.labels);
  expect_no_waits(MatthewsCorrelation({.num_classes = kClasses}), batch.labels, batch.labels);
  expect_no_waits(ConfusionMatrix({.num_classes = kClasses}), batch.scores, batch.labels);
  expect_no_waits(Auroc({.num_classes = kClasses}), batch.scores, batch.labels);
  expect_no_waits(Auroc({.num_classes = kClasses, .thresholds = 20}), batch.scores, batch.labels);
  expect_no_waits(Roc({.thresholds = 20, .from_logits = true}), batch.values, batch.binary);
  expect_no_waits(CalibrationError({.num_classes = kClasses}), batch.scores, batch.labels);
  expect_no_waits(MeanSquaredError(MeanSquaredErrorOptions()), batch.values, batch.values);
  expect_no_waits(MeanAbsoluteError(), batch.values, batch.values);
  expect_no_waits(R2Score(), batch.values, batch.values);
  expect_no_waits(PearsonCorrelation(), batch.values, batch.values);
  expect_no_waits(SpearmanCorrelation(), batch.values, batch.values);
  expect_no_waits(CosineSimilarity(), batch.scores, batch.scores);
  expect_no_waits(PeakSignalNoiseRatio({}), batch.images, batch.images);
  expect_no_waits(StructuralSimilarity({}), batch.images, batch.images);
  expect_no_waits(Perplexity({}), batch.scores, batch.labels);
  expect_no_waits(Mean(), batch.values);
  expect_no_waits(RunningMean({}), batch.values);
  expect_no_waits(Max(), batch.values);
}

TEST(SimMetrics, LabelsOutOfRangeAreSaidAtTheEndOrAtOnceWithDebugChecks) {
  const DeviceBatch batch;
  const auto expect_refusal = [&](auto metric, const at::Tensor& predictions, const at::Tensor& labels,
                                  const std::string& at_once, const std::string& at_the_end) {
    SCOPED_TRACE(typeid(metric).name());
    {
      const DebugChecks checks;
      metric.update(predictions, batch.labels);
      EXPECT_THAT(what_of([&] { metric.update(predictions, labels); }), HasSubstr(at_once));
    }
    EXPECT_EQ(what_of([&] { metric.update(predictions, labels); }), "no error");
    EXPECT_THAT(what_of([&] { metric.compute(); }), HasSubstr(at_the_end));
  };
  using namespace metrics;
  const std::string first = ": a class is out of range; got 7; valid: 0 to 4; hint: set num_classes";
  const std::string sum = ": labels or predicted classes are out of range; got 8 such samples; valid: 0 to 4";
  expect_refusal(Accuracy({.num_classes = kClasses}), batch.scores, batch.wrong, "Accuracy" + first, "Accuracy" + sum);
  expect_refusal(Recall({.num_classes = kClasses}), batch.scores, batch.wrong, "Recall" + first, "Recall" + sum);
  expect_refusal(ConfusionMatrix({.num_classes = kClasses}), batch.labels, batch.wrong, "ConfusionMatrix" + first,
                 "ConfusionMatrix" + sum);
  expect_refusal(Auroc({.num_classes = kClasses}), batch.scores, batch.wrong, "Auroc" + first, "Auroc" + sum);
  const at::Tensor logits = batch.scores * 10;
  expect_refusal(CalibrationError({.num_classes = kClasses}), batch.scores, batch.wrong, "CalibrationError" + first,
                 "CalibrationError: scores are no probabilities or labels are out of range; got 8 such samples; valid: "
                 "scores of 0 to 1, labels of 0 to 4");
  EXPECT_THAT(what_of([&] {
                const DebugChecks checks;
                CalibrationError({.num_classes = kClasses}).update(logits, batch.labels);
              }),
              HasSubstr("CalibrationError: scores are no probabilities"));
  EXPECT_THAT(what_of([&] {
                const DebugChecks checks;
                Roc({.num_classes = kClasses, .thresholds = 10}).update(logits, batch.labels);
              }),
              HasSubstr("scores are no probabilities, which thresholds need"));
  EXPECT_THAT(what_of([&] {
                const DebugChecks checks;
                Perplexity({}).update(batch.scores, batch.wrong);
              }),
              HasSubstr("Perplexity" + first));
}

TEST(SimMetrics, ALossOfAClassThatDoesNotExistIsSaidWithDebugChecks) {
  const DeviceBatch batch;
  const at::Tensor ignored = at::full({8}, -100).to(device(0));
  const DebugChecks checks;
  EXPECT_THAT(what_of([&] { nn::functional::cross_entropy(batch.scores, batch.wrong); }),
              HasSubstr("cross_entropy was given a class that does not exist; got 7; valid: 0 to 4"));
  EXPECT_EQ(what_of([&] { nn::functional::cross_entropy(batch.scores, ignored); }), "no error");
  EXPECT_EQ(what_of([&] { nn::functional::cross_entropy(batch.scores, batch.labels); }), "no error");
  EXPECT_EQ(what_of([&] { nn::functional::cross_entropy(batch.scores, batch.scores); }), "no error");
}

}  // namespace
}  // namespace levin::testing
