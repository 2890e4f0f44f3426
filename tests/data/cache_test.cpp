// Caches of decoded examples: they change nothing that is seen, whoever wrote them and whatever became of their files.

#include <levin/core/data/cache/cache_registry.h>
#include <levin/core/data/cache/cached_dataset.h>
#include <levin/core/data/cache/disk_cache.h>
#include <levin/core/data/cache/memory_cache.h>
#include <levin/core/data/image_folder.h>
#include <levin/core/data/tar_shards.h>

#include <levin/core/base/error.h>
#include <levin/core/base/png.h>
#include <levin/core/data/cache/example_bytes.h>
#include <levin/core/data/transforms/transform_registry.h>

#include "../support/captured_log.h"
#include "reader_checks.h"
#include "tar_writer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace levin::data {
namespace {

namespace fs = std::filesystem;
using testing::all_batches;
using ::testing::HasSubstr;
using testing::message_of;
using testing::read_text;
using testing::values_in;

void expect_the_same(const std::vector<Batch>& got, const std::vector<Batch>& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (size_t i = 0; i < got.size(); ++i)
    for (const auto& [name, tensor] : expected[i].items())
      EXPECT_TRUE(got[i][name].equal(tensor)) << what << ", batch " << i << ", " << name;
}

/// Examples that count how often they are made. What is drawn differs from epoch to epoch.
class Counted : public Dataset {
 public:
  explicit Counted(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  Batch get(int64_t index, Generator& generator) const override {
    ++gets;
    return {{"index", torch::tensor(index)}, {"draw", torch::tensor(generator.uniform(), torch::kDouble)}};
  }
  mutable std::atomic<int64_t> gets = 0;

 private:
  int64_t size_;
};

/// Files in a folder and below it.
std::vector<fs::path> files_in(const std::string& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

std::shared_ptr<ExampleCache> cache_of(const std::string& yaml) {
  return Spec<ExampleCache>(Config::parse(yaml, {})).resolve(cache_registry(), "data.cache");
}

TEST(ExampleBytes, KeepTypesShapesStridesAndValues) {
  const Batch example{{"image", torch::randint(256, {4, 5, 3}, torch::kByte).permute({2, 0, 1})},
                      {"label", torch::tensor(7)},
                      {"half", torch::randn({3}).to(torch::kBFloat16)},
                      {"mask", torch::tensor({true, false})},
                      {"complex", torch::randn({2, 2}, torch::kComplexFloat)},
                      {"nothing", torch::zeros({2, 0, 3})},
                      {"part", torch::arange(20).reshape({4, 5}).slice(1, 1, 3)}};
  const Batch dense = with_dense_memory(example);
  EXPECT_EQ(dense["image"].strides(), example["image"].strides()) << "channels last";
  const std::string bytes = to_bytes(dense);
  const auto memory = std::shared_ptr<char[]>(new char[bytes.size()]);
  std::memcpy(memory.get(), bytes.data(), bytes.size());
  const auto read = example_of_bytes(memory, 0, bytes.size());
  ASSERT_TRUE(read.has_value());
  ASSERT_EQ(read->items().size(), example.items().size());
  for (size_t i = 0; i < read->items().size(); ++i) {
    const auto& [name, tensor] = read->items()[i];
    EXPECT_EQ(name, example.items()[i].first);
    EXPECT_EQ(tensor.scalar_type(), example.items()[i].second.scalar_type()) << name;
    EXPECT_EQ(tensor.strides(), dense[name].strides()) << name;
    EXPECT_TRUE(tensor.equal(example.items()[i].second)) << name;
  }
  EXPECT_THAT(message_of([] {
                with_dense_memory({{"x", torch::zeros({3}).to_sparse()}});
              }),
              HasSubstr("a cache keeps dense tensors on the CPU"));
  for (size_t size = 0; size < bytes.size(); ++size) example_of_bytes(memory, 0, size);
  Generator generator(3, 0);
  for (int i = 0; i < 3000; ++i) {  // the sanitizers see what goes wrong
    const auto place = static_cast<size_t>(generator.below(static_cast<int64_t>(bytes.size())));
    const char former = std::exchange(memory[static_cast<std::ptrdiff_t>(place)], static_cast<char>(generator.next()));
    if (const auto damaged = example_of_bytes(memory, 0, bytes.size()))
      for (const auto& [name, tensor] : damaged->items()) static_cast<void>(tensor.clone());
    memory[static_cast<std::ptrdiff_t>(place)] = former;
  }
}

TEST(CachedDataset, MakesEachExampleOnceAndAlwaysTheSame) {
  const TemporaryFolder folder;
  std::vector<Batch> expected;
  for (const std::string& yaml : {std::string("memory"), fmt::format("{{name: disk, path: {}}}", folder.path("c"))}) {
    for (const int64_t workers : {0, 2}) {
      const auto examples = std::make_shared<Counted>(23);
      const auto cached = std::make_shared<CachedDataset>(examples, cache_of(yaml), "counted");
      const DataLoader loader(cached, {.batch_size = 4, .shuffle = true, .num_workers = workers});
      const auto first = all_batches(loader, {.seed = 1, .epoch = 0});
      const bool was_kept = yaml != "memory" && workers == 2;
      EXPECT_EQ(examples->gets, was_kept ? 0 : 23) << "a folder is found again";
      if (expected.empty()) expected = first;
      expect_the_same(first, expected, yaml);
      expect_the_same(all_batches(loader, {.seed = 1, .epoch = 0}), expected, yaml);
      all_batches(loader, {.seed = 1, .epoch = 1});
      EXPECT_EQ(examples->gets, was_kept ? 0 : 23);
    }
  }
}

TEST(CachedDataset, WhatIsChangedInPlaceIsNotWhatIsKept) {
  const auto cached = std::make_shared<CachedDataset>(std::make_shared<Counted>(3), cache_of("memory"), "counted");
  Generator generator(0, 0);
  for (int i = 0; i < 3; ++i) {
    const Batch example = cached->get(2, generator);
    EXPECT_EQ(example["index"].item<int64_t>(), 2);
    example["index"].fill_(100);
  }
}

TEST(CachedDataset, ErrorsAreNotKept) {
  class Failing : public Dataset {
   public:
    int64_t size() const override { return 2; }
    Batch get(int64_t index, Generator& /*generator*/) const override {
      if (index == 1 && fails) throw Error("data", "1.jpg is broken");
      return {{"index", torch::tensor(index)}};
    }
    mutable bool fails = true;
  };
  const auto failing = std::make_shared<Failing>();
  const auto cached = std::make_shared<CachedDataset>(failing, cache_of("memory"), "failing");
  const testing::CapturedLog log;
  const DataLoader loader(cached, {.on_error = OnError::kSkip});
  EXPECT_EQ(values_in(loader, "index"), (std::vector<int64_t>{0, 0}));
  EXPECT_THAT(log.text(), HasSubstr("1 of 2 examples could not be read"));
  failing->fails = false;
  EXPECT_EQ(values_in(loader, "index"), (std::vector<int64_t>{0, 1}));
}

TEST(MemoryCache, KeepsNoMoreThanItMay) {
  const auto cache = make<MemoryCache>({.max_gb = 10 * 16e-9});
  const auto examples = std::make_shared<Counted>(23);
  const DataLoader loader(std::make_shared<CachedDataset>(examples, cache, "counted"));
  const auto first = all_batches(loader);
  EXPECT_EQ(cache->bytes(), 10 * 16);
  examples->gets = 0;
  expect_the_same(all_batches(loader), first, "some kept");
  EXPECT_EQ(examples->gets, 13);
  EXPECT_EQ(cache->bytes(), 10 * 16);
}

TEST(DiskCache, KeepsNoMoreThanItMay) {
  const TemporaryFolder folder;
  const Batch example{{"x", torch::zeros({1000})}};
  const auto size = static_cast<double>(to_bytes(example).size() + 64);
  const auto bytes_in_folder = [&] {
    uintmax_t bytes = 0;
    for (const auto& file : files_in(folder.path())) bytes += fs::file_size(file);
    return static_cast<double>(bytes);
  };
  DiskCache first({.path = folder.path(), .max_gb = 10 * size / 1e9});
  for (int i = 0; i < 6; ++i) first.add({.source = fmt::format("a{}", i)}, example);
  EXPECT_EQ(bytes_in_folder(), 6 * size);
  DiskCache second({.path = folder.path(), .max_gb = 10 * size / 1e9});
  for (int i = 0; i < 20; ++i) second.add({.source = fmt::format("b{}", i)}, example);
  EXPECT_EQ(bytes_in_folder(), 10 * size) << "what others have written counts";
  EXPECT_TRUE(second.find({.source = "a0"}).has_value());
  EXPECT_FALSE(second.find({.source = "b10"}).has_value());
}

TEST(DiskCache, DamagedFilesAreMadeAgainAndOneMessageSaysSo) {
  const TemporaryFolder folder;
  const DiskCacheOptions options{.path = folder.path("c")};
  const ExampleKey key{.source = "photographs/1.jpg", .version = "1"};
  const Batch example{{"x", torch::randn({50})}};
  DiskCache cache(options);
  cache.add(key, example);
  const std::string file = cache.file_of(key.source);
  const std::string whole = read_text(file);
  const testing::CapturedLog log;
  Generator generator(7, 0);
  for (int copy = 0; copy < 500; ++copy) {
    std::string damaged = whole;
    if (copy % 3 == 0)
      damaged.resize(static_cast<size_t>(generator.below(std::ssize(whole))));
    else if (copy % 3 == 1)
      damaged[static_cast<size_t>(generator.below(std::ssize(whole)))] ^= static_cast<char>(1 + generator.below(255));
    else
      damaged += 'x';
    std::ofstream(file, std::ios::binary | std::ios::trunc) << damaged;
    EXPECT_FALSE(cache.find(key).has_value()) << copy;
  }
  EXPECT_EQ(log.text(),
            fmt::format("[levin] warning: the cache {} has damaged files, the first met is {}; they are made "
                        "again\n",
                        folder.path("c"), file));
  cache.add(key, example);
  EXPECT_TRUE((*cache.find(key))["x"].equal(example["x"]));
  // What is in the place of a file is left alone.
  fs::remove(file);
  fs::create_directories(file);
  EXPECT_FALSE(cache.find(key).has_value());
}

TEST(DiskCache, AnotherVersionIsMadeAgainAndOneMessageSaysSo) {
  const TemporaryFolder folder;
  DiskCache cache({.path = folder.path()});
  for (const char* source : {"1.jpg", "2.jpg"})
    cache.add({.source = source, .version = "resize 256"}, {{"x", torch::zeros({2})}});
  const testing::CapturedLog log;
  for (const char* source : {"1.jpg", "2.jpg"}) {
    const ExampleKey key{.source = source, .version = "resize 128"};
    EXPECT_FALSE(cache.find(key).has_value());
    cache.add(key, {{"x", torch::ones({2})}});
    EXPECT_TRUE((*cache.find(key))["x"].equal(torch::ones({2})));
  }
  EXPECT_EQ(files_in(folder.path()).size(), 2U);
  EXPECT_EQ(log.text(),
            fmt::format("[levin] warning: the cache {} has examples that were made of other files or by other "
                        "transforms, the first met is that of 1.jpg; they are made again\n",
                        folder.path()));
}

TEST(DiskCache, AnyNumberOfWritersShareAFolder) {
  const TemporaryFolder folder;
  std::vector<std::thread> writers;
  std::atomic<int64_t> wrong = 0;
  for (int writer = 0; writer < 6; ++writer)
    writers.emplace_back([&folder, &wrong] {
      DiskCache cache({.path = folder.path()});
      for (int64_t pass = 0; pass < 3; ++pass)
        for (int64_t i = 0; i < 60; ++i) {
          const ExampleKey key{.source = std::to_string(i), .version = "1"};
          const Batch example{{"x", torch::full({300}, i)}};
          const auto found = cache.find(key);
          if (found && !(*found)["x"].equal(example["x"])) ++wrong;
          if (!found || pass == 1) cache.add(key, example);
        }
    });
  for (auto& writer : writers) writer.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(files_in(folder.path()).size(), 60U) << "nothing is left beside them";
}

TEST(DiskCache, WhatKilledWritersLeftIsRemoved) {
  const TemporaryFolder folder;
  fs::create_directories(folder.path("ab"));
  const std::string left = folder.write("ab/cd.17.3.pending", "half of it");
  const std::string present = folder.write("ab/cd.18.3.pending", "half of it");
  fs::last_write_time(left, fs::file_time_type::clock::now() - std::chrono::hours(2));
  DiskCache cache({.path = folder.path(), .max_gb = 1});
  cache.add({.source = "1"}, {{"x", torch::zeros({2})}});
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(fs::exists(present)) << "somebody may be writing it";
}

TEST(DiskCache, WhereNothingCanBeWrittenDataAreReadWithoutIt) {
  const TemporaryFolder folder;
  folder.write("file", "");
  const testing::CapturedLog log;
  const auto examples = std::make_shared<Counted>(5);
  const DataLoader loader(std::make_shared<CachedDataset>(
      examples, cache_of(fmt::format("{{name: disk, path: {}}}", folder.path("file"))), "counted"));
  EXPECT_EQ(values_in(loader, "index").size(), 5U);
  EXPECT_EQ(values_in(loader, "index").size(), 5U);
  EXPECT_THAT(log.text(), HasSubstr("takes nothing more: Not a directory; what it lacks is read as without it"));
  const std::string text = log.text();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
}

TEST(Caches, RefuseWrongOptions) {
  EXPECT_THAT(message_of([] { cache_of("disk"); }), HasSubstr("the cache 'disk' has no path"));
  EXPECT_THAT(message_of([] { cache_of("{name: memory, max_gb: 0}"); }), HasSubstr("max_gb must be above 0; got 0"));
  EXPECT_THAT(message_of([] { cache_of("ram"); }), HasSubstr("unknown cache 'ram'"));
  EXPECT_THAT(message_of([] { CachedDataset(nullptr, cache_of("memory"), "x"); }), HasSubstr("got a null pointer"));
}

/// Folders of images whose pixels are random numbers.
class RandomImages {
 public:
  RandomImages() {
    for (const char* name : {"a", "c"})
      for (int64_t i = 0; i < 6; ++i) write(fmt::format("{}/{}.png", name, i));
  }
  void write(const std::string& name) const {
    fs::create_directories(fs::path(folder_.path("images/" + name)).parent_path());
    folder_.write("images/" + name, encode_png(torch::randint(256, {3, 12, 15}, torch::kByte)));
  }
  std::shared_ptr<ImageFolder> data(const std::string& cache, const std::string& transforms) const {
    auto options = parse_options<ImageFolderOptions>(
        Config::parse(fmt::format("{{root: {}, index_folder: '', val_fraction: 0.25, batch_size: 4, num_workers: 2, "
                                  "transforms: {}, cache: {}}}",
                                  folder_.path("images"), transforms, cache),
                      {}),
        "data");
    auto made = make<ImageFolder>(options);
    made->prepare_data();
    made->setup(Stage::kFit);
    return made;
  }
  std::string disk() const { return fmt::format("{{name: disk, path: {}}}", folder_.path("cache")); }
  const TemporaryFolder& folder() const { return folder_; }

 private:
  TemporaryFolder folder_;
};

constexpr const char* kTransforms =
    "[{resize: {size: 10}}, {random_crop: {size: 8}}, random_horizontal_flip, {color_jitter: {brightness: 0.3}}, "
    "normalize]";

TEST(Caches, ChangeNoBitOfImagesInFolders) {
  const RandomImages images;
  for (const char* transforms :
       {kTransforms, "[{center_crop: {size: 8}}]", "[{random_crop: {size: 8}}, {resize: {size: 5}}]",
        "[{resize: {size: [5, 7]}}, {to_dtype: {dtype: float32}}, {random_erasing: {p: 1}}]"}) {
    const auto plain = images.data("null", transforms);
    for (const std::string& cache : {std::string("memory"), images.disk(), images.disk()}) {
      const testing::CapturedLog quiet;  // other transforms have been here
      const auto cached = images.data(cache, transforms);
      for (int64_t epoch = 0; epoch < 3; ++epoch) {
        const DataLoaderPosition all{.seed = 3, .epoch = epoch};
        const auto expected = all_batches(plain->train_dataloader(), all);
        expect_the_same(all_batches(cached->train_dataloader(), all), expected, cache);
        expect_the_same(all_batches(cached->train_dataloader(), {.seed = 3, .epoch = epoch, .batch = 1}),
                        {expected.begin() + 1, expected.end()}, cache + ", resumed");
        for (int64_t rank = 0; rank < 2; ++rank) {
          const DataLoaderPosition part{.seed = 3, .epoch = epoch, .rank = rank, .world_size = 2};
          expect_the_same(all_batches(cached->train_dataloader(), part), all_batches(plain->train_dataloader(), part),
                          cache + ", two ranks");
        }
        expect_the_same(all_batches(cached->val_dataloader().at(0), all),
                        all_batches(plain->val_dataloader().at(0), all), cache + ", validation");
      }
    }
  }
}

TEST(Caches, NoticeOtherFilesAndLabels) {
  const RandomImages images;
  const auto expect_current = [&](const std::string& what) {
    const testing::CapturedLog log;
    const auto expected = all_batches(images.data("null", kTransforms)->train_dataloader());
    expect_the_same(all_batches(images.data(images.disk(), kTransforms)->train_dataloader()), expected, what);
    return log.text();
  };
  EXPECT_EQ(expect_current("new"), "");
  EXPECT_EQ(expect_current("kept"), "");
  for (int64_t i = 0; i < 6; ++i) images.write(fmt::format("a/{}.png", i));
  EXPECT_THAT(expect_current("other files of these names"), HasSubstr("were made of other files"));
  EXPECT_EQ(expect_current("kept"), "");
  images.write("b/0.png");  // a class between the others moves the labels of c
  EXPECT_THAT(expect_current("other labels"), HasSubstr("were made of other files"));
}

TEST(Caches, ChangeNoBitOfTarShards) {
  const TemporaryFolder folder;
  for (int shard = 0; shard < 2; ++shard) {
    testing::TarWriter tar;
    for (int i = 0; i < 7; ++i)
      tar.add(fmt::format("{}{}.png", shard, i), encode_png(torch::randint(256, {3, 9, 9}, torch::kByte)))
          .add(fmt::format("{}{}.cls", shard, i), std::to_string(i));
    // A key that was there before, with another image.
    tar.add(fmt::format("{}0.png", shard), encode_png(torch::randint(256, {3, 9, 9}, torch::kByte)))
        .add(fmt::format("{}0.cls", shard), "7");
    folder.write(fmt::format("{}.tar", shard), tar.str());
  }
  const auto loader = [&](const std::string& cache) {
    auto data = make<TarShards>(parse_options<TarShardsOptions>(
        Config::parse(
            fmt::format("{{shards: [{}], batch_size: 4, transforms: [{{random_crop: {{size: 6}}}}, normalize], "
                        "cache: {}}}",
                        folder.path(), cache),
            {}),
        "data"));
    data->setup(Stage::kFit);
    return data->train_dataloader();
  };
  const testing::CapturedLog quiet;
  const std::string disk = fmt::format("{{name: disk, path: {}}}", folder.path("cache"));
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    const auto expected = all_batches(loader("null"), {.epoch = epoch});
    for (const std::string& cache : {std::string("memory"), disk, disk})
      expect_the_same(all_batches(loader(cache), {.epoch = epoch}), expected, cache);
  }
  EXPECT_EQ(files_in(folder.path("cache")).size(), 14U);  // samples with one key take turns
}

TEST(CachedTransforms, AreCutAtTheFirstRandomOneOrOneOfUnknownMake) {
  const auto resize = Spec<Transform>(Config::parse("{resize: {size: 4}}", {}));
  const auto crop = Spec<Transform>(Config::parse("{random_crop: {size: 4}}", {}));
  const CachedTransforms random(make_transforms({resize, crop, resize}, "t"));
  EXPECT_EQ(random.before.size(), 1U);
  EXPECT_EQ(random.after.size(), 2U);
  EXPECT_THAT(random.version, HasSubstr("resize {size: "));
  class Mine : public ImageTransform {
    torch::Tensor transform(const torch::Tensor& image, Generator& /*generator*/) const override { return image; }
  };
  const CachedTransforms unknown({std::make_shared<Mine>(), make<Mine>()});
  EXPECT_EQ(unknown.before.size(), 0U);
  EXPECT_EQ(CachedTransforms({make<Mine>()}).before.size(), 1U);
}

}  // namespace
}  // namespace levin::data
