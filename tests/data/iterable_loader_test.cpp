#include <levin/core/base/error.h>
#include <levin/core/data/data_loader.h>

#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace levin {
namespace {

/// The numbers reader, reader + num_readers, ... below a bound; reader 1 stops early, so that streams end unevenly.
class Numbers : public data::IterableDataset {
 public:
  explicit Numbers(int64_t count, int64_t bound_of_reader_1 = -1, bool seekable = true)
      : count_(count), bound_of_reader_1_(bound_of_reader_1), seekable_(seekable) {}

  std::unique_ptr<data::ExampleStream> stream(const data::StreamContext& context) const override {
    const int64_t bound = context.reader == 1 && bound_of_reader_1_ >= 0 ? bound_of_reader_1_ : count_;
    return std::make_unique<Stream>(*this, context.reader, context.num_readers, bound);
  }

  mutable std::atomic<int64_t> reads = 0;

 private:
  class Stream : public data::ExampleStream {
   public:
    Stream(const Numbers& owner, int64_t first, int64_t stride, int64_t bound)
        : owner_(owner), next_(first), stride_(stride), bound_(bound) {}
    std::optional<Batch> next() override {
      if (next_ >= bound_) return std::nullopt;
      if (next_ == 1'000'000) throw std::domain_error("a million");
      ++owner_.reads;
      const int64_t value = next_;
      next_ += stride_;
      return Batch{{"value", torch::tensor(value)}};
    }
    void skip(int64_t count) override {
      if (owner_.seekable_)
        next_ += count * stride_;
      else
        ExampleStream::skip(count);
    }

   private:
    const Numbers& owner_;
    int64_t next_;
    int64_t stride_;
    int64_t bound_;
  };

  int64_t count_;
  int64_t bound_of_reader_1_;
  bool seekable_;
};

std::vector<std::vector<int64_t>> read_pass(DataLoader::Pass pass) {
  std::vector<std::vector<int64_t>> batches;
  while (auto batch = pass.next()) {
    batches.emplace_back();
    for (int64_t i = 0; i < batch->size(); ++i) batches.back().push_back((*batch)["value"][i].item<int64_t>());
  }
  return batches;
}

TEST(IterableLoader, DealsBatchesRoundRobin) {
  const DataLoader inline_loader(std::make_shared<Numbers>(5), {.batch_size = 2});
  EXPECT_EQ(inline_loader.num_batches(), std::nullopt);
  EXPECT_EQ(inline_loader.num_examples(), std::nullopt);
  EXPECT_EQ(inline_loader.pass({}).remaining(), std::nullopt);
  EXPECT_EQ(read_pass(inline_loader.pass({})), (std::vector<std::vector<int64_t>>{{0, 1}, {2, 3}, {4}}));

  const DataLoader loader(std::make_shared<Numbers>(11), {.batch_size = 2, .num_workers = 2});
  const std::vector<std::vector<int64_t>> expected{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9}};
  for (int i = 0; i < 3; ++i) EXPECT_EQ(read_pass(loader.pass({})), expected);
}

TEST(IterableLoader, DropsPartialBatches) {
  const DataLoader loader(std::make_shared<Numbers>(11), {.batch_size = 2, .num_workers = 2, .drop_last = true});
  EXPECT_EQ(read_pass(loader.pass({})), (std::vector<std::vector<int64_t>>{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}}));
}

TEST(IterableLoader, StartsAtAnyBatchEvenWhereStreamsEndUnevenly) {
  for (int64_t num_workers : {0, 1, 2, 3}) {
    for (int64_t bound_of_reader_1 : {-1, 0, 5, 14, 20}) {
      for (bool drop_last : {false, true}) {
        for (bool seekable : {true, false}) {
          const auto dataset = std::make_shared<Numbers>(41, bound_of_reader_1, seekable);
          const DataLoader loader(dataset, {.batch_size = 3, .num_workers = num_workers, .drop_last = drop_last});
          const auto whole = read_pass(loader.pass({}));
          for (size_t batch = 0; batch <= whole.size() + 2; ++batch) {
            const auto begin = static_cast<std::ptrdiff_t>(std::min(batch, whole.size()));
            const std::vector<std::vector<int64_t>> expected(whole.begin() + begin, whole.end());
            EXPECT_EQ(read_pass(loader.pass({.batch = static_cast<int64_t>(batch)})), expected)
                << num_workers << " workers, reader 1 up to " << bound_of_reader_1 << ", batch " << batch;
          }
        }
      }
    }
  }
}

TEST(IterableLoader, SkipsWithoutReading) {
  const auto dataset = std::make_shared<Numbers>(100'000);
  const DataLoader loader(dataset, {.batch_size = 10, .num_workers = 2});
  EXPECT_EQ(read_pass(loader.pass({.batch = 9'990})).size(), 10u);
  EXPECT_LE(dataset->reads, 10 * 12);
}

TEST(IterableLoader, RanksReadDifferentStreams) {
  const auto dataset = std::make_shared<Numbers>(24);
  std::vector<int64_t> all;
  for (int64_t rank = 0; rank < 2; ++rank) {
    const DataLoader loader(dataset, {.batch_size = 2, .num_workers = 2});
    for (const auto& batch : read_pass(loader.pass({.rank = rank, .world_size = 2})))
      all.insert(all.end(), batch.begin(), batch.end());
  }
  std::sort(all.begin(), all.end());
  std::vector<int64_t> expected(24);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(all, expected);
}

TEST(IterableLoader, ErrorsKeepTheirType) {
  const auto dataset = std::make_shared<Numbers>(1'000'004);
  auto pass = DataLoader(dataset, {.batch_size = 2, .num_workers = 2}).pass({.batch = 499'998});
  EXPECT_EQ((*pass.next())["value"][0].item<int64_t>(), 999'996);
  EXPECT_EQ((*pass.next())["value"][0].item<int64_t>(), 999'997);
  EXPECT_THROW(pass.next(), std::domain_error);
}

TEST(IterableLoader, RefusesShuffleAndSamplers) {
  const auto dataset = std::make_shared<Numbers>(4);
  EXPECT_THROW(DataLoader(dataset, {.shuffle = true}), Error);
  EXPECT_THROW(DataLoader(dataset).with_sampler(std::make_shared<data::RandomSampler>()), Error);
  EXPECT_EQ(read_pass(DataLoader(dataset).with_options({.batch_size = 4}).pass({})).size(), 1u);
}

}  // namespace
}  // namespace levin
