#include "../support/thread_collective.h"
#include "metric_oracle.h"

#include <levin/core/checkpoint/state_bytes.h>
#include <levin/core/comm/gather_on_first.h>
#include <levin/core/metrics/accuracy.h>
#include <levin/core/metrics/auroc.h>
#include <levin/core/metrics/collector.h>
#include <levin/core/metrics/confusion_matrix.h>
#include <levin/core/metrics/mean.h>
#include <levin/core/metrics/precision_recall.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace levin::metrics {
namespace {

using levin::testing::errors_of_ranks;
using levin::testing::run_ranks;
using levin::testing::ThreadCollective;
using Values = std::map<std::string, double>;

Values epoch_values(const Collector& collector) {
  Values values;
  collector.visit_epoch([&](const Collector::Value& value) { values[value.name] = value.value; });
  return values;
}

Values step_values(const Collector& collector, bool all = false) {
  Values values;
  collector.visit_step([&](const Collector::Value& value) { values[value.name] = value.value; }, all);
  return values;
}

/// Equal up to the order of summation; NaN equals NaN.
void expect_values(const Values& actual, const Values& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, value] : expected) {
    ASSERT_TRUE(actual.contains(name)) << name;
    if (std::isnan(value))
      EXPECT_TRUE(std::isnan(actual.at(name))) << name;
    else
      EXPECT_DOUBLE_EQ(actual.at(name), value) << name;
  }
}

/// Weights of steps, in means of values that are kept in tensors (as those of devices are) and on the host.
TEST(CollectorWeights, OfZeroCountNothingWhateverTheValue) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  struct Logged {
    double value;
    double weight;  ///< negative: none
  };
  const std::vector<std::vector<Logged>> runs = {{{kNan, 0}, {4, 1}, {7, 2}},         {{4, 1}, {kNan, 0}, {7, 2}},
                                                 {{4, 1}, {7, 2}, {kInf, 0}},         {{4, -1}, {7, -1}, {1, 3}},
                                                 {{kNan, 0}, {kNan, 0}, {-kInf, 0}},  {{4, 0.25}, {kNan, 1}, {7, 2}},
                                                 {{1e9, 1}, {1, 1e-3}, {1.125, 1e-3}}};
  for (const bool in_tensors : {false, true}) {
    for (const bool weights_in_tensors : {false, true}) {
      for (size_t run = 0; run < runs.size(); ++run) {
        SCOPED_TRACE(fmt::format("run {}, tensors {}, weights {}", run, in_tensors, weights_in_tensors));
        Collector collector;
        if (in_tensors) collector.make_recordable();
        for (int epoch = 0; epoch < 2; ++epoch) {
          double sum = 0;
          double weights = 0;
          for (const auto& [value, weight] : runs[run]) {
            collector.begin({.batch_size = 5});
            collector.log("value", at::tensor(value, at::kDouble), {.on_epoch = true});
            const double counts = weight < 0 ? 5 : weight;
            if (weight >= 0)
              collector.weigh(weights_in_tensors ? LossWeight(at::tensor(weight, at::kDouble)) : LossWeight(weight));
            if (counts > 0) sum += value * counts;
            weights += counts;
          }
          expect_values(epoch_values(collector), weights == 0 ? Values() : Values{{"value", sum / weights}});
          collector.reset();
        }
      }
    }
  }
}

TEST(CollectorWeights, AreThoseOfEachLogOfAStep) {
  for (const bool in_tensors : {false, true}) {
    for (const bool was_weighed : {false, true}) {
      SCOPED_TRACE(fmt::format("tensors {}, weighed before {}", in_tensors, was_weighed));
      Collector collector;
      if (in_tensors) collector.make_recordable();
      const auto log = [&](std::vector<double> values, double weight) {
        collector.begin({.batch_size = 5});
        for (const double value : values)
          collector.log("value", at::tensor(value, at::kDouble), {.on_step = true, .on_epoch = true});
        collector.weigh(LossWeight(weight));
      };
      if (was_weighed) {
        log({1, 2, 3}, 2);
        collector.reset();
      }
      log({4, 8}, 0.5);
      EXPECT_EQ(epoch_values(collector).at("value_epoch"), 6);
      log({10}, 3);
      log({7, 7, 7}, 0);
      EXPECT_DOUBLE_EQ(epoch_values(collector).at("value_epoch"), (0.5 * 4 + 0.5 * 8 + 3 * 10) / 4);
      EXPECT_EQ(step_values(collector).at("value_step"), 7);
    }
  }
}

/// Keeps the smallest and largest value and all rows, of several types.
class Extremes : public Metric {
 public:
  Extremes() {
    add_state("zz_low", at::full({2}, 1000, at::kInt), Reduction::kMin);
    add_state("high", at::full({}, -1000.0F), Reduction::kMax);
    add_state("rows", at::zeros({0, 3}, at::kByte), Reduction::kConcatenate);
  }
  Extremes& update(int64_t value) {
    const UpdateScope scope(*this);
    state(0).copy_(at::minimum(state(0), at::full({2}, value, at::kInt)));
    state(1).copy_(at::maximum(state(1), at::full({}, static_cast<float>(value))));
    append_rows(2, at::full({1, 3}, value, at::kByte));
    return *this;
  }
  at::Tensor compute() const override {
    // The order of rows counts.
    double digits = 0;
    for (int64_t i = 0; i < state(2).size(0); ++i) digits = digits * 16 + state(2)[i][0].item<double>();
    return at::full({}, digits * 1e6 + 1000 * state(1).item<double>() + state(0)[1].item<double>(), at::kDouble);
  }
};

/// One rank's module: logs of every kind.
struct Logs {
  Accuracy accuracy{{.num_classes = 3}};
  F1Score f1{{.num_classes = 3}};
  Auroc auroc;
  Mean mean;

