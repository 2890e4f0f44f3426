#include <levin/callbacks/prediction_writer.h>
#include <levin/core/base/error.h>
#include <levin/core/checkpoint/safetensors.h>
#include <levin/core/data/arrays/numpy_file.h>

#include "../support/run_program.h"
#include "../support/tiny.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace levin {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using testing::fresh_folder;
using ::testing::HasSubstr;
using testing::quiet;
using testing::read_text;
using testing::tiny_dataset;
using testing::tiny_loader;
using testing::TinyModule;

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

/// Returns what predict returned.
std::vector<std::vector<Batch>> predict(const std::shared_ptr<Module>& module, const PredictionWriterOptions& writer,
                                        const std::string& strategy = "single_device",
                                        std::optional<bool> return_predictions = {}, DataLoaders loaders = {}) {
  TrainerOptions options = quiet(1);
  options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
  options.devices = strategy == "single_device" ? 1 : 2;
  options.callbacks = {make<PredictionWriter>(writer)};
  if (loaders.size() == 0) loaders = DataLoader(tiny_dataset(19), {.global_batch_size = 8});
  return Trainer(options).predict(module, loaders, "", return_predictions);
}

at::Tensor expected_of(const std::shared_ptr<Module>& module) {
  const auto all = Trainer(quiet(1)).predict(module, DataLoader(tiny_dataset(19), {.global_batch_size = 8}));
  return Batch::concatenate(all.at(0))["y"];
}

TEST(PredictionWriter, EveryRankWritesItsBatchesAndTheyFollowEachOther) {
  const auto module = make<TinyModule>({});
  const at::Tensor expected = expected_of(module);
  for (const char* strategy : {"single_device", "ddp_threads", "ddp_spawn", "{name: sharded_threads, stage: 3}"}) {
    SCOPED_TRACE(strategy);
    const std::string folder = fresh_folder("predictions");
    EXPECT_TRUE(predict(module, {.output_dir = folder}, strategy).empty()) << "nothing is kept in memory";
    std::vector<at::Tensor> parts;
    for (const auto& name : files_in(folder)) parts.push_back(SafetensorsFile(folder + "/" + name).read("y"));
    EXPECT_EQ(parts.size(), std::string(strategy) == "single_device" ? 3U : 6U);
    EXPECT_TRUE(at::cat(parts).allclose(expected, 1e-5, 1e-6));
  }
}

TEST(PredictionWriter, AllAreOneFileOnRequestInEveryFormat) {
  const auto module = make<TinyModule>({});
  const at::Tensor expected = expected_of(module);
  for (const char* strategy : {"single_device", "ddp_threads"}) {
    SCOPED_TRACE(strategy);
    const std::string folder = fresh_folder("predictions");
    predict(module, {.output_dir = folder, .merge = true}, strategy);
    EXPECT_THAT(files_in(folder), ElementsAre("predictions.safetensors"));
    EXPECT_TRUE(SafetensorsFile(folder + "/predictions.safetensors").read("y").allclose(expected, 1e-5, 1e-6));

    const std::string arrays = fresh_folder("predictions");
    predict(module, {.output_dir = arrays, .format = PredictionFormat::kNpy, .merge = true}, strategy);
    EXPECT_THAT(files_in(arrays), ElementsAre("predictions.y.npy"));
    EXPECT_TRUE(data::read_npy(arrays + "/predictions.y.npy").allclose(expected, 1e-5, 1e-6));

    const std::string table = fresh_folder("predictions");
    predict(module, {.output_dir = table, .format = PredictionFormat::kCsv, .merge = true}, strategy);
    const std::string text = read_text(table + "/predictions.csv");
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 20) << text;
    EXPECT_TRUE(text.starts_with("y[0]\n")) << text;
    EXPECT_NEAR(std::stod(text.substr(5)), expected[0].item<double>(), 1e-5);
  }
}

TEST(PredictionWriter, ReturnsThemTooOnRequestAndReplacesWhatAFormerOneWrote) {
  const auto module = make<TinyModule>({});
  const std::string folder = fresh_folder("predictions");
  predict(module, {.output_dir = folder}, "ddp_threads");
  EXPECT_EQ(files_in(folder).size(), 6U);
  const auto all = predict(module, {.output_dir = folder}, "single_device", /*return_predictions=*/true);
  EXPECT_EQ(files_in(folder).size(), 3U);
  EXPECT_TRUE(Batch::concatenate(all.at(0))["y"].equal(expected_of(module)));
}

TEST(PredictionWriter, FilesOfOthersStay) {
  const std::string folder = fresh_folder("predictions");
  fs::create_directories(folder + "/batch_size_study");
  std::ofstream(folder + "/batch_norm.csv") << "precious";
  std::ofstream(folder + "/batch_000000009_rank_0000.npy") << "of a former prediction";
  predict(make<TinyModule>({}), {.output_dir = folder, .format = PredictionFormat::kNpy, .merge = true});
  EXPECT_THAT(files_in(folder), ElementsAre("batch_norm.csv", "batch_size_study", HasSubstr("predictions")));
}

TEST(PredictionWriter, EachOfSeveralLoadersHasAFolder) {
  const std::string folder = fresh_folder("predictions");
  predict(make<TinyModule>({}), {.output_dir = folder}, "single_device", {}, {tiny_loader(8), tiny_loader(16)});
  EXPECT_EQ(files_in(folder + "/loader_0").size(), 1U);
  EXPECT_EQ(files_in(folder + "/loader_1").size(), 2U);
}

