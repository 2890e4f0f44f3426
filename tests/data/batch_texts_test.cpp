// Texts beside tensors, and nested names: what becomes of them on the way from a data set to a step.

#include <levin/core/data/batch.h>

#include <levin/core/base/png.h>
#include <levin/core/data/batch_state.h>
#include <levin/core/data/cache/cached_dataset.h>
#include <levin/core/data/cache/disk_cache.h>
#include <levin/core/data/cache/memory_cache.h>
#include <levin/core/data/data_loader.h>
#include <levin/core/data/image_folder.h>
#include <levin/core/data/joined_predictions.h>
#include <levin/core/data/mixed_dataset.h>
#include <levin/core/data/tar_shards.h>
#include <levin/core/data/tensor_dataset.h>

#include "../support/captured_log.h"
#include "../support/tiny.h"
#include "reader_checks.h"
#include "tar_writer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace levin {
namespace {

using testing::all_batches;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

Batch with_texts(int64_t examples) {
  Batch batch{{"x", torch::arange(examples)}, {"scale", torch::tensor(2.0)}};
  std::vector<std::string> names;
  for (int64_t i = 0; i < examples; ++i) names.push_back(fmt::format("{}.jpg", i));
  batch.set_texts("path", names);
  return batch;
}

/// Each text names its example's number.
void expect_texts_belong(const Batch& batch, const std::string& what) {
  ASSERT_EQ(std::ssize(batch.texts("path")), batch["x"].size(0)) << what;
  for (int64_t i = 0; i < batch["x"].size(0); ++i)
    EXPECT_EQ(batch.texts("path")[static_cast<size_t>(i)], fmt::format("{}.jpg", batch["x"][i].item<int64_t>()))
        << what;
}

TEST(BatchTexts, GoWithTheirExamples) {
  const Batch batch = with_texts(7);
  EXPECT_EQ(batch.size(), 7);
  const Batch slice = batch.slice(2, 5);
  EXPECT_THAT(slice.texts("path"), ElementsAre("2.jpg", "3.jpg", "4.jpg"));
  const auto parts = batch.split(3);
  for (const Batch& part : parts) expect_texts_belong(part, "split");
  const Batch whole = Batch::concatenate(parts);
  EXPECT_EQ(whole.texts("path"), batch.texts("path"));
  expect_texts_belong(batch.to(at::kCPU), "to");
  expect_texts_belong(batch.to_floating(at::kDouble), "to_floating");
  expect_texts_belong(to_batch(to_state(batch)), "state");
  Batch alone;
  alone.set_texts("name", {"a", "b"});
  EXPECT_EQ(alone.size(), 2);
  EXPECT_FALSE(alone.empty());
  EXPECT_EQ(alone.split(2)[1].texts("name").front(), "b");
}

TEST(BatchTexts, SayWhatIsWrong) {
  const Batch batch = with_texts(3);
  EXPECT_THAT(message_of([&] { batch.texts("name"); }), HasSubstr("the batch has no texts 'name'; it has: path"));
  EXPECT_EQ(batch.find_texts("name"), nullptr);
  EXPECT_THAT(message_of([] { Batch().texts("name"); }), HasSubstr("it has: none"));
  Batch short_of_one = with_texts(3);
  short_of_one.set_texts("path", {"a", "b"});
  EXPECT_THAT(message_of([&] { short_of_one.slice(0, 1); }),
              HasSubstr("a batch of 3 examples has 2 texts 'path'; valid: one for each example"));
  short_of_one.items().pop_back();  // "scale"
  EXPECT_THAT(message_of([&] { data::TensorDataset{short_of_one}; }), HasSubstr("has 2 texts 'path'"));
  Batch of_two{{"x", torch::tensor(1)}};
  of_two.set_texts("path", {"a", "b"});
  EXPECT_THAT(message_of([&] { data::stack_examples(std::vector<Batch>{of_two}); }),
              HasSubstr("example 0 of a batch has 2 texts 'path'; valid: one"));
  of_two.set_texts("path", {"a"});
  EXPECT_THAT(message_of([&] {
                data::stack_examples(std::vector<Batch>{of_two, {{"x", torch::tensor(1)}}});
              }),
              HasSubstr("example 0 has 1 kinds of texts, example 1 has 0"));
}

TEST(BatchParts, AreNestedNames) {
  Batch batch{{"a.x", torch::zeros({4})}, {"ab.x", torch::ones({2})}, {"y", torch::ones({4})}};
  batch.set_texts("a.name", {"0", "1", "2", "3"});
  const Batch part = batch.part("a");
  EXPECT_EQ(part.items().size(), 1U);
  EXPECT_EQ(part["x"].size(0), 4);
  EXPECT_EQ(part.texts("name").size(), 4U);
  EXPECT_TRUE(batch.part("b").empty());
  Batch other{{"z.w", torch::zeros({3})}};
  batch.set_part("a", other);
  EXPECT_EQ(batch.find("a.x"), nullptr);
  EXPECT_EQ(batch.find_texts("a.name"), nullptr);
  EXPECT_EQ(batch.part("a").part("z")["w"].size(0), 3);
  EXPECT_EQ(batch["ab.x"].size(0), 2);
}

TEST(BatchParts, OfDifferentSizesAreSplitByThemselves) {
  Batch batch;
  batch.set_part("a", with_texts(5));
  batch.set_part("b", with_texts(9));
  batch.set("scale", torch::tensor(3.0));
  const auto slices = batch.split(2);
  ASSERT_EQ(slices.size(), 2U);
  EXPECT_EQ(slices[0].part("a")["x"].size(0), 3);
  EXPECT_EQ(slices[1].part("b")["x"].size(0), 4);
  for (const Batch& slice : slices) {
    EXPECT_EQ(slice["scale"].item<float>(), 3.0F);
    for (const char* name : {"a", "b"}) expect_texts_belong(slice.part(name), name);
  }
  const Batch whole = Batch::concatenate(slices);
  for (const char* name : {"a", "b"}) EXPECT_TRUE(whole.part(name)["x"].equal(batch.part(name)["x"]));
  EXPECT_EQ(batch.split(20).size(), 5U) << "each slice has an example of each part";
  EXPECT_THAT(message_of([] {
                Batch({{"x", torch::zeros({2})}, {"y", torch::zeros({3})}}).split(2);
              }),
              HasSubstr("disagree on the number of examples"));
}

/// Numbers with names, one by one.
class Named : public data::Dataset {
 public:
  int64_t size() const override { return 23; }
  Batch get(int64_t index, data::Generator& /*generator*/) const override {
    Batch example{{"x", torch::tensor(index)}};
    example.set_texts("path", {fmt::format("{}.jpg", index)});
    return example;
  }
};

TEST(BatchTexts, ComeOutOfLoaders) {
  const auto in_memory = std::make_shared<data::TensorDataset>([] {
    Batch batch = with_texts(23);
    batch.items().pop_back();
    return batch;
  }());
  const auto cached =
      std::make_shared<data::CachedDataset>(std::make_shared<Named>(), make<data::MemoryCache>(), "named");
  const TemporaryFolder folder;
  const auto on_disk = std::make_shared<data::CachedDataset>(std::make_shared<Named>(),
                                                             make<data::DiskCache>({.path = folder.path()}), "named");
  for (const std::shared_ptr<const data::Dataset>& dataset :
       std::initializer_list<std::shared_ptr<const data::Dataset>>{std::make_shared<Named>(), in_memory, cached, cached,
                                                                   on_disk, on_disk})
    for (const int64_t workers : {0, 2})
      for (const int64_t ranks : {1, 2}) {
        std::set<std::string> seen;
        for (int64_t rank = 0; rank < ranks; ++rank)
          for (const Batch& batch :
               all_batches(DataLoader(dataset, {.batch_size = 4, .shuffle = true, .num_workers = workers}),
                           {.rank = rank, .world_size = ranks})) {
            expect_texts_belong(batch, "loader");
            for (const auto& text : batch.texts("path")) seen.insert(text);
          }
        EXPECT_EQ(seen.size(), 23U);
      }
}

/// Writes down the texts that its steps see beside the numbers.
class TextModule : public testing::TinyModule {
 public:
  using TinyModule::TinyModule;
  StepOutput training_step(const Batch& batch, int64_t) override {
    note(batch);
    return second_(first_(batch["x"].to(at::kFloat).unsqueeze(1).expand({-1, 4}))).square().mean();
  }
  Batch predict_step(const Batch& batch, int64_t) override {
    Batch prediction{{"x", batch["x"]}};
    prediction.set_texts("path", batch.texts("path"));
    return prediction;
  }