  /// A batch drawn from `random`, whose figures are exact in float64.
  void batch(Collector& collector, std::mt19937_64& random) {
    const auto draw = [&](int64_t below) { return static_cast<int64_t>(random() % static_cast<uint64_t>(below)); };
    const int64_t size = 1 + draw(6);
    collector.begin({.batch_size = size});
    std::vector<int64_t> predictions;
    std::vector<int64_t> labels;
    std::vector<float> scores;
    std::vector<int64_t> binary;
    for (int64_t i = 0; i < size; ++i) {
      predictions.push_back(draw(3));
      labels.push_back(draw(3));
      scores.push_back(static_cast<float>(draw(64)) / 64);
      binary.push_back(draw(2));
    }
    const double value = static_cast<double>(draw(1000)) / 8;
    collector.log("loss", value, {.sync_dist = true});
    collector.log("loss_tensor", at::full({}, value, at::kDouble), {.sync_dist = true});
    collector.log("count", static_cast<double>(size), {.reduce = LogReduce::kSum, .sync_dist = true});
    collector.log("low", value, {.reduce = LogReduce::kMin, .sync_dist = true});
    collector.log("high", value, {.reduce = LogReduce::kMax, .sync_dist = true});
    collector.log("weighted", value, {.batch_size = 1 + draw(9), .sync_dist = true});
    collector.log("accuracy", accuracy.update(at::tensor(predictions), at::tensor(labels)), {});
    collector.log("f1", f1.update(at::tensor(predictions), at::tensor(labels)), {});
    collector.log("auroc", auroc.update(at::tensor(scores), at::tensor(binary)), {});
    collector.log("mean", mean.update(value, static_cast<double>(size)), {});
  }
};

class CollectorSync : public ::testing::TestWithParam<int64_t> {};

TEST_P(CollectorSync, EqualsOneProcessOverEverything) {
  const int64_t world_size = GetParam();
  for (uint64_t seed = 0; seed < 12; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<int64_t> batches(static_cast<size_t>(world_size));
    for (int64_t& count : batches) count = static_cast<int64_t>(random() % 5);
    batches[seed % batches.size()] += 1;  // somebody has data

    Collector everything;
    Logs all;
    for (size_t rank = 0; rank < batches.size(); ++rank) {
      std::mt19937_64 of_rank(100 * seed + rank);
      for (int64_t i = 0; i < batches[rank]; ++i) all.batch(everything, of_rank);
    }
    const Values expected = epoch_values(everything);

    run_ranks(world_size, [&](ThreadCollective& collective) {
      const auto rank = static_cast<size_t>(collective.rank());
      std::mt19937_64 of_rank(100 * seed + rank);
      Collector collector;
      Logs logs;
      for (int64_t i = 0; i < batches[rank]; ++i) logs.batch(collector, of_rank);
      collector.synchronize_epoch(collective, batches[rank] > 0);
      expect_values(epoch_values(collector), expected);
    });
  }
}

TEST_P(CollectorSync, StepValuesAreWeightedByTheStepsBatches) {
  run_ranks(GetParam(), [&](ThreadCollective& collective) {
    const auto rank = static_cast<double>(collective.rank());
    const auto ranks = static_cast<double>(collective.world_size());
    Collector collector;
    collector.begin({.batch_size = 100, .step_default = true});
    collector.log("loss", 1000.0, {.sync_dist = true});  // an earlier step does not count
    collector.log("earlier", 1.0, {.sync_dist = true});
    collector.begin({.batch_size = collective.rank() + 1, .step_default = true});
    collector.log("loss", rank, {.on_epoch = true, .sync_dist = true});
    collector.log("high", rank, {.reduce = LogReduce::kMax, .sync_dist = true});
    collector.log("own", rank, {});
    collector.log("total", rank, {.reduce = LogReduce::kSum, .sync_dist = true});
    collector.log("epoch_only", rank, {.on_step = false, .on_epoch = true, .sync_dist = true});
    collector.synchronize_step(collective);
    double sum = 0;
    double weight = 0;
    double total = 0;
    for (double other = 0; other < ranks; ++other) {
      sum += other * (other + 1);
      weight += other + 1;
      total += other;
    }
    expect_values(step_values(collector),
                  {{"loss", sum / weight}, {"high", ranks - 1}, {"own", rank}, {"total", total}});
    expect_values(step_values(collector, /*all=*/true),
                  {{"loss", sum / weight}, {"high", ranks - 1}, {"own", rank}, {"total", total}, {"earlier", 1}});

    collector.log("loss", 7.0, {.sync_dist = true});
    EXPECT_EQ(step_values(collector).at("loss"), 7);  // logged again: this rank's own
    EXPECT_EQ(step_values(collector).at("high"), ranks - 1);
  });
}

TEST_P(CollectorSync, MetricsOnTheStepAreThoseOfTheBatch) {
  run_ranks(GetParam(), [&](ThreadCollective& collective) {
    Collector collector;
    Mean own;
    Mean mean;
    double sum = 0;
    double weight = 0;
    for (int64_t step = 1; step < 4; ++step) {
      const auto value = static_cast<double>(step * (collective.rank() + 1));
      collector.begin({.step_default = true});
      collector.log("own", own.update(value), {});
      collector.log("mean", mean.update(value), {.on_epoch = true, .sync_dist = true});
      double step_sum = 0;
      for (int64_t rank = 0; rank < collective.world_size(); ++rank) step_sum += static_cast<double>(step * (rank + 1));
      const auto ranks = static_cast<double>(collective.world_size());
      expect_values(step_values(collector), {{"own", value}, {"mean_step", value}});
      collector.synchronize_step(collective);
      expect_values(step_values(collector), {{"own", value}, {"mean_step", step_sum / ranks}});
      sum += step_sum;
      weight += ranks;
    }
    collector.synchronize_epoch(collective);
    expect_values(epoch_values(collector), {{"mean_epoch", sum / weight}});
    collector.reset();
    EXPECT_TRUE(all_nan(own.compute()));
  });
}

