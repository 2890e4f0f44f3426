#include <levin/strategies/pipeline/pipeline_partition.h>

#include <levin/core/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <tuple>

namespace levin {
namespace {

using ::testing::ElementsAre;
using Balance = std::vector<int64_t>;

std::vector<ChainUnit> chain_of_seconds(const std::vector<double>& seconds) {
  std::vector<ChainUnit> units;
  for (const double each : seconds) units.push_back({.name = std::to_string(units.size()), .seconds = each});
  return units;
}

std::vector<ChainUnit> chain_of_parameters(const std::vector<int64_t>& parameters) {
  std::vector<ChainUnit> units;
  for (const int64_t each : parameters) units.push_back({.name = std::to_string(units.size()), .parameters = each});
  return units;
}

Balance by_parameters(const std::vector<int64_t>& parameters, int64_t stages) {
  return automatic_balance(chain_of_parameters(parameters), stages, BalanceBy::kParameters, "net");
}

/// The message of the ConfigError that a call throws.
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

std::string balance_error(const Balance& balance, int64_t units, int64_t stages, std::string_view name = "net") {
  return error_of([&] { check_balance(balance, units, stages, name); });
}

/// Every way to write `units` as a sum of `stages` positive numbers, in lexicographic order.
void for_each_cut(int64_t units, int64_t stages, const std::function<void(const Balance&)>& visit, Balance begun = {}) {
  if (stages == 1) {
    begun.push_back(units);
    visit(begun);
    return;
  }
  for (int64_t count = 1; count <= units - (stages - 1); ++count) {
    Balance next = begun;
    next.push_back(count);
    for_each_cut(units - count, stages - 1, visit, next);
  }
}

/// What the cut minimises: the largest cost, the squared costs, the squared numbers of units.
std::tuple<int64_t, int64_t, int64_t> measure(const std::vector<int64_t>& costs, const Balance& balance) {
  int64_t largest = 0;
  int64_t squared_costs = 0;
  int64_t squared_counts = 0;
  auto begin = costs.begin();
  for (const int64_t count : balance) {
    const int64_t cost = std::accumulate(begin, begin + count, int64_t{0});
    largest = std::max(largest, cost);
    squared_costs += cost * cost;
    squared_counts += count * count;
    begin += count;
  }
  return {largest, squared_costs, squared_counts};
}

Balance best_by_trying_all(const std::vector<int64_t>& costs, int64_t stages) {
  Balance best;
  for_each_cut(static_cast<int64_t>(costs.size()), stages, [&](const Balance& balance) {
    if (best.empty() || measure(costs, balance) < measure(costs, best)) best = balance;
  });
  return best;
}

TEST(PipelineBalance, AcceptsWhatCutsAllUnits) {
  EXPECT_NO_THROW(check_balance({1, 1, 2}, 4, 3, "net"));
  EXPECT_NO_THROW(check_balance({4}, 4, 1, "net"));
  EXPECT_NO_THROW(check_balance({1, 1, 1, 1}, 4, 4, "net"));
}

TEST(PipelineBalance, SumThatIsNotTheNumberOfUnits) {
  EXPECT_EQ(balance_error({1, 1, 2}, 5, 3),
            "[config] balance [1, 1, 2] has 4 units; the sequential `net` has 5; hint: `balance: auto` cuts by itself");
  EXPECT_EQ(balance_error({4, 4}, 3, 2),
            "[config] balance [4, 4] has 8 units; the sequential `net` has 3; hint: `balance: auto` cuts by itself");
  EXPECT_EQ(balance_error({1}, 3, 1, ""),
            "[config] balance [1] has 1 unit; the sequential has 3; hint: `balance: auto` cuts by itself");
}

TEST(PipelineBalance, SumThatOutgrowsAnInteger) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(balance_error({most, most, 5}, 3, 3),
            "[config] balance [9223372036854775807, 9223372036854775807, 5] has 18446744073709551619 units; "
            "the sequential `net` has 3; hint: `balance: auto` cuts by itself");
}

TEST(PipelineBalance, StageWithoutUnits) {
  EXPECT_EQ(balance_error({2, 0, 3}, 5, 3),
            "[config] balance [2, 0, 3] gives stage 1 (the first is 0) 0 of the 5 units of the sequential `net`; "
            "every stage needs at least one; hint: `balance: auto` cuts by itself");
  EXPECT_EQ(balance_error({-2, 7}, 5, 2),
            "[config] balance [-2, 7] gives stage 0 (the first is 0) -2 of the 5 units of the sequential `net`; "
            "every stage needs at least one; hint: `balance: auto` cuts by itself");
}

TEST(PipelineBalance, MoreStagesThanUnits) {
  const std::string message =
      "[config] 3 stages for the 2 units of the sequential `net`; every stage needs at least one; "
      "hint: fewer devices, fewer stages on each, or a sequential of more, smaller units";
  EXPECT_EQ(balance_error({1, 1, 1}, 2, 3), message);
  EXPECT_EQ(error_of([] { by_parameters({1, 1}, 3); }), message);
  EXPECT_EQ(error_of([] { by_parameters({}, 1); }),
            "[config] 1 stage for the 0 units of the sequential `net`; every stage needs at least one; "
            "hint: fewer devices, fewer stages on each, or a sequential of more, smaller units");
}

TEST(PipelineBalance, NumberOfEntriesThatIsNotTheNumberOfStages) {
  EXPECT_EQ(balance_error({1, 1, 2}, 4, 2),
            "[config] balance [1, 1, 2] has 3 stages; the pipeline has 2 stages; "
            "hint: one number a stage, or `balance: auto`");
  EXPECT_EQ(balance_error({}, 4, 1),
            "[config] balance [] has 0 stages; the pipeline has 1 stage; hint: one number a stage, or `balance: auto`");
}

TEST(PipelineAutomaticBalance, MinimisesTheLargestStage) {
  EXPECT_THAT(by_parameters({1, 1, 1, 9}, 2), ElementsAre(3, 1));
  EXPECT_THAT(by_parameters({9, 1, 1, 1}, 2), ElementsAre(1, 3));
  EXPECT_THAT(by_parameters({2, 3, 4, 5, 6}, 3), ElementsAre(2, 2, 1))
      << "9, 5, 6 has the same costs, less evenly in units";
}

TEST(PipelineAutomaticBalance, TiesGoToTheMostEvenCut) {
  // The first unit decides the largest stage; the others are still divided evenly.
  EXPECT_THAT(by_parameters({100, 10, 10, 10, 10}, 3), ElementsAre(1, 2, 2));
  // Costs alone leave open where the units without any go.
  EXPECT_THAT(by_parameters({5, 0, 0, 0, 0, 5}, 2), ElementsAre(3, 3));
}

TEST(PipelineAutomaticBalance, NoCostsMeansByNumber) {
  EXPECT_THAT(by_parameters({0, 0, 0, 0, 0, 0}, 3), ElementsAre(2, 2, 2));
  EXPECT_THAT(by_parameters({0, 0, 0, 0, 0}, 3), ElementsAre(1, 2, 2));
}

TEST(PipelineAutomaticBalance, EachKindOfCost) {
  const std::vector<ChainUnit> units = {
      {.name = "a", .seconds = 3, .parameters = 1, .bytes = 1},
      {.name = "b", .seconds = 1, .parameters = 1, .bytes = 8},
      {.name = "c", .seconds = 1, .parameters = 1, .bytes = 1},
      {.name = "d", .seconds = 1, .parameters = 4, .bytes = 1},
  };
  EXPECT_THAT(automatic_balance(units, 2, BalanceBy::kTime, "net"), ElementsAre(1, 3));
  EXPECT_THAT(automatic_balance(units, 2, BalanceBy::kParameters, "net"), ElementsAre(3, 1));
  EXPECT_THAT(automatic_balance(units, 2, BalanceBy::kMemory, "net"), ElementsAre(2, 2));
}

TEST(PipelineAutomaticBalance, TimesThatAddUpDifferentlyInFloatingPointAreEqual) {
  // [3, 3] and [2, 4] both cost at most 0.6; in doubles (0.1 + 0.2) + 0.3 > ((0.3 + 0.1) + 0.1) + 0.1.
  EXPECT_THAT(automatic_balance(chain_of_seconds({0.1, 0.2, 0.3, 0.1, 0.1, 0.1}), 2, BalanceBy::kTime, "net"),
              ElementsAre(3, 3));
}

TEST(PipelineAutomaticBalance, LargeCostsDoNotOverflow) {
  const int64_t large = int64_t{1} << 60;
  EXPECT_THAT(by_parameters({large, large / 2, large / 2, large}, 3), ElementsAre(1, 2, 1));
}

TEST(PipelineAutomaticBalance, NeverNegativeCosts) {
  EXPECT_THROW(automatic_balance(chain_of_seconds({1, -1}), 2, BalanceBy::kTime, "net"), InternalError);
  EXPECT_THROW(automatic_balance(chain_of_seconds({1, std::nan("")}), 2, BalanceBy::kTime, "net"), InternalError);
  EXPECT_THROW(by_parameters({1, -1}, 2), InternalError);
}

TEST(PipelineAutomaticBalance, AsGoodAsTryingAllCuts) {
  std::mt19937 random(7);
  int64_t tried = 0;
  for (int64_t greatest : {1, 3, 10, 1000}) {
    for (int64_t round = 0; round < 250; ++round) {
      const auto count = static_cast<size_t>(std::uniform_int_distribution<>(1, 10)(random));
      std::vector<int64_t> costs(count);
      // Small costs make zeros and ties.
      for (int64_t& cost : costs) cost = std::uniform_int_distribution<int64_t>(0, greatest)(random);
      for (int64_t stages = 1; stages <= std::min<int64_t>(5, static_cast<int64_t>(count)); ++stages) {
        const Balance balance = by_parameters(costs, stages);
        EXPECT_NO_THROW(check_balance(balance, static_cast<int64_t>(count), stages, "net"));
        ASSERT_EQ(balance, best_by_trying_all(costs, stages)) << ::testing::PrintToString(costs);
        ASSERT_EQ(balance, by_parameters(costs, stages));
        ++tried;
      }
    }
  }
  EXPECT_GT(tried, 3000);
}

TEST(PipelineAutomaticBalance, LongChains) {
  const std::vector<int64_t> costs(2000, 3);
  EXPECT_EQ(by_parameters(costs, 16), Balance(16, 125));
}

TEST(PipelinePartitionTable, ByTime) {
  const std::vector<ChainUnit> units = {
      {.name = "0", .type = "Conv2d", .seconds = 0.004, .parameters = 1216},
      {.name = "1", .type = "ReLU", .seconds = 0.001},
      {.name = "2", .seconds = 0.0005},
      {.name = "3", .type = "Linear", .seconds = 0.0025, .parameters = 1234567},
  };
  EXPECT_EQ(partition_table(units, {1, 3}, BalanceBy::kTime, {"rank 0, cuda:0", "rank 1, cuda:1"}, 0.2),
            "  stage | runs on        | units                       | parameters | time (ms) |  share\n"
            "----------------------------------------------------------------------------------------\n"
            "      0 | rank 0, cuda:0 | 0 Conv2d                    |      1,216 |      4.00 | 50.0 %\n"
            "      1 | rank 1, cuda:1 | 1 ReLU - 3 Linear (3 units) |  1,234,567 |      4.00 | 50.0 %\n"
            "  imbalance 1.00 (largest / mean time); expected bubble 20.0 %\n");
}

TEST(PipelinePartitionTable, ByParametersHasNoSecondColumnOfThem) {
  const auto units = chain_of_parameters({1000, 0, 3000});
  EXPECT_EQ(partition_table(units, {2, 1}, BalanceBy::kParameters, {"rank 0", "rank 1"}, 1.0 / 3),
            "  stage | runs on | units           | parameters |  share\n"
            "---------------------------------------------------------\n"
            "      0 | rank 0  | 0 - 1 (2 units) |      1,000 | 25.0 %\n"
            "      1 | rank 1  | 2               |      3,000 | 75.0 %\n"
            "  imbalance 1.50 (largest / mean parameters); expected bubble 33.3 %\n");
}

TEST(PipelinePartitionTable, ByMemory) {
  const std::vector<ChainUnit> units = {{.name = "a", .parameters = 1 << 18, .bytes = 3 << 20},
                                        {.name = "b", .parameters = 100, .bytes = 1 << 20}};
  EXPECT_EQ(partition_table(units, {1, 1}, BalanceBy::kMemory, {"cpu", "cpu"}, 0),
            "  stage | runs on | units | parameters | memory (MiB) |  share\n"
            "--------------------------------------------------------------\n"
            "      0 | cpu     | a     |    262,144 |          3.0 | 75.0 %\n"
            "      1 | cpu     | b     |        100 |          1.0 | 25.0 %\n"
            "  imbalance 1.50 (largest / mean memory); expected bubble 0.0 %\n");
}

TEST(PipelinePartitionTable, NothingMeasured) {
  const auto units = chain_of_parameters({0, 0});
  EXPECT_EQ(partition_table(units, {1, 1}, BalanceBy::kTime, {"rank 0", "rank 1"}, 0.5),
            "  stage | runs on | units | parameters | time (ms) | share\n"
            "----------------------------------------------------------\n"
            "      0 | rank 0  | 0     |          0 |      0.00 |     -\n"
            "      1 | rank 1  | 1     |          0 |      0.00 |     -\n"
            "  imbalance unknown (no time to compare); expected bubble 50.0 %\n");
}

}  // namespace
}  // namespace levin
