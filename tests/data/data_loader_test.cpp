#include <levin/core/data/data_loader.h>

#include <levin/core/base/error.h>

#include "../support/eventually.h"
#include "../support/self_program.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <torch/types.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace levin {
namespace {

using namespace std::chrono_literals;

/// Yields each index, and a number drawn for it, per example. May be slow at some indices.
class Indices : public data::Dataset {
 public:
  explicit Indices(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  Batch get(int64_t index, data::Generator& generator) const override {
    if (index % 7 == 0) std::this_thread::sleep_for(200us);
    return {{"index", torch::tensor(index)}, {"draw", torch::tensor(generator.uniform(), torch::kDouble)}};
  }

 private:
  int64_t size_;
};

struct Seen {
  std::vector<int64_t> indices;
  std::vector<double> draws;
  std::vector<int64_t> batch_sizes;
  bool operator==(const Seen&) const = default;
};

Seen read(DataLoader::Pass pass, int64_t limit = -1) {
  Seen seen;
  while (limit-- != 0) {
    auto batch = pass.next();
    if (!batch) break;
    seen.batch_sizes.push_back(batch->size());
    for (int64_t i = 0; i < batch->size(); ++i) {
      seen.indices.push_back((*batch)["index"][i].item<int64_t>());
      if (batch->find("draw") != nullptr) seen.draws.push_back((*batch)["draw"][i].item<double>());
    }
  }
  return seen;
}

std::shared_ptr<Indices> indices(int64_t size) { return std::make_shared<Indices>(size); }

TEST(DataLoader, YieldsEveryExampleOnce) {
  const DataLoader loader(indices(10), {.batch_size = 4});
  EXPECT_EQ(loader.num_batches(), 3);
  EXPECT_EQ(loader.num_examples(), 10);
  auto pass = loader.pass({});
  EXPECT_EQ(pass.remaining(), 3);
  const auto first = pass.next();
  EXPECT_EQ(first->size(), 4);
  EXPECT_EQ(pass.position(), 1);
  EXPECT_EQ(pass.remaining(), 2);
  const Seen seen = read(loader.pass({}));
  EXPECT_EQ(seen.indices, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(seen.batch_sizes, (std::vector<int64_t>{4, 4, 2}));
}

TEST(DataLoader, EndsOnceAndForAll) {
  auto pass = DataLoader(indices(3), {.batch_size = 2, .num_workers = 2}).pass({});
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(pass.next());
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(pass.next());
  EXPECT_EQ(pass.position(), 2);
  EXPECT_EQ(pass.remaining(), 0);
  EXPECT_FALSE(DataLoader(indices(0), {.num_workers = 1}).pass({}).next());
}

TEST(DataLoader, WorkersChangeNothing) {
  const auto dataset = indices(103);
  const DataLoaderPosition position{.seed = 9, .epoch = 2};
  const Seen expected = read(DataLoader(dataset, {.batch_size = 5, .shuffle = true}).pass(position));
  EXPECT_EQ(expected.indices.size(), 103u);
  for (int64_t num_workers : {1, 2, 5, 40}) {
    for (int64_t prefetch_factor : {1, 3}) {
      const DataLoader loader(
          dataset, {.batch_size = 5, .shuffle = true, .num_workers = num_workers, .prefetch_factor = prefetch_factor});
      EXPECT_EQ(read(loader.pass(position)), expected) << num_workers << " workers";
      EXPECT_EQ(read(loader.pass(position)), expected) << "a second pass";
    }
  }
}

TEST(DataLoader, ShufflesAnewEachEpoch) {
  const DataLoader loader(indices(50), {.batch_size = 50, .shuffle = true});
  const Seen first = read(loader.pass({.seed = 1, .epoch = 0}));
  EXPECT_EQ(read(loader.pass({.seed = 1, .epoch = 0})), first);
  const Seen second = read(loader.pass({.seed = 1, .epoch = 1}));
  EXPECT_NE(second.indices, first.indices);
  EXPECT_NE(second.draws, first.draws);
}

TEST(DataLoader, StartsAtAnyBatch) {
  for (int64_t num_workers : {0, 1, 3}) {
    const DataLoader loader(indices(23), {.batch_size = 4, .shuffle = true, .num_workers = num_workers});
    const Seen whole = read(loader.pass({.seed = 3}));
    for (int64_t batch = 0; batch <= 7; ++batch) {
      auto pass = loader.pass({.seed = 3, .batch = batch});
      EXPECT_EQ(pass.position(), batch);
      EXPECT_EQ(pass.remaining(), std::max<int64_t>(6 - batch, 0));
      const Seen rest = read(std::move(pass));
      const auto skipped = static_cast<std::ptrdiff_t>(std::min<int64_t>(4 * batch, 23));
      EXPECT_EQ(rest.indices, std::vector<int64_t>(whole.indices.begin() + skipped, whole.indices.end()));
      EXPECT_EQ(rest.draws, std::vector<double>(whole.draws.begin() + skipped, whole.draws.end()));
    }
  }
}

class CountedGets : public data::Dataset {
 public:
  int64_t size() const override { return 100; }
  Batch get(int64_t index, data::Generator& /*generator*/) const override {
    ++gets;
    return {{"index", torch::tensor(index)}};
  }
  mutable std::atomic<int> gets = 0;
};

TEST(DataLoader, DoesNotReadWhatLiesBeforeThePosition) {
  const auto dataset = std::make_shared<CountedGets>();
  EXPECT_EQ(read(DataLoader(dataset, {.batch_size = 10, .num_workers = 2}).pass({.batch = 8})).indices.size(), 20u);
  EXPECT_EQ(dataset->gets, 20);
}

TEST(DataLoader, FetchesAheadOnlySoFar) {
  const auto dataset = std::make_shared<CountedGets>();
  const DataLoader loader(dataset, {.batch_size = 1, .num_workers = 2, .prefetch_factor = 3});
  auto pass = loader.pass({});
  EXPECT_TRUE(testing::eventually([&] { return dataset->gets >= 2 * 3; }));
  std::this_thread::sleep_for(50ms);  // in which a worker would go on
  EXPECT_LE(dataset->gets, 2 * (3 + 1));
}

TEST(DataLoader, GlobalOrderDoesNotDependOnRanks) {
  const auto dataset = indices(45);
  const Seen alone = read(DataLoader(dataset, {.batch_size = 12, .shuffle = true}).pass({.seed = 5}));
  const DataLoader loader(dataset, {.batch_size = 4, .shuffle = true});
  EXPECT_EQ(loader.num_batches(3), 4);
  std::vector<DataLoader::Pass> passes;
  std::vector<DataLoader> loaders;
  for (int64_t rank = 0; rank < 3; ++rank) {
    loaders.push_back(loader.with_options(loader.options()));
    passes.push_back(loaders.back().pass({.seed = 5, .rank = rank, .world_size = 3}));
  }
  std::vector<int64_t> together;
  for (int batch = 0; batch < 4; ++batch) {
    for (auto& pass : passes) {
      const auto part = pass.next();
      ASSERT_TRUE(part);
      EXPECT_EQ(part->size(), batch < 3 ? 4 : 3);
      for (int64_t i = 0; i < part->size(); ++i) together.push_back((*part)["index"][i].item<int64_t>());
    }
  }
  EXPECT_EQ(together, alone.indices);
}

TEST(DataLoader, ARankMayHaveOneBatchLess) {
  const auto dataset = indices(9);
  const DataLoader loader(dataset, {.batch_size = 4});
  EXPECT_EQ(loader.pass({.rank = 0, .world_size = 2}).remaining(), 2);
  EXPECT_EQ(loader.pass({.rank = 1, .world_size = 2}).remaining(), 1);
  EXPECT_EQ(loader.num_batches(2), 2);
  EXPECT_EQ(loader.with_options({.batch_size = 4, .drop_last = true}).num_batches(2), 1);
}

class Exploding : public data::Dataset {
 public:
  int64_t size() const override { return 20; }
  Batch get(int64_t index, data::Generator& /*generator*/) const override {
    if (index == 13) throw std::out_of_range("thirteen");
    return {{"index", torch::tensor(index)}};
  }
};

TEST(DataLoader, ErrorsComeInTheirTurnWithTheirType) {
  for (int64_t num_workers : {0, 1, 3}) {
    const DataLoader loader(std::make_shared<Exploding>(), {.batch_size = 2, .num_workers = num_workers});
    for (int round = 0; round < 2; ++round) {
      auto pass = loader.pass({});
      for (int64_t i = 0; i < 6; ++i) EXPECT_EQ((*pass.next())["index"][0].item<int64_t>(), 2 * i);
      for (int again = 0; again < 2; ++again) {
        try {
          pass.next();
          FAIL();
        } catch (const std::out_of_range& error) {
          EXPECT_STREQ(error.what(), "thirteen");
        }
      }
      EXPECT_EQ(pass.position(), 6);
    }
    // The workers are fit for another pass after an error.
    EXPECT_EQ(read(loader.pass({.batch = 8})).indices.size(), 4u);
  }
}

TEST(DataLoader, APassCanBeLeftInTheMiddle) {
  const DataLoader loader(indices(10'000), {.batch_size = 8, .num_workers = 3});
  for (int i = 0; i < 30; ++i) {
    auto pass = loader.pass({.batch = i});
    if (i % 3 > 0) {
      EXPECT_EQ((*pass.next())["index"][0].item<int64_t>(), 8 * i);
    }
  }
  std::optional<DataLoader::Pass> outlives;
  {
    const DataLoader shortlived(indices(100), {.batch_size = 8, .num_workers = 2});
    outlives = shortlived.pass({});
  }
  EXPECT_EQ(read(std::move(*outlives)).indices.size(), 100u);
}

TEST(DataLoader, ANewPassEndsTheLast) {
  for (int64_t num_workers : {0, 2}) {
    const DataLoader loader(indices(100), {.batch_size = 8, .num_workers = num_workers});
    const DataLoader copy = loader;
    auto first = loader.pass({});
    EXPECT_TRUE(first.next());
    auto second = copy.pass({});
    EXPECT_THROW(first.next(), Error);
    first = DataLoader::Pass(loader.pass({.batch = 5}));
    EXPECT_THROW(second.next(), Error);
    EXPECT_EQ((*first.next())["index"][0].item<int64_t>(), 40);
  }
}

TEST(DataLoader, TwoLoadersRunAtATime) {
  const DataLoader a(indices(60), {.batch_size = 4, .num_workers = 2});
  const DataLoader b(indices(60), {.batch_size = 6, .num_workers = 1});
  auto pass_a = a.pass({});
  auto pass_b = b.pass({});
  for (int64_t i = 0; i < 10; ++i) {
    EXPECT_EQ((*pass_a.next())["index"][0].item<int64_t>(), 4 * i);
    EXPECT_EQ((*pass_b.next())["index"][0].item<int64_t>(), 6 * i);
  }
}

/// Sets how many threads the user may have; what it gives is the former number.
rlim_t limit_threads(rlim_t count) {
  rlimit limit{};
  getrlimit(RLIMIT_NPROC, &limit);
  const rlim_t former = std::exchange(limit.rlim_cur, count);
  return setrlimit(RLIMIT_NPROC, &limit) == 0 ? former : 0;
}

const testing::SelfProgram no_more_threads("data_loader_no_more_threads", [] {
  constexpr uid_t kNobody = 65534;
  if (geteuid() == 0 && setresuid(kNobody, kNobody, kNobody) != 0) return 77;  // root has no such limit
  const DataLoader loader(indices(20), {.batch_size = 4, .num_workers = 3});
  const rlim_t former = limit_threads(0);
  try {
    loader.pass({});
  } catch (const Error& error) {
    std::puts(error.what());
  }
  limit_threads(former);
  std::printf("then %zu examples\n", read(loader.pass({})).indices.size());
  return 0;
});

TEST(DataLoader, WorkersThatCannotBeStartedAreAnError) {
  const testing::ProgramResult result = no_more_threads.run();
  if (result.status == 77) GTEST_SKIP() << "cannot become another user, and root may have any number of threads";
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, ::testing::HasSubstr("[data] cannot start worker 1 of 3: "));
  EXPECT_THAT(result.out, ::testing::HasSubstr("; hint: fewer num_workers"));
  EXPECT_THAT(result.out, ::testing::EndsWith("then 20 examples\n"));
}

class ThreadFacts : public data::Dataset {
 public:
  int64_t size() const override { return 8; }
  Batch get_batch(std::span<const int64_t> /*indices*/, data::Generator& /*generator*/) const override {
    auto weight = torch::ones({2}, torch::requires_grad());
    return {{"threads", torch::full({1}, at::get_num_threads())},
            {"graph", torch::full({1}, (weight * 2).requires_grad())},
            {"value", torch::ones({1, 2}) * 3}};
  }
};

TEST(DataLoader, WorkersUseOneCoreAndRecordNoGraph) {
  const int before = at::get_num_threads();
  at::set_num_threads(2);
  auto pass = DataLoader(std::make_shared<ThreadFacts>(), {.num_workers = 2}).pass({});
  while (auto batch = pass.next()) {
    EXPECT_EQ((*batch)["threads"].item<int64_t>(), 1);
    EXPECT_FALSE((*batch)["graph"].item<bool>());
  }
  EXPECT_EQ(at::get_num_threads(), 2);
  int in_new_thread = 0;
  std::thread([&] { in_new_thread = at::get_num_threads(); }).join();
  EXPECT_EQ(in_new_thread, 2);
  at::set_num_threads(before);
}

TEST(DataLoader, BatchesAreOrdinaryTensors) {
  for (int64_t num_workers : {0, 1}) {
    auto pass = DataLoader(std::make_shared<ThreadFacts>(), {.num_workers = num_workers}).pass({});
    auto value = (*pass.next())["value"];
    EXPECT_FALSE(value.is_inference());
    auto weight = torch::ones({2}, torch::requires_grad());
    (value * weight).sum().backward();
    EXPECT_TRUE(weight.grad().equal(torch::full({2}, 3.0)));
    value.add_(1);
    EXPECT_EQ(value._version(), 1);
  }
}

class Alternate : public data::Sampler {
 public:
  std::vector<int64_t> order(int64_t dataset_size, uint64_t /*seed*/, int64_t /*epoch*/) const override {
    std::vector<int64_t> result;
    for (int64_t i = 0; i < dataset_size; i += 2) result.push_back(i);
    return result;
  }
};

class OutOfRange : public data::Sampler {
 public:
  std::vector<int64_t> order(int64_t dataset_size, uint64_t /*seed*/, int64_t /*epoch*/) const override {
    return {0, dataset_size};
  }
};

TEST(DataLoader, TakesASamplerOfOnesOwn) {
  const DataLoader loader =
      DataLoader(indices(9), {.batch_size = 2, .shuffle = true}).with_sampler(std::make_shared<Alternate>());
  EXPECT_EQ(loader.num_batches(), 3);
  EXPECT_EQ(read(loader.pass({})).indices, (std::vector<int64_t>{0, 2, 4, 6, 8}));
  EXPECT_EQ(read(loader.with_options({.batch_size = 4}).pass({})).batch_sizes, (std::vector<int64_t>{4, 1}));
  EXPECT_THROW(loader.with_sampler(std::make_shared<OutOfRange>()).pass({}), Error);
  EXPECT_THROW(DataLoader(indices(9), {.shuffle = true}, std::make_shared<Alternate>()), Error);
}

TEST(DataLoader, RefusesOptionsOutOfRange) {
  EXPECT_THROW(DataLoader(indices(1), {.batch_size = 0}), ConfigError);
  EXPECT_THROW(DataLoader(indices(1), {.num_workers = -1}), ConfigError);
  EXPECT_THROW(DataLoader(indices(1), {.prefetch_factor = 0}), ConfigError);
  EXPECT_THROW(DataLoader(std::shared_ptr<const data::Dataset>()), Error);
  EXPECT_THROW(DataLoader(std::shared_ptr<const data::IterableDataset>()), Error);
  EXPECT_THROW(DataLoader(indices(1)).pass({.rank = 2, .world_size = 2}), Error);
  EXPECT_THROW(DataLoader(indices(1)).pass({.batch = -1}), Error);
  EXPECT_FALSE(DataLoader());
  EXPECT_THROW(DataLoader().pass({}), Error);
  EXPECT_THROW(DataLoader().options(), Error);
}

TEST(DataLoader, SaysHowLongItWaited) {
  class Slow : public data::Dataset {
   public:
    int64_t size() const override { return 2; }
    Batch get(int64_t index, data::Generator& /*generator*/) const override {
      std::this_thread::sleep_for(20ms);
      return {{"index", torch::tensor(index)}};
    }
  };
  const auto waited = [](int64_t num_workers) {
    auto pass = DataLoader(std::make_shared<Slow>(), {.num_workers = num_workers}).pass({});
    pass.next();
    return pass.waited();
  };
  EXPECT_GE(waited(0), 20ms);
  // A worker may have its batch before it is asked for.
  EXPECT_TRUE(testing::eventually([&] { return waited(1) >= 10ms; }));
}

}  // namespace
}  // namespace levin
