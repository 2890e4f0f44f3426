#include <levin/core/data/byte_images.h>

#include <levin/core/base/error.h>

#include <gtest/gtest.h>
#include <torch/types.h>

#include <set>
#include <vector>

namespace levin::data {
namespace {

torch::Tensor random_bytes(torch::IntArrayRef shape) { return torch::randint(256, shape, torch::kByte); }

TEST(ByteImages, NormalisesChosenRows) {
  const auto images = random_bytes({5, 2, 7, 5});
  const auto labels = torch::arange(5) * 10;
  const ByteImages dataset(images, labels, {.mean = {0.5, 0.25}, .std = {0.5, 2}});
  Generator generator(1, 0);
  const std::vector<int64_t> rows{4, 0, 4};
  const Batch batch = dataset.get_batch(rows, generator);
  const auto mean = torch::tensor({0.5, 0.25}).reshape({1, 2, 1, 1});
  const auto std = torch::tensor({0.5, 2.0}).reshape({1, 2, 1, 1});
  const auto expected = ((images.to(torch::kFloat) / 255 - mean) / std).index_select(0, torch::tensor(rows));
  EXPECT_TRUE(torch::allclose(batch["image"], expected, 1e-5, 1e-6));
  EXPECT_TRUE(batch["label"].equal(torch::tensor({40, 0, 40}, torch::kLong)));
  EXPECT_TRUE(torch::allclose(dataset.get(2, generator)["image"], ((images.to(torch::kFloat) / 255 - mean) / std)[2],
                              1e-5, 1e-6));
}

TEST(ByteImages, AugmentsByTheSample) {
  const auto images = random_bytes({1, 1, 6, 6});
  const auto labels = torch::zeros({1}, torch::kLong);
  const ByteImages plain(images, labels, {.mean = {0}, .std = {1}});
  const ByteImages augmented(images, labels, {.mean = {0}, .std = {1}, .flip = true, .max_shift = 2});
  const std::vector<int64_t> rows{0};
  Generator any(0, 0);
  const auto original = plain.get_batch(rows, any)["image"][0];

  // Every result must be one of the 2 * 5 * 5 mirrored and shifted images, each padded with black.
  std::vector<torch::Tensor> possible;
  const auto padded = torch::constant_pad_nd(original, {2, 2, 2, 2}, 0);
  for (int64_t down = 0; down < 5; ++down) {
    for (int64_t right = 0; right < 5; ++right) {
      const auto shifted = padded.slice(1, down, down + 6).slice(2, right, right + 6);
      possible.push_back(shifted);
      possible.push_back(shifted.flip({2}));
    }
  }
  std::set<size_t> met;
  for (int64_t epoch = 0; epoch < 500; ++epoch) {
    Generator generator(3, epoch);
    const auto image = augmented.get_batch(rows, generator)["image"][0];
    size_t which = 0;
    while (which < possible.size() && !possible[which].equal(image)) ++which;
    ASSERT_LT(which, possible.size());
    met.insert(which);
    Generator again(3, epoch);
    again.next();
    EXPECT_TRUE(augmented.get_batch(rows, again)["image"][0].equal(image));
  }
  EXPECT_EQ(met.size(), possible.size());
}

TEST(ByteImages, ShiftsWiderThanTheImageLeaveBlack) {
  const ByteImages dataset(random_bytes({1, 1, 3, 3}), torch::zeros({1}, torch::kLong),
                           {.mean = {0.5}, .std = {0.5}, .max_shift = 10});
  const std::vector<int64_t> rows{0};
  for (int64_t epoch = 0; epoch < 50; ++epoch) {
    Generator generator(1, epoch);
    EXPECT_GE(dataset.get_batch(rows, generator)["image"].min().item<float>(), -1);
  }
}

TEST(ByteImages, RefusesWhatDoesNotFit) {
  const auto labels = torch::zeros({2}, torch::kLong);
  EXPECT_THROW(ByteImages(random_bytes({3, 1, 2, 2}), labels, {.mean = {0}, .std = {1}}), Error);
  EXPECT_THROW(ByteImages(random_bytes({2, 1, 2, 2}), labels, {.mean = {0, 0}, .std = {1, 1}}), Error);
  EXPECT_THROW(ByteImages(random_bytes({2, 1, 2, 2}), labels, {.mean = {0}, .std = {0}}), Error);
  EXPECT_THROW(ByteImages(torch::rand({2, 1, 2, 2}), labels, {.mean = {0}, .std = {1}}), Error);
  const ByteImages dataset(random_bytes({2, 1, 2, 2}), labels, {.mean = {0}, .std = {1}});
  const std::vector<int64_t> rows{2};
  Generator generator(0, 0);
  EXPECT_THROW(dataset.get_batch(rows, generator), Error);
}

}  // namespace
}  // namespace levin::data
