// Tar files of samples: what Python's tarfile finds, the order of training, and one message for each mistake.

#include <levin/core/data/tar_shards.h>

#include <levin/core/base/png.h>
#include <levin/core/data/shards/shard_sampler.h>
#include <levin/core/data/shards/tar_index.h>
#include <levin/core/data/shards/tar_samples.h>

#include "reader_checks.h"
#include "tar_writer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace levin::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::TarWriter;
using testing::values_in;

/// Folders of tar files whose samples have numbers that are counted on.
class Shards {
 public:
  /// Writes train/0.tar, ... of these sizes.
  explicit Shards(const std::vector<int64_t>& sizes) {
    std::filesystem::create_directories(folder_.path("train"));
    int64_t number = 0;
    for (size_t shard = 0; shard < sizes.size(); ++shard) {
      TarWriter tar;
      for (int64_t i = 0; i < sizes[shard]; ++i, ++number)
        tar.add(fmt::format("{:04}.cls", number), std::to_string(number))
            .add(fmt::format("{:04}.bin", number), std::string(100, static_cast<char>(number % 100)));
      folder_.write(fmt::format("train/{}.tar", shard), tar.str());
    }
  }
  TarShardsOptions options(const std::string& more = "{}") const {
    Config config = Config::parse(more, {});
    config.set("shards", Config::parse("[" + folder_.path("train") + "]", {}));
    config.set("fields", Config::parse("{number: cls, data: bin}", {}));
    return parse_options<TarShardsOptions>(config, "data");
  }
  DataLoader loader(const std::string& more = "{}") const {
    const auto data = make<TarShards>(options(more));
    data->setup(Stage::kFit);
    return data->train_dataloader();
  }
  const TemporaryFolder& folder() const { return folder_; }

 private:
  TemporaryFolder folder_;
};

TEST(TarIndex, FindsWhatPythonFinds) {
  const TemporaryFolder folder;
  const auto result = testing::run_with_numpy("make_shards.py", {folder.path()});
  ASSERT_EQ(result.status, 0) << result.err;
  std::string ours;
  for (const char* name : {"ustar", "gnu", "pax"})
    for (const TarMember& member : index_tar(folder.path(std::string(name) + ".tar")))
      ours += fmt::format("{} {} {} {}\n", name, member.offset, member.size, member.name);
  EXPECT_EQ(ours, testing::read_text(folder.path("members.txt")));

  const TarSamples samples({folder.path("gnu.tar"), folder.path("pax.tar")},
                           {.fields = {{"label", "cls"}, {"data", "none;bytes.bin"}}});
  ASSERT_EQ(samples.size(), 14);
  EXPECT_THAT(samples.shard_sizes(), ElementsAre(7, 7));
  EXPECT_EQ(samples.key(3), "set/003");
  Generator generator(0, 0);
  const Batch example = samples.get(10, generator);
  EXPECT_EQ(example["label"].item<int64_t>(), 3);
  EXPECT_TRUE(example["data"].equal(torch::full({539}, 3, torch::kByte)));
  EXPECT_EQ(samples.get(13, generator)["label"].item<int64_t>(), -3);
}

