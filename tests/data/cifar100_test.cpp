#include <levin/core/data/cifar100.h>

#include <levin/core/base/error.h>

#include "reader_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

namespace levin::data {
namespace {

using ::testing::HasSubstr;

std::string cifar100_record(int coarse, int fine) {
  return std::string(1, static_cast<char>(coarse)) + std::string(1, static_cast<char>(fine)) + std::string(1024, 10) +
         std::string(1024, 20) + std::string(1024, 30);
}

TEST(Cifar100, ReadsClassesOrGroups) {
  const TemporaryFolder folder;
  folder.write("train.bin", cifar100_record(3, 99) + cifar100_record(19, 0) + cifar100_record(0, 50));
  folder.write("test.bin", cifar100_record(1, 2));
  for (const auto labels : {Cifar100Labels::kFine, Cifar100Labels::kCoarse}) {
    auto data = make<Cifar100>({.root = folder.path(), .labels = labels, .val_size = 1, .shuffle = false});
    data->setup(Stage::kFit);
    const auto batches = testing::all_batches(data->train_dataloader());
    ASSERT_EQ(batches.size(), 1U);
    EXPECT_EQ(batches[0]["image"].sizes(), (torch::IntArrayRef{2, 3, 32, 32}));
    EXPECT_NEAR(batches[0]["image"][0][2][31][31].item<float>(), (30 / 255.0 - 0.4409) / 0.2762, 1e-5);
    const bool is_fine = labels == Cifar100Labels::kFine;
    EXPECT_TRUE(batches[0]["label"].equal(is_fine ? torch::tensor({99, 0}, torch::kLong)
                                                  : torch::tensor({3, 19}, torch::kLong)));
    data->setup(Stage::kTest);
    EXPECT_EQ(testing::values_in(data->test_dataloader().at(0), "label").at(0), is_fine ? 2 : 1);
  }
}

TEST(Cifar100, SaysWhatIsWrongWithItsFiles) {
  const TemporaryFolder folder;
  const auto error = [&] {
    return testing::message_of([&] { make<Cifar100>({.root = folder.path(), .val_size = 0})->setup(Stage::kFit); });
  };
  EXPECT_THAT(error(), HasSubstr("there is no train.bin in the folder " + folder.path()));
  folder.write("train.bin", std::string(3073, 'x'));
  EXPECT_THAT(error(), HasSubstr("not a CIFAR-100 file: expected a multiple of 3074 bytes, found 3073"));
  folder.write("train.bin", cifar100_record(20, 1));
  EXPECT_THAT(error(), HasSubstr("record 0 has the label 20, valid: 0 to 19"));
  folder.write("train.bin", cifar100_record(1, 100));
  EXPECT_THAT(error(), HasSubstr("record 0 has the label 100, valid: 0 to 99"));
}

}  // namespace
}  // namespace levin::data