/// Predicts images, and numbers beside them.
class Painter : public TinyModule {
 public:
  using TinyModule::TinyModule;
  Batch predict_step(const Batch& batch, int64_t) override {
    Batch result{{"picture", torch::full({batch.size(), 3, 5, 6}, 0.5)}};
    if (numbers) result.set("sizes", torch::ones({batch.size() + 1}, torch::kLong));
    return result;
  }
  bool numbers = false;
};

/// Predicts a name for each example beside its number.
class Namer : public TinyModule {
 public:
  using TinyModule::TinyModule;
  Batch predict_step(const Batch& batch, int64_t) override {
    Batch result{{"first", batch["x"].select(1, 0)}, {"left out", at::Tensor()}};
    std::vector<std::string> names;
    for (int64_t i = 0; i < batch.size(); ++i) names.push_back(i == 0 ? "a \"b\", c" : "d");
    result.set_texts("name", names);
    return result;
  }
};

TEST(PredictionWriter, TextsAreColumnsOfATable) {
  const std::string folder = fresh_folder("predictions");
  predict(std::make_shared<Namer>(testing::TinyOptions{}),
          {.output_dir = folder, .format = PredictionFormat::kCsv, .merge = true});
  const std::string text = read_text(folder + "/predictions.csv");
  EXPECT_TRUE(text.starts_with("name,first\n\"a \"\"b\"\", c\",0\nd,")) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 20) << text;
}

TEST(PredictionWriter, TextsAreATableBesideFilesOfTensors) {
  for (const auto format : {PredictionFormat::kSafetensors, PredictionFormat::kNpy}) {
    for (const bool merge : {false, true}) {
      const std::string folder = fresh_folder("predictions");
      predict(std::make_shared<Namer>(testing::TinyOptions{}),
              {.output_dir = folder, .format = format, .merge = merge});
      const std::string text = read_text(folder + (merge ? "/predictions.csv" : "/batch_000000000_rank_0000.csv"));
      EXPECT_TRUE(text.starts_with("name\n\"a \"\"b\"\", c\"\nd\n")) << text;
      const std::string tensors = folder + (merge ? "/predictions" : "/batch_000000000_rank_0000") +
                                  (format == PredictionFormat::kNpy ? ".first.npy" : ".safetensors");
      EXPECT_TRUE(std::filesystem::exists(tensors)) << tensors;
      if (merge) EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 20) << text;
    }
  }
}

TEST(PredictionWriter, ImagesAreAFileEach) {
  const std::string folder = fresh_folder("predictions");
  const auto module = std::make_shared<Painter>(testing::TinyOptions{});
  predict(module, {.output_dir = folder, .format = PredictionFormat::kPng});
  const auto names = files_in(folder);
  ASSERT_EQ(names.size(), 19U);
  EXPECT_EQ(names.back(), "batch_000000002_rank_0000.picture.0002.png");
  EXPECT_TRUE(read_text(folder + "/" + names.back()).starts_with("\x89PNG"));
}

TEST(PredictionWriter, WhatDoesNotFitIsOneMessage) {
  const auto message = [](const std::shared_ptr<Module>& module, const PredictionWriterOptions& options) {
    try {
      predict(module, options);
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const std::string folder = fresh_folder("predictions");
  EXPECT_THAT(message(make<TinyModule>({}), {}), HasSubstr("has no folder to write to"));
  EXPECT_THAT(message(make<TinyModule>({}), {.output_dir = folder, .format = PredictionFormat::kPng}),
              HasSubstr("'y' of shape [8, 1] holds no images"));
  EXPECT_THAT(message(make<TinyModule>({}), {.output_dir = folder, .format = PredictionFormat::kPng, .merge = true}),
              HasSubstr("prediction_writer.merge makes one file of all"));
  const auto uneven = std::make_shared<Painter>(testing::TinyOptions{});
  uneven->numbers = true;
  EXPECT_THAT(message(uneven, {.output_dir = folder, .format = PredictionFormat::kCsv}),
              HasSubstr("got 8 examples and 9 rows of 'sizes'"));
  testing::TinyOptions ignored;
  EXPECT_THAT(message(make<TinyModule>(ignored), {.output_dir = "/dev/null/predictions"}),
              HasSubstr("cannot create directory"));
}

TEST(PredictionWriter, NumPyReadsWhatIsWritten) {
  for (const auto type : {at::kFloat, at::kLong, at::kBool, at::kHalf, at::kByte, at::kDouble}) {
    for (const auto& shape : std::vector<std::vector<int64_t>>{{}, {3}, {2, 3}, {0, 2}}) {
      const at::Tensor tensor = at::ones(shape, type);
      EXPECT_TRUE(data::parse_npy(data::npy_bytes(tensor), "array").equal(tensor)) << type;
    }
  }
  EXPECT_EQ(data::parse_npy(data::npy_bytes(at::ones({2}, at::kBFloat16)), "array").scalar_type(), at::kFloat);
  EXPECT_EQ(data::npy_bytes(at::ones({2})).size() % 64, 8U) << "the values begin at a multiple of 64 bytes";
}

}  // namespace
}  // namespace levin
