// Several loaders in one: Lightning's modes, positions in every part, ranks, and training on them.

#include <levin/core/data/combined_data.h>
#include <levin/core/data/data_loader.h>

#include <levin/callbacks/batch_size_finder.h>
#include <levin/callbacks/model_checkpoint.h>
#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>
#include <levin/core/data/csv.h>
#include <levin/core/optim/sgd.h>

#include "../support/captured_log.h"
#include "../support/tiny.h"
#include "reader_checks.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace levin {
namespace {

using testing::all_batches;
using ::testing::HasSubstr;
using testing::message_of;

/// Numbers from `first` on, with one drawn for each.
class Count : public data::Dataset {
 public:
  Count(int64_t first, int64_t size) : first_(first), size_(size) {}
  int64_t size() const override { return size_; }
  Batch get(int64_t index, data::Generator& generator) const override {
    return {{"index", torch::tensor(first_ + index)}, {"draw", torch::tensor(generator.uniform(), torch::kDouble)}};
  }

 private:
  int64_t first_;
  int64_t size_;
};

class CountStream : public data::IterableDataset {
 public:
  explicit CountStream(int64_t size) : size_(size) {}
  std::unique_ptr<data::ExampleStream> stream(const data::StreamContext& context) const override {
    class Stream : public data::ExampleStream {
     public:
      Stream(int64_t next, int64_t step, int64_t end) : next_(next), step_(step), end_(end) {}
      std::optional<Batch> next() override {
        if (next_ >= end_) return std::nullopt;
        return Batch{{"index", torch::tensor(std::exchange(next_, next_ + step_))}};
      }

     private:
      int64_t next_, step_, end_;
    };
    return std::make_unique<Stream>(context.reader, context.num_readers, size_);
  }

 private:
  int64_t size_;
};

std::shared_ptr<Count> numbers(int64_t first, int64_t size) { return std::make_shared<Count>(first, size); }

const std::map<std::string, CombinedMode> kModes = {{"min_size", CombinedMode::kMinSize},
                                                    {"max_size_cycle", CombinedMode::kMaxSizeCycle},
                                                    {"max_size", CombinedMode::kMaxSize},
                                                    {"sequential", CombinedMode::kSequential}};

/// Two parts of 23 and 9 examples in batches of 4 and 2.
DataLoader two_parts(CombinedMode mode, int64_t workers = 0, bool drop_last = false) {
  const auto part = [&](std::shared_ptr<Count> dataset, int64_t batch_size) {
    return DataLoader(
        std::move(dataset),
        {.shuffle = true, .num_workers = workers, .drop_last = drop_last, .global_batch_size = batch_size});
  };
  return DataLoader::combined({{"a", part(numbers(0, 23), 4)}, {"b", part(numbers(100, 9), 2)}}, mode);
}

void expect_batches(const std::vector<Batch>& got, const std::vector<Batch>& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].items().size(), expected[i].items().size()) << what << ", batch " << i;
    for (const auto& [name, tensor] : expected[i].items())
      EXPECT_TRUE(got[i][name].equal(tensor)) << what << ", batch " << i << ", " << name;
  }
}

TEST(CombinedLoader, GivesWhatLightningsGives) {
  if (const auto missing = testing::missing_module("lightning"); !missing.empty()) GTEST_SKIP() << missing;
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{2, 5, 3}, std::vector<int64_t>{4, 4}, std::vector<int64_t>{7, 1, 1}, {3}}) {
    std::vector<std::string> words;
    for (const int64_t length : lengths) words.push_back(std::to_string(length));
    const auto result = testing::run_with_torchvision("combine_loaders.py", words);
    ASSERT_EQ(result.status, 0) << result.err;
    std::string ours;
    for (const char* name : {"min_size", "max_size_cycle", "max_size", "sequential"}) {
      std::vector<DataLoader::Part> parts;
      for (const int64_t length : lengths)
        parts.emplace_back(fmt::format("p{}", parts.size()), DataLoader(numbers(0, length)));
      ours += fmt::format("{}\n", name);
      const DataLoader loader = DataLoader::combined(parts, kModes.at(name));
      const auto batches = all_batches(loader);
      EXPECT_EQ(loader.num_batches(), std::ssize(batches));
      for (const Batch& batch : batches)
        for (size_t i = 0; i < parts.size(); ++i) {
          const Batch part = batch.part(parts[i].first);
          ours += fmt::format("{}{}", part.empty() ? "-" : std::to_string(part["index"].item<int64_t>()),
                              i + 1 == parts.size() ? "\n" : " ");
        }
    }
    EXPECT_EQ(ours, result.out);
  }
}

