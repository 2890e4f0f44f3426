// Mixtures of a batch's images have torchvision's values, and workers, ranks and resumes change nothing about them.

#include <levin/core/data/mixed_dataset.h>

#include <levin/core/base/error.h>
#include <levin/core/data/data_loader.h>
#include <levin/core/data/tensor_dataset.h>

#include "photographs.h"
#include "temporary_folder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace levin::data {
namespace {

constexpr int64_t kClasses = 10;

BatchMixes both() {
  return {std::make_shared<MixUp>(BatchMixOptions{.alpha = 0.4}), std::make_shared<CutMix>(BatchMixOptions{})};
}

/// So many examples, whose images have noise of their own generator.
class Noise : public Dataset {
 public:
  explicit Noise(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  Batch get(int64_t index, Generator& generator) const override {
    return {{"image", torch::rand({3, 12, 17}, generator.torch())}, {"label", torch::tensor(index % kClasses)}};
  }

 private:
  int64_t size_;
};

std::shared_ptr<MixedDataset> mixed(int64_t size, double label_smoothing = 0, BatchMixes mixes = both()) {
  return std::make_shared<MixedDataset>(
      std::make_shared<Noise>(size),
      MixedDatasetOptions{.mixes = std::move(mixes), .num_classes = kClasses, .label_smoothing = label_smoothing});
}

std::vector<Batch> batches_of(const std::shared_ptr<MixedDataset>& data, const DataLoaderOptions& options,
                              const DataLoaderPosition& position) {
  const DataLoader loader(data, options);
  std::vector<Batch> batches;
  auto pass = loader.pass(position);
  while (auto batch = pass.next()) batches.push_back(data->finish(std::move(*batch)));
  return batches;
}

const Batch& constant(const Batch& batch) { return batch; }

std::string bytes_of(const torch::Tensor& tensor) {
  const auto whole = tensor.contiguous();
  return {static_cast<const char*>(whole.const_data_ptr()), whole.nbytes()};
}

TEST(BatchMix, HasTorchvisionsValuesForTheSameNumbers) {
  if (const auto missing = testing::missing_module("torchvision"); !missing.empty()) GTEST_SKIP() << missing;
  const TemporaryFolder folder;
  std::string cases;
  constexpr int kCases = 24;
  const auto mixes = both();
  for (int i = 0; i < kCases; ++i) {
    const bool is_mix_up = i % 2 == 0;
    Generator generator(11, 0, i);
    const auto images = torch::randn({5, 3, 31, 22 + i}, generator.torch());
    const auto labels = torch::randint(0, kClasses, {5}, generator.torch(), torch::kLong);
    const auto data = std::make_shared<MixedDataset>(
        std::make_shared<TensorDataset>(Batch{{"image", images}, {"label", labels}}),
        MixedDatasetOptions{.mixes = {mixes[is_mix_up ? 0 : 1]}, .num_classes = kClasses});
    const std::vector<int64_t> all = {0, 1, 2, 3, 4};
    const Batch fetched = data->get_batch(all, generator);
    const auto number = [&](const char* name) {
      return is_mix_up ? 0 : fetched[std::string("mix.0.") + name].item<int64_t>();
    };
    cases += fmt::format("{} {} {} {} {} {} 5 3 31 {}\n", is_mix_up ? "MixUp" : "CutMix",
                         fraction_of(fetched["mix.0.weight"]).item<double>(), number("top"), number("bottom"),
                         number("left"), number("right"), 22 + i);
    const Batch result = data->finish(fetched);
    folder.write(fmt::format("{}.image", i), bytes_of(images));
    folder.write(fmt::format("{}.label", i), bytes_of(labels));
    folder.write(fmt::format("{}.mixed", i), bytes_of(result["image"]));
    folder.write(fmt::format("{}.probabilities", i), bytes_of(result["label"]));
  }
  folder.write("cases.txt", cases);
  const auto result = testing::run_with_torchvision("compare_batch_mixes.py", {folder.path()});
  ASSERT_EQ(result.status, 0) << result.err;
  std::istringstream lines(result.out);
  int compared = 0;
  for (std::string line; std::getline(lines, line); ++compared) EXPECT_EQ(line, "equal");
  EXPECT_EQ(compared, kCases);
}

TEST(BatchMix, DrawsWeightsFromABetaDistributionAndRectanglesOfThatArea) {
  const MixUp mix_up({.alpha = 0.4});
  const CutMix cut_mix({});
  constexpr int kDraws = 3000;
  double mean = 0;
  double square = 0;
  double kept = 0;
  for (int64_t i = 0; i < kDraws; ++i) {
    Generator generator(5, 0, i);
    const Batch one = mix_up.draw(20, 30, generator);
    const double weight = fraction_of(one["weight"]).item<double>();
    mean += weight / kDraws;
    square += weight * weight / kDraws;
    const Batch other = cut_mix.draw(20, 30, generator);
    const auto side = [&](const char* from, const char* to) {
      const auto begin = other[from].item<int64_t>();
      const auto end = other[to].item<int64_t>();
      EXPECT_TRUE(begin >= 0 && begin <= end);
      return static_cast<double>(end - begin);
    };
    const double area = side("top", "bottom") * side("left", "right") / (20 * 30);
    const double part = fraction_of(other["weight"]).item<double>();
    EXPECT_NEAR(part, 1 - area, 1e-12);
    kept += part / kDraws;
  }
  EXPECT_NEAR(mean, 0.5, 0.02);
  EXPECT_NEAR(square - mean * mean, 0.25 / (2 * 0.4 + 1), 0.01);  // the variance of Beta(0.4, 0.4)
  EXPECT_GT(kept, 0.55);                                          // rectangles that reach over the border are smaller
}

TEST(MixedDataset, WorkersRanksAndResumesChangeNothing) {
  const DataLoaderPosition start{.seed = 4, .epoch = 3};
  const auto expected = batches_of(mixed(43, 0.1), {.batch_size = 6, .shuffle = true}, start);
  ASSERT_EQ(expected.size(), 8U);
  for (const int64_t workers : {1, 3}) {
    const auto batches = batches_of(mixed(43, 0.1), {.batch_size = 6, .shuffle = true, .num_workers = workers}, start);
    ASSERT_EQ(batches.size(), expected.size());
    for (size_t i = 0; i < batches.size(); ++i) {
      EXPECT_TRUE(constant(batches[i])["image"].equal(constant(expected[i])["image"])) << i;
      EXPECT_TRUE(constant(batches[i])["label"].equal(constant(expected[i])["label"])) << i;
    }
  }
  const auto resumed =
      batches_of(mixed(43, 0.1), {.batch_size = 6, .shuffle = true}, {.seed = 4, .epoch = 3, .batch = 5});
  ASSERT_EQ(resumed.size(), 3U);
  EXPECT_TRUE(constant(resumed[0])["image"].equal(constant(expected[5])["image"]));
  // Three ranks with batches of 2 see the parts of the batches of 6; the last batch is one example, of the first rank.
  for (int64_t rank = 0; rank < 3; ++rank) {
    const auto batches = batches_of(mixed(43, 0.1), {.batch_size = 2, .shuffle = true, .num_workers = 2},
                                    {.seed = 4, .epoch = 3, .rank = rank, .world_size = 3});
    ASSERT_EQ(batches.size(), rank == 0 ? 8U : 7U);
    for (size_t i = 0; i < batches.size(); ++i) {
      const auto part = [&](const char* name) {
        return i == 7 ? constant(expected[i])[name] : constant(expected[i])[name].slice(0, rank * 2, rank * 2 + 2);
      };
      EXPECT_TRUE(constant(batches[i])["image"].equal(part("image"))) << i;
      EXPECT_TRUE(constant(batches[i])["label"].equal(part("label"))) << i;
    }
  }
  const auto other = batches_of(mixed(43, 0.1), {.batch_size = 6, .shuffle = true}, {.seed = 4, .epoch = 4});
  EXPECT_FALSE(constant(other[0])["label"].equal(constant(expected[0])["label"]));
}

TEST(MixedDataset, EachBatchGetsOneOfTheMixturesAndProbabilitiesAddUpToOne) {
  const auto data = mixed(400, 0.2);
  const DataLoader loader(data, {.batch_size = 10});
  auto pass = loader.pass({});
  std::vector<int> chosen(2, 0);
  while (const auto batch = pass.next()) {
    const Batch& fetched = *batch;
    const bool is_first = fetched.find("mix.0.weight") != nullptr;
    EXPECT_NE(is_first, fetched.find("mix.1.weight") != nullptr);
    ++chosen[is_first ? 0 : 1];
    const Batch result = data->finish(fetched);
    EXPECT_EQ(result.items().size(), 2U);
    EXPECT_TRUE(result["label"].sum(1).allclose(torch::ones(10)));
    EXPECT_NEAR(result["label"].min().item<float>(), 0.02F, 1e-6);
  }
  EXPECT_GT(chosen[0], 8);
  EXPECT_GT(chosen[1], 8);
}

TEST(MixedDataset, LabelsAreSmoothedWithoutMixing) {
  const auto data = mixed(3, 0.2, {});
  const Batch batch = batches_of(data, {.batch_size = 3}, {}).at(0);
  EXPECT_NEAR(batch["label"][1][1].item<float>(), 0.82F, 1e-6);
  EXPECT_NEAR(batch["label"][1][2].item<float>(), 0.02F, 1e-6);
  // torch's own smoothing gives the same loss.
  const auto logits = torch::randn({3, kClasses});
  namespace F = torch::nn::functional;
  EXPECT_TRUE(F::cross_entropy(logits, batch["label"])
                  .allclose(F::cross_entropy(logits, torch::tensor({0, 1, 2}, torch::kLong),
                                             F::CrossEntropyFuncOptions().label_smoothing(0.2))));
  // What was not fetched from here, such as a batch of validation, stays as it is.
  const Batch other{{"image", torch::rand({2, 3, 4, 4})}, {"label", torch::tensor({1, 2})}};
  const Batch same = data->finish(other);
  EXPECT_TRUE(same["label"].is_same(other["label"]));
}

TEST(MixedDataset, NumbersKeepTheirBitsInHalfPrecision) {
  const auto data = mixed(4);
  Generator generator(1, 0);
  const std::vector<int64_t> all = {0, 1, 2, 3};
  const Batch batch = data->get_batch(all, generator);
  const Batch exact = data->finish(batch);
  const Batch half = data->finish(batch.to_floating(torch::kBFloat16));
  EXPECT_EQ(half["image"].scalar_type(), torch::kBFloat16);
  EXPECT_TRUE(half["label"].equal(exact["label"]));
  EXPECT_TRUE(half["image"].to(torch::kFloat).allclose(exact["image"], 0.02, 0.02));
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

TEST(MixedDataset, SaysWhatCannotBeMixed) {
  const auto mix = [](const Batch& batch, double smoothing) {
    const MixedDataset data(std::make_shared<TensorDataset>(batch),
                            {.mixes = both(), .num_classes = 3, .label_smoothing = smoothing});
    Generator generator(0, 0);
    const std::vector<int64_t> all = {0, 1};
    return error_of([&] { data.get_batch(all, generator); });
  };
  const auto images = torch::rand({2, 3, 4, 4});
  EXPECT_EQ(mix({{"image", images}, {"label", torch::tensor({0, 2})}}, 0), "");
  EXPECT_NE(mix({{"image", images}, {"label", torch::tensor({0, 3})}}, 0)
                .find("the label 3 is outside of the classes; valid: 0 to 2"),
            std::string::npos);
  EXPECT_NE(mix({{"image", images}, {"label", torch::tensor({0, -1})}}, 0).find("the label -1"), std::string::npos);
  EXPECT_NE(mix({{"image", images.to(torch::kByte)}, {"label", torch::tensor({0, 1})}}, 0).find("hint: dtype: float32"),
            std::string::npos);
  EXPECT_EQ(mix({{"image", images}, {"label", torch::full({2, 3}, 1.0 / 3)}}, 0), "");
  EXPECT_NE(mix({{"image", images}, {"label", torch::full({2, 4}, 0.25)}}, 0).find("must be [N, 3]"),
            std::string::npos);
  EXPECT_NE(mix({{"image", images}, {"label", torch::full({2, 3}, 1.0 / 3)}}, 0.1).find("without label_smoothing"),
            std::string::npos);
  EXPECT_NE(error_of([] { MixedDataset(std::make_shared<Noise>(3), {}); }).find("num_classes is 0"), std::string::npos);
  EXPECT_NE(error_of([] { MixUp({.alpha = 0}); }).find("alpha must be above 0"), std::string::npos);
}

}  // namespace
}  // namespace levin::data
