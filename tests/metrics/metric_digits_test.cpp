// All metrics of numbers where digits are easily lost: large offsets, large integers, doubles. Whole, in batches, as of
// ranks, and from a saved state.

#include <levin/core/metrics/agreement.h>
#include <levin/core/metrics/auroc.h>
#include <levin/core/metrics/calibration_error.h>
#include <levin/core/metrics/collector.h>
#include <levin/core/metrics/curves.h>
#include <levin/core/metrics/extremes.h>
#include <levin/core/metrics/frechet_inception_distance.h>
#include <levin/core/metrics/image_quality.h>
#include <levin/core/metrics/mean.h>
#include <levin/core/metrics/mean_squared_error.h>
#include <levin/core/metrics/moments.h>
#include <levin/core/metrics/perplexity.h>
#include <levin/core/metrics/regression.h>
#include <levin/core/metrics/retrieval.h>
#include <levin/core/metrics/running_mean.h>
#include <levin/core/metrics/stacked_values.h>

#include "../support/thread_collective.h"
#include "metric_oracle.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace levin::metrics {
namespace {

#include "../oracles/metric_digits.inc"

at::Tensor digits(const std::string& name) { return at::tensor(kDigitInputs.at(name), at::kDouble); }
at::Tensor whole_numbers(const std::string& name) { return digits(name).to(at::kLong); }

/// Equal to `tolerance`, in parts of the value.
void expect_digits(const at::Tensor& actual, const std::string& name, double tolerance) {
  const auto& expected = kDigitsExpected.at(name);
  ASSERT_EQ(static_cast<size_t>(actual.numel()), expected.size()) << name;
  const at::Tensor flat = actual.to(at::kDouble).reshape(-1);
  for (size_t i = 0; i < expected.size(); ++i) {
    const double value = flat[static_cast<int64_t>(i)].item<double>();
    const bool is_special = !std::isfinite(expected[i]);
    const bool is_equal = std::isnan(expected[i]) ? std::isnan(value)
                          : is_special            ? value == expected[i]
                                                  : std::abs(value - expected[i]) <= tolerance * std::abs(expected[i]);
    EXPECT_TRUE(is_equal) << name << "[" << i << "]: got " << fmt::format("{}", value) << ", expected "
                          << fmt::format("{}", expected[i]);
  }
}

/// A metric and how it takes some of the samples.
struct DigitCase {
  std::function<std::unique_ptr<Metric>()> make;
  std::function<void(Metric&, int64_t begin, int64_t end)> update;
};

template <class M, class... Tensors>
DigitCase case_of(std::function<std::unique_ptr<M>()> make, const Tensors&... tensors) {
  return {make, [=](Metric& metric, int64_t begin, int64_t end) {
            static_cast<M&>(metric).update(tensors.slice(0, begin, end)...);
          }};
}
template <class M, class... Tensors>
DigitCase case_of(const typename M::Options& options, const Tensors&... tensors) {
  return case_of<M>(std::function([=] { return std::make_unique<M>(options); }), tensors...);
}
template <class M, class... Tensors>
DigitCase plain_case(const Tensors&... tensors) {
  return case_of<M>(std::function([] { return std::make_unique<M>(); }), tensors...);
}

void expect_digits_everywhere(const DigitCase& tried, int64_t samples, const std::string& name,
                              double tolerance = 1e-13) {
  SCOPED_TRACE(name);
  const auto whole = tried.make();
  tried.update(*whole, 0, samples);
  expect_digits(whole->compute(), name, tolerance);
  // Two ranks, one with uneven batches, the first of them empty; and back from their saved states.
  const int64_t middle = samples / 2 / 4 * 4;
  const auto first = tried.make();
  const auto second = tried.make();
  tried.update(*first, 0, 0);
  for (int64_t i = 0; i < middle; i += 4) tried.update(*first, i, i + 4);
  tried.update(*second, middle, samples);
  const auto restored = tried.make();
  restored->load_state_dict(first->state_dict());
  restored->merge_from(*second);
  expect_digits(restored->compute(), name, tolerance);
  // Merged the other way round, onto none, and anew after a reset.
  const auto other = tried.make();
  other->merge_from(*second);
  other->merge_from(*first);
  expect_digits(other->compute(), name, tolerance);
  other->reset();
  tried.update(*other, 0, samples);
  expect_digits(other->compute(), name, tolerance);
  // With its last batch kept apart, as the trainer does.
  const auto logged = tried.make();
  for (int64_t i = 0; i < samples; i += 8) {
    logged->end_batch();
    tried.update(*logged, i, std::min(i + 4, samples));
    tried.update(*logged, std::min(i + 4, samples), std::min(i + 8, samples));
  }
  expect_digits(logged->compute(), name, tolerance);
}

const std::vector<std::string>& pair_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> found;
    for (const auto& [key, values] : kDigitInputs)
      if (const size_t end = key.find("/targets"); end != std::string::npos) found.push_back(key.substr(0, end));
    return found;
  }();
  return names;
}