TEST(CombinedLoader, StartsAtAnyBatchOnAnyWorkers) {
  for (const auto& [name, mode] : kModes) {
    const auto whole = all_batches(two_parts(mode), {.seed = 4, .epoch = 2});
    EXPECT_EQ(two_parts(mode).num_batches(), std::ssize(whole)) << name;
    for (const int64_t workers : {0, 1, 2}) {
      const DataLoader loader = two_parts(mode, workers);
      for (size_t batch = 0; batch <= whole.size() + 1; ++batch) {
        const auto begin = static_cast<std::ptrdiff_t>(std::min(batch, whole.size()));
        auto pass = loader.pass({.seed = 4, .epoch = 2, .batch = static_cast<int64_t>(batch)});
        EXPECT_EQ(pass.remaining(), std::max<int64_t>(std::ssize(whole) - static_cast<int64_t>(batch), 0));
        std::vector<Batch> rest;
        while (auto next = pass.next()) rest.push_back(std::move(*next));
        expect_batches(rest, {whole.begin() + begin, whole.end()},
                       fmt::format("{} with {} workers from batch {}", name, workers, batch));
      }
    }
  }
}

TEST(CombinedLoader, ShorterPartsBeginAgainInAnotherOrder) {
  const DataLoader loader = two_parts(CombinedMode::kMaxSizeCycle);
  std::vector<int64_t> order;
  for (const int64_t epoch : {0, 1})
    for (const Batch& batch : all_batches(loader, {.epoch = epoch})) {
      const torch::Tensor index = batch["b.index"];
      for (int64_t i = 0; i < index.size(0); ++i) order.push_back(index[i].item<int64_t>());
    }
  // 6 batches of a: b's 5, and its first again.
  ASSERT_EQ(order.size(), 2U * (9 + 2));
  const std::vector<int64_t> first(order.begin(), order.begin() + 9);
  const std::vector<int64_t> in_second_epoch(order.begin() + 11, order.begin() + 20);
  EXPECT_EQ(std::set<int64_t>(first.begin(), first.end()).size(), 9U);
  EXPECT_EQ(std::set<int64_t>(in_second_epoch.begin(), in_second_epoch.end()).size(), 9U);
  EXPECT_NE(first, in_second_epoch);
  EXPECT_NE((std::vector<int64_t>{order[9], order[10]}), (std::vector<int64_t>{first[0], first[1]}));
}

TEST(CombinedLoader, RanksShareEveryBatch) {
  const testing::CapturedLog quiet;
  for (const auto& [name, mode] : kModes) {
    const auto alone = all_batches(two_parts(mode), {.seed = 1});
    std::vector<std::vector<Batch>> of_ranks;
    std::vector<std::vector<DataLoader::Pass::Share>> shares(2);
    for (int64_t rank = 0; rank < 2; ++rank) {
      auto pass = two_parts(mode, 1).pass({.seed = 1, .rank = rank, .world_size = 2});
      of_ranks.emplace_back();
      for (int64_t i = 0; i < std::ssize(alone); ++i) shares[static_cast<size_t>(rank)].push_back(*pass.share(i));
      while (auto batch = pass.next()) of_ranks.back().push_back(std::move(*batch));
      ASSERT_EQ(of_ranks.back().size(), alone.size()) << name << ": as many batches on each rank";
    }
    for (size_t i = 0; i < alone.size(); ++i) {
      EXPECT_EQ(shares[0][i].own + shares[1][i].own, shares[0][i].all) << name;
      int64_t own_of_second = 0;
      for (const char* part : {"a", "b"}) {
        const Batch whole = alone[i].part(part);
        const Batch first = of_ranks[0][i].part(part);
        const Batch second = of_ranks[1][i].part(part);
        ASSERT_EQ(whole.empty(), first.empty()) << name << ", batch " << i;
        ASSERT_EQ(whole.empty(), second.empty()) << name << ", batch " << i;
        if (whole.empty()) continue;
        // The only example of a last batch is the first rank's, and given to the second as well.
        const bool is_borrowed = whole.size() == 1;
        if (!is_borrowed) own_of_second += second.size();
        const Batch both = is_borrowed ? first : Batch::concatenate({first, second});
        EXPECT_TRUE(both["index"].equal(whole["index"])) << name << ", batch " << i << ", " << part;
        EXPECT_TRUE(both["draw"].equal(whole["draw"])) << name << ", batch " << i << ", " << part;
        EXPECT_TRUE(!is_borrowed || second["index"].equal(whole["index"]));
      }
      EXPECT_EQ(shares[1][i].own, own_of_second) << name << ", batch " << i;
    }
  }
}

