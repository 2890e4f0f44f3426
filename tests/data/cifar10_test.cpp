#include <levin/core/data/cifar10.h>

#include <levin/core/base/error.h>

#include "temporary_folder.h"

#include <gtest/gtest.h>
#include <torch/types.h>

namespace levin::data {
namespace {

/// A record whose channels are all of the bytes 10, 20 and 30.
std::string record(int label) {
  return std::string(1, static_cast<char>(label)) + std::string(1024, 10) + std::string(1024, 20) +
         std::string(1024, 30);
}

std::string setup_error(const std::string& root) {
  try {
    make<Cifar10>({.root = root, .val_size = 1})->setup(Stage::kFit);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Cifar10, ReadsTheBinaryFormat) {
  const TemporaryFolder folder;
  for (int i = 1; i <= 5; ++i) folder.write("data_batch_" + std::to_string(i) + ".bin", record(i) + record(9));
  folder.write("test_batch.bin", record(7));
  auto data = make<Cifar10>({.root = folder.path(), .batch_size = 16, .val_size = 2, .shuffle = false});
  data->setup(Stage::kFit);
  auto pass = data->train_dataloader().pass({});
  const auto batch = pass.next();
  EXPECT_EQ((*batch)["image"].sizes(), (torch::IntArrayRef{8, 3, 32, 32}));
  EXPECT_TRUE((*batch)["label"].equal(torch::tensor({1, 9, 2, 9, 3, 9, 4, 9}, torch::kLong)));
  EXPECT_NEAR((*batch)["image"][0][2][31][31].item<float>(), (30 / 255.0 - 0.4465) / 0.2616, 1e-5);
  EXPECT_EQ(data->val_dataloader().at(0).num_examples(), 2);
  data->setup(Stage::kPredict);
  EXPECT_EQ(data->predict_dataloader().at(0).num_examples(), 1);
}

TEST(Cifar10, TrainsInTheOrderOfASampler) {
  const TemporaryFolder folder;
  // Classes 1 to 5 have two images each, class 9 has ten.
  for (int i = 1; i <= 5; ++i)
    folder.write("data_batch_" + std::to_string(i) + ".bin", record(i) + record(i) + record(9) + record(9));
  auto options = parse_options<Cifar10Options>(
      Config::parse("{val_size: 2, batch_size: 2000, sampler: {class_balanced: {num_samples: 2000}}}", {}), "data");
  options.root = folder.path();
  auto data = make<Cifar10>(options);
  data->setup(Stage::kFit);
  auto pass = data->train_dataloader().pass({});
  const auto counts = (*pass.next())["label"].bincount();
  for (const int label : {1, 2, 3, 4, 5, 9}) EXPECT_NEAR(counts[label].item<double>(), 2000 / 6.0, 80) << label;
  EXPECT_EQ(data->val_dataloader().at(0).num_examples(), 2);

  options.sampler = parse_options<Cifar10Options>(Config::parse("{sampler: length_grouped}", {}), "data").sampler;
  data = make<Cifar10>(options);
  data->setup(Stage::kFit);
  EXPECT_THROW(data->train_dataloader(), Error);
}

TEST(Cifar10, SaysWhatIsWrongWithItsFiles) {
  const TemporaryFolder folder;
  EXPECT_NE(setup_error(folder.path()).find("there is no data_batch_1.bin in the folder " + folder.path()),
            std::string::npos);
  folder.write("data_batch_1.bin", record(1).substr(0, 3000));
  EXPECT_NE(setup_error(folder.path()).find("expected a multiple of 3073 bytes, found 3000"), std::string::npos);
  folder.write("data_batch_1.bin", record(12));
  EXPECT_NE(setup_error(folder.path()).find("record 0 has the label 12"), std::string::npos);
  folder.write("data_batch_1.bin", record(1));
  EXPECT_NE(setup_error(folder.path()).find("there is no data_batch_2.bin"), std::string::npos);
}

TEST(Cifar10, ChecksItsOptions) {
  EXPECT_THROW(make<Cifar10>({.mean = {0.5}}), ConfigError);
  EXPECT_EQ(parse_options<Cifar10Options>(Config::parse("{std: [1, 2, 3]}", {}), "data").std,
            (std::vector<double>{1, 2, 3}));
}

}  // namespace
}  // namespace levin::data