void expect_pair(const std::string& name, const at::Tensor& predictions, const at::Tensor& targets) {
  const int64_t count = targets.numel();
  const auto check = [&](const DigitCase& tried, const std::string& metric) {
    expect_digits_everywhere(tried, count, metric + "/" + name);
  };
  check(plain_case<MeanSquaredError>(predictions, targets), "mse");
  check(case_of<MeanSquaredError>({.squared = false}, predictions, targets), "rmse");
  check(plain_case<PeakSignalNoiseRatio>(predictions, targets), "psnr");
  check(plain_case<MeanAbsoluteError>(predictions, targets), "mae");
  check(plain_case<MeanAbsolutePercentageError>(predictions, targets), "mape");
  check(plain_case<R2Score>(predictions, targets), "r2");
  check(plain_case<ExplainedVariance>(predictions, targets), "explained_variance");
  check(plain_case<PearsonCorrelation>(predictions, targets), "pearson");
  check(plain_case<SpearmanCorrelation>(predictions, targets), "spearman");
  check(plain_case<Mean>(predictions), "mean");
  at::Tensor weights = targets.abs().to(at::kDouble);
  // Of a size at which products with the values are doubles, of all digits.
  if (name != "of every size")
    for (int i = 0; i < 2; ++i) weights = weights / detail::unit_above(weights.max());
  if (name != "near the least")
    check(case_of<Mean>(std::function([] { return std::make_unique<Mean>(); }), predictions, weights), "weighted_mean");
  check(plain_case<Min>(predictions), "min");
  check(plain_case<Max>(predictions), "max");
  expect_digits(MinMax().update(predictions).compute().select(0, 0), "min/" + name, 0);
  expect_digits(RunningMean({.window = 1}).update(predictions).compute(), "mean/" + name, 1e-13);
  expect_digits(
      StackedValues({.reduce = [](const at::Tensor& values) { return values.mean(); }}).update(predictions).compute(),
      "mean/" + name, 1e-13);
  DigitCase cosine = plain_case<CosineSimilarity>(predictions, targets);
  cosine.update = [&](Metric& metric, int64_t begin, int64_t end) {
    static_cast<CosineSimilarity&>(metric).update(predictions.slice(0, begin, end).reshape({-1, 4}),
                                                  targets.slice(0, begin, end).reshape({-1, 4}));
  };
  check(cosine, "cosine");
}

TEST(MetricDigits, OfPairsOfDoubles) {
  ASSERT_GT(pair_names().size(), 10U);
  for (const std::string& name : pair_names())
    expect_pair(name, digits(name + "/predictions"), digits(name + "/targets"));
}

TEST(MetricDigits, OfPairsOfIntegers) {
  int tried = 0;
  for (const std::string& name : pair_names()) {
    const at::Tensor predictions = digits(name + "/predictions");
    const at::Tensor targets = digits(name + "/targets");
    const auto are_whole = [](const at::Tensor& values) {
      return (values == values.round()).all().item<bool>() && (values.abs() < 0x1p60).all().item<bool>();
    };
    if (!are_whole(predictions) || !are_whole(targets)) continue;
    ++tried;
    expect_pair(name, predictions.to(at::kLong), targets.to(at::kLong));
  }
  EXPECT_GT(tried, 5);
}

