// Batches of a budget of tokens, and how ranks, workers and resumes share batches that differ in size.

#include <levin/core/data/token_batch_sampler.h>

#include <levin/core/data/pad_collate.h>
#include <levin/core/data/tensor_dataset.h>

#include "reader_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace levin::data {
namespace {

using ::testing::HasSubstr;
using testing::message_of;

/// Most are short.
std::vector<int64_t> skewed_lengths(int64_t count) {
  Generator generator(5, 0);
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < count; ++i)
    lengths.push_back(1 + static_cast<int64_t>(100 * std::pow(generator.uniform(), 3)));
  return lengths;
}

/// Sequences of these lengths, of the number of the example.
class NumberedSequences : public Dataset {
 public:
  explicit NumberedSequences(std::vector<int64_t> lengths) : lengths_(std::move(lengths)) {}
  int64_t size() const override { return std::ssize(lengths_); }
  Batch get(int64_t index, Generator& /*generator*/) const override {
    return {{"x", torch::full({lengths_[static_cast<size_t>(index)]}, index)}, {"index", torch::tensor(index)}};
  }
  CollateFunction collate() const override { return pad_collate({.fields = {"x"}, .padding_value = {{"x", -1}}}); }

 private:
  std::vector<int64_t> lengths_;
};

TEST(TokenBatchSampler, EveryBatchIsWithinTheBudgetAndHasLittlePadding) {
  const auto lengths = skewed_lengths(2000);
  const TokenBatchSampler sampler(lengths, {.max_tokens = 500});
  const auto batches = sampler.batches(2000, 3, 0);
  int64_t begin = 0;
  int64_t places = 0;
  int64_t tokens = 0;
  std::set<int64_t> sizes;
  for (const int64_t end : batches.ends) {
    int64_t longest = 0;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t length = lengths[static_cast<size_t>(batches.order[static_cast<size_t>(i)])];
      longest = std::max(longest, length);
      tokens += length;
    }
    EXPECT_LE(longest * (end - begin), 500);
    places += longest * (end - begin);
    sizes.insert(end - begin);
    begin = end;
  }
  EXPECT_EQ(begin, 2000);
  EXPECT_GT(static_cast<double>(tokens) / static_cast<double>(places), 0.88);
  // The fewest that the budget admits, and some, since this is few data for so many buckets.
  EXPECT_LT(static_cast<double>(batches.ends.size()), 1.3 * static_cast<double>(tokens) / 500);
  EXPECT_GT(sizes.size(), 5U);
  auto sorted = batches.order;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, SequentialSampler().order(2000, 0, 0)) << "each example once";
}

TEST(TokenBatchSampler, IsDrawnFromSeedAndEpochWithAsManyBatchesInEach) {
  const TokenBatchSampler sampler(skewed_lengths(300), {.max_tokens = 120});
  const auto first = sampler.batches(300, 1, 0);
  EXPECT_EQ(first.order, sampler.batches(300, 1, 0).order);
  EXPECT_EQ(first.ends, sampler.batches(300, 1, 0).ends);
  EXPECT_EQ(first.order, sampler.order(300, 1, 0));
  for (int64_t epoch = 1; epoch < 5; ++epoch) {
    const auto later = sampler.batches(300, 1, epoch);
    EXPECT_NE(later.order, first.order);
    EXPECT_EQ(std::ssize(later.ends), sampler.num_batches(300));
  }
  EXPECT_NE(sampler.batches(300, 2, 0).order, first.order);

  const TokenBatchSampler in_order({5, 1, 3, 3}, {.max_tokens = 6, .shuffle = false});
  const auto batches = in_order.batches(4, 1, 0);
  EXPECT_EQ(batches.order, (std::vector<int64_t>{1, 2, 3, 0}));
  EXPECT_EQ(batches.ends, in_order.batches(4, 2, 9).ends);
}

TEST(TokenBatchSampler, TakesAnySizes) {
  EXPECT_TRUE(TokenBatchSampler({}, {.max_tokens = 1}).batches(0, 0, 0).ends.empty());
  EXPECT_EQ(TokenBatchSampler({0, 0, 0}, {.max_tokens = 2}).batches(3, 0, 0).ends.size(), 2U);
  EXPECT_EQ(TokenBatchSampler({7}, {.max_tokens = 7}).batches(1, 0, 0).ends, std::vector<int64_t>{1});
}

