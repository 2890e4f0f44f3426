// Kernels of a step of generation against LibTorch's operators, for every set of vector instructions.

#include <levin/core/base/vector_set.h>
#include <levin/core/nn/transformer/token_kernels.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace levin::nn::detail {
namespace {

std::vector<VectorSet> vector_sets() {
  std::vector<VectorSet> sets;
  for (const VectorSet each : {VectorSet::kPortable, VectorSet::kAvx2, VectorSet::kAvx512})
    if (each <= vector_set()) sets.push_back(each);
  return sets;
}

double relative(const at::Tensor& got, const at::Tensor& expected) {
  return ((got - expected).abs().max() / expected.abs().max()).item<double>();
}

TEST(TokenKernels, NormalizeAsRmsNorm) {
  for (const VectorSet vectors : vector_sets())
    for (const int64_t size : {1, 7, 16, 40, 256, 301}) {
      const at::Tensor x = at::randn({3, size}) * 5;
      const at::Tensor weight = at::randn({size});
      at::Tensor y = at::empty_like(x);
      normalize_rows(x.const_data_ptr<float>(), weight.const_data_ptr<float>(), 1, 1e-5, y.mutable_data_ptr<float>(), 3,
                     size, vectors);
      EXPECT_LT(relative(y, at::rms_norm(x, {size}, weight + 1, 1e-5)), 1e-6) << size;
      y.copy_(x);
      normalize_rows(y.const_data_ptr<float>(), nullptr, 0, 1e-5, y.mutable_data_ptr<float>(), 3, size, vectors);
      EXPECT_LT(relative(y, at::rms_norm(x, {size}, {}, 1e-5)), 1e-6) << size;
    }
}

TEST(TokenKernels, RotatePairs) {
  const at::Tensor x = at::randn({2, 1, 3, 10});
  const at::Tensor angles = at::randn({2, 4});
  const at::Tensor first = x.narrow(3, 0, 4);
  const at::Tensor second = x.narrow(3, 4, 4);
  const at::Tensor cosines = angles.cos();
  const at::Tensor sines = angles.sin();
  const at::Tensor c = cosines.view({2, 1, 1, 4});
  const at::Tensor s = sines.view({2, 1, 1, 4});
  const at::Tensor expected = at::cat({first * c - second * s, second * c + first * s, x.narrow(3, 8, 2)}, 3);
  at::Tensor rotated = x.clone();
  rotate_heads(rotated.mutable_data_ptr<float>(), cosines.const_data_ptr<float>(), sines.const_data_ptr<float>(), 2, 4,
               3, 10, 4);
  EXPECT_LT(relative(rotated, expected), 1e-6);
}

TEST(TokenKernels, AttendAsScaledDotProductAttention) {
  for (const VectorSet vectors : vector_sets())
    for (const int64_t head_dim : {4, 20, 64})
      for (const int64_t places : {1, 5, 33, 130})
        for (const bool is_masked : {false, true}) {
          const at::Tensor queries = at::randn({2, 6, 1, head_dim}) * 3;
          // Room for more places than are used, as in a cache.
          const at::Tensor keys = at::randn({2, 3, places + 3, head_dim}).narrow(2, 0, places);
          const at::Tensor values = at::randn({2, 3, places + 3, head_dim}).narrow(2, 0, places);
          at::Tensor mask = at::rand({2, places}) < 0.7;
          mask.select(1, places / 2).fill_(true);
          at::Tensor output = at::empty_like(queries);
          const CachedAttention attention{.queries = queries.const_data_ptr<float>(),
                                          .keys = keys.const_data_ptr<float>(),
                                          .values = values.const_data_ptr<float>(),
                                          .row_stride = keys.stride(0),
                                          .head_stride = keys.stride(1),
                                          .mask = is_masked ? mask.const_data_ptr<bool>() : nullptr,
                                          .output = output.mutable_data_ptr<float>(),
                                          .heads = 6,
                                          .key_value_heads = 3,
                                          .places = places,
                                          .head_dim = head_dim,
                                          .scale = 0.3F};
          std::vector<float> scores(static_cast<size_t>(2 * places));
          for (int64_t index = 0; index < 6; ++index) attend_to_cache(attention, index, scores.data(), vectors);
          const at::Tensor expected = at::scaled_dot_product_attention(
              queries.to(at::kDouble), keys.to(at::kDouble), values.to(at::kDouble),
              is_masked ? std::optional<at::Tensor>(mask.view({2, 1, 1, places})) : std::nullopt, 0.0, false, 0.3,
              /*enable_gqa=*/true);
          EXPECT_LT(relative(output, expected), 2e-6) << head_dim << " " << places << " " << is_masked;
        }
}

TEST(TokenKernels, MultiplyBySilu) {
  for (const VectorSet vectors : vector_sets())
    for (const int64_t count : {1, 8, 37, 512}) {
      at::Tensor gate = at::randn({count}) * 30;
      gate[0] = -200;
      const at::Tensor up = at::randn({count});
      const at::Tensor expected = at::silu(gate) * up;
      multiply_by_silu(gate.const_data_ptr<float>(), up.const_data_ptr<float>(), gate.mutable_data_ptr<float>(), count,
                       vectors);
      EXPECT_LT((gate - expected).abs().max().item<double>(),
                1e-6 * std::max(1.0, expected.abs().max().item<double>()));
    }
}

}  // namespace
}  // namespace levin::nn::detail