TEST(CombinedLoader, SaysWhenRanksCannotShareAlike) {
  const auto messages = [](CombinedMode mode, bool drop_last) {
    const testing::CapturedLog log;
    const auto part = [&](int64_t size, int64_t batch_size) {
      return DataLoader(numbers(0, size), {.drop_last = drop_last, .global_batch_size = batch_size});
    };
    DataLoader::combined({{"even", part(24, 4)}, {"uneven", part(11, 2)}}, mode).pass({.world_size = 2});
    return log.text();
  };
  EXPECT_EQ(messages(CombinedMode::kSequential, false), "");
  EXPECT_EQ(messages(CombinedMode::kMaxSize, true), "");
  EXPECT_THAT(
      messages(CombinedMode::kMinSize, false),
      HasSubstr("batch 5 of the combined loader has 1 example of 'uneven' and 4 examples of 'even', which 2 ranks "
                "cannot share alike"));
}

TEST(CombinedLoader, UnsizedPartsEndWhenTheyEnd) {
  const auto streams = [](CombinedMode mode) {
    return DataLoader::combined(
        {{"a", DataLoader(std::make_shared<CountStream>(7), {.batch_size = 2})}, {"b", DataLoader(numbers(0, 3))}},
        mode);
  };
  EXPECT_EQ(streams(CombinedMode::kMaxSize).num_batches(), std::nullopt);
  EXPECT_EQ(all_batches(streams(CombinedMode::kMinSize)).size(), 3U);
  const auto all = all_batches(streams(CombinedMode::kMaxSize));
  ASSERT_EQ(all.size(), 4U);
  EXPECT_TRUE(all[3].part("b").empty());
  for (int64_t batch = 0; batch <= 4; ++batch)
    expect_batches(all_batches(streams(CombinedMode::kMaxSize), {.batch = batch}), {all.begin() + batch, all.end()},
                   "resumed");
  for (const CombinedMode mode : {CombinedMode::kMaxSizeCycle, CombinedMode::kSequential})
    EXPECT_THAT(
        message_of([&] { streams(mode); }),
        HasSubstr("the part 'a' of a combined loader has no size, so that nobody knows where it begins again or "
                  "ends; valid modes: min_size, max_size"));
}

TEST(CombinedLoader, RefusesWhatCannotBe) {
  const DataLoader one(numbers(0, 4));
  EXPECT_THAT(message_of([] { DataLoader::combined({}); }), HasSubstr("was given no parts"));
  EXPECT_THAT(message_of([&] {
                DataLoader::combined({{"a", one}, {"a", one}});
              }),
              HasSubstr("'a' cannot name a part of a combined loader; valid: names without a dot, each once"));
  EXPECT_THAT(message_of([&] { DataLoader::combined({{"a.b", one}}); }), HasSubstr("'a.b' cannot name a part"));
  EXPECT_THAT(message_of([&] {
                DataLoader::combined({{"a", DataLoader()}});
              }),
              HasSubstr("part 'a' of a combined loader is empty"));
  EXPECT_THAT(message_of([&] {
                DataLoader::combined({{"a", DataLoader::combined({{"b", one}})}});
              }),
              HasSubstr("is a combined loader itself"));
  EXPECT_THAT(message_of([&] {
                DataLoader::combined({{"a", one}, {"b", DataLoader(numbers(0, 0))}}).num_batches();
              }),
              HasSubstr("the part 'b' of a combined loader gives no batch, so that it cannot begin again"));
  EXPECT_THAT(message_of([&] { two_parts(CombinedMode::kSequential).with_batch_size(3); }),
              HasSubstr("has batches of one part at a time, each with a size of its own"));
  EXPECT_EQ(two_parts(CombinedMode::kMinSize).num_examples(), 32);
}

