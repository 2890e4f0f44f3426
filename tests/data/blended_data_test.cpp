// Blends: shares, orders, epochs of sources, ends, resuming on any ranks and workers, streams, and mistakes.

#include <levin/core/data/blended_data.h>

#include <levin/core/data/concat_dataset.h>
#include <levin/core/data/permutation_sampler.h>

#include "reader_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace levin::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::values_in;

/// Numbers from `first` on, as a data module with a size or without.
class NumberedData : public DataModule {
 public:
  NumberedData(int64_t first, int64_t size, bool shuffle = true, bool has_size = true)
      : first_(first), size_(size), shuffle_(shuffle), has_size_(has_size) {}

  DataLoader train_dataloader() override {
    if (has_size_) return DataLoader(std::make_shared<Numbers>(first_, size_), {.batch_size = 7, .shuffle = shuffle_});
    return DataLoader(std::make_shared<NumberStream>(first_, size_), {.batch_size = 7});
  }

 private:
  class Numbers : public Dataset {
   public:
    Numbers(int64_t first, int64_t size) : first_(first), size_(size) {}
    int64_t size() const override { return size_; }
    Batch get(int64_t index, Generator& generator) const override {
      return {{"number", torch::tensor(first_ + index)}, {"draw", torch::tensor(generator.uniform(), torch::kDouble)}};
    }

   private:
    int64_t first_, size_;
  };
  class NumberStream : public IterableDataset {
   public:
    NumberStream(int64_t first, int64_t size) : first_(first), size_(size) {}
    std::unique_ptr<ExampleStream> stream(const StreamContext& context) const override {
      class Stream : public ExampleStream {
       public:
        Stream(int64_t first, int64_t size, const StreamContext& context)
            : first_(first), size_(size), next_(context.reader), step_(context.num_readers), epoch_(context.epoch) {}
        std::optional<Batch> next() override {
          if (next_ >= size_) return std::nullopt;
          const int64_t number = first_ + std::exchange(next_, next_ + step_);
          return Batch{{"number", torch::tensor(number)}, {"draw", torch::tensor(double(epoch_), torch::kDouble)}};
        }

       private:
        int64_t first_, size_, next_, step_, epoch_;
      };
      return std::make_unique<Stream>(first_, size_, context);
    }

   private:
    int64_t first_, size_;
  };

  int64_t first_, size_;
  bool shuffle_, has_size_;
};

Spec<DataModule> numbered(int64_t first, int64_t size, bool shuffle = true, bool has_size = true) {
  return Spec<DataModule>(
      std::static_pointer_cast<DataModule>(std::make_shared<NumberedData>(first, size, shuffle, has_size)));
}

DataLoader blend_of(const BlendedDataOptions& options) { return make<BlendedData>(options)->train_dataloader(); }

BlendedDataOptions two_parts() {
  return {
      .parts = {{"a", numbered(0, 100)}, {"b", numbered(1000, 40)}}, .mix = {{"a", 0.7}, {"b", 0.3}}, .batch_size = 8};
}

int64_t count_below(const std::vector<int64_t>& numbers, int64_t bound) {
  return std::count_if(numbers.begin(), numbers.end(), [bound](int64_t number) { return number < bound; });
}

TEST(BlendedData, HasTheSharesThatWeightsSay) {
  BlendedDataOptions options = two_parts();
  options.examples = 1000;
  const auto numbers = values_in(blend_of(options), "number", {.seed = 1});
  EXPECT_EQ(numbers.size(), 1000U);
  EXPECT_EQ(count_below(numbers, 1000), 700) << "to the example";
  // Each tenth has about its share.
  for (size_t tenth = 0; tenth < 10; ++tenth) {
    const std::vector<int64_t> part(numbers.begin() + static_cast<int64_t>(100 * tenth),
                                    numbers.begin() + static_cast<int64_t>(100 * tenth + 100));
    EXPECT_NEAR(static_cast<double>(count_below(part, 1000)), 70, 20);
  }
  // Seven epochs of a, in each all of its examples, and seven and a half of b.
  std::map<int64_t, int64_t> times;
  for (const int64_t number : numbers) ++times[number];
  for (int64_t number = 0; number < 100; ++number) EXPECT_EQ(times[number], 7) << number;
  for (int64_t number = 1000; number < 1040; ++number) EXPECT_THAT(times[number], ::testing::AnyOf(7, 8)) << number;
  std::vector<int64_t> of_a;
  for (const int64_t number : numbers)
    if (number < 1000) of_a.push_back(number);
  const std::vector<int64_t> first(of_a.begin(), of_a.begin() + 100), second(of_a.begin() + 100, of_a.begin() + 200);
  EXPECT_EQ(std::set<int64_t>(first.begin(), first.end()).size(), 100U);
  EXPECT_NE(first, second) << "each epoch of a source has an order of its own";
}

