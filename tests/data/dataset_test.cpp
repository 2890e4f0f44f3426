#include <levin/core/data/dataset.h>

#include <levin/core/base/error.h>

#include <gtest/gtest.h>
#include <torch/types.h>

#include <numeric>

namespace levin::data {
namespace {

class NeitherOverridden : public Dataset {
 public:
  int64_t size() const override { return 3; }
};

TEST(Dataset, OverridingNeitherMethodIsAnError) {
  const NeitherOverridden dataset;
  Generator generator(0, 0);
  const std::vector<int64_t> indices{0, 1};
  EXPECT_THROW(dataset.get(0, generator), Error);
  EXPECT_THROW(dataset.get_batch(indices, generator), Error);
  try {
    dataset.get(0, generator);
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("overrides neither get nor get_batch"), std::string::npos);
  }
}

class Examples : public Dataset {
 public:
  int64_t size() const override { return 10; }
  Batch get(int64_t index, Generator& generator) const override {
    return {{"x", torch::full({2}, index)}, {"draw", torch::tensor(static_cast<int64_t>(generator.next() >> 1))}};
  }
};

class Batches : public Dataset {
 public:
  int64_t size() const override { return 10; }
  Batch get_batch(std::span<const int64_t> indices, Generator& /*generator*/) const override {
    return {{"x", torch::tensor(std::vector<int64_t>(indices.begin(), indices.end())).unsqueeze(1)}};
  }
};

/// Reads another data set by its default get while its own default get_batch runs.
class Wrapper : public Dataset {
 public:
  int64_t size() const override { return inner_.size(); }
  Batch get(int64_t index, Generator& generator) const override { return inner_.get(index, generator); }

 private:
  Batches inner_;
};

TEST(Dataset, EachMethodServesTheOther) {
  Generator generator(4, 1);
  const std::vector<int64_t> indices{3, 7, 3};
  const Batch batch = Examples().get_batch(indices, generator);
  EXPECT_EQ(batch["x"].sizes(), (torch::IntArrayRef{3, 2}));
  EXPECT_EQ(batch["x"][1][0].item<int64_t>(), 7);
  EXPECT_EQ(batch["draw"][0].item<int64_t>(), batch["draw"][2].item<int64_t>());
  EXPECT_EQ(batch["draw"][1].item<int64_t>(), static_cast<int64_t>(Generator(4, 1, 7).next() >> 1));

  EXPECT_EQ(Batches().get(5, generator)["x"].sizes(), (torch::IntArrayRef{1}));
  EXPECT_EQ(Wrapper().get_batch(indices, generator)["x"].sizes(), (torch::IntArrayRef{3, 1}));
}

/// Sequences of different lengths, padded to the longest of the batch.
class Sequences : public Dataset {
 public:
  int64_t size() const override { return 5; }
  Batch get(int64_t index, Generator& /*generator*/) const override { return {{"x", torch::full({index + 1}, index)}}; }
  CollateFunction collate() const override {
    return [](std::span<const Batch> examples) -> Batch {
      std::vector<torch::Tensor> sequences;
      for (const auto& example : examples) sequences.push_back(example["x"]);
      return {{"x", at::pad_sequence(sequences, true, -1)}};
    };
  }
};

TEST(Dataset, ExamplesMayBeCollatedOtherwise) {
  Generator generator(0, 0);
  const std::vector<int64_t> indices{0, 2};
  EXPECT_TRUE(
      Sequences().get_batch(indices, generator)["x"].equal(torch::tensor({{0, -1, -1}, {2, 2, 2}}, torch::kLong)));
}

TEST(StackExamples, EqualsTorchStackForEveryLayout) {
  const auto base = torch::randn({4, 6});
  const std::vector<torch::Tensor> kinds{base,
                                         base.t().contiguous().t(),
                                         base.slice(1, 0, 6, 2),
                                         base.to(torch::kHalf),
                                         base.gt(0),
                                         torch::complex(base, base).conj(),
                                         torch::tensor(1.5),
                                         torch::empty({0, 3}),
                                         base.clone().requires_grad_()};
  for (const auto& kind : kinds) {
    const std::vector<Batch> examples{{{"t", kind}}, {{"t", kind.clone()}}, {{"t", kind}}};
    const auto stacked = stack_examples(examples)["t"];
    const auto expected = torch::stack({kind, kind, kind});
    EXPECT_TRUE(stacked.equal(expected));
    EXPECT_EQ(stacked.requires_grad(), expected.requires_grad());
  }
}

TEST(StackExamples, FindsTensorsInAnotherOrder) {
  const std::vector<Batch> examples{{{"a", torch::zeros({2})}, {"b", torch::ones({1})}},
                                    {{"b", torch::ones({1})}, {"a", torch::zeros({2})}}};
  EXPECT_EQ(stack_examples(examples)["b"].sum().item<float>(), 2);
}

TEST(StackExamples, NamesTheTensorThatDiffers) {
  const auto message = [](std::vector<Batch> examples) -> std::string {
    try {
      stack_examples(examples);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message({{{"image", torch::ones({2, 3})}}, {{"image", torch::ones({2, 4})}}})
                .find("'image' is [2, 3] Float in example 0 and [2, 4] Float in example 1"),
            std::string::npos);
  EXPECT_NE(
      message({{{"image", torch::ones({2})}}, {{"image", torch::ones({2}, torch::kLong)}}}).find("Long in example 1"),
      std::string::npos);
  EXPECT_NE(message({{{"a", torch::ones({2})}}, {{"b", torch::ones({2})}}}).find("no tensor 'a'"), std::string::npos);
  EXPECT_NE(message({{{"a", torch::ones({2})}}, {{"a", torch::ones({2})}, {"b", torch::ones({2})}}}).find("has 2"),
            std::string::npos);
}

}  // namespace
}  // namespace levin::data