/// Differences that float32 holds, of numbers that it holds, have squares that it does not.
TEST(MetricDigits, OfPairsOfFloats) {
  const at::Tensor predictions = at::tensor({1e25, 3e-30, 16777216.0}, at::kFloat);
  const at::Tensor targets = at::tensor({-1e25, 1e-30, 1.0}, at::kFloat);
  for (int64_t i = 0; i < 3; ++i) {
    const double difference = predictions[i].item<double>() - targets[i].item<double>();
    const at::Tensor one = predictions.narrow(0, i, 1);
    const at::Tensor other = targets.narrow(0, i, 1);
    EXPECT_DOUBLE_EQ(MeanSquaredError().update(one, other).compute().item<double>(), difference * difference);
    EXPECT_DOUBLE_EQ(MeanAbsoluteError().update(one, other).compute().item<double>(), std::abs(difference));
  }
}

TEST(MetricDigits, OfScores) {
  const at::Tensor labels = whole_numbers("labels");
  const at::Tensor queries = whole_numbers("queries");
  for (const std::string name : {"near 1", "at 1", "near 0", "near a half", "offset 1e9"}) {
    const at::Tensor scores = digits(name + "/scores");
    const auto check = [&](const DigitCase& tried, const std::string& metric) {
      expect_digits_everywhere(tried, labels.numel(), metric + "/" + name);
    };
    check(plain_case<Auroc>(scores, labels), "auroc");
    check(plain_case<AveragePrecision>(scores, labels), "average_precision");
    check(plain_case<PrecisionRecallCurve>(scores, labels), "pr_curve");
    check(plain_case<Roc>(scores, labels), "roc");
    check(case_of<PrecisionAtFixedRecall>({.min_recall = 0.9}, scores, labels), "precision_at_recall");
    check(plain_case<RetrievalMAP>(scores, labels, queries), "retrieval_map");
    check(plain_case<RetrievalNDCG>(scores, labels, queries), "retrieval_ndcg");
    if (name == "offset 1e9") continue;
    check(case_of<Auroc>({.thresholds = 3}, scores, labels), "auroc/3");
    for (const std::string norm : {"l1", "l2", "max"})
      check(case_of<CalibrationError>({.n_bins = 10, .norm = norm}, scores, labels), "calibration/" + norm);
  }
}

/// Logits of float32, whose softmax would round to 1 in it.
TEST(MetricDigits, OfLogits) {
  const at::Tensor classes = whole_numbers("classes");
  const at::Tensor logits = digits("logits").reshape({-1, 3}).to(at::kFloat);
  const int64_t count = classes.numel();
  expect_digits_everywhere(case_of<Auroc>({.num_classes = 3, .average = "none", .from_logits = true}, logits, classes),
                           count, "auroc/logits");
  expect_digits_everywhere(
      case_of<AveragePrecision>({.num_classes = 3, .average = "none", .from_logits = true}, logits, classes), count,
      "average_precision/logits");
  for (const std::string norm : {"l1", "l2", "max"})
    expect_digits_everywhere(
        case_of<CalibrationError>({.num_classes = 3, .n_bins = 10, .norm = norm, .from_logits = true}, logits, classes),
        count, "calibration/" + norm + "/logits");
  expect_digits_everywhere(plain_case<Perplexity>(logits.to(at::kDouble) + 1e6, classes), count, "perplexity/logits",
                           1e-8);
  expect_digits_everywhere(plain_case<Perplexity>(logits, classes), count, "perplexity/logits", 1e-5);
}

TEST(MetricDigits, OfTheCountsOfLongRuns) {
  const auto with_counts = [](Metric& metric, const std::string& state, const at::Tensor& counts) {
    State saved = State::map();
    saved[state] = counts;
    metric.load_state_dict(saved);
    return metric.compute();
  };
  at::Tensor cells = at::zeros({4, 4}, at::kLong);
  cells.slice(0, 0, 3).slice(1, 0, 3).copy_(whole_numbers("confusions").reshape({3, 3}));
  MatthewsCorrelation matthews({.num_classes = 3});
  expect_digits(with_counts(matthews, "counts", cells), "matthews/counts", 1e-13);
  CohenKappa kappa({.num_classes = 3});
  expect_digits(with_counts(kappa, "counts", cells), "kappa/counts", 1e-13);
  at::Tensor bins = at::zeros({1, 2, 5}, at::kLong);
  bins[0][0].slice(0, 1, 4).copy_(whole_numbers("negatives"));
  bins[0][1].slice(0, 1, 4).copy_(whole_numbers("positives"));
  Auroc auroc({.thresholds = 3});
  expect_digits(with_counts(auroc, "bins", bins), "auroc/counts", 1e-13);
}