TEST_P(CollectorSync, GoesOnWithTheRanksOwnSums) {
  run_ranks(GetParam(), [&](ThreadCollective& collective) {
    const auto ranks = static_cast<double>(collective.world_size());
    const auto rank = static_cast<double>(collective.rank());
    Collector collector;
    Mean mean;
    collector.begin({});
    collector.log("total", rank, {.reduce = LogReduce::kSum, .sync_dist = true});
    collector.log("mean", mean.update(rank), {});
    const void* address = mean.states()[0].value.data_ptr();
    collector.synchronize_epoch(collective);
    EXPECT_EQ(epoch_values(collector).at("total"), ranks * (ranks - 1) / 2);
    EXPECT_EQ(epoch_values(collector).at("mean"), (ranks - 1) / 2);

    // What a checkpoint keeps, and the metric itself, are this rank's.
    EXPECT_EQ(mean.states()[0].value.data_ptr(), address);
    EXPECT_EQ(mean.compute().item<double>(), rank);
    const auto items = collector.state_dict().as_list();
    EXPECT_EQ(items.at(0).at("values").as_list().at(1).as_double(), rank);
    EXPECT_EQ(items.at(1).at("metric").at("total").as_tensor().item<double>(), rank);

    collector.begin({});
    collector.log("total", 10.0, {.reduce = LogReduce::kSum, .sync_dist = true});
    EXPECT_EQ(epoch_values(collector).at("total"), rank + 10);
    collector.log("mean", mean.update(rank + 2), {});
    collector.synchronize_epoch(collective);
    EXPECT_EQ(epoch_values(collector).at("total"), ranks * (ranks - 1) / 2 + 10 * ranks);
    EXPECT_EQ(epoch_values(collector).at("mean"), (ranks - 1) / 2 + 1);

    collector.reset();
    EXPECT_TRUE(epoch_values(collector).empty());
    EXPECT_TRUE(all_nan(mean.compute()));
  });
}

TEST_P(CollectorSync, KeepsTypesAndRowOrderOfMetricStates) {
  run_ranks(GetParam(), [&](ThreadCollective& collective) {
    Extremes all;
    for (int64_t rank = 0; rank < collective.world_size(); ++rank)
      for (int64_t i = 0; i < rank; ++i) all.update(3 * rank + i);
    Extremes own;
    for (int64_t i = 0; i < collective.rank(); ++i) own.update(3 * collective.rank() + i);  // rank 0 has no rows
    Collector collector;
    collector.begin({});
    collector.log("extremes", own, {});
    collector.synchronize_epoch(collective);
    expect_values(epoch_values(collector), {{"extremes", all.compute().item<double>()}});
    EXPECT_EQ(own.states()[2].value.size(0), collective.rank());
  });
}

TEST_P(CollectorSync, RowsMayBeManyAndUneven) {
  run_ranks(GetParam(), [&](ThreadCollective& collective) {
    const auto update = [](Auroc& auroc, int64_t rank) {
      const int64_t rows = rank == 1 ? 0 : 700 * (rank + 1);
      std::vector<float> scores;
      std::vector<int64_t> labels;
      for (int64_t i = 0; i < rows; ++i) {
        scores.push_back(static_cast<float>((i * 37 + rank) % 101) / 101);
        labels.push_back((i * 11 + rank) % 3 == 0 ? 1 : 0);
      }
      auroc.update(at::tensor(scores), at::tensor(labels, at::kLong));
    };
    Auroc all;
    for (int64_t rank = 0; rank < collective.world_size(); ++rank) update(all, rank);
    Auroc own;
    update(own, collective.rank());
    Collector collector;
    for (int epoch = 0; epoch < 2; ++epoch) {
      collector.begin({});
      collector.log("auroc", own, {});
      collector.synchronize_epoch(collective);
      EXPECT_EQ(epoch_values(collector).at("auroc"), all.compute().item<double>());
    }
  });
}

TEST_P(CollectorSync, OrderOfLogsDoesNotMatter) {
  run_ranks(GetParam(), [&](ThreadCollective& collective) {
    Collector collector;
    collector.begin({});
    for (int i = 0; i < 20; ++i) {
      const int number = collective.rank() % 2 == 0 ? i : 19 - i;
      collector.log(fmt::format("value {}", number), number, {.sync_dist = number % 3 != 0});
    }
    collector.synchronize_epoch(collective);
    const Values values = epoch_values(collector);
    for (int i = 0; i < 20; ++i) EXPECT_EQ(values.at(fmt::format("value {}", i)), i);
  });
}

TEST_P(CollectorSync, LogsWithoutCollectivesAndSynchronisesWithOne) {
  run_ranks(GetParam(), [&](ThreadCollective& collective) {
    const bool alone = collective.world_size() == 1;
    const bool all_tell_all = collective.world_size() <= kFewRanks;
    Collector collector;
    Mean mean;
    for (int step = 0; step < 10; ++step) {
      collector.begin({.step_default = true});
      collector.log("loss", 1.0, {.on_epoch = true, .sync_dist = true});
      collector.log("mean", mean.update(1.0), {});
    }
    EXPECT_EQ(collective.calls(), 0);
    collector.synchronize_step(collective);
    if (all_tell_all) EXPECT_EQ(collective.calls(), alone ? 0 : 1);
    collector.synchronize_epoch(collective);
    if (all_tell_all) EXPECT_EQ(collective.calls(), alone ? 0 : 2);

    // More than fits: a second one.
    for (int i = 0; i < 300; ++i) collector.log(fmt::format("value {}", i), i, {.sync_dist = true});
    collector.synchronize_step(collective);
    if (all_tell_all) EXPECT_EQ(collective.calls(), alone ? 0 : 4);
    for (int i = 0; i < 300; ++i) EXPECT_EQ(step_values(collector).at(fmt::format("value {}", i)), i);
  });
}

TEST_P(CollectorSync, NanAndInfinityComeThrough) {
  run_ranks(GetParam(), [&](ThreadCollective& collective) {
    const bool last = collective.rank() == collective.world_size() - 1;
    const double nan = std::numeric_limits<double>::quiet_NaN();
    Collector collector;
    collector.begin({});
    collector.log("low", last ? nan : 1.0, {.reduce = LogReduce::kMin, .sync_dist = true});
    collector.log("high", last ? std::numeric_limits<double>::infinity() : 1.0,
                  {.reduce = LogReduce::kMax, .sync_dist = true});
    collector.log("mean", last ? nan : 1.0, {.sync_dist = true});
    collector.synchronize_epoch(collective);
    expect_values(epoch_values(collector),
                  {{"low", nan}, {"high", std::numeric_limits<double>::infinity()}, {"mean", nan}});
  });
}

TEST_P(CollectorSync, WorksUnderInferenceModeAndOutside) {
  run_ranks(GetParam(), [&](ThreadCollective& collective) {
    Collector collector;
    Mean mean;
    const auto round = [&] {
      collector.begin({});
      collector.log("mean", mean.update(at::full({2}, 3.0)), {});
      collector.synchronize_epoch(collective);
      EXPECT_EQ(epoch_values(collector).at("mean"), 3);
    };
    {
      const c10::InferenceMode inference;
      round();
    }
    round();
    {
      const c10::InferenceMode inference;
      round();
    }
    EXPECT_FALSE(mean.states()[0].value.is_inference());
  });
}