TEST(CombinedLoader, ABatchSizeIsDividedInTheRatioOfTheParts) {
  const auto sizes = [](int64_t batch_size) {
    const DataLoader loader = two_parts(CombinedMode::kMaxSizeCycle).with_batch_size(batch_size);
    std::vector<int64_t> of_parts;
    for (const auto& [name, part] : loader.parts()) of_parts.push_back(part.batch_size(1));
    return of_parts;
  };
  EXPECT_EQ(sizes(6), (std::vector<int64_t>{4, 2})) << "as they were";
  EXPECT_EQ(sizes(600), (std::vector<int64_t>{400, 200}));
  EXPECT_EQ(sizes(7), (std::vector<int64_t>{5, 2}));
  EXPECT_EQ(sizes(1), (std::vector<int64_t>{1, 1})) << "at least one each";
  const auto batches = all_batches(two_parts(CombinedMode::kMinSize).with_batch_size(12).full_batches());
  ASSERT_EQ(batches.size(), 2U);
  for (const Batch& batch : batches) {
    EXPECT_EQ(batch.part("a")["index"].size(0), 8);
    EXPECT_EQ(batch.part("b")["index"].size(0), 4);
  }
}

// ---- Training.

/// A linear model of two losses, one for each part that a batch has.
class TwoLosses : public Module {
 public:
  TwoLosses() : layer_(register_module("layer", torch::nn::Linear(torch::nn::LinearOptions(1, 1)))) {
    torch::NoGradGuard no_grad;
    layer_->weight.fill_(0.3);
    layer_->bias.fill_(-0.1);
  }
  StepOutput training_step(const Batch& batch, int64_t /*batch_idx*/) override {
    torch::Tensor loss = torch::zeros({}, layer_->weight.options());
    for (const char* name : {"a", "b"}) {
      const Batch part = batch.part(name);
      if (part.empty()) continue;
      const auto x = part["index"].to(layer_->weight.scalar_type()).unsqueeze(1) / 100;
      loss = loss + (layer_(x) - x.square()).square().mean();
    }
    log("loss", loss, {.on_step = false, .on_epoch = true});
    return loss;
  }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1, .momentum = 0.9});
  }

 private:
  torch::nn::Linear layer_;
};

struct Trained {
  std::vector<at::Tensor> weights;
  int64_t steps = 0;
  std::string error = {};
};

/// Trains for two epochs, or up to a step, from a checkpoint where there is one.
Trained train_on(const DataLoader& loader, int64_t ranks, int64_t max_steps = -1, const std::string& folder = "",
                 const std::string& checkpoint = "") {
  seed_everything(5);
  TrainerOptions options = testing::quiet(2);
  options.precision = "64-true";
  if (ranks > 1) options.strategy = Spec<Strategy>(Config::parse("ddp_threads", {}));
  options.devices = ranks;
  if (max_steps > 0) options.max_steps = max_steps;
  if (!folder.empty()) {
    options.enable_checkpointing = true;
    options.default_root_dir = folder;
    options.callbacks = {make<ModelCheckpoint>({.save_last = true, .every_n_train_steps = 1, .dirpath = folder})};
  }
  Trainer trainer(options);
  auto module = make<TwoLosses>();
  Trained result;
  result.error = message_of([&] { trainer.fit(module, loader, {}, checkpoint); });
  result.weights = testing::weights(*module);
  result.steps = trainer.global_step();
  return result;
}

void expect_close(const Trained& got, const Trained& expected, const std::string& what) {
  EXPECT_EQ(got.error, "") << what;
  EXPECT_EQ(got.steps, expected.steps) << what;
  for (size_t i = 0; i < expected.weights.size(); ++i)
    EXPECT_TRUE(torch::allclose(got.weights[i], expected.weights[i], 1e-12, 1e-14)) << what;
}