TEST(BlendedData, SourcesGoOnInTheNextEpoch) {
  BlendedDataOptions options = two_parts();
  options.mix = {{"a", 1}, {"b", 1}};
  options.examples = 60;
  const DataLoader loader = blend_of(options);
  std::vector<int64_t> of_a;
  for (int64_t epoch = 0; epoch < 10; ++epoch)
    for (const int64_t number : values_in(loader, "number", {.seed = 1, .epoch = epoch}))
      if (number < 1000) of_a.push_back(number);
  ASSERT_EQ(of_a.size(), 300U);
  for (int64_t pass = 0; pass < 3; ++pass)
    EXPECT_EQ(std::set<int64_t>(of_a.begin() + 100 * pass, of_a.begin() + 100 * (pass + 1)).size(), 100U);
}

TEST(BlendedData, SourcesThatLeaveGiveEachExampleOnce) {
  BlendedDataOptions options = two_parts();
  options.at_end = BlendEnd::kLeave;
  options.mix = {{"a", 1}, {"b", 3}};
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    auto numbers = values_in(blend_of(options), "number", {.seed = 1, .epoch = epoch});
    const std::vector<int64_t> begin(numbers.begin(), numbers.begin() + 40);
    EXPECT_NEAR(static_cast<double>(count_below(begin, 1000)), 10, 9);
    EXPECT_EQ(count_below({numbers.end() - 40, numbers.end()}, 1000), 40) << "b has left";
    std::sort(numbers.begin(), numbers.end());
    EXPECT_EQ(std::set<int64_t>(numbers.begin(), numbers.end()).size(), 140U);
    EXPECT_EQ(numbers.size(), 140U);
  }
}

TEST(BlendedData, FollowsFromSeedAndPlaceForAnyRanksAndWorkers) {
  BlendedDataOptions options = two_parts();
  options.examples = 240;
  options.global_batch_size = 12;
  const DataLoaderPosition place{.seed = 9, .epoch = 2};
  const auto whole = values_in(blend_of(options), "number", place);
  EXPECT_NE(whole, values_in(blend_of(options), "number", {.seed = 8, .epoch = 2}));
  options.num_workers = 3;
  const DataLoader loader = blend_of(options);
  EXPECT_EQ(values_in(loader, "number", place), whole);
  EXPECT_EQ(values_in(loader, "number", {.seed = 9, .epoch = 2, .batch = 13}),
            std::vector<int64_t>(whole.begin() + 13 * 12, whole.end()));
  std::vector<std::vector<int64_t>> ranks;
  for (int64_t rank = 0; rank < 3; ++rank)
    ranks.push_back(values_in(loader, "number", {.seed = 9, .epoch = 2, .rank = rank, .world_size = 3}));
  for (size_t batch = 0; batch < 20; ++batch)
    for (size_t rank = 0; rank < 3; ++rank)
      for (size_t i = 0; i < 4; ++i) EXPECT_EQ(ranks[rank][batch * 4 + i], whole[batch * 12 + rank * 4 + i]);
}