// More than kFewRanks combine on rank 0.
INSTANTIATE_TEST_SUITE_P(Ranks, CollectorSync, ::testing::Values(1, 2, 3, 4, 19));

TEST(CollectorSyncOrder, ValuesAddUpFromTheFirstRankToTheLastHoweverManyThereAre) {
  for (const int64_t world_size : {4, 50}) {
    // Another order rounds otherwise.
    const auto value_of = [](int64_t rank) { return std::pow(10.0, rank % 7) / static_cast<double>(rank + 3); };
    double sum = 0;
    double weighted = 0;
    double weights = 0;
    for (int64_t rank = 0; rank < world_size; ++rank) {
      const auto weight = static_cast<double>(rank % 3 + 1);
      sum += value_of(rank);
      weighted += value_of(rank) * weight;
      weights += weight;
    }
    run_ranks(world_size, [&](ThreadCollective& collective) {
      const int64_t rank = collective.rank();
      Collector collector;
      collector.begin({.batch_size = rank % 3 + 1});
      collector.log("sum", value_of(rank), {.reduce = LogReduce::kSum, .sync_dist = true});
      collector.log("mean", value_of(rank), {.on_step = true, .on_epoch = true, .sync_dist = true});
      collector.synchronize_step(collective);
      EXPECT_EQ(step_values(collector).at("mean_step"), weighted / weights);
      collector.synchronize_epoch(collective);
      EXPECT_EQ(epoch_values(collector).at("sum"), sum);
      EXPECT_EQ(epoch_values(collector).at("mean_epoch"), weighted / weights);
    });
  }
}

TEST(CollectorSyncOrder, WhatARankReceivesDoesNotGrowWithTheirNumber) {
  const auto received_by_last = [](int64_t world_size) {
    std::atomic<int64_t> received{0};
    run_ranks(world_size, [&](ThreadCollective& collective) {
      Collector collector;
      Accuracy accuracy{{.num_classes = 3}};
      collector.begin({.batch_size = 4});
      for (int64_t i = 0; i < 100; ++i) collector.log(fmt::format("value_{}", i), 0.5, {.sync_dist = true});
      collector.log("accuracy", accuracy.update(at::tensor({0, 1}), at::tensor({0, 2})), {});
      collector.synchronize_epoch(collective);
      if (collective.rank() == world_size - 1) received = collective.received();
      EXPECT_DOUBLE_EQ(epoch_values(collector).at("accuracy"), 0.5);
    });
    return received.load();
  };
  EXPECT_EQ(received_by_last(33), received_by_last(65));
  EXPECT_LT(received_by_last(33), 4096);
}

TEST(CollectorSyncOrder, WhatRankZeroCannotCombineAllRanksCombine) {
  run_ranks(20, [](ThreadCollective& collective) {
    const int64_t rank = collective.rank();
    // Rank 0 has had no batch, so that it has no states of the metric, nor the name.
    Collector collector;
    Accuracy accuracy{{.num_classes = 3}};
    if (rank > 0) {
      collector.begin({.batch_size = 2});
      collector.log("accuracy",
                    accuracy.update(at::tensor({0, 1}, at::kLong), at::tensor({int64_t{0}, int64_t{rank < 10}})), {});
      collector.log("sum", 0.25, {.reduce = LogReduce::kSum, .sync_dist = true});
    }
    collector.synchronize_epoch(collective, /*took_part=*/rank > 0);
    EXPECT_DOUBLE_EQ(epoch_values(collector).at("accuracy"), (9 * 2 + 10) / 38.0);
    EXPECT_DOUBLE_EQ(epoch_values(collector).at("sum"), 19 * 0.25);
  });
}

// ---- Ranks that differ