TEST(CombinedTraining, GoesOnExactlyFromAnyBatch) {
  const testing::CapturedLog quiet;
  for (const auto& [name, mode] : kModes) {
    const Trained whole = train_on(two_parts(mode, 1), 1);
    ASSERT_EQ(whole.error, "");
    for (int64_t step = 1; step < whole.steps; step += 3) {
      const TemporaryFolder folder;
      ASSERT_EQ(train_on(two_parts(mode, 1), 1, step, folder.path()).steps, step);
      const Trained resumed = train_on(two_parts(mode, 2), 1, -1, folder.path(), folder.path("last"));
      EXPECT_EQ(resumed.error, "");
      EXPECT_EQ(resumed.steps, whole.steps);
      EXPECT_TRUE(testing::identical(resumed.weights, whole.weights)) << name << ", from step " << step;
    }
  }
}

TEST(CombinedTraining, TwoRanksLearnWhatOneLearns) {
  const testing::CapturedLog quiet;
  // One part at a time, or all divided alike: exact, also where a rank has nothing of a part's last batch.
  expect_close(train_on(two_parts(CombinedMode::kSequential), 2), train_on(two_parts(CombinedMode::kSequential), 1),
               "sequential");
  for (const auto& [name, mode] : kModes)
    expect_close(train_on(two_parts(mode, 1, /*drop_last=*/true), 2),
                 train_on(two_parts(mode, 0, /*drop_last=*/true), 1), name);
  // Uneven batches of several parts: as many steps, and nobody waits for ever.
  for (const auto& [name, mode] : kModes)
    EXPECT_EQ(train_on(two_parts(mode), 2).steps, train_on(two_parts(mode), 1).steps) << name;
}

TEST(CombinedTraining, OtherNumbersOfRanksGoOnWithTheSameGlobalBatches) {
  const testing::CapturedLog quiet;
  const auto loader = [] { return two_parts(CombinedMode::kMaxSizeCycle, 1, /*drop_last=*/true); };
  const Trained whole = train_on(loader(), 1);
  const TemporaryFolder folder;
  train_on(loader(), 2, 3, folder.path());
  expect_close(train_on(loader(), 1, -1, folder.path(), folder.path("last")), whole, "2 ranks, then 1");

  const auto per_rank = [] {
    return DataLoader::combined(
        {{"a", DataLoader(numbers(0, 24), {.batch_size = 2})}, {"b", DataLoader(numbers(100, 8), {.batch_size = 1})}});
  };
  const TemporaryFolder other;
  train_on(per_rank(), 2, 3, other.path());
  EXPECT_THAT(
      train_on(per_rank(), 1, -1, other.path(), other.path("last")).error,
      HasSubstr("a combined loader cannot go on inside of an epoch with other batches: the batches of its parts "
                "have 3 examples together over all ranks, and had 6; hint: global_batch_size in each part"));
}

TEST(CombinedTraining, OptionsThatNeedOneLoaderSaySo) {
  const testing::CapturedLog quiet;
  TrainerOptions options = testing::quiet(1);
  EXPECT_THAT(
      message_of([&] { Trainer(options).validate(make<testing::TinyModule>(), two_parts(CombinedMode::kMaxSize)); }),
      HasSubstr("a combined loader"));
  options.overfit_batches = int64_t{2};
  Trainer trainer(options);
  trainer.fit(make<TwoLosses>(), two_parts(CombinedMode::kMaxSizeCycle));
  EXPECT_EQ(trainer.global_step(), 2);
}

TEST(CombinedTraining, ABatchSizeIsFoundForAllPartsTogether) {
  const testing::CapturedLog log;
  TrainerOptions options = testing::quiet(1);
  options.callbacks = {make<BatchSizeFinder>({.init_val = 3})};
  Trainer trainer(options);
  auto module = make<TwoLosses>();
  // 9 examples of 'b' are enough for batches of 27, of which it has a third.
  trainer.fit(module, two_parts(CombinedMode::kMaxSizeCycle));
  EXPECT_THAT(log.text(), HasSubstr("batch_size_finder: 24 examples in a batch of one rank"));
  EXPECT_THAT(log.text(), HasSubstr("the batch_size of each part: a 16, b 8"));
  EXPECT_EQ(trainer.global_step(), 2);
}

// ---- The data module.

