#include <levin/callbacks/batch_size_search.h>

#include <gtest/gtest.h>

#include <vector>

namespace levin {
namespace {

/// The sizes tried where `memory` is the largest that fits.
std::vector<int64_t> tried(BatchSizeSearch& search, int64_t memory) {
  std::vector<int64_t> sizes;
  while (const auto size = search.next()) {
    sizes.push_back(*size);
    *size <= memory ? search.fits(*size) : search.runs_out_of_memory(*size);
  }
  return sizes;
}

TEST(BatchSizeSearch, PowerDoublesUntilMemoryRunsOut) {
  BatchSizeSearch search({.first = 2});
  EXPECT_EQ(tried(search, 100), (std::vector<int64_t>{2, 4, 8, 16, 32, 64, 128}));
  EXPECT_EQ(search.result(), 64);
  EXPECT_EQ(search.smallest_failure(), 128);
}

TEST(BatchSizeSearch, BisectFindsTheVeryLargest) {
  BatchSizeSearch search({.first = 2, .bisect = true});
  EXPECT_EQ(tried(search, 100), (std::vector<int64_t>{2, 4, 8, 16, 32, 64, 128, 96, 112, 104, 100, 102, 101}));
  EXPECT_EQ(search.result(), 100);
}

TEST(BatchSizeSearch, TheMarginIsLeftFreeWhereMemoryWasTheLimit) {
  BatchSizeSearch search({.first = 2, .bisect = true, .margin = 0.05});
  tried(search, 100);
  EXPECT_EQ(search.result(), 95);
  BatchSizeSearch of_data({.first = 2, .limit = 40, .bisect = true, .margin = 0.05});
  EXPECT_EQ(tried(of_data, 100).back(), 40);
  EXPECT_EQ(of_data.result(), 40);
}

TEST(BatchSizeSearch, AFirstSizeThatIsTooLargeIsHalved) {
  BatchSizeSearch search({.first = 64});
  EXPECT_EQ(tried(search, 10), (std::vector<int64_t>{64, 32, 16, 8}));
  EXPECT_EQ(search.result(), 8);
  BatchSizeSearch exact({.first = 64, .bisect = true});
  tried(exact, 10);
  EXPECT_EQ(exact.result(), 10);
}

TEST(BatchSizeSearch, NothingMayFit) {
  BatchSizeSearch search({.first = 4, .bisect = true});
  EXPECT_EQ(tried(search, 0), (std::vector<int64_t>{4, 2, 1}));
  EXPECT_EQ(search.result(), std::nullopt);
}

TEST(BatchSizeSearch, EndsAfterSoManyTrials) {
  BatchSizeSearch search({.first = 2, .max_trials = 3});
  EXPECT_EQ(tried(search, 100), (std::vector<int64_t>{2, 4, 8}));
  EXPECT_EQ(search.result(), 8);
}

TEST(BatchSizeSearch, EndsWhereTheDataEnd) {
  BatchSizeSearch search({.first = 2, .bisect = true});
  while (const auto size = search.next()) *size <= 20 ? search.fits(*size) : search.runs_out_of_data(*size);
  EXPECT_EQ(search.result(), 16);
  EXPECT_EQ(search.trials(), 5);
}

}  // namespace
}  // namespace levin
