#include <levin/core/nn/transformer/key_value_cache.h>

#include <levin/core/base/error.h>
#include <levin/core/nn/transformer/transformer_stack.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <string>
#include <vector>

namespace levin::nn {
namespace {

constexpr int64_t kCacheWidth = 16;
constexpr int64_t kLength = 23;

TransformerDecoder decoder(int64_t sliding_window) {
  torch::manual_seed(4);
  TransformerDecoder made(TransformerStackOptions{.block = {.attention = {.width = kCacheWidth,
                                                                          .heads = 4,
                                                                          .key_value_heads = 2,
                                                                          .sliding_window = sliding_window},
                                                            .mlp = {.hidden = 24}},
                                                  .layers = 2},
                          RotaryEmbedding(RotaryOptions{.dim = 4}));
  made->eval();
  return made;
}

/// What the decoder makes of x [N, T, width] by steps of so many tokens. `positions` [T] or [N, T].
at::Tensor in_steps(TransformerDecoder& decoder, KeyValueCache& cache, const at::Tensor& x, const at::Tensor& positions,
                    const std::vector<int64_t>& sizes) {
  std::vector<at::Tensor> results;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    const at::Tensor some = positions.narrow(-1, begin, size).contiguous();
    const KeyValueCache::Step step(cache, some);
    results.push_back(decoder(x.narrow(1, begin, size), {.positions = some}));
    begin += size;
  }
  return torch::cat(results, 1);
}

std::vector<int64_t> one_by_one(int64_t first, int64_t length) {
  std::vector<int64_t> sizes{first};
  for (int64_t i = first; i < length; ++i) sizes.push_back(1);
  return sizes;
}

const std::vector<std::vector<int64_t>> kSteps{
    one_by_one(1, kLength), one_by_one(9, kLength), {kLength}, {3, 1, 1, 5, 1, 7, 1, 4}, {12, 11}};

TEST(KeyValueCache, GivesWhatAllTokensTogetherGive) {
  const torch::NoGradGuard no_gradients;
  for (const int64_t window : {0, 1, 4, 9, 30}) {
    TransformerDecoder net = decoder(window);
    const at::Tensor x = torch::randn({3, kLength, kCacheWidth});
    const at::Tensor expected = net(x);
    for (const auto& sizes : kSteps)
      for (const int64_t step : {1, 5, 256}) {
        KeyValueCache cache({.step = step});
        const at::Tensor result = in_steps(net, cache, x, torch::arange(kLength), sizes);
        EXPECT_LT((result - expected).abs().max().item<double>(), 1e-5) << window << ' ' << sizes.size() << ' ' << step;
        EXPECT_EQ(cache.length(), kLength);
      }
  }
}

/// Positions of rows with so much padding on the left and on the right of a prompt, and tokens after it.
at::Tensor padded_positions(const std::vector<std::pair<int64_t, int64_t>>& paddings, int64_t prompt) {
  at::Tensor positions = torch::full({static_cast<int64_t>(paddings.size()), kLength}, -1, torch::kLong);
  for (size_t row = 0; row < paddings.size(); ++row) {
    int64_t next = 0;
    for (int64_t i = 0; i < kLength; ++i)
      if (i >= prompt || (i >= paddings[row].first && i < prompt - paddings[row].second))
        positions[static_cast<int64_t>(row)][i] = next++;
  }
  return positions;
}

TEST(KeyValueCache, LeavesPaddingOnEitherSideOut) {
  const torch::NoGradGuard no_gradients;
  constexpr int64_t kPrompt = 9;
  const at::Tensor positions = padded_positions({{0, 0}, {4, 0}, {0, 5}, {2, 3}, {8, 0}}, kPrompt);
  for (const int64_t window : {0, 1, 4, 9, 30}) {
    TransformerDecoder net = decoder(window);
    const at::Tensor x = torch::randn({positions.size(0), kLength, kCacheWidth});
    for (const auto& sizes : kSteps) {
      KeyValueCache cache({.step = 4});
      const at::Tensor result = in_steps(net, cache, x, positions, sizes);
      EXPECT_TRUE(result.isfinite().all().item<bool>());
      for (int64_t row = 0; row < positions.size(0); ++row) {
        const at::Tensor places = (positions[row] >= 0).nonzero().squeeze(1);
        const at::Tensor alone = net(x[row].index_select(0, places).unsqueeze(0)).squeeze(0);
        EXPECT_LT((result[row].index_select(0, places) - alone).abs().max().item<double>(), 1e-5)
            << window << ' ' << row << ' ' << sizes.size();
      }
    }
  }
}

TEST(KeyValueCache, PlainTokensMayComeBeforePaddedOnes) {
  const torch::NoGradGuard no_gradients;
  for (const int64_t window : {0, 4, 9}) {
    TransformerDecoder net = decoder(window);
    const at::Tensor x = torch::randn({2, kLength, kCacheWidth});
    const at::Tensor expected = net(x);
    KeyValueCache cache;
    const at::Tensor positions = torch::arange(kLength);
    const at::Tensor first = in_steps(net, cache, x.narrow(1, 0, 13), positions.narrow(0, 0, 13), {10, 1, 1, 1});
    const at::Tensor rest =
        in_steps(net, cache, x.narrow(1, 13, 10), positions.narrow(0, 13, 10).expand({2, -1}), {1, 4, 1, 1, 3});
    EXPECT_LT((torch::cat({first, rest}, 1) - expected).abs().max().item<double>(), 1e-5) << window;
  }
}

TEST(KeyValueCache, RowsAreSelected) {
  const torch::NoGradGuard no_gradients;
  for (const int64_t window : {0, 4}) {
    TransformerDecoder net = decoder(window);
    const at::Tensor x = torch::randn({3, kLength, kCacheWidth});
    const at::Tensor rows = torch::tensor({2, 0, 2, 1});
    const at::Tensor expected = net(x.index_select(0, rows));
    for (const bool is_plain : {true, false}) {
      at::Tensor positions = torch::arange(kLength);
      KeyValueCache cache;
      in_steps(net, cache, x, is_plain ? positions : positions.expand({3, -1}), {10});
      cache.select_rows(rows);
      const int64_t left = kLength - 10;
      positions = positions.narrow(0, 10, left);
      const at::Tensor rest = in_steps(net, cache, x.index_select(0, rows).narrow(1, 10, left),
                                       is_plain ? positions : positions.expand({4, -1}), one_by_one(1, left));
      EXPECT_LT((rest - expected.narrow(1, 10, left)).abs().max().item<double>(), 1e-5) << window << is_plain;
    }
  }
}

TEST(KeyValueCache, WindowsKeepNoMoreThanTheyNeed) {
  const torch::NoGradGuard no_gradients;
  TransformerDecoder net = decoder(4);
  const at::Tensor x = torch::randn({1, kLength, kCacheWidth});
  KeyValueCache cache;
  in_steps(net, cache, x, torch::arange(kLength), one_by_one(9, kLength));
  EXPECT_EQ(cache.nbytes(), 2 * /*keys and values*/ 2 * /*heads*/ 2 * /*places*/ 4 * /*head_dim*/ 4 * 4);
  cache.clear();
  EXPECT_EQ(cache.nbytes(), 0);
  EXPECT_EQ(cache.length(), 0);
}

TEST(KeyValueCache, SaysWhatIsWrong) {
  TransformerDecoder net = decoder(0);
  const at::Tensor positions = torch::arange(2);
  const auto message = [&](const at::Tensor& x, const at::Tensor& own) -> std::string {
    KeyValueCache cache;
    try {
      const torch::NoGradGuard no_gradients;
      {
        const KeyValueCache::Step step(cache, positions);
        net(torch::randn({3, 2, kCacheWidth}), {.positions = positions});
      }
      const KeyValueCache::Step step(cache, positions + 2);
      net(x, {.positions = own});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message(torch::randn({2, 2, kCacheWidth}), positions + 2), ::testing::HasSubstr("got 2 rows, valid: 3"));
  EXPECT_THAT(message(torch::randn({3, 1, kCacheWidth}), torch::tensor({2})), ::testing::HasSubstr("got 1, valid: 2"));
  EXPECT_THAT(message(torch::randn({3, 1, kCacheWidth}), positions + 2),
              ::testing::HasSubstr("positions are [T] or [N, T] of x [N, T, width]; got [2] for [3, 1, 16]"));
  EXPECT_EQ(message(torch::randn({3, 2, kCacheWidth}), positions + 2), "");
  KeyValueCache cache;
  const KeyValueCache::Step step(cache, positions);
  EXPECT_THROW(net(torch::randn({3, 2, kCacheWidth}), {.positions = positions}), Error) << "gradients";
  EXPECT_THROW([&] { const KeyValueCache::Step second(cache, positions); }(), Error);
}

}  // namespace
}  // namespace levin::nn
