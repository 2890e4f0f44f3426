// The data module image_folder: which images it finds and divides, and that workers, ranks and resumes change nothing.

#include <levin/core/data/image_folder.h>

#include <levin/core/base/error.h>
#include <levin/core/base/png.h>

#include "../support/captured_log.h"
#include "photographs.h"
#include "temporary_folder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace levin::data {
namespace {

namespace fs = std::filesystem;

/// A folder of small images whose colours tell their class and number.
class ImageTree {
 public:
  void add(const std::string& name, int64_t red = 0, int64_t green = 0, int64_t height = 9, int64_t width = 11) const {
    fs::create_directories(fs::path(root() + "/" + name).parent_path());
    auto image = torch::zeros({3, height, width}, torch::kByte);
    image[0].fill_(red);
    image[1].fill_(green);
    image[2].copy_(torch::arange(width).to(torch::kByte));
    folder_.write("images/" + name, encode_png(image));
  }
  void add_class(const std::string& name, int64_t number, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) add(fmt::format("{}/{:03}.png", name, i), number, i);
  }
  void write(const std::string& name, const std::string& bytes) const {
    fs::create_directories(fs::path(root() + "/" + name).parent_path());
    folder_.write("images/" + name, bytes);
  }
  std::string root() const { return folder_.path("images"); }
  std::string cache() const { return folder_.path("cache"); }
  /// Options for it, with the index kept in a folder of the test.
  ImageFolderOptions options(const std::string& more = "{}") const {
    Config config = Config::parse(more, {});
    config.set("root", Config::scalar(root(), true));
    config.set("index_folder", Config::scalar(cache(), true));
    return parse_options<ImageFolderOptions>(config, "data");
  }

 private:
  TemporaryFolder folder_;
};

std::shared_ptr<ImageFolder> fitted(const ImageFolderOptions& options) {
  auto data = make<ImageFolder>(options);
  data->prepare_data();
  data->setup(Stage::kFit);
  return data;
}

std::vector<Batch> batches_of(const DataLoader& loader, const DataLoaderPosition& position) {
  std::vector<Batch> batches;
  auto pass = loader.pass(position);
  while (auto batch = pass.next()) batches.push_back(std::move(*batch));
  return batches;
}

/// The label and number of each image.
std::multiset<std::pair<int64_t, int64_t>> images_of(const DataLoader& loader) {
  std::multiset<std::pair<int64_t, int64_t>> images;
  for (const Batch& batch : batches_of(loader, {}))
    for (int64_t i = 0; i < batch.size(); ++i) {
      const auto green = batch["image"][i][1][0][0].item<float>() * 255;
      images.emplace(batch["label"][i].item<int64_t>(), std::lround(green));
    }
  return images;
}