 private:
  static void note(const Batch& batch) {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    expect_texts_belong(batch, "step");
  }
};

TEST(BatchTexts, ReachStepsAndPredictionsUnderEveryDivision) {
  for (const char* strategy : {"single_device", "ddp_threads", "dp"}) {
    const testing::CapturedLog quiet;
    TrainerOptions options = testing::quiet(1);
    options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
    options.devices = strategy == std::string("single_device") ? 1 : 2;
    Trainer trainer(options);
    auto module = make<TextModule>();
    trainer.fit(module, DataLoader(std::make_shared<Named>(), {.global_batch_size = 6}));
    EXPECT_EQ(trainer.global_step(), 4) << strategy;
    const auto predicted = trainer.predict(module, DataLoader(std::make_shared<Named>(), {.global_batch_size = 6}));
    int64_t examples = 0;
    for (const Batch& batch : predicted.at(0)) {
      expect_texts_belong(batch, strategy);
      examples += batch.size();
    }
    EXPECT_EQ(examples, 23) << strategy;
  }
}

TEST(BatchTexts, AreATableBesideTheTensorsOfPredictions) {
  Batch other{{"x", torch::arange(2)}, {"scale", torch::tensor(3.0)}};
  other.set_texts("note", {"a, \"b\"", "line\nbreak"});
  const auto joined = join_predictions({with_texts(2), other, with_texts(1)});
  EXPECT_EQ(joined.texts, (std::vector<Batch::TextItem>{{"path", {"0.jpg", "1.jpg", "", "", "0.jpg"}},
                                                        {"note", {"", "", "a, \"b\"", "line\nbreak", ""}}}));
  EXPECT_EQ(csv_of_texts(joined.texts), "path,note\n0.jpg,\n1.jpg,\n,\"a, \"\"b\"\"\"\n,\"line\nbreak\"\n0.jpg,\n");
}

TEST(BatchTexts, AreNamesOfImageFiles) {
  const TemporaryFolder folder;
  for (int64_t i = 0; i < 4; ++i) {
    std::filesystem::create_directories(folder.path("images/a"));
    folder.write(fmt::format("images/a/{}.png", i), encode_png(torch::full({3, 4, 4}, i, torch::kByte)));
  }
  for (const char* more : {"cache: null", "cache: memory", "mix: [mix_up]"}) {
    auto data = make<data::ImageFolder>(parse_options<data::ImageFolderOptions>(
        Config::parse(
            fmt::format("{{root: {}, index_folder: '', val_fraction: 0, dtype: float32, paths: true, batch_size: "
                        "3, {}}}",
                        folder.path("images"), more),
            {}),
        "data"));
    data->prepare_data();
    data->setup(Stage::kFit);
    auto batch = data->on_after_batch_transfer(*data->train_dataloader().pass({}).next(), 0);
    ASSERT_EQ(batch.texts("path").size(), 3U) << more;
    if (std::string(more).starts_with("mix")) continue;
    for (int64_t i = 0; i < 3; ++i)
      EXPECT_THAT(
          batch.texts("path")[static_cast<size_t>(i)],
          ::testing::EndsWith(fmt::format("/a/{}.png", std::lround(batch["image"][i].max().item<float>() * 255))));
  }
}

TEST(BatchTexts, AreFieldsOfTarShards) {
  const TemporaryFolder folder;
  testing::TarWriter tar;
  for (int i = 0; i < 5; ++i)
    tar.add(fmt::format("s{}.cls", i), std::to_string(i))
        .add(fmt::format("s{}.txt", i), std::string(static_cast<size_t>(i), 'x'))
        .add(fmt::format("s{}.json", i), fmt::format("{{\"n\": {}}}", i));
  folder.write("0.tar", tar.str());
  auto data = make<data::TarShards>(parse_options<data::TarShardsOptions>(
      Config::parse(
          fmt::format("{{shards: [{}], shuffle: false, batch_size: 5, fields: {{label: cls, caption: txt, meta: json, "
                      "name: __key__}}}}",
                      folder.path()),
          {}),
      "data"));
  data->setup(Stage::kFit);
  const auto batch = *data->train_dataloader().pass({}).next();
  EXPECT_THAT(batch.texts("caption"), ElementsAre("", "x", "xx", "xxx", "xxxx"));
  EXPECT_THAT(batch.texts("meta")[3], "{\"n\": 3}");
  EXPECT_THAT(batch.texts("name"), ElementsAre("s0", "s1", "s2", "s3", "s4"));
}

}  // namespace
}  // namespace levin