/// Every rank's error of `body` and a synchronisation, which must be the same for all.
std::string common_error(int64_t world_size, const std::function<void(Collector&, int64_t rank)>& body) {
  const auto errors = errors_of_ranks(world_size, [&](ThreadCollective& collective) {
    Collector collector;
    collector.begin({});
    body(collector, collective.rank());
    collector.synchronize_epoch(collective);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, errors.front());
  return errors.front();
}

constexpr LogOptions kSynchronized{.sync_dist = true};

TEST(CollectorDisagreement, NamesRankAndName) {
  const auto error = common_error(2, [](Collector& collector, int64_t rank) {
    collector.log("val_loss", 1.0, kSynchronized);
    if (rank == 1) collector.log("val_f1", 1.0, {});
  });
  EXPECT_EQ(error,
            "[log] ranks logged different names: 'val_f1' on rank 1 only; hint: log the same names on every rank, or "
            "use rank_zero_only");
}

TEST(CollectorDisagreement, SaysWhichRanksOfSeveral) {
  const auto error = common_error(4, [](Collector& collector, int64_t rank) {
    if (rank != 2) collector.log("a", 1.0, {});
    if (rank == 0 || rank == 3) collector.log("b", 1.0, kSynchronized);
    collector.log("c", 1.0, {});
  });
  EXPECT_NE(error.find("'a' not on rank 2, 'b' on ranks 0 and 3 only;"), std::string::npos) << error;
}

TEST(CollectorDisagreement, IsFoundWhereNobodyCombines) {
  const auto error = common_error(
      3, [](Collector& collector, int64_t rank) { collector.log(fmt::format("of rank {}", rank), 1.0, {}); });
  EXPECT_NE(error.find("'of rank 0' on rank 0 only, 'of rank 1' on rank 1 only, 'of rank 2' on rank 2 only"),
            std::string::npos)
      << error;
}

TEST(CollectorDisagreement, OfManyNamesShowsSome) {
  const auto error = common_error(2, [](Collector& collector, int64_t rank) {
    for (int i = 0; i < (rank == 0 ? 300 : 400); ++i) collector.log(fmt::format("{:03}", i), i, kSynchronized);
  });
  EXPECT_NE(error.find("'300' on rank 1 only"), std::string::npos) << error;
  EXPECT_NE(error.find("'309' on rank 1 only and 90 more; hint"), std::string::npos) << error;
}

TEST(CollectorDisagreement, OfARankThatLoggedNothing) {
  const auto error = common_error(2, [](Collector& collector, int64_t rank) {
    if (rank == 0) collector.log("loss", 1.0, kSynchronized);
  });
  EXPECT_NE(error.find("'loss' on rank 0 only"), std::string::npos) << error;
}

TEST(CollectorDisagreement, AboutOptions) {
  const auto error = common_error(3, [](Collector& collector, int64_t rank) {
    collector.log("loss", 1.0, {.reduce = rank == 1 ? LogReduce::kMax : LogReduce::kMean, .sync_dist = true});
    collector.log("own", 1.0, {.sync_dist = rank == 0});
  });
  EXPECT_EQ(error,
            "[log] ranks logged a name with different options: 'loss' is the max over ranks on rank 1 and the mean "
            "over ranks on ranks 0 and 2, 'own' is a value of each rank on ranks 1 and 2 and the mean over ranks on "
            "rank 0; hint: log it in the same way on every rank");
}

TEST(CollectorDisagreement, AboutMetrics) {
  Accuracy three({.num_classes = 3, .average = "macro"});
  Accuracy four({.num_classes = 4, .average = "macro"});
  const at::Tensor classes = at::tensor({0, 1}, at::kLong);
  three.update(classes, classes);
  four.update(classes, classes);
  const auto error = common_error(
      2, [&](Collector& collector, int64_t rank) { collector.log("accuracy", rank == 0 ? three : four, {}); });
  EXPECT_EQ(error,
            "[log] the metric 'accuracy' has states of other names, types or shapes on rank 1 than on rank 0; hint: "
            "give it the same options on every rank");
}

TEST(CollectorDisagreement, OfManyRanksIsSaidOnAllOfThem) {
  EXPECT_EQ(common_error(20,
                         [](Collector& collector, int64_t rank) {
                           collector.log("val_loss", 1.0, kSynchronized);
                           if (rank == 7) collector.log("val_f1", 1.0, {});
                         }),
            "[log] ranks logged different names: 'val_f1' on rank 7 only; hint: log the same names on every rank, or "
            "use rank_zero_only");
  const at::Tensor classes = at::tensor({0, 1}, at::kLong);
  std::vector<std::unique_ptr<Accuracy>> metrics;
  for (int64_t rank = 0; rank < 20; ++rank) {
    metrics.push_back(
        std::make_unique<Accuracy>(Accuracy::Options{.num_classes = rank == 18 ? 4 : 3, .average = "macro"}));
    metrics.back()->update(classes, classes);
  }
  const auto error = common_error(20, [&](Collector& collector, int64_t rank) {
    collector.log("accuracy", *metrics[static_cast<size_t>(rank)], {});
  });
  EXPECT_NE(error.find("the metric 'accuracy' has states of other names, types or shapes on rank 18 than on rank 0"),
            std::string::npos)
      << error;
}

TEST(CollectorDisagreement, OfAStepIsFoundToo) {
  const auto errors = errors_of_ranks(2, [&](ThreadCollective& collective) {
    Collector collector;
    for (int step = 0; step < 3; ++step) {
      collector.begin({.step_default = true});
      collector.log("loss", 1.0, kSynchronized);
      if (step == 2 && collective.rank() == 0) collector.log("sometimes", 1.0, {});
      collector.synchronize_step(collective);
    }
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("'sometimes' on rank 0 only"), std::string::npos) << error;
}

TEST(CollectorDisagreement, IsNoneAboutRankZeroOnly) {
  run_ranks(3, [](ThreadCollective& collective) {
    Collector collector;
    collector.begin({});
    collector.log("loss", 1.0, kSynchronized);
    if (collective.rank() == 0) collector.log("note", 5.0, {.sync_dist = true, .rank_zero_only = true});
    if (collective.rank() == 0) collector.log("more", 5.0, {.rank_zero_only = true});
    collector.synchronize_epoch(collective);
    EXPECT_EQ(epoch_values(collector).size(), collective.rank() == 0 ? 3U : 1U);
    if (collective.rank() == 0) {
      EXPECT_EQ(epoch_values(collector).at("note"), 5);
    }
  });
}

TEST(CollectorDisagreement, AMetricOfSeveralValuesIsRefusedOnAllRanks) {
  ConfusionMatrix matrices[2]{ConfusionMatrix({.num_classes = 2}), ConfusionMatrix({.num_classes = 2})};
  const auto error = common_error(2, [&](Collector& collector, int64_t rank) {
    const at::Tensor classes = at::tensor({0, 1}, at::kLong);
    collector.log("matrix", matrices[rank].update(classes, classes), {});
  });
  EXPECT_NE(error.find("the metric 'matrix' computes 4 values"), std::string::npos) << error;
  EXPECT_EQ(matrices[0].compute().sum().item<double>(), 2);  // has its own state again
}

// ---- Ranks without batches

TEST(CollectorWithoutBatches, GetsNamesAndValuesFromTheOthers) {
  run_ranks(3, [](ThreadCollective& collective) {
    const bool took_part = collective.rank() != 0;
    Collector collector;
    Mean mean;
    for (int epoch = 0; epoch < 2; ++epoch) {
      if (took_part) {
        const auto value = static_cast<double>(collective.rank());
        collector.begin({.batch_size = collective.rank()});
        collector.log("loss", value, {.prog_bar = true, .sync_dist = true});
        collector.log("low", value, {.logger = false, .reduce = LogReduce::kMin, .sync_dist = true});
        collector.log("own", value, {.sync_dist = false});
        collector.log("mean", mean.update(value), {.on_step = true, .on_epoch = true});
      }
      collector.begin({});
      collector.log("at_end", 2.0, {.reduce = LogReduce::kSum, .sync_dist = true});  // in a hook: all ranks
      collector.synchronize_epoch(collective, took_part);
      Values expected{{"loss", 5.0 / 3}, {"low", 1}, {"mean_epoch", 1.5}, {"at_end", 6}};
      if (took_part) expected["own"] = static_cast<double>(collective.rank());
      expect_values(epoch_values(collector), expected);
      if (!took_part) {
        EXPECT_TRUE(step_values(collector, /*all=*/true).empty());
      }
      collector.visit_epoch([](const Collector::Value& value) {
        EXPECT_EQ(value.prog_bar, value.name == "loss") << value.name;
        EXPECT_EQ(value.logger, value.name != "low") << value.name;
        EXPECT_EQ(value.short_name, value.name == "mean_epoch" ? "mean" : value.name);
      });
      collector.reset();
    }
  });
}

TEST(CollectorWithoutBatches, AMetricOnTheStepIsThatOfTheRanksThatHaveOne) {
  run_ranks(3, [](ThreadCollective& collective) {
    Collector collector;
    Mean mean;
    for (int64_t step = 0; step < 2; ++step) {
      const bool took_part = step == 0 || collective.rank() != 0;
      collector.begin({.step_default = true});
      if (took_part)
        collector.log("mean", mean.update(static_cast<double>(10 * step + collective.rank())), {.sync_dist = true});
      collector.synchronize_step(collective, took_part);
      expect_values(step_values(collector), {{"mean", step == 0 ? 1 : 11.5}});
    }
  });
}

/// Values of the last step that has logged the name, of the ranks that took part in it.
TEST_P(CollectorSync, NewestValuesAreThoseOfTheLastStepThatLoggedThem) {
  const int64_t world_size = GetParam();
  run_ranks(world_size, [&](ThreadCollective& collective) {
    const auto rank = static_cast<double>(collective.rank());
    const double mean_rank = static_cast<double>(world_size - 1) / 2;
    Collector collector;
    Mean mean;
    Values ages;
    const auto newest = [&] {
      Values values;
      collector.visit_step(
          [&](const Collector::Value& value) {
            values[value.name] = value.value;
            ages[value.name] = static_cast<double>(value.training_batches);
          },
          /*all=*/true);
      return values;
    };
    for (int64_t batch = 1; batch <= 4; ++batch) {
      collector.begin({.batch_size = batch, .step_default = true, .training_batches = batch});
      const auto value = 100 * static_cast<double>(batch) + rank;
      if (batch % 2 == 1) collector.log("odd", value, {.sync_dist = true});
      if (batch == 2) collector.log("metric", mean.update(value), {.sync_dist = true});
      if (batch == 3) collector.log("sum", value, {.reduce = LogReduce::kSum, .sync_dist = true});
      if (batch == 2) collector.log("own", rank, {});
      // The last rank alone has outputs in this step, as the last stage of a pipeline.
      if (batch == 4 && collective.rank() + 1 == world_size) collector.log("odd", 7, {.sync_dist = true});
      if (batch == 3) collector.synchronize_newest(collective);
      if (batch == 3)
        expect_values(newest(), {{"odd", 300 + mean_rank},
                                 {"metric", 200 + mean_rank},
                                 {"sum", 300 * static_cast<double>(world_size) + mean_rank * world_size},
                                 {"own", rank}});
    }
    collector.synchronize_newest(collective);
    collector.synchronize_newest(collective);
    const Values expected = {{"odd", 7},
                             {"metric", 200 + mean_rank},
                             {"sum", 300 * static_cast<double>(world_size) + mean_rank * world_size},
                             {"own", rank}};
    expect_values(newest(), expected);
    expect_values(ages, {{"odd", 4}, {"metric", 2}, {"sum", 3}, {"own", 2}});

    Collector resumed;
    resumed.load_state_dict(collector.state_dict());
    resumed.synchronize_newest(collective);
    collector.load_state_dict(resumed.state_dict());
    expect_values(newest(), expected);
    expect_values(ages, {{"odd", 4}, {"metric", 2}, {"sum", 3}, {"own", 2}});
  });
}

TEST(CollectorSync, NewestNamesThatOtherRanksLackAreStillMissedAtTheEpochsEnd) {
  const auto errors = errors_of_ranks(2, [](ThreadCollective& collective) {
    Collector collector;
    collector.begin({.step_default = true});
    if (collective.rank() == 1) collector.log("one", 1, {.on_step = true, .on_epoch = true, .sync_dist = true});
    collector.synchronize_newest(collective);
    expect_values(step_values(collector, /*all=*/true), {{"one_step", 1}});
    collector.synchronize_epoch(collective);
  });
  for (const auto& error : errors) EXPECT_NE(error.find("'one' on rank 1 only"), std::string::npos) << error;
}

TEST(CollectorSync, CombinesByDefaultWhereTheEpochIsTheDefault) {
  run_ranks(2, [](ThreadCollective& collective) {
    const auto rank = static_cast<double>(collective.rank());
    Collector evaluation;
    evaluation.begin({.batch_size = 1 + collective.rank()});
    evaluation.log("val_loss", rank, {});
    evaluation.log("own", rank, {.sync_dist = false});
    evaluation.synchronize_epoch(collective);
    expect_values(epoch_values(evaluation), {{"val_loss", 2.0 / 3}, {"own", rank}});

    Collector training;
    training.begin({.step_default = true});
    training.log("loss", rank, {.on_step = true, .on_epoch = true});
    training.synchronize_epoch(collective);
    expect_values(epoch_values(training), {{"loss_epoch", rank}});
  });
}

TEST(CollectorWithoutBatches, MayBeEveryRank) {
  run_ranks(2, [](ThreadCollective& collective) {
    Collector collector;
    collector.synchronize_epoch(collective, /*took_part=*/false);
    EXPECT_TRUE(epoch_values(collector).empty());
  });
}

TEST(CollectorWithoutBatches, DoesNotHideADisagreementOfTheOthers) {
  const auto errors = errors_of_ranks(3, [](ThreadCollective& collective) {
    Collector collector;
    collector.begin({});
    if (collective.rank() < 2) collector.log("loss", 1.0, kSynchronized);
    if (collective.rank() == 1) collector.log("extra", 1.0, {});
    collector.synchronize_epoch(collective, collective.rank() < 2);
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("ranks logged different names: 'extra' not on rank 0;"), std::string::npos) << error;
}

TEST(CollectorWithoutBatches, MayHaveNoneInAStep) {
  run_ranks(2, [](ThreadCollective& collective) {
    Collector collector;
    for (int step = 0; step < 3; ++step) {
      const bool took_part = collective.rank() == 0 || step == 0;
      collector.begin({.step_default = true});
      if (took_part) collector.log("loss", static_cast<double>(step), kSynchronized);
      collector.synchronize_step(collective, took_part);
      expect_values(step_values(collector), {{"loss", step}});
    }
  });
}

TEST(CollectorWithoutBatches, SeveralLoadersWithOneMetricObject) {
  // Batches of loader 0 and 1 by rank; loader 1 gives rank 1 none, loader 0 gives rank 2 none.
  const std::vector<std::vector<int64_t>> batches = {{2, 1}, {1, 0}, {0, 3}};
  const auto value_of = [](int64_t rank, int64_t loader, int64_t batch) {
    return static_cast<double>(1 + 100 * rank + 10 * loader + batch);
  };
  const auto log_batch = [](Collector& collector, Mean& mean, Extremes& extremes, int64_t loader, double value) {
    collector.begin({.batch_size = 2, .dataloader_idx = loader, .loaders = 2});
    collector.log("loss", value, kSynchronized);
    collector.log("mean", mean.update(value), {});
    collector.log("extremes", extremes.update(static_cast<int64_t>(value) % 16), {});
  };
  Collector everything;
  Mean all_mean;
  Extremes all_extremes;
  for (int64_t loader = 0; loader < 2; ++loader) {
    for (int64_t rank = 0; rank < 3; ++rank)
      for (int64_t batch = 0; batch < batches[rank][loader]; ++batch)
        log_batch(everything, all_mean, all_extremes, loader, value_of(rank, loader, batch));
    everything.end_loader();
  }
  const Values expected = epoch_values(everything);
  ASSERT_EQ(expected.size(), 6U);
  ASSERT_TRUE(expected.contains("mean/dataloader_idx_1"));

  run_ranks(3, [&](ThreadCollective& collective) {
    Collector collector;
    Mean mean;
    Extremes extremes;
    const int64_t rank = collective.rank();
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (int64_t loader = 0; loader < 2; ++loader) {
        for (int64_t batch = 0; batch < batches[rank][loader]; ++batch)
          log_batch(collector, mean, extremes, loader, value_of(rank, loader, batch));
        collector.end_loader();
      }
      collector.begin({.loaders = 1});
      collector.synchronize_epoch(collective, true);
      expect_values(epoch_values(collector), expected);
      EXPECT_TRUE(all_nan(mean.compute()));
      collector.reset();
    }
  });
}

TEST(CollectorWithoutBatches, OneNameForSeveralLoadersIsOneValue) {
  // Batches of loader 0 and 1 by rank; loader 1 gives rank 1 none, loader 0 gives rank 2 none.
  const std::vector<std::vector<int64_t>> batches = {{2, 1}, {1, 0}, {0, 3}};
  const auto value_of = [](int64_t rank, int64_t loader, int64_t batch) {
    return static_cast<double>(1 + 100 * rank + 10 * loader + batch);
  };
  const auto log_batch = [](Collector& collector, std::vector<Mean>& means, int64_t loader, double value) {
    collector.begin({.batch_size = 2 + loader, .dataloader_idx = loader, .loaders = 2});
    collector.log("loss", value, {.sync_dist = true, .add_dataloader_idx = false});
    collector.log("mean", means[0].update(value), {.add_dataloader_idx = false});
    collector.log("of_two", means[static_cast<size_t>(1 + loader)].update(value), {.add_dataloader_idx = false});
    if (loader == 1) collector.log("own", value, {.sync_dist = true, .add_dataloader_idx = false});
  };
  double sum = 0;
  double weighted = 0;
  double weight = 0;
  double count = 0;
  double own = 0;
  for (int64_t rank = 0; rank < 3; ++rank)
    for (int64_t loader = 0; loader < 2; ++loader)
      for (int64_t batch = 0; batch < batches[rank][loader]; ++batch) {
        const double value = value_of(rank, loader, batch);
        sum += value;
        count += 1;
        weighted += value * static_cast<double>(2 + loader);
        weight += static_cast<double>(2 + loader);
        own += loader == 1 ? value / 4 : 0;
      }
  const Values expected{{"loss", weighted / weight}, {"mean", sum / count}, {"of_two", sum / count}, {"own", own}};
  // With and without a checkpoint, of the same or of another number of ranks, between the loaders.
  for (const std::string resumes : {"never", "on every rank", "merged"}) {
    run_ranks(3, [&](ThreadCollective& collective) {
      const int64_t rank = collective.rank();
      std::vector<Mean> means(3);
      auto collector = std::make_unique<Collector>();
      for (int64_t loader = 0; loader < 2; ++loader) {
        for (int64_t batch = 0; batch < batches[rank][loader]; ++batch)
          log_batch(*collector, means, loader, value_of(rank, loader, batch));
        collector->end_loader();
        if (loader == 1 || resumes == "never") continue;
        State saved = collector->state_dict();
        if (resumes == "merged") {
          std::vector<State> of_ranks;
          for (const std::string& bytes : collective.gather_bytes(state_to_bytes(saved)))
            of_ranks.push_back(state_from_bytes(bytes));
          const State merged = Collector::merge_states(of_ranks);
          saved = rank == 0 ? merged : Collector::without_values(merged);
        }
        collector = std::make_unique<Collector>();
        collector->load_state_dict(saved);
        means = std::vector<Mean>(3);
      }
      collector->begin({.loaders = 1});
      collector->synchronize_epoch(collective, true);
      SCOPED_TRACE(resumes);
      expect_values(epoch_values(*collector), expected);
    });
  }
}

TEST(CollectorWithoutBatches, SeveralLoadersDoNotHideADisagreement) {
  const auto errors = errors_of_ranks(2, [](ThreadCollective& collective) {
    Collector collector;
    for (int64_t loader = 0; loader < (collective.rank() == 0 ? 2 : 1); ++loader) {
      collector.begin({.dataloader_idx = loader, .loaders = 2});
      collector.log("loss", 1.0, kSynchronized);
      if (collective.rank() == 0) collector.log("extra", 1.0, kSynchronized);
    }
    collector.synchronize_epoch(collective);
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("'extra/dataloader_idx_0' on rank 0 only;"), std::string::npos) << error;
    EXPECT_EQ(error.find("dataloader_idx_1"), std::string::npos) << error;
  }
}

// ---- Checkpoints

TEST(CollectorStates, ResumeOnEveryRank) {
  run_ranks(2, [](ThreadCollective& collective) {
    const auto rank = static_cast<double>(collective.rank());
    State saved;
    {
      Collector before;
      Mean mean;
      before.begin({});
      before.log("total", rank, {.reduce = LogReduce::kSum, .sync_dist = true});
      before.log("mean", mean.update(rank), {});
      before.synchronize_epoch(collective);
      saved = before.state_dict();
    }
    Collector collector;
    Mean mean;
    collector.load_state_dict(saved);
    // Rank 1 has no batch left; what it had seen before counts all the same.
    collector.begin({});
    if (collective.rank() == 0) {
      collector.log("total", 10.0, {.reduce = LogReduce::kSum, .sync_dist = true});
      collector.log("mean", mean.update(11.0), {});
    }
    collector.synchronize_epoch(collective);
    expect_values(epoch_values(collector), {{"total", 11}, {"mean", 4}});
  });
}

TEST(CollectorStates, ResumeAfterTheLastBatch) {
  run_ranks(3, [](ThreadCollective& collective) {
    Collector before;
    Mean mean;
    before.begin({});
    before.log("mean",
               mean.update(static_cast<double>(collective.rank() * collective.rank()),
                           static_cast<double>(collective.rank() + 1)),
               {});
    before.synchronize_epoch(collective);
    const double expected = (0.0 * 1 + 1.0 * 2 + 4.0 * 3) / 6;
    Collector collector;
    collector.load_state_dict(before.state_dict());
    expect_values(epoch_values(collector), {{"mean", expected}});
    collector.synchronize_epoch(collective);  // no rank knows the metric object
    expect_values(epoch_values(collector), {{"mean", expected}});
  });
}

class CollectorMerge : public ::testing::TestWithParam<int64_t> {};

TEST_P(CollectorMerge, GoesOnWithAnotherNumberOfRanks) {
  constexpr int64_t kSavedRanks = 3;
  constexpr int64_t kBatches = 4;
  const auto log = [](Collector& collector, Mean& mean, Extremes& extremes, int64_t sample) {
    const auto value = static_cast<double>(sample);
    collector.begin({.batch_size = 1 + sample % 3});
    collector.log("loss", value, kSynchronized);
    collector.log("total", value, {.reduce = LogReduce::kSum, .sync_dist = true});
    collector.log("low", value, {.reduce = LogReduce::kMin, .sync_dist = true});
    collector.log("high", value, {.reduce = LogReduce::kMax, .sync_dist = true});
    if (sample < 1) collector.log("once", value + 5, {.sync_dist = false});
    collector.log("zero", value, {.reduce = LogReduce::kSum, .rank_zero_only = true});
    collector.log("mean", mean.update(value, 1 + value), {});
    collector.log("extremes", extremes.update(sample % 16), {});
  };
  std::vector<State> saved;
  Collector everything;
  Mean all_mean;
  Extremes all_extremes;
  for (int64_t rank = 0; rank < kSavedRanks; ++rank) {
    Collector collector;
    Mean mean;
    Extremes extremes;
    for (int64_t i = 0; i < rank + 1; ++i) {  // uneven
      log(collector, mean, extremes, 10 * rank + i);
      log(everything, all_mean, all_extremes, 10 * rank + i);
    }
    saved.push_back(collector.state_dict());
  }
  const int64_t world_size = GetParam();
  for (int64_t rank = 0; rank < world_size; ++rank)
    for (int64_t i = 0; i < kBatches; ++i) log(everything, all_mean, all_extremes, 40 + 10 * rank + i);
  Values expected = epoch_values(everything);

  const State merged = Collector::merge_states(saved);
  for (const auto& item : merged.as_list()) {
    if (item.at("name").as_string() != "zero") continue;
    EXPECT_EQ(item.at("values").as_list().at(1).as_double(), 0);  // rank 0's
  }
  const State names = Collector::without_values(merged);
  expected.erase("zero");
  expected.erase("once");
  run_ranks(world_size, [&](ThreadCollective& collective) {
    Collector collector;
    Mean mean;
    Extremes extremes;
    collector.load_state_dict(collective.rank() == 0 ? merged : names);
    for (int64_t i = 0; i < kBatches; ++i) log(collector, mean, extremes, 40 + 10 * collective.rank() + i);
    collector.synchronize_epoch(collective);
    Values values = epoch_values(collector);
    values.erase("zero");
    EXPECT_EQ(values.erase("once"), collective.rank() == 0 ? 1U : 0U);
    expect_values(values, expected);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, CollectorMerge, ::testing::Values(1, 2, 4));

TEST(CollectorMergeTest, TakesTheLastValueFromARankThatHasOne) {
  Collector full;
  full.begin({.batch_size = 2, .step_default = true, .training_batches = 7});
  full.log("loss", 3.0, {.on_step = true, .on_epoch = true});
  const State saved = full.state_dict();
  // A stage of a pipeline that has no outputs knows the names, before and after it was resumed.
  Collector stage;
  stage.load_state_dict(Collector::without_values(saved));
  for (const std::vector<State>& of_ranks :
       {std::vector<State>{stage.state_dict(), saved}, std::vector<State>{Collector::without_values(saved), saved},
        std::vector<State>{saved, stage.state_dict()}}) {
    Collector resumed;
    resumed.load_state_dict(Collector::merge_states(of_ranks));
    double step = 0;
    resumed.visit_step([&](const Collector::Value& value) { step = value.value; }, /*all=*/true);
    EXPECT_EQ(step, 3);
    EXPECT_EQ(resumed.batch_of_step_value("loss"), 7);
    expect_values(epoch_values(resumed), {{"loss_epoch", 3}});
  }
}

TEST(CollectorMergeTest, TakesWhatAnyRankHas) {
  Collector empty;
  Collector full;
  Mean mean;
  full.begin({});
  full.log("mean", mean.update(3.0), {});
  const State merged = Collector::merge_states({empty.state_dict(), State(), full.state_dict()});
  Collector collector;
  collector.load_state_dict(merged);
  expect_values(epoch_values(collector), {{"mean", 3}});
  collector.load_state_dict(Collector::merge_states({full.state_dict(), Collector::without_values(merged)}));
  expect_values(epoch_values(collector), {{"mean", 3}});
  collector.load_state_dict(Collector::merge_states({Collector::without_values(merged), full.state_dict()}));
  expect_values(epoch_values(collector), {{"mean", 3}});
  Mean resumed;
  collector.begin({});
  collector.log("mean", resumed.update(5.0), {});
  expect_values(epoch_values(collector), {{"mean", 4}});
}

TEST(CollectorMergeTest, RefusesStatesOfDifferentRuns) {
  Collector mean;
  Collector max;
  mean.begin({});
  max.begin({});
  mean.log("loss", 1.0, {});
  max.log("loss", 1.0, {.reduce = LogReduce::kMax});
  expect_error(
      [&] {
        Collector::merge_states({mean.state_dict(), max.state_dict()});
      },
      {"[log] the saved states of ranks do not fit together", "'loss'"});
}

}  // namespace
}  // namespace levin::metrics