template <class Function>
std::string error_of(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ImageFolder, ImagesOfUnlikeSizesSayHowToMakeThemAlike) {
  const ImageTree tree;
  for (int64_t i = 0; i < 4; ++i) tree.add(fmt::format("train/a/{}.png", i), 0, 0, 9, 10 + i);
  const auto message = [&](const std::string& more) -> std::string {
    ImageFolder data(tree.options("{batch_size: 4, shuffle: false, val_fraction: 0, " + more + "}"));
    data.setup(Stage::kFit);
    try {
      auto pass = data.train_dataloader().pass({});
      return pass.next() ? "" : "no batch";
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_EQ(message("transforms: []"),
            "[data] cannot stack the examples of a batch: 'image' is [3, 9, 10] Float in example 0 and [3, 9, 11] "
            "Float in example 1; hint: give images one size: transforms: [resize: {size: [224, 224]}]");
  EXPECT_EQ(message("transforms: [resize: {size: [224, 224]}]"), "");
}

TEST(ImageFolder, FindsTheImagesThatTorchvisionFinds) {
  if (const auto missing = testing::missing_module("torchvision"); !missing.empty()) GTEST_SKIP() << missing;
  const ImageTree tree;
  for (const char* name : {"b/2.png", "b/10.PNG", "b/sub/1.jpeg", "b/sub-a/3.png", "a b/x.webp", "a b/é.JPG", "Z/0.png",
                           "b/sub/deep/4.png", "b/.hidden.png", "b/a/0.png", "b/a.png"})
    tree.add(name);
  const auto index = index_images(tree.root(), "");
  std::string ours;
  for (size_t i = 0; i < index.files.size(); ++i)
    ours += fmt::format("{} {}\n", index.path(static_cast<int64_t>(i)), index.labels[i]);
  const auto result = testing::run_with_torchvision("list_image_folder.py", {fs::canonical(tree.root()).string()});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(ours, result.out);
  EXPECT_EQ(index.classes, (std::vector<std::string>{"Z", "a b", "b"}));
}

TEST(ImageFolder, LeavesOutWhatMacosAdds) {
  const ImageTree tree;
  for (const char* name : {"a/0.png", "a/._0.png", "b/1.png", "b/sub/._2.JPG", "b/.hidden.png"}) tree.add(name);
  const auto index = index_images(tree.root(), "");
  EXPECT_EQ(index.files, (std::vector<std::string>{"a/0.png", "b/.hidden.png", "b/1.png"}));
  EXPECT_EQ(index.num_other_files, 2);
}

TEST(ImageFolder, KeepsItsIndexUntilAFolderChanges) {
  const ImageTree tree;
  tree.add_class("cats", 0, 3);
  tree.add_class("dogs/puppies", 1, 2);
  const auto first = index_images(tree.root(), tree.cache());
  ASSERT_EQ(first.files.size(), 5U);
  const fs::path kept = fs::directory_iterator(tree.cache())->path();
  // A mark in the kept index shows whether it was used.
  std::string text = testing::read_text(kept.string());
  text.replace(text.find("cats/000.png"), 12, "cats/mark.png");
  std::ofstream(kept, std::ios::binary) << text;
  EXPECT_EQ(index_images(tree.root(), tree.cache()).files[0], "cats/mark.png");
  tree.add("dogs/puppies/new.png", 1, 9);
  const auto second = index_images(tree.root(), tree.cache());
  EXPECT_EQ(second.files.size(), 6U);
  EXPECT_EQ(second.files[0], "cats/000.png");
  // One that is cut short is made again.
  for (const size_t length : {size_t{0}, size_t{30}, text.size() / 2, text.size() - 2}) {
    std::ofstream(kept, std::ios::binary) << testing::read_text(kept.string()).substr(0, length);
    EXPECT_EQ(index_images(tree.root(), tree.cache()).files, second.files) << length;
  }
  // So is one that cannot be kept.
  EXPECT_EQ(index_images(tree.root(), "/proc/none").files, second.files);
}

TEST(ImageFolder, TakesTrainValAndTestFromTheirFolders) {
  const ImageTree tree;
  for (const char* split : {"train", "val", "test"}) {
    tree.add_class(std::string(split) + "/a", 0, split[0] == 't' ? 5 : 2);
    tree.add_class(std::string(split) + "/b", 1, split[0] == 't' ? 4 : 3);
  }
  const auto data = fitted(tree.options());
  data->setup(Stage::kTest);
  EXPECT_EQ(data->train_dataloader().num_examples(), 9);
  EXPECT_EQ(data->val_dataloader().at(0).num_examples(), 5);
  EXPECT_EQ(data->test_dataloader().at(0).num_examples(), 9);
  EXPECT_EQ(data->classes(), (std::vector<std::string>{"a", "b"}));
  const auto batch = batches_of(data->val_dataloader().at(0), {}).at(0);
  EXPECT_EQ(batch["image"].sizes(), (torch::IntArrayRef{5, 3, 9, 11}));
  EXPECT_EQ(batch["image"].scalar_type(), torch::kFloat);
  EXPECT_TRUE(batch["label"].equal(torch::tensor({0, 0, 1, 1, 1}, torch::kLong)));
  const auto bytes = fitted(tree.options("{dtype: uint8}"));
  EXPECT_EQ(batches_of(bytes->train_dataloader(), {}).at(0)["image"].scalar_type(), torch::kByte);
}

TEST(ImageFolder, SamplersKnowTheClassesWithoutReadingImages) {
  const ImageTree tree;
  tree.add_class("a", 0, 45);
  tree.add_class("b", 1, 5);
  const auto count = [&](const std::string& options, int64_t label) {
    int64_t found = 0;
    for (const auto& image : images_of(fitted(tree.options(options))->train_dataloader()))
      found += image.first == label ? 1 : 0;
    return found;
  };
  EXPECT_EQ(count("{val_fraction: 0, sampler: {weighted: {class_weights: [0, 1]}}}", 1), 50);
  EXPECT_EQ(count("{val_fraction: 0, sampler: {weighted: {class_weights: [1, 0], num_samples: 7}}}", 0), 7);
  const auto balanced = count("{val_fraction: 0, sampler: {class_balanced: {num_samples: 1000}}}", 1);
  EXPECT_NEAR(static_cast<double>(balanced), 500, 79) << "5 standard deviations";

  const auto message = [&](const std::string& options) {
    return error_of([&] { fitted(tree.options(options))->train_dataloader(); });
  };
  EXPECT_NE(
      message("{sampler: length_grouped}")
          .find("sampler 'length_grouped' needs 'length' of each training example, which the data module does not"),
      std::string::npos);
  EXPECT_NE(message("{sampler: {weighted: {class_weights: [1]}}}").find("class 1 has no weight; got 1 weight"),
            std::string::npos);
  EXPECT_NE(message("{sampler: {weighted: {class_weights: [0, 0]}}}").find("have the sum 0"), std::string::npos);
  EXPECT_NE(message("{sampler: {weighted: {class_weights: [1, -1]}}}").find("got -1 for example"), std::string::npos);
}

TEST(ImageFolder, HoldsOutPartsOfEachClass) {
  const ImageTree tree;
  tree.add_class("a", 0, 40);
  tree.add_class("b", 1, 10);
  const auto data = fitted(tree.options("{val_fraction: 0.2, test_fraction: 0.1}"));
  data->setup(Stage::kTest);
  const auto train = images_of(data->train_dataloader());
  const auto validation = images_of(data->val_dataloader().at(0));
  const auto test = images_of(data->test_dataloader().at(0));
  const auto of_class = [](const auto& images, int64_t label) {
    return std::count_if(images.begin(), images.end(), [&](const auto& image) { return image.first == label; });
  };
  EXPECT_EQ(of_class(validation, 0), 8);
  EXPECT_EQ(of_class(validation, 1), 2);
  EXPECT_EQ(of_class(test, 0), 4);
  EXPECT_EQ(of_class(test, 1), 1);
  auto all = train;
  all.insert(validation.begin(), validation.end());
  all.insert(test.begin(), test.end());
  EXPECT_EQ(std::set(all.begin(), all.end()).size(), 50U);
  // The same images each time, and others for another seed.
  EXPECT_EQ(images_of(fitted(tree.options("{val_fraction: 0.2, test_fraction: 0.1}"))->val_dataloader().at(0)),
            validation);
  EXPECT_NE(images_of(fitted(tree.options("{val_fraction: 0.2, split_seed: 1}"))->val_dataloader().at(0)), validation);
}

TEST(ImageFolder, WorkersRanksAndResumesChangeNothing) {
  const ImageTree tree;
  tree.add_class("a", 10, 17);
  tree.add_class("b", 200, 20);
  const std::string transforms =
      "transforms: [{random_resized_crop: {size: 8}}, random_horizontal_flip, {color_jitter: {brightness: 0.5, hue: "
      "0.2}}, normalize, random_erasing], val_fraction: 0";
  const auto plain = fitted(tree.options("{batch_size: 6, " + transforms + "}"));
  const DataLoaderPosition start{.seed = 3, .epoch = 2};
  const auto expected = batches_of(plain->train_dataloader(), start);
  ASSERT_EQ(expected.size(), 7U);
  for (const int workers : {1, 3}) {
    const auto data = fitted(tree.options(fmt::format("{{batch_size: 6, num_workers: {}, {}}}", workers, transforms)));
    const auto loader = data->train_dataloader();
    const auto batches = batches_of(loader, start);
    ASSERT_EQ(batches.size(), expected.size());
    for (size_t i = 0; i < batches.size(); ++i) EXPECT_TRUE(batches[i]["image"].equal(expected[i]["image"])) << i;
    const auto resumed = batches_of(loader, {.seed = 3, .epoch = 2, .batch = 4});
    ASSERT_EQ(resumed.size(), 3U);
    EXPECT_TRUE(resumed[0]["image"].equal(expected[4]["image"]));
  }
  // Two ranks with batches of 3 see the parts of the batches of 6.
  const auto half = fitted(tree.options("{batch_size: 3, num_workers: 2, " + transforms + "}"));
  for (int64_t rank = 0; rank < 2; ++rank) {
    const auto batches = batches_of(half->train_dataloader(), {.seed = 3, .epoch = 2, .rank = rank, .world_size = 2});
    for (size_t i = 0; i < 6; ++i)
      EXPECT_TRUE(batches[i]["image"].equal(expected[i]["image"].slice(0, rank * 3, rank * 3 + 3))) << i;
  }
}

TEST(ImageFolder, TrainingBatchesAreMixedAndEvaluationIsNot) {
  const ImageTree tree;
  tree.add_class("a", 10, 6);
  tree.add_class("b", 200, 6);
  const auto data =
      fitted(tree.options("{batch_size: 4, val_fraction: 0.34, mix: [{mix_up: {alpha: 5}}, cut_mix], label_smoothing: "
                          "0.1}"));
  for (const Batch& fetched : batches_of(data->train_dataloader(), {.seed = 1})) {
    const Batch batch = data->on_after_batch_transfer(fetched, 0);
    EXPECT_EQ(batch["label"].sizes(), (torch::IntArrayRef{4, 2}));
    EXPECT_TRUE(batch["label"].sum(1).allclose(torch::ones(4)));
    EXPECT_NEAR(batch["label"].min().item<float>(), 0.05, 0.46);
    EXPECT_FALSE(batch["image"].equal(fetched["image"]));
  }
  for (const Batch& fetched : batches_of(data->val_dataloader().at(0), {})) {
    const Batch batch = data->on_after_batch_transfer(fetched, 0);
    EXPECT_EQ(batch["label"].scalar_type(), torch::kLong);
    EXPECT_TRUE(batch["image"].is_same(fetched["image"]));
  }
  EXPECT_NE(
      error_of([&] { fitted(tree.options("{mix: [mixup]}")); }).find("unknown mixture 'mixup'; did you mean 'mix_up'?"),
      std::string::npos);
  EXPECT_NE(error_of([&] {
              const auto bytes = fitted(tree.options("{dtype: uint8, mix: [mix_up]}"));
              batches_of(bytes->train_dataloader(), {});
            }).find("images are mixed that are floating"),
            std::string::npos);
}

TEST(ImageFolder, EvaluationLeavesRandomTransformsOut) {
  const ImageTree tree;
  tree.add_class("a", 10, 4);
  const auto data =
      fitted(tree.options("{val_fraction: 0.5, transforms: [{random_crop: {size: 6}}, {resize: {size: [5, 7]}}, "
                          "{random_rotation: {degrees: "
                          "90}}]}"));
  const auto first = batches_of(data->val_dataloader().at(0), {.seed = 1}).at(0);
  EXPECT_EQ(first["image"].sizes(), (torch::IntArrayRef{2, 3, 5, 7}));
  EXPECT_TRUE(first["image"].equal(batches_of(data->val_dataloader().at(0), {.seed = 2}).at(0)["image"]));
  const auto given = fitted(tree.options(
      "{val_fraction: 0.5, transforms: [{random_crop: {size: 6}}], eval_transforms: [{center_crop: {size: 4}}]}"));
  EXPECT_EQ(batches_of(given->val_dataloader().at(0), {}).at(0)["image"].size(2), 4);
}

TEST(ImageFolder, ABrokenImageEndsTheRunOrTheNextTakesItsPlace) {
  const ImageTree tree;
  tree.add_class("a", 10, 5);
  tree.add_class("b", 20, 5);
  tree.write("a/002.png", "this is no image");
  tree.write("b/004.png", testing::read_text(tree.root() + "/b/003.png").substr(0, 60));
  const auto raising = fitted(tree.options("{val_fraction: 0, shuffle: false, num_workers: 1}"));
  const std::string error = error_of([&] { batches_of(raising->train_dataloader(), {}); });
  EXPECT_NE(error.find("cannot read the image " + fs::canonical(tree.root()).string() + "/a/002.png: this is no image"),
            std::string::npos)
      << error;
  const testing::CapturedLog log;
  auto skipping =
      fitted(tree.options("{val_fraction: 0, shuffle: false, batch_size: 5, num_workers: 2, on_error: skip}"));
  const auto batches = batches_of(skipping->train_dataloader(), {.epoch = 0});
  ASSERT_EQ(batches.size(), 2U);
  // The one after it takes the place of the third; the first that of the last.
  EXPECT_EQ(std::lround(batches[0]["image"][2][1][0][0].item<float>() * 255), 3);
  EXPECT_EQ(std::lround(batches[1]["image"][4][1][0][0].item<float>() * 255), 0);
  EXPECT_EQ(batches[1]["label"][4].item<int64_t>(), 0);
  EXPECT_NE(log.text().find("epoch 0: 2 of 10 examples could not be read; others took their place:\n  example 2: "),
            std::string::npos)
      << log.text();
  EXPECT_NE(log.text().find("a/002.png: this is no image"), std::string::npos);
  batches_of(skipping->train_dataloader(), {.epoch = 1});
  EXPECT_NE(log.text().find("epoch 1: 2 of 10"), std::string::npos);
}

TEST(ImageFolder, SaysWhatIsWrongWithAFolder) {
  const ImageTree tree;
  EXPECT_NE(error_of([&] { fitted(tree.options()); }).find("there is no folder " + tree.root()), std::string::npos);
  tree.write("notes.txt", "x");
  EXPECT_NE(error_of([&] { fitted(tree.options()); }).find("there are no folders in"), std::string::npos);
  tree.add_class("a", 0, 2);
  tree.write("empty/readme.txt", "x");
  EXPECT_NE(error_of([&] { fitted(tree.options()); }).find("1 folder in"), std::string::npos);
  EXPECT_NE(error_of([&] { fitted(tree.options()); }).find("has no image: empty; valid: .jpg"), std::string::npos);
  const ImageTree splits;
  splits.add_class("train/a", 0, 2);
  splits.add_class("train/b", 0, 2);
  splits.add_class("val/a", 0, 2);
  EXPECT_NE(error_of([&] { fitted(splits.options()); }).find("got a; valid: a, b"), std::string::npos);
  EXPECT_NE(error_of([&] { make<ImageFolder>({}); }).find("data.root is not set"), std::string::npos);
  EXPECT_NE(
      error_of([&] { fitted(splits.options("{val_fraction: 0.5, test_fraction: 0.5}")); }).find("below 1 together"),
      std::string::npos);
}

TEST(ImageFolder, ImagesOfDifferentSizesAreNamed) {
  const ImageTree tree;
  tree.add("a/0.png", 0, 0, 9, 11);
  tree.add("a/1.png", 0, 0, 12, 11);
  const auto data = fitted(tree.options("{val_fraction: 0}"));
  EXPECT_NE(error_of([&] { batches_of(data->train_dataloader(), {}); }).find("image"), std::string::npos);
}

}  // namespace
}  // namespace levin::data