TEST(BlendedData, OrdersOfAnyLengthAreReadFromAnywhere) {
  const std::vector<BlendSource> sources{
      {.name = "a", .weight = 0.6, .size = 1'000'000, .sampler = std::make_shared<PermutationSampler>()},
      {.name = "b", .weight = 0.4, .size = 50'000, .sampler = std::make_shared<PermutationSampler>()}};
  for (const BlendEnd end : {BlendEnd::kRepeat, BlendEnd::kLeave}) {
    const BlendSampler sampler(sources, end);
    ASSERT_EQ(sampler.length(1'050'000), 1'050'000);
    const auto order = sampler.index_order(1'050'000, 3, 1);
    const auto whole = order->indices(0, order->size());
    const auto late = sampler.index_order(1'050'000, 3, 1)->indices(700'000, 700'050);
    EXPECT_EQ(late, std::vector<int64_t>(whole.begin() + 700'000, whole.begin() + 700'050));
    EXPECT_EQ(order->indices(5, 9), std::vector<int64_t>(whole.begin() + 5, whole.begin() + 9)) << "and back";
    if (end == BlendEnd::kLeave) {
      auto sorted = whole;
      std::sort(sorted.begin(), sorted.end());
      for (int64_t i = 0; i < 1'050'000; ++i) ASSERT_EQ(sorted[static_cast<size_t>(i)], i);
    } else {
      EXPECT_EQ(count_below(whole, 1'000'000), 630'000);
    }
  }
}

TEST(BlendedData, TemperatureBringsWeightsNearerToEachOther) {
  EXPECT_THAT(tempered_weights({"a", "b", "c"}, {16, 4, 0}, 2), ElementsAre(1, 0.5, 0));
  BlendedDataOptions options = two_parts();
  options.mix = {};  // by size: 100 and 40
  options.examples = 1400;
  EXPECT_EQ(count_below(values_in(blend_of(options), "number"), 1000), 1000);
  options.parts = {{"a", numbered(0, 90)}, {"b", numbered(1000, 10)}};
  options.temperature = 2;
  EXPECT_EQ(count_below(values_in(blend_of(options), "number"), 1000), 1050) << "3 to 1";
  options.mix = {{"a", 1}, {"b", 0}};
  EXPECT_EQ(count_below(values_in(blend_of(options), "number"), 1000), 1400);
}

TEST(BlendedData, BlendsStreams) {
  BlendedDataOptions options = two_parts();
  options.parts["b"] = numbered(1000, 40, false, /*has_size=*/false);
  options.at_end = BlendEnd::kLeave;
  for (const int64_t workers : {0, 2}) {
    options.num_workers = workers;
    std::multiset<int64_t> found;
    for (int64_t rank = 0; rank < 2; ++rank)
      for (const int64_t number : values_in(blend_of(options), "number", {.seed = 2, .rank = rank, .world_size = 2}))
        found.insert(number);
    EXPECT_EQ(found.size(), 140U) << "each once";
    EXPECT_EQ(std::set<int64_t>(found.begin(), found.end()).size(), 140U);
  }
  options.at_end = BlendEnd::kRepeat;
  options.num_workers = 2;
  options.examples = 500;
  const DataLoader loader = blend_of(options);
  const auto whole = values_in(loader, "number", {.seed = 2});
  EXPECT_EQ(whole.size(), 500U);
  EXPECT_NEAR(static_cast<double>(count_below(whole, 1000)), 350, 50);
  EXPECT_EQ(std::set<int64_t>(whole.begin(), whole.end()).size(), 140U);
  EXPECT_EQ(values_in(loader, "number", {.seed = 2}), whole);
  EXPECT_EQ(values_in(loader, "number", {.seed = 2, .batch = 11}),
            std::vector<int64_t>(whole.begin() + 11 * 8, whole.end()));
}

TEST(BlendedData, EveryMistakeIsOneMessage) {
  const auto error = [](const BlendedDataOptions& options) { return message_of([&] { blend_of(options); }); };
  BlendedDataOptions options = two_parts();
  options.mix = {{"a", 0}, {"b", 0}};
  EXPECT_THAT(error(options), HasSubstr("all weights of the blend are zero: a, b; valid: at least one above 0"));
  options.mix = {{"a", -1}, {"b", 1}};
  EXPECT_THAT(error(options), HasSubstr("the weight of 'a' in a blend is -1; valid: at least 0"));
  options.mix = {{"a", 1}};
  EXPECT_THAT(error(options), HasSubstr("data.mix has no weight of the part 'b'; hint: b: 0 leaves it out"));
  options.mix = {{"a", 1}, {"b", 1}, {"c", 1}};
  EXPECT_THAT(error(options), HasSubstr("data.mix has a weight of 'c', which is not among data.parts"));
  EXPECT_THAT(error({}), HasSubstr("data.parts is not set"));
  options = two_parts();
  options.parts["b"] = numbered(0, 0);
  EXPECT_THAT(error(options), HasSubstr("'b' of the blend has no examples"));
  options.parts["b"] = numbered(0, 9, false, false);
  EXPECT_THAT(error(options), HasSubstr("has no end; hint: `examples`"));
  options.mix = {};
  EXPECT_THAT(error(options), HasSubstr("the part 'b' has no size to weigh it by"));
  options = two_parts();
  options.at_end = BlendEnd::kLeave;
  options.examples = 3;
  EXPECT_THAT(error(options), HasSubstr("hint: leave `examples` out, or at_end: repeat"));
}

}  // namespace
}  // namespace levin::data