/// A data module that counts what its hooks are given.
struct HookedOptions {
  int64_t size = 6;
  int64_t batch_size = 2;
  static void describe(Schema<HookedOptions>& schema) {
    schema.field("size", &HookedOptions::size, "examples");
    schema.field("batch_size", &HookedOptions::batch_size, "examples in a batch");
  }
};
class Hooked : public DataModule {
 public:
  using Options = HookedOptions;
  explicit Hooked(const Options& options) : options_(options) {}
  void setup(Stage /*stage*/) override { ++setups; }
  DataLoader train_dataloader() override {
    return DataLoader(numbers(0, options_.size), {.batch_size = options_.batch_size});
  }
  DataLoaders val_dataloader() override { return {DataLoader(numbers(1000, 2)), DataLoader(numbers(2000, 2))}; }
  Batch on_after_batch_transfer(Batch batch, int64_t dataloader_idx) override {
    batch.set("seen", torch::full({batch["index"].size(0)}, options_.size * 10 + dataloader_idx));
    return batch;
  }
  int64_t setups = 0;

 private:
  Options options_;
};

Registry<DataModule> test_registry() {
  Registry<DataModule> registry("data module");
  registry.add<Hooked>("hooked");
  registry.add<data::CombinedData>("combined");
  return registry;
}

std::shared_ptr<data::CombinedData> combined_data(const std::string& yaml) {
  const auto registry = test_registry();
  auto made =
      std::static_pointer_cast<data::CombinedData>(Spec<DataModule>(Config::parse(yaml, {})).resolve(registry, "data"));
  made->make_parts(registry);
  return made;
}

TEST(CombinedData, MakesItsPartsByName) {
  const auto data = combined_data(
      "{name: combined, mode: max_size, parts: {small: {name: hooked, size: 2}, large: {name: hooked, batch_size: "
      "3}}}");
  data->setup(Stage::kFit);
  const DataLoader loader = data->train_dataloader();
  const auto batches = all_batches(loader);
  ASSERT_EQ(batches.size(), 2U);
  EXPECT_EQ(batches[0].items().front().first, "large.index") << "parts in the order of their names";
  EXPECT_EQ(batches[0]["small.index"].size(0), 2);
  EXPECT_EQ(batches[1].find("small.index"), nullptr);

  // Hooks see their own part.
  const Batch changed = data->on_after_batch_transfer(batches[0], 0);
  EXPECT_EQ(changed["small.seen"][0].item<int64_t>(), 20);
  EXPECT_EQ(changed["large.seen"].size(0), 3);
  EXPECT_EQ(data->on_after_batch_transfer(batches[1], 0).items().size(), 3U);
  const DataLoaders evaluated = data->val_dataloader();
  ASSERT_EQ(evaluated.size(), 4U);
  const Batch of_last = data->on_after_batch_transfer(*evaluated[3].pass({}).next(), 3);
  EXPECT_EQ(of_last["index"].item<int64_t>(), 2000);
  EXPECT_EQ(of_last["seen"].item<int64_t>(), 21) << "the second loader of 'small'";
}

TEST(CombinedData, SaysWhatIsWrong) {
  EXPECT_THAT(message_of([] { combined_data("{name: combined}"); }), HasSubstr("data.parts is not set"));
  EXPECT_THAT(message_of([] { combined_data("{name: combined, parts: {a: {name: hoked}}}"); }),
              HasSubstr("unknown data module 'hoked'"));
  EXPECT_THAT(message_of([] { combined_data("{name: combined, parts: {a: {name: hooked, sizes: 3}}}"); }),
              HasSubstr("data.parts.a"));
  EXPECT_THAT(message_of([] { combined_data("{name: combined, mode: longest, parts: {a: hooked}}"); }),
              HasSubstr("one of min_size, max_size_cycle, max_size, sequential"));
  const auto unmade = make<data::CombinedData>({.parts = {{"a", Spec<DataModule>("hooked")}}});
  EXPECT_THAT(message_of([&] { unmade->setup(Stage::kFit); }),
              HasSubstr("were given by name, and nobody has made them"));
  const auto made = make<data::CombinedData>({.parts = {{"a", make<Hooked>()}, {"b", make<Hooked>()}}});
  EXPECT_EQ(all_batches(made->train_dataloader()).size(), 3U) << "objects need no registry";
}

}  // namespace
}  // namespace levin