TEST(TarIndex, SaysWhatIsWrongWithAFile) {
  const TemporaryFolder folder;
  TarWriter tar;
  tar.add("a.cls", "1").add("a.bin", std::string(600, 'x')).add("b.cls", "2");
  const auto error = [&](const std::string& bytes) {
    const std::string path = folder.write("t.tar", bytes);
    return message_of([&] { index_tar(path); });
  };
  EXPECT_EQ(error(tar.str()), "");
  EXPECT_THAT(error(tar.str().substr(0, 1800)), HasSubstr("is cut off: 'a.bin' should have 600 bytes, 264 are left"));
  EXPECT_THAT(error(tar.open_end()), HasSubstr("is cut off: it ends without its end mark at byte"));
  EXPECT_THAT(error(""), HasSubstr("is empty"));
  EXPECT_THAT(error("\x1f\x8b" + std::string(600, 'x')), HasSubstr("is compressed; hint: gunzip it"));
  EXPECT_THAT(error("\x1f\x8b"), HasSubstr("is compressed; hint: gunzip it")) << "shorter than a header";
  EXPECT_THAT(error("\x28\xb5\x2f\xfd and little more"), HasSubstr("is compressed; hint: unpack it"));
  EXPECT_THAT(error("x"), HasSubstr("is cut off"));
  EXPECT_THAT(error(std::string(600, 'x')), HasSubstr("is no tar file"));
  std::string wrong = tar.str();
  wrong[1024 + 3] = 'X';
  EXPECT_THAT(error(wrong), HasSubstr("the header at byte 1024 has another checksum"));
  EXPECT_THAT(message_of([&] { index_tar(folder.path("none.tar")); }), HasSubstr(folder.path("none.tar")));
}

TEST(TarSamples, LeavesOutWhatIsOfNoSample) {
  const TemporaryFolder folder;
  TarWriter tar;
  tar.add("README", "read me").add("._000.cls", "?").add("000.cls", "7").add("x/LICENSE", "no").add("x/._1.cls", "?");
  tar.add("x/1.cls", "8").add("x/.hidden", "?").add("x.y/MAKE", "?").add("x.y/2.cls", "9");
  const TarSamples samples({folder.write("t.tar", tar.str())}, {.fields = {{"label", "cls"}, {"name", "__key__"}}});
  ASSERT_EQ(samples.size(), 3);
  Generator generator(0, 0);
  const std::vector<std::string> names{"000", "x/1", "x.y/2"};
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(samples.get(i, generator)["label"].item<int64_t>(), 7 + i);
    EXPECT_EQ(samples.key(i), names[static_cast<size_t>(i)]);
  }
  TarWriter none;
  none.add("README", "read me");
  const std::string path = folder.write("none.tar", none.str());
  EXPECT_THAT(message_of([&] {
                TarSamples({path}, {.fields = {{"label", "cls"}}});
              }),
              HasSubstr("the tar file " + path + " has no samples"));
}

TEST(TarIndex, DamagedFilesAreReadOrAreOneMessage) {
  const TemporaryFolder folder;
  TarWriter tar;
  tar.add("a.cls", "1")
      .add("a.png", encode_png(torch::zeros({3, 4, 5}, torch::kByte)))
      .add("b.cls", "2")
      .add("b.png", "no");
  const auto read = [](const std::string& path) {
    const TarSamples samples({path});
    Generator generator(0, 0);
    for (int64_t i = 0; i < samples.size(); ++i) samples.get(i, generator);
  };
  EXPECT_GT(testing::read_damaged(tar.str(), folder.path("t.tar"), 300, read), 100);
}

TEST(TarShards, FindsFilesFoldersAndNumbersInBraces) {
  const Shards shards({1, 1, 1});
  const std::string folder = shards.folder().path("train");
  EXPECT_THAT(find_shards({folder}), ElementsAre(folder + "/0.tar", folder + "/1.tar", folder + "/2.tar"));
  EXPECT_THAT(find_shards({"t-{008..010}.tar", "x{1..2}y{0..1}"}),
              ElementsAre("t-008.tar", "t-009.tar", "t-010.tar", "x1y0", "x1y1", "x2y0", "x2y1"));
  EXPECT_THAT(message_of([] { find_shards({"t-{a..b}.tar"}); }), HasSubstr("has no numbers in its braces"));
  EXPECT_THAT(message_of([] { find_shards({"t-{5..2}.tar"}); }), HasSubstr("counts from 5 to 2"));
  EXPECT_THAT(message_of([&] { find_shards({shards.folder().path()}); }), HasSubstr("has no .tar file"));
}

