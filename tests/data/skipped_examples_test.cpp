// on_error: skip, for any data set: what stands in for an example that cannot be read, on any workers, ranks and
// resumes.

#include <levin/core/data/data_loader.h>

#include <levin/core/base/error.h>
#include <levin/core/data/mixed_dataset.h>
#include <levin/core/data/tensor_dataset.h>

#include "../support/captured_log.h"
#include "reader_checks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <atomic>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace levin {
namespace {

using data::OnError;
using testing::all_batches;
using testing::message_of;
using testing::values_in;

/// Indices with a number drawn for each; those of a set cannot be read.
class SomeBroken : public data::Dataset {
 public:
  SomeBroken(int64_t size, std::set<int64_t> broken) : size_(size), broken_(std::move(broken)) {}
  int64_t size() const override { return size_; }
  Batch get(int64_t index, data::Generator& generator) const override {
    ++gets;
    if (broken_.contains(index)) throw std::runtime_error(fmt::format("{}.jpg is broken", index));
    return {{"index", torch::tensor(index)}, {"draw", torch::tensor(generator.uniform(), torch::kDouble)}};
  }
  mutable std::atomic<int64_t> gets = 0;

 private:
  int64_t size_;
  std::set<int64_t> broken_;
};

/// The same, as whole batches only.
class SomeBrokenBatches : public data::Dataset {
 public:
  explicit SomeBrokenBatches(const SomeBroken& examples) : examples_(examples) {}
  int64_t size() const override { return examples_.size(); }
  Batch get_batch(std::span<const int64_t> indices, data::Generator& generator) const override {
    return examples_.get_batch(indices, generator);
  }

