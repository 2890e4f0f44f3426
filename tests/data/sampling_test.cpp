// Samplers by name: what each makes of what is known of the examples, one of one's own, and one message for each
// mistake.

#include <levin/core/data/sampling.h>

#include <levin/core/data/read_column.h>
#include <levin/core/data/tensor_dataset.h>

#include "reader_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>

namespace levin::data {
namespace {

using ::testing::HasSubstr;
using testing::message_of;

DataLoader sampled(const std::string& sampler, DataLoaderOptions options = {}) {
  const auto dataset =
      std::make_shared<TensorDataset>(Batch{{"x", torch::arange(40)},
                                            {"label", torch::arange(40).remainder(4).eq(3).to(torch::kLong)},
                                            {"length", torch::arange(40) % 7 + 1},
                                            {"weight", (torch::arange(40) < 10).to(torch::kDouble)},
                                            {"wide", torch::zeros({40, 2})}});
  options.shuffle = true;
  const auto sampling = make_sampling(Spec<Sampling>(Config::parse(sampler, {})));
  return sampled_loader(dataset, options, sampling.get(),
                        [dataset](const std::string& name) { return read_column(*dataset, name); });
}

TEST(Sampling, NamesMakeSamplers) {
  for (const int64_t x : testing::values_in(sampled("weighted"), "x")) EXPECT_LT(x, 10);
  const auto labels = testing::values_in(sampled("{class_balanced: {num_samples: 400}}"), "label");
  EXPECT_NEAR(static_cast<double>(std::count(labels.begin(), labels.end(), 1)), 200, 50);

  const auto grouped = testing::values_in(sampled("{name: length_grouped, window: 100}", {.batch_size = 4}), "length");
  for (size_t i = 0; i < 40; i += 4) EXPECT_GE(grouped[i] - grouped[i + 3], 0);
  EXPECT_EQ(grouped[0], 7);

  const DataLoader batches = sampled("{token_batches: {max_tokens: 20}}", {.batch_size = 4});
  EXPECT_TRUE(batches.has_batch_sampler());
  for (const Batch& batch : testing::all_batches(batches))
    EXPECT_LE(batch.size() * batch["length"].max().item<int64_t>(), 20);
  EXPECT_EQ(make_sampling(std::nullopt), nullptr);
}

struct LastOptions {
  int64_t count = 1;
  static void describe(Schema<LastOptions>& schema) { schema.field("count", &LastOptions::count, "examples"); }
};

/// The last examples, in order.
class Last : public Sampling {
 public:
  using Options = LastOptions;
  explicit Last(const Options& options) : options_(options) {}
  std::shared_ptr<const Sampler> sampler(const SampledExamples& examples) const override {
    return std::make_shared<Order>(examples.size - options_.count);
  }

 private:
  class Order : public Sampler {
   public:
    explicit Order(int64_t first) : first_(first) {}
    std::vector<int64_t> order(int64_t dataset_size, uint64_t /*seed*/, int64_t /*epoch*/) const override {
      std::vector<int64_t> indices;
      for (int64_t i = first_; i < dataset_size; ++i) indices.push_back(i);
      return indices;
    }

   private:
    int64_t first_;
  };
  Options options_;
};

TEST(Sampling, AProgramAddsItsOwn) {
  sampling_registry().add<Last>("last", "the last examples");
  EXPECT_EQ(testing::values_in(sampled("{last: {count: 3}}"), "x"), (std::vector<int64_t>{37, 38, 39}));
}

TEST(Sampling, EveryMistakeIsOneMessage) {
  const auto message = [](const std::string& sampler, const DataLoaderOptions& options = {}) {
    return message_of([&] { sampled(sampler, options); });
  };
  EXPECT_THAT(message("class_balance"), HasSubstr("did you mean 'class_balanced'?"));
  EXPECT_THAT(message("{weighted: {weight: w}}"), HasSubstr("unknown key 'weight' in 'data.sampler.weighted'"));
  EXPECT_THAT(message("{weighted: {num_samples: 0}}"), HasSubstr("num_samples must be at least 1"));
  EXPECT_THAT(message("{weighted: {weights: absent}}"), HasSubstr("no tensor 'absent'; it has: x, label"));
  EXPECT_THAT(message("{weighted: {weights: wide}}"),
              HasSubstr("sampler 'weighted' needs one number 'wide' of each of 40 training examples; got [40, 2]"));
  EXPECT_THAT(message("token_batches"), HasSubstr("max_tokens of the sampler token_batches is 0; valid: at least 1"));
  EXPECT_THAT(message("{token_batches: {max_tokens: 6}}"), HasSubstr("example 6 has 7 tokens"));
  EXPECT_THAT(message("{token_batches: {max_tokens: 60}}", {.drop_last = true}), HasSubstr("data.drop_last"));
}

}  // namespace
}  // namespace levin::data