TEST(MetricDigits, OfFeaturesWithAnOffset) {
  const at::Tensor real = digits("real").reshape({-1, 3});
  const at::Tensor generated = digits("generated").reshape({-1, 3});
  for (const double offset : {0.0, 1e6, 1e12}) {
    const auto identity = [](const at::Tensor& images) { return images; };
    FrechetInceptionDistance whole({identity, 3});
    whole.update(real + offset, true).update(generated + offset, false);
    expect_digits(whole.compute(), "fid", 1e-9);
    FrechetInceptionDistance first({identity, 3});
    FrechetInceptionDistance second({identity, 3});
    for (int64_t i = 0; i < 30; i += 7) first.update(real.slice(0, i, i + 7) + offset, true);
    first.update(generated.slice(0, 0, 1) + offset, false);
    second.update(generated.slice(0, 1) + offset, false);
    first.merge_from(second);
    expect_digits(first.compute(), "fid", 1e-9);
  }
}

TEST(MetricDigits, OfFeaturesOfAnySize) {
  const auto identity = [](const at::Tensor& images) { return images; };
  for (const double size : {0x1p-500, 0x1p-300, 0x1p300, 0x1p500}) {
    FrechetInceptionDistance metric({identity, 3});
    metric.update(digits("real").reshape({-1, 3}) * size, true);
    metric.update(digits("generated").reshape({-1, 3}) * size, false);
    expect_digits(metric.compute() / size / size, "fid", 1e-9);
  }
}

TEST(MetricDigits, OfPicturesOfAnySize) {
  for (const double size : {0x1p-700, 0x1p-300, 0x1p300, 0x1p700}) {
    const auto picture = [&](const char* which) {
      return digits(std::string("doubles/") + which).reshape({1, 1, 12, 12}) * size;
    };
    StructuralSimilarity metric({.data_range = size});
    expect_digits(metric.update(picture("pictures"), picture("meant")).compute(), "ssim/doubles", 1e-10);
  }
}

TEST(MetricDigits, OfPicturesWithAnOffset) {
  for (const std::string name : {"offset 1e6", "doubles", "two offsets"}) {
    const auto picture = [&](const char* which) { return digits(name + "/" + which).reshape({1, 1, 12, 12}); };
    StructuralSimilarity metric({.data_range = name == "doubles" ? 1.0 : 255.0});
    expect_digits(metric.update(picture("pictures"), picture("meant")).compute(), "ssim/" + name, 1e-10);
  }
}

/// Samples that are all the same have no variance, whatever rounding their batches' means had.
TEST(MetricDigits, ConstantsHaveNoVariance) {
  for (const double value : {0.1, 1e9 + 0.1, 1.0 / 3, 1e-20}) {
    PearsonCorrelation pearson;
    R2Score r2;
    for (const int64_t size : {3, 7, 1, 49, 11}) {
      const at::Tensor constant = at::full({size}, value, at::kDouble);
      pearson.update(at::arange(size, at::kDouble), constant);
      r2.update(constant + 1, constant);
    }
    EXPECT_TRUE(all_nan(pearson.compute())) << value;
    EXPECT_EQ(r2.compute().item<double>(), -std::numeric_limits<double>::infinity()) << value;
  }
}