 private:
  const SomeBroken& examples_;
};

void expect_equal(const std::vector<Batch>& got, const std::vector<Batch>& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (size_t i = 0; i < got.size(); ++i)
    for (const auto& [name, tensor] : expected[i].items())
      EXPECT_TRUE(got[i][name].equal(tensor)) << what << ", batch " << i << ", " << name;
}

TEST(SkippedExamples, TheNextOneStandsInForItOnAnyNumberOfWorkers) {
  const auto dataset = std::make_shared<SomeBroken>(23, std::set<int64_t>{3, 4, 11, 22});
  const auto whole = std::make_shared<SomeBroken>(23, std::set<int64_t>{});
  // What a sampler would ask for to get the same.
  class StandIns : public data::Sampler {
   public:
    std::vector<int64_t> order(int64_t size, uint64_t seed, int64_t epoch) const override {
      auto order = data::RandomSampler().order(size, seed, epoch);
      for (auto& index : order) index = index == 3 || index == 4 ? 5 : index == 11 ? 12 : index == 22 ? 0 : index;
      return order;
    }
  };
  const auto expected =
      all_batches(DataLoader(whole, {.batch_size = 4}, std::make_shared<StandIns>()), {.seed = 5, .epoch = 3});
  for (const int64_t workers : {0, 1, 2, 3}) {
    const testing::CapturedLog log;
    const DataLoader loader(dataset,
                            {.batch_size = 4, .shuffle = true, .num_workers = workers, .on_error = OnError::kSkip});
    expect_equal(all_batches(loader, {.seed = 5, .epoch = 3}), expected, fmt::format("{} workers", workers));
    EXPECT_EQ(log.text(),
              "[levin] warning: epoch 3: 4 of 23 examples could not be read; others took their place:\n"
              "  example 3: 3.jpg is broken\n  example 4: 4.jpg is broken\n"
              "  example 11: 11.jpg is broken\n  example 22: 22.jpg is broken\n");
    for (int64_t batch = 0; batch <= 6; ++batch)
      expect_equal(all_batches(loader, {.seed = 5, .epoch = 3, .batch = batch}),
                   std::vector<Batch>(expected.begin() + batch, expected.end()), fmt::format("from batch {}", batch));
  }
}

TEST(SkippedExamples, RanksShareTheSameBatches) {
  const auto dataset = std::make_shared<SomeBroken>(23, std::set<int64_t>{3, 4, 11, 22});
  const auto alone = all_batches(DataLoader(dataset, {.batch_size = 4, .shuffle = true, .on_error = OnError::kSkip}));
  const DataLoader loader(dataset, {.shuffle = true, .global_batch_size = 4, .on_error = OnError::kSkip});
  const auto first = all_batches(loader, {.rank = 0, .world_size = 2});
  const auto second = all_batches(loader, {.rank = 1, .world_size = 2});
  std::vector<Batch> both;
  for (size_t i = 0; i < first.size(); ++i)
    both.push_back(i < second.size() ? Batch::concatenate({first[i], second[i]}) : first[i]);
  expect_equal(both, alone, "2 ranks");
}

TEST(SkippedExamples, WholeBatchesWithoutGetAreDividedToFindThem) {
  const SomeBroken broken(10, {2, 7});
  const auto dataset = std::make_shared<SomeBrokenBatches>(broken);
  const DataLoader loader(dataset, {.batch_size = 5, .on_error = OnError::kSkip});
  EXPECT_EQ(values_in(loader, "index"), (std::vector<int64_t>{0, 1, 3, 3, 4, 5, 6, 8, 8, 9}));
}

TEST(SkippedExamples, CostNothingWhereAllCanBeRead) {
  const auto dataset = std::make_shared<SomeBroken>(40, std::set<int64_t>{});
  const testing::CapturedLog log;
  values_in(DataLoader(dataset, {.batch_size = 8, .on_error = OnError::kSkip}), "index");
  EXPECT_EQ(dataset->gets, 40);
  EXPECT_EQ(log.text(), "");
}

TEST(SkippedExamples, ARunOfThemAndErrorsOfTheProgramGoOn) {
  std::set<int64_t> all;
  for (int64_t i = 0; i < 6; ++i) all.insert(i);
  const DataLoader none(std::make_shared<SomeBroken>(6, all), {.batch_size = 2, .on_error = OnError::kSkip});
  EXPECT_NE(message_of([&] { values_in(none, "index"); }).find("none of 6 examples one after the other could be read"),
            std::string::npos);

  class OfTwoShapes : public data::Dataset {
   public:
    int64_t size() const override { return 4; }
    Batch get(int64_t index, data::Generator& /*generator*/) const override {
      return {{"index", torch::zeros({1 + index})}};
    }
  };
  const DataLoader shapes(std::make_shared<OfTwoShapes>(), {.batch_size = 2, .on_error = OnError::kSkip});
  EXPECT_NE(message_of([&] { values_in(shapes, "index"); }).find("cannot stack the examples of a batch"),
            std::string::npos);

  class WithoutMemory : public data::Dataset {
   public:
    int64_t size() const override { return 4; }
    Batch get(int64_t /*index*/, data::Generator& /*generator*/) const override { throw std::bad_alloc(); }
  };
  const DataLoader memory(std::make_shared<WithoutMemory>(), {.on_error = OnError::kSkip});
  EXPECT_THROW(values_in(memory, "index"), std::bad_alloc);
}

TEST(SkippedExamples, NamesOnlySomeOfMany) {
  std::set<int64_t> broken;
  for (int64_t i = 0; i < 40; i += 2) broken.insert(i);
  const testing::CapturedLog log;
  values_in(DataLoader(std::make_shared<SomeBroken>(50, broken), {.batch_size = 7, .on_error = OnError::kSkip}),
            "index");
  EXPECT_NE(log.text().find("20 of 50 examples could not be read"), std::string::npos) << log.text();
  EXPECT_NE(log.text().find("example 8: 8.jpg is broken\n  and 15 more"), std::string::npos) << log.text();
}

/// Images of which one cannot be read.
class BrokenImage : public data::Dataset {
 public:
  int64_t size() const override { return 9; }
  Batch get(int64_t index, data::Generator& /*generator*/) const override {
    if (index == 4) throw std::runtime_error("4.jpg is broken");
    return {{"image", torch::full({3, 2, 2}, static_cast<float>(index))}, {"label", torch::tensor(index)}};
  }
};

TEST(SkippedExamples, MixedImagesHaveTheSameNeighboursOnTwoRanks) {
  const auto mixed = std::make_shared<data::MixedDataset>(
      std::make_shared<BrokenImage>(),
      data::MixedDatasetOptions{.mixes = {make<data::MixUp>({.alpha = 0.4})}, .num_classes = 9});
  const DataLoader loader(mixed, {.global_batch_size = 8, .on_error = OnError::kSkip});
  const Batch alone = mixed->finish(*loader.pass({}).next());
  const Batch first = mixed->finish(*loader.pass({.rank = 0, .world_size = 2}).next());
  const Batch second = mixed->finish(*loader.pass({.rank = 1, .world_size = 2}).next());
  const Batch both = Batch::concatenate({first, second});
  EXPECT_TRUE(both["image"].equal(alone["image"]));
  EXPECT_TRUE(both["label"].equal(alone["label"]));
}

/// Numbers, of which every seventh cannot be read.
class BrokenStream : public data::IterableDataset {
 public:
  std::unique_ptr<data::ExampleStream> stream(const data::StreamContext& context) const override {
    class Stream : public data::ExampleStream {
     public:
      explicit Stream(const data::StreamContext& context) : next_(context.reader), step_(context.num_readers) {}
      std::optional<Batch> next() override {
        if (next_ >= 60) return std::nullopt;
        const int64_t number = std::exchange(next_, next_ + step_);
        if (number % 7 == 3) throw std::runtime_error(fmt::format("record {} is broken", number));
        return Batch{{"index", torch::tensor(number)}};
      }
      void skip(int64_t count) override { next_ += count * step_; }

     private:
      int64_t next_, step_;
    };
    return std::make_unique<Stream>(context);
  }
};

TEST(SkippedExamples, StreamsLeaveThemOutAndResumeExactly) {
  for (const int64_t workers : {0, 1, 2}) {
    const testing::CapturedLog log;
    const DataLoader loader(std::make_shared<BrokenStream>(),
                            {.batch_size = 4, .num_workers = workers, .on_error = OnError::kSkip});
    const auto batches = all_batches(loader);
    auto all = values_in(loader, "index");
    std::sort(all.begin(), all.end());
    std::vector<int64_t> expected;
    for (int64_t i = 0; i < 60; ++i)
      if (i % 7 != 3) expected.push_back(i);
    EXPECT_EQ(all, expected);
    EXPECT_NE(log.text().find("epoch 0: 9 examples could not be read"), std::string::npos) << log.text();
    for (size_t batch = 0; batch <= batches.size(); ++batch)
      expect_equal(all_batches(loader, {.batch = static_cast<int64_t>(batch)}),
                   std::vector<Batch>(batches.begin() + static_cast<std::ptrdiff_t>(batch), batches.end()),
                   fmt::format("{} workers, from batch {}", workers, batch));
  }
}

}  // namespace
}  // namespace levin
