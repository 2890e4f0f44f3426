// What is said of a batch: tensors, a picture, classes, and where the time goes.

#include <levin/core/data/batch_summary.h>
#include <levin/core/data/fetch_times.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <thread>
#include <vector>

namespace levin::data {
namespace {

TEST(BatchSummary, DescribesEachTensor) {
  auto values = torch::arange(6, torch::kFloat).view({2, 3});
  values[1][2] = NAN;
  const auto summaries = summarize({{"x", values},
                                    {"label", torch::tensor({3, 1}, torch::kLong)},
                                    {"half", torch::ones(2, torch::kBFloat16)},
                                    {"none", torch::empty({2, 0})}});
  ASSERT_EQ(summaries.size(), 4U);
  EXPECT_EQ(summaries[0].name, "x");
  EXPECT_EQ(summaries[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(summaries[0].type, "float32");
  EXPECT_EQ(summaries[0].min, 0);
  EXPECT_EQ(summaries[0].max, 4);
  EXPECT_EQ(summaries[0].mean, 2);
  EXPECT_EQ(summaries[0].not_finite, 1);
  EXPECT_EQ(summaries[1].type, "int64");
  EXPECT_EQ(summaries[1].max, 3);
  EXPECT_EQ(summaries[2].type, "bfloat16");
  EXPECT_FALSE(summaries[3].min.has_value());
}

TEST(BatchSummary, LaysOutImages) {
  const auto bytes = torch::randint(0, 256, {5, 3, 4, 6}, torch::kByte);
  const auto picture = batch_picture({{"index", torch::arange(5)}, {"image", bytes}}, 64);
  ASSERT_TRUE(picture.has_value());
  EXPECT_EQ(picture->sizes(), (torch::IntArrayRef{3, 8, 42}));
  EXPECT_TRUE(picture->narrow(1, 2, 4).narrow(2, 10, 6).equal(bytes[1]));
  // Floats of any range become black to white, and values that are no numbers disturb nothing.
  auto floats = torch::linspace(-3, 5, 48).view({1, 3, 4, 4});
  floats[0][0][0][1] = NAN;
  const auto grey = batch_picture({{"image", floats}}, 64);
  EXPECT_EQ((*grey)[0][2][2].item<int>(), 0);
  EXPECT_EQ((*grey)[2][5][5].item<int>(), 255);
  EXPECT_EQ(batch_picture({{"image", bytes}}, 2)->size(2), 18);
  EXPECT_FALSE(batch_picture({{"x", torch::ones({4, 7})}, {"volume", torch::ones({1, 5, 4, 4})}}, 8).has_value());
}

TEST(BatchSummary, CountsClasses) {
  ClassCounts counts;
  counts.add({{"x", torch::ones({3, 2})}, {"label", torch::tensor({2, 0, 2}, torch::kLong)}});
  counts.add({{"label", torch::tensor({{0.1F, 0.9F}, {0.7F, 0.3F}})}});
  counts.add({{"label", torch::tensor({-1, 0}, torch::kLong)}});
  counts.add({{"x", torch::ones({3, 2})}});
  EXPECT_EQ(counts.counts(), (std::vector<int64_t>{2, 1, 2}));
}

TEST(FetchTimes, AddUpThePartsOfTheirThread) {
  const FetchTimes times;
  for (int i = 0; i < 3; ++i) {
    { const FetchPart part("decode"); }
    { const FetchPart part("resize"); }
  }
  std::thread([] { const FetchPart part("elsewhere"); }).join();
  ASSERT_EQ(times.parts().size(), 2U);
  EXPECT_EQ(times.parts()[0].first, "decode");
  EXPECT_GE(times.parts()[1].second.count(), 0);
}

}  // namespace
}  // namespace levin::data