/// What a checkpoint of an earlier version holds: sums instead of moments, scores of float32.
TEST(MetricDigits, EarlierStatesGoOn) {
  const at::Tensor predictions = digits("doubles/predictions");
  const at::Tensor targets = digits("doubles/targets");
  const at::Tensor p = predictions.slice(0, 0, 10);
  const at::Tensor t = targets.slice(0, 0, 10);
  State sums = State::map();
  sums["sums"] =
      at::stack({at::full({}, 10.0, at::kDouble), p.sum(), t.sum(), p.square().sum(), t.square().sum(), (p * t).sum()});
  const auto go_on = [&](auto&& metric, const std::string& name) {
    metric.load_state_dict(sums);
    metric.update(predictions.slice(0, 10), targets.slice(0, 10));
    expect_digits(metric.compute(), name + "/doubles", 1e-12);
  };
  go_on(R2Score(), "r2");
  go_on(ExplainedVariance(), "explained_variance");
  go_on(PearsonCorrelation(), "pearson");

  State squares = State::map();
  squares["squares"] = (p - t).square().sum();
  squares["elements"] = at::full({}, 10, at::kLong);
  MeanSquaredError mse;
  mse.load_state_dict(squares);
  expect_digits(mse.update(predictions.slice(0, 10), targets.slice(0, 10)).compute(), "mse/doubles", 1e-12);
  State of_pictures = State::map();
  of_pictures["sums"] = at::stack({(p - t).square().sum(), at::full({}, 10.0, at::kDouble)});
  PeakSignalNoiseRatio psnr;
  psnr.load_state_dict(of_pictures);
  psnr.update(predictions.slice(0, 10), targets.slice(0, 10));
  expect_digits(psnr.compute(), "psnr/doubles", 1e-12);

  const at::Tensor real = digits("real").reshape({-1, 3});
  const at::Tensor generated = digits("generated").reshape({-1, 3});
  State features = State::map();
  for (const auto& [name, values] : {std::pair("real", real), std::pair("generated", generated.slice(0, 0, 9))}) {
    features[std::string(name) + "_features"] = values.sum(0);
    features[std::string(name) + "_products"] = values.t().matmul(values);
    features[std::string(name) + "_images"] = at::full({}, values.size(0), at::kLong);
  }
  FrechetInceptionDistance distance({[](const at::Tensor& images) { return images; }, 3});
  distance.load_state_dict(features);
  expect_digits(distance.update(generated.slice(0, 9), false).compute(), "fid", 1e-9);

  const at::Tensor labels = whole_numbers("labels");
  const at::Tensor scores = digits("near 1/scores");
  State rows = State::map();
  rows["scores"] = at::zeros({0}, at::kFloat);
  rows["labels"] = at::zeros({0}, at::kLong);
  Auroc auroc;
  auroc.load_state_dict(rows);
  auroc.update(scores, labels);
  expect_digits(auroc.compute(), "auroc/near 1", 1e-13);
}

/// Logged on ranks: moments are merged, and rows that are float64 on one rank only stay that.
TEST(MetricDigits, OverRanks) {
  const at::Tensor predictions = digits("offset 1e15/predictions");
  const at::Tensor targets = digits("offset 1e15/targets");
  const at::Tensor labels = whole_numbers("labels");
  const at::Tensor scores = digits("near 1/scores");
  constexpr int64_t kRanks = 3;
  testing::run_ranks(kRanks, [&](Collective& collective) {
    const int64_t rank = collective.rank();
    R2Score r2;
    Auroc auroc;
    Collector collector;
    collector.begin({.batch_size = 8});
    r2.update(predictions.slice(0, 8 * rank, 8 * rank + 8), targets.slice(0, 8 * rank, 8 * rank + 8));
    // The first rank has none of the doubles.
    if (rank == 0)
      auroc.update(at::zeros({0}, at::kFloat), at::zeros({0}, at::kLong));
    else
      auroc.update(scores.slice(0, 20 * rank - 20, 20 * rank), labels.slice(0, 20 * rank - 20, 20 * rank));
    collector.log("r2", r2, {});
    collector.log("auroc", auroc, {});
    collector.synchronize_epoch(collective);
    std::map<std::string, double> values;
    collector.visit_epoch([&](const Collector::Value& value) { values[value.name] = value.value; });
    expect_digits(at::full({}, values.at("r2"), at::kDouble), "r2/offset 1e15", 1e-12);
    expect_digits(at::full({}, values.at("auroc"), at::kDouble), "auroc/near 1", 1e-13);
  });
}

TEST(MetricDigits, SavedStatesOfRanksAreMerged) {
  const at::Tensor predictions = digits("offset 1e15/predictions");
  const at::Tensor targets = digits("offset 1e15/targets");
  std::vector<State> of_ranks;
  for (const int64_t rank : {0, 1}) {
    R2Score r2;
    Collector collector;
    collector.begin({});
    r2.update(predictions.slice(0, 12 * rank, 12 * rank + 12), targets.slice(0, 12 * rank, 12 * rank + 12));
    collector.log("r2", r2, {});
    of_ranks.push_back(collector.state_dict());
  }
  Collector resumed;
  resumed.load_state_dict(Collector::merge_states(of_ranks));
  R2Score r2;
  resumed.begin({});
  resumed.log("r2", r2, {});
  expect_digits(r2.compute(), "r2/offset 1e15", 1e-12);
}

}  // namespace
}  // namespace levin::metrics
