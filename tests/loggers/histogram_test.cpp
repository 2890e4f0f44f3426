#include <levin/loggers/histogram.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace levin {
namespace {

/// The count of the bucket that holds `value`.
double count_at(const Histogram& histogram, double value) {
  const auto limit = std::upper_bound(histogram.limits.begin(), histogram.limits.end() - 1, value);
  return histogram.counts[static_cast<size_t>(limit - histogram.limits.begin())];
}

TEST(Histogram, CountsEveryValueInItsBucket) {
  const std::vector<double> values{-1, 0, 0, 0.5, 0.5, 0.5, 3e-13, 1e19};
  const Histogram histogram = Histogram::of(values);
  EXPECT_EQ(histogram.min, -1);
  EXPECT_EQ(histogram.max, 1e19);
  EXPECT_EQ(histogram.count, 8);
  EXPECT_DOUBLE_EQ(histogram.sum, 1e19);
  EXPECT_DOUBLE_EQ(histogram.sum_of_squares, 1e38);
  EXPECT_EQ(count_at(histogram, -1), 1);
  EXPECT_EQ(count_at(histogram, 0), 3) << "3e-13 is below the first limit above 0";
  EXPECT_EQ(count_at(histogram, 0.5), 3);
  EXPECT_EQ(count_at(histogram, 1e19), 1);
  EXPECT_EQ(count_at(histogram, 100), 0);
  EXPECT_EQ(std::accumulate(histogram.counts.begin(), histogram.counts.end(), 0.0), 8);
}

TEST(Histogram, LimitsRiseByATenthAndEmptyBucketsAreMerged) {
  std::vector<double> values;
  for (double value = 1; value < 2; value += 0.01) values.push_back(value);
  const Histogram histogram = Histogram::of(values);
  ASSERT_EQ(histogram.limits.size(), histogram.counts.size());
  EXPECT_LT(histogram.limits.size(), 12u);
  EXPECT_TRUE(std::is_sorted(histogram.limits.begin(), histogram.limits.end()));
  EXPECT_EQ(histogram.counts.front(), 0);
  EXPECT_NEAR(histogram.limits[3] / histogram.limits[2], 1.1, 1e-12);
  for (size_t i = 1; i < histogram.counts.size(); ++i)
    EXPECT_FALSE(histogram.counts[i] == 0 && histogram.counts[i - 1] == 0);
}

TEST(Histogram, ExtremesFitAndWhatIsNotFiniteIsLeftOut) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double greatest = std::numeric_limits<double>::max();
  const std::vector<double> values{infinity, -infinity, std::nan(""), greatest, -greatest};
  const Histogram histogram = Histogram::of(values);
  EXPECT_EQ(histogram.count, 2);
  EXPECT_EQ(histogram.min, -greatest);
  EXPECT_EQ(histogram.max, greatest);
  EXPECT_EQ(std::accumulate(histogram.counts.begin(), histogram.counts.end(), 0.0), 2);
  EXPECT_EQ(Histogram::of(std::vector<double>{infinity}).count, 0);
  EXPECT_EQ(Histogram::of({}).count, 0);
}

}  // namespace
}  // namespace levin