TEST(TokenBatchSampler, RanksWorkersAndResumesChangeNothing) {
  const auto lengths = skewed_lengths(60);
  const auto dataset = std::make_shared<NumberedSequences>(lengths);
  const auto sampler = std::make_shared<TokenBatchSampler>(lengths, TokenBatchSamplerOptions{.max_tokens = 130});
  const auto expected = sampler->batches(60, 7, 1);
  const auto count = std::ssize(expected.ends);
  int64_t lent = 0;
  for (const int64_t workers : {0, 2})
    for (const int64_t ranks : {1, 2, 3, 5})
      for (const int64_t batch : {int64_t{0}, int64_t{3}, count}) {
        const DataLoader loader(dataset, {.num_workers = workers}, sampler);
        EXPECT_TRUE(loader.has_batch_sampler());
        EXPECT_EQ(loader.num_batches(ranks), count);
        // A loader's passes end each other: one rank after the other.
        std::vector<std::vector<std::vector<int64_t>>> of_ranks;
        for (int64_t rank = 0; rank < ranks; ++rank) {
          auto pass = loader.pass({.seed = 7, .epoch = 1, .batch = batch, .rank = rank, .world_size = ranks});
          EXPECT_EQ(pass.remaining(), count - batch);
          auto& seen = of_ranks.emplace_back();
          while (const auto part = pass.next()) {
            const auto share = pass.share(pass.position() - 1);
            ASSERT_TRUE(share);
            auto& own = seen.emplace_back();
            for (int64_t i = 0; i < share->own; ++i) own.push_back((*part)["index"][i].item<int64_t>());
            EXPECT_EQ(part->size(), std::max<int64_t>(share->own, 1));
            lent += share->own == 0 ? 1 : 0;
          }
          EXPECT_EQ(std::ssize(seen), count - batch);
        }
        for (int64_t i = batch; i < count; ++i) {
          std::vector<int64_t> whole;
          for (const auto& seen : of_ranks) {
            const auto& own = seen[static_cast<size_t>(i - batch)];
            whole.insert(whole.end(), own.begin(), own.end());
          }
          const auto place = static_cast<size_t>(i);
          EXPECT_EQ(whole, std::vector<int64_t>(expected.order.begin() + (i == 0 ? 0 : expected.ends[place - 1]),
                                                expected.order.begin() + expected.ends[place]));
        }
      }
  EXPECT_GT(lent, 0) << "a batch with fewer examples than ranks";
}

/// Gives what it was given.
class GivenBatches : public BatchSampler {
 public:
  explicit GivenBatches(std::vector<int64_t> ends) : ends_(std::move(ends)) {}
  Batches batches(int64_t /*dataset_size*/, uint64_t /*seed*/, int64_t epoch) const override {
    auto ends = ends_;
    if (epoch == 1) ends.erase(ends.begin());
    return {.order = {0, 1, 2}, .ends = std::move(ends)};
  }

 private:
  std::vector<int64_t> ends_;
};

TEST(TokenBatchSampler, OneMessageForEachMistake) {
  EXPECT_THAT(message_of([] {
                TokenBatchSampler({3, 9}, {.max_tokens = 8});
              }),
              HasSubstr("example 1 has 9 tokens, the budget of a batch is max_tokens: 8; hint: a larger budget"));
  EXPECT_THAT(message_of([] { TokenBatchSampler({3}, {}); }), HasSubstr("batches of 0 tokens"));
  EXPECT_THAT(message_of([] { TokenBatchSampler({3}, {.max_tokens = 8, .num_buckets = 0}); }), HasSubstr("0 buckets"));
  EXPECT_THAT(message_of([] { TokenBatchSampler({3}, {.max_tokens = 8}).batches(2, 0, 0); }),
              HasSubstr("the sampler has 1 length, the data set 2 examples"));

  const auto dataset = std::make_shared<TensorDataset>(Batch{{"x", torch::arange(3)}});
  const auto message = [&](std::vector<int64_t> ends, const DataLoaderOptions& options = {}, int64_t epoch = 0) {
    return message_of(
        [&] { DataLoader(dataset, options, std::make_shared<GivenBatches>(std::move(ends))).pass({.epoch = epoch}); });
  };
  EXPECT_EQ(message({1, 3}), "");
  EXPECT_THAT(message({1, 1, 3}), HasSubstr("gave a batch that ends at 1 after one that ends at 1"));
  EXPECT_THAT(message({1, 2}), HasSubstr("last batch ends at 2; valid: 3"));
  EXPECT_THAT(message({1, 3}, {}, 1), HasSubstr("gave 1 batches in epoch 1; valid: 2, its num_batches()"));
  for (const DataLoaderOptions& options :
       {DataLoaderOptions{.batch_size = 2}, DataLoaderOptions{.drop_last = true}, {.global_batch_size = 4}})
    EXPECT_THAT(message({1, 3}, options), HasSubstr("was given a batch sampler and batch_size, global_batch_size or"));
  const DataLoader loader(dataset, {}, std::make_shared<GivenBatches>(std::vector<int64_t>{1, 3}));
  EXPECT_THAT(message_of([&] { loader.batch_size(1); }), HasSubstr("the batches of a batch sampler differ in size"));
  EXPECT_THAT(message_of([&] { loader.with_batch_size(4); }), HasSubstr("differ in size"));
  EXPECT_EQ(testing::all_batches(loader.with_options({.num_workers = 1})).size(), 2U);
}

}  // namespace
}  // namespace levin::data