TEST(TarShards, VisitsShardsInARandomOrderAndTheirSamplesThroughABuffer) {
  const std::vector<int64_t> sizes(20, 10);
  const ShardSampler plain(sizes, 1);
  const auto order = plain.order(200, 5, 0);
  std::set<int64_t> begins;
  for (size_t i = 0; i < order.size(); i += 10) {
    begins.insert(order[i]);
    for (size_t j = 1; j < 10; ++j) EXPECT_EQ(order[i + j], order[i] + static_cast<int64_t>(j)) << "in a shard";
  }
  EXPECT_EQ(begins.size(), 20U);
  EXPECT_NE(order.front(), 0) << "of this seed";
  EXPECT_NE(order, plain.order(200, 5, 1));
  EXPECT_NE(order, plain.order(200, 6, 0));

  const ShardSampler shuffled(sizes, 30);
  auto mixed = shuffled.order(200, 5, 0);
  EXPECT_EQ(mixed, shuffled.order(200, 5, 0));
  // What is given out at a place was read by then: the buffer is 30 examples ahead at most.
  std::vector<int64_t> place_in_stream(200);
  for (size_t i = 0; i < order.size(); ++i) place_in_stream[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  for (size_t i = 0; i < mixed.size(); ++i)
    EXPECT_LE(place_in_stream[static_cast<size_t>(mixed[i])], static_cast<int64_t>(i) + 30);
  std::sort(mixed.begin(), mixed.end());
  std::vector<int64_t> all(200);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(mixed, all) << "each example once";
  EXPECT_THAT(message_of([&] { plain.order(199, 0, 0); }), HasSubstr("the shards have 200 examples, the data set 199"));
}

TEST(TarShards, TheOrderIsThatOfOneRankWhateverRanksWorkersAndResumes) {
  const Shards shards({7, 1, 12, 9, 4});
  const auto whole =
      values_in(shards.loader("{global_batch_size: 6, shuffle_buffer: 5}"), "number", {.seed = 3, .epoch = 2});
  ASSERT_EQ(whole.size(), 33U);
  EXPECT_EQ(std::set<int64_t>(whole.begin(), whole.end()).size(), 33U);
  for (const int64_t workers : {0, 1, 3})
    for (const int64_t ranks : {1, 2, 3})
      for (const int64_t first : {0, 6, 18}) {
        // What the ranks see, batch by batch, after `first` examples were seen by however many ranks.
        std::vector<std::vector<Batch>> of_ranks;
        for (int64_t rank = 0; rank < ranks; ++rank)
          of_ranks.push_back(testing::all_batches(
              shards.loader(fmt::format("{{global_batch_size: 6, shuffle_buffer: 5, num_workers: {}}}", workers)),
              {.seed = 3, .epoch = 2, .rank = rank, .world_size = ranks, .first_example = first}));
        std::vector<int64_t> seen;
        for (size_t batch = 0; batch < of_ranks[0].size(); ++batch)
          for (const auto& batches : of_ranks) {
            if (batch >= batches.size()) continue;  // fewer examples than ranks were left
            for (int64_t i = 0; i < batches[batch].size(); ++i) {
              seen.push_back(batches[batch]["number"][i].item<int64_t>());
              EXPECT_TRUE(batches[batch]["data"][i].equal(torch::full({100}, seen.back() % 100, torch::kByte)));
            }
          }
        EXPECT_EQ(seen, std::vector<int64_t>(whole.begin() + first, whole.end()))
            << workers << " workers, " << ranks << " ranks, from " << first;
      }
}

TEST(TarShards, GivesImagesArraysAndNumbers) {
  const TemporaryFolder folder;
  TarWriter tar;
  for (int i = 0; i < 3; ++i) {
    auto image = torch::full({3, 6, 8}, 51 * i, torch::kByte);
    // The header of a .npy file of two float32.
    std::string array("\x93NUMPY\x01\x00", 8);
    std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";
    header.resize(117, ' ');
    header += '\n';
    array += std::string("\x76\x00", 2) + header;
    const std::vector<float> values{static_cast<float>(i), 0.5F};
    array.append(reinterpret_cast<const char*>(values.data()), 8);
    tar.add(fmt::format("{}.png", i), encode_png(image))
        .add(fmt::format("{}.cls", i), std::to_string(i))
        .add(fmt::format("{}.embedding.npy", i), array);
  }
  const std::string path = folder.write("t.tar", tar.str());
  Config config = Config::parse(
      "{num_classes: 3, batch_size: 3, shuffle: false, transforms: [random_horizontal_flip], "
      "fields: {image: jpg;png, label: cls, array: embedding.npy}}",
      {});
  config.set("shards", Config::parse("[" + path + "]", {}));
  config.set("val_shards", Config::parse("[" + path + "]", {}));
  const auto options = parse_options<TarShardsOptions>(config, "data");
  const auto data = make<TarShards>(options);
  data->setup(Stage::kFit);
  for (const DataLoader& loader : {data->train_dataloader(), data->val_dataloader().at(0)}) {
    const auto batches = testing::all_batches(loader);
    ASSERT_EQ(batches.size(), 1U);
    EXPECT_EQ(batches[0]["image"].sizes(), (torch::IntArrayRef{3, 3, 6, 8}));
    EXPECT_TRUE(batches[0]["image"].select(1, 0).select(1, 0).select(1, 0).allclose(torch::tensor({0.F, 0.2F, 0.4F})));
    EXPECT_TRUE(batches[0]["label"].equal(torch::tensor({0, 1, 2}, torch::kLong)));
    EXPECT_TRUE(batches[0]["array"].equal(torch::tensor({{0.F, 0.5F}, {1.F, 0.5F}, {2.F, 0.5F}})));
  }
  auto few = options;
  few.num_classes = 2;
  const auto refused = make<TarShards>(few);
  refused->setup(Stage::kFit);
  EXPECT_THAT(message_of([&] { testing::all_batches(refused->train_dataloader()); }),
              HasSubstr("2.cls in " + path + " is no class; got 2; valid: 0 to 1"));
}

TEST(TarShards, EveryMistakeIsOneMessage) {
  const TemporaryFolder folder;
  const auto error = [&](const TarWriter& tar) {
    const std::string path = folder.write("t.tar", tar.str());
    return message_of([&] {
      const TarSamples samples({path});
      Generator generator(0, 0);
      samples.get(0, generator);
    });
  };
  EXPECT_THAT(error(TarWriter().add("a.cls", "1").add("b.cls", "1")),
              HasSubstr("the sample 'a' of " + folder.path("t.tar") + " has no file for 'image'; valid endings: jpg"));
  EXPECT_THAT(error(TarWriter()), HasSubstr("has no samples"));
  EXPECT_THAT(error(TarWriter().add("a.cls", "1").add("a.CLS", "1")), HasSubstr("has two files 'a.CLS' in one sample"));
  EXPECT_THAT(error(TarWriter().add("a.jpg", "no image").add("a.cls", "1")),
              HasSubstr("cannot read the image a.jpg in"));
  const std::string png = encode_png(torch::zeros({3, 2, 2}, torch::kByte));
  EXPECT_THAT(error(TarWriter().add("a.png", png).add("a.cls", "one")),
              HasSubstr("a.cls in " + folder.path("t.tar") + " is no whole number; got 'one'"));
  EXPECT_THROW(make<TarShards>(TarShardsOptions{}), ConfigError);
  // A file that is cut off while it is used.
  const Shards shards({5});
  const auto loader = shards.loader("{shuffle: false, batch_size: 5}");
  std::filesystem::resize_file(shards.folder().path("train/0.tar"), 3000);
  EXPECT_THAT(message_of([&] { testing::all_batches(loader); }), HasSubstr("the file was cut off meanwhile"));
}

}  // namespace
}  // namespace levin::data
