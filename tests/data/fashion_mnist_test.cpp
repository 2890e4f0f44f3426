#include <levin/core/data/fashion_mnist.h>

#include <levin/core/base/error.h>

#include "idx_writer.h"
#include "temporary_folder.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <filesystem>

namespace levin::data {
namespace {

constexpr int kPixels = 28 * 28;

/// `count` images, the i-th all of the byte i, and labels i % 10.
void write_part(const TemporaryFolder& folder, const std::string& part, uint32_t count) {
  std::string images;
  std::string labels;
  for (uint32_t i = 0; i < count; ++i) {
    images.append(kPixels, static_cast<char>(i));
    labels.push_back(static_cast<char>(i % 10));
  }
  write_gzip(folder.path(part + "-images-idx3-ubyte.gz"), idx_bytes({count, 28, 28}, images));
  folder.write(part + "-labels-idx1-ubyte", idx_bytes({count}, labels));
}

std::string setup_error(DataModule& data, Stage stage) {
  try {
    data.setup(stage);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(FashionMnist, HoldsOutTheLastTrainingImages) {
  const TemporaryFolder folder;
  write_part(folder, "train", 20);
  write_part(folder, "t10k", 6);
  auto data = make<FashionMnist>({.root = folder.path(), .batch_size = 8, .val_size = 5});
  EXPECT_FALSE(data->train_dataloader());
  EXPECT_TRUE(data->val_dataloader().empty());
  data->setup(Stage::kFit);
  EXPECT_EQ(data->train_dataloader().num_examples(), 15);
  EXPECT_TRUE(data->train_dataloader().options().shuffle);
  ASSERT_EQ(data->val_dataloader().size(), 1u);
  auto pass = data->val_dataloader()[0].pass({});
  const auto batch = pass.next();
  EXPECT_EQ((*batch)["image"].sizes(), (torch::IntArrayRef{5, 1, 28, 28}));
  EXPECT_EQ((*batch)["image"].scalar_type(), torch::kFloat);
  EXPECT_TRUE((*batch)["label"].equal(torch::tensor({5, 6, 7, 8, 9}, torch::kLong)));
  EXPECT_NEAR((*batch)["image"][1].max().item<float>(), (16 / 255.0 - 0.2860) / 0.3530, 1e-5);
  EXPECT_NEAR((*batch)["image"][1].min().item<float>(), (16 / 255.0 - 0.2860) / 0.3530, 1e-5);

  data->setup(Stage::kTest);
  EXPECT_EQ(data->test_dataloader().at(0).num_examples(), 6);
  EXPECT_EQ(data->predict_dataloader().at(0).num_examples(), 6);
}

TEST(FashionMnist, CanDoWithoutValidation) {
  const TemporaryFolder folder;
  write_part(folder, "train", 4);
  auto data = make<Mnist>({.root = folder.path(), .val_size = 0});
  data->setup(Stage::kFit);
  EXPECT_TRUE(data->val_dataloader().empty());
  EXPECT_EQ(data->train_dataloader().num_examples(), 4);
  auto too_many = make<Mnist>({.root = folder.path(), .val_size = 4});
  EXPECT_NE(setup_error(*too_many, Stage::kFit).find("val_size must be below the number of training images, 4; got 4"),
            std::string::npos);
}

TEST(FashionMnist, SaysWhatIsWrongWithItsFiles) {
  const TemporaryFolder folder;
  auto data = make<FashionMnist>({.root = folder.path()});
  const std::string missing = setup_error(*data, Stage::kFit);
  EXPECT_NE(missing.find(folder.path()), std::string::npos);
  EXPECT_NE(missing.find("train-images-idx3-ubyte.gz"), std::string::npos);
  EXPECT_NE(missing.find("dataset-fashion-mnist"), std::string::npos);

  write_part(folder, "train", 4);
  folder.write("train-labels-idx1-ubyte", idx_bytes({3}, "abc"));
  const std::string mismatch = setup_error(*data, Stage::kFit);
  EXPECT_NE(mismatch.find("has 4 images"), std::string::npos);
  EXPECT_NE(mismatch.find("has 3 labels"), std::string::npos);
}

TEST(FashionMnist, ReadsItsOptions) {
  EXPECT_THROW(make<FashionMnist>({.batch_size = 0}), ConfigError);
  EXPECT_THROW(make<FashionMnist>({.val_size = -1}), ConfigError);
  Registry<DataModule> registry("data module");
  registry.add<FashionMnist>("fashion_mnist");
  registry.add<Mnist>("mnist");
  const TemporaryFolder folder;
  const std::string nowhere = folder.path("nowhere");
  const auto options = Config::parse("{batch_size: 64, num_workers: 2, root: " + nowhere + "}", {});
  auto data = registry.make("fashion_mnist", options, "data");
  EXPECT_NE(setup_error(*data, Stage::kTest).find(nowhere), std::string::npos);
  EXPECT_TRUE(data->can_rebuild());
}

TEST(FashionMnist, RealFilesOfDebian) {
  const FashionMnistOptions options;
  if (!std::filesystem::exists(options.root))
    GTEST_SKIP() << "there is no " << options.root << "; hint: apt-get install dataset-fashion-mnist";
  auto data = make<FashionMnist>({.batch_size = 1000});
  data->setup(Stage::kTest);
  auto loader = data->test_dataloader().at(0);
  EXPECT_EQ(loader.num_examples(), 10'000);
  auto pass = loader.pass({});
  double sum = 0;
  double squares = 0;
  auto counts = torch::zeros({10}, torch::kLong);
  while (auto batch = pass.next()) {
    sum += (*batch)["image"].sum(torch::kDouble).item<double>();
    squares += (*batch)["image"].square().sum(torch::kDouble).item<double>();
    counts += (*batch)["label"].bincount({}, 10);
  }
  EXPECT_TRUE(counts.equal(torch::full({10}, 1000, torch::kLong)));
  EXPECT_NEAR(sum / (10'000.0 * kPixels), 0, 0.02);
  EXPECT_NEAR(squares / (10'000.0 * kPixels), 1, 0.02);
}

}  // namespace
}  // namespace levin::data
