// Operators of a block, against LibTorch's: values, gradients, and where LibTorch's are taken.

#include <levin/core/nn/flop_counter.h>
#include <levin/core/nn/transformer/attention.h>
#include <levin/core/nn/transformer/attention_mask.h>
#include <levin/core/nn/transformer/block_kernels.h>
#include <levin/core/nn/transformer/block_operators.h>
#include <levin/core/nn/transformer/document_attention.h>
#include <levin/core/nn/transformer/mlp.h>
#include <levin/core/nn/transformer/rms_norm.h>
#include <levin/core/nn/transformer/rotary_embedding.h>

#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/types.h>

#include <functional>
#include <numeric>
#include <vector>

namespace levin::nn::detail {
namespace {

struct Results {
  at::Tensor value;
  std::vector<at::Tensor> gradients;
};

/// Of inputs that are leaves, with a slope that differs from place to place.
Results run(const std::vector<at::Tensor>& inputs,
            const std::function<at::Tensor(const std::vector<at::Tensor>&)>& compute) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.detach().clone().requires_grad_());
  const at::Tensor value = compute(leaves);
  const at::Tensor slope = torch::linspace(-1, 2, value.numel()).reshape(value.sizes()).to(value.scalar_type());
  return {value.detach(), torch::autograd::grad({value}, leaves, {slope})};
}

void expect_near(const at::Tensor& got, const at::Tensor& expected, const char* what) {
  ASSERT_EQ(got.sizes(), expected.sizes()) << what;
  ASSERT_EQ(got.scalar_type(), expected.scalar_type()) << what;
  const double tolerance = got.scalar_type() == at::kDouble ? 1e-12 : got.scalar_type() == at::kFloat ? 2e-6 : 2e-2;
  const double largest = expected.to(at::kDouble).abs().max().item<double>();
  EXPECT_LE((got.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>(), tolerance * (1 + largest))
      << what;
}

void expect_near(const Results& got, const Results& expected) {
  expect_near(got.value, expected.value, "value");
  ASSERT_EQ(got.gradients.size(), expected.gradients.size());
  for (size_t i = 0; i < got.gradients.size(); ++i)
    expect_near(got.gradients[i], expected.gradients[i], fmt::format("gradient {}", i).c_str());
}

bool is_own(const at::Tensor& value) { return value.grad_fn()->name().find("Function") != std::string::npos; }

TEST(BlockOperators, RmsNormIsLibTorchs) {
  torch::manual_seed(1);
  for (const auto type : {at::kFloat, at::kBFloat16})
    for (const int64_t size : {5, 16, 33, 256})
      for (const int64_t rows : {1, 7, 300})
        for (const bool is_offset : {false, true}) {
          SCOPED_TRACE(fmt::format("size {}, rows {}, offset {}", size, rows, is_offset));
          const at::Tensor x = torch::randn({rows, size}).to(type) * 3;
          const at::Tensor weight = torch::rand({size}).to(type);
          const auto plain = [&](const std::vector<at::Tensor>& in) {
            return at::rms_norm(in[0], {size}, is_offset ? in[1] + 1 : in[1], 1e-5);
          };
          const auto own = [&](const std::vector<at::Tensor>& in) { return rms_norm(in[0], in[1], 1e-5, is_offset); };
          expect_near(run({x, weight}, own), run({x, weight}, plain));
          expect_near(run({x}, [](const auto& in) { return rms_norm(in[0], {}, 1e-6, false); }),
                      run({x}, [&](const auto& in) { return at::rms_norm(in[0], {size}, {}, 1e-6); }));
        }
}

/// Two rows: documents of 5, 1 and 7 tokens and padding behind them; padding, a document of 9, one that begins at 3.
at::Tensor positions_of_documents() {
  return torch::tensor(
      {{0, 1, 2, 3, 4, 0, 0, 1, 2, 3, 4, 5, 6, -1, -1}, {-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 3, 4, 5, 6, 7}});
}

TEST(BlockOperators, DocumentAttentionIsThatOfAMask) {
  torch::manual_seed(1);
  const at::Tensor positions = positions_of_documents();
  for (const auto type : {at::kFloat, at::kBFloat16, at::kDouble})
    for (const int64_t key_heads : {1, 2, 4})
      for (const int64_t window : {0, 3, 40})
        for (const bool by_token : {false, true}) {
          SCOPED_TRACE(fmt::format("{} key heads, window {}, by token {}", key_heads, window, by_token));
          const auto random = [&](int64_t heads) {
            // As a module has them: a view of [N, T, heads, D].
            return by_token ? torch::randn({2, 15, heads, 8}).to(type).transpose(1, 2)
                            : torch::randn({2, heads, 15, 8}).to(type);
          };
          const std::vector<at::Tensor> in{random(4), random(key_heads), random(key_heads)};
          const auto own = [&](const auto& of) {
            EXPECT_TRUE(fits_document_attention(of[0], of[1], of[2], positions));
            return document_attention(of[0], of[1], of[2], positions, window, 0.3);
          };
          const auto masked = [&](const auto& of) {
            return at::scaled_dot_product_attention(
                of[0], of[1], of[2], self_mask(positions, {.causal = true, .sliding_window = window}), 0, false, 0.3,
                /*enable_gqa=*/true);
          };
          expect_near(run(in, own), run(in, masked));
        }
}

TEST(BlockOperators, DocumentAttentionHasSecondDerivatives) {
  torch::manual_seed(1);
  const at::Tensor positions = positions_of_documents();
  const auto second = [&](const auto& attend) {
    torch::manual_seed(2);
    const at::Tensor queries = torch::randn({2, 2, 15, 4}, at::kDouble).requires_grad_();
    const at::Tensor keys = torch::randn({2, 1, 15, 4}, at::kDouble).requires_grad_();
    const at::Tensor values = torch::randn({2, 1, 15, 4}, at::kDouble).requires_grad_();
    const auto first = torch::autograd::grad({attend(queries, keys, values).pow(2).sum()}, {queries, values}, {}, true,
                                             /*create_graph=*/true);
    return torch::autograd::grad({first[0].pow(2).sum() + first[1].pow(2).sum()}, {queries, keys, values});
  };
  const auto own = second([&](const auto& queries, const auto& keys, const auto& values) {
    return document_attention(queries, keys, values, positions, 4, {});
  });
  const auto masked = second([&](const auto& queries, const auto& keys, const auto& values) {
    const at::Tensor reached = self_mask(positions, {.causal = true, .sliding_window = 4});
    const at::Tensor scores = queries.matmul(keys.transpose(2, 3)) / 2;
    return scores.masked_fill(reached.logical_not(), -INFINITY).softmax(-1).matmul(values);
  });
  for (size_t i = 0; i < own.size(); ++i) EXPECT_LT((own[i] - masked[i]).abs().max().item<double>(), 1e-10) << i;
}

TEST(BlockOperators, PackedRowsCostTheirDocuments) {
  torch::manual_seed(1);
  Attention attention(AttentionOptions{.width = 8, .heads = 2, .causal = true});
  const auto flops = [&](const AttentionInputs& inputs) {
    const FlopCounter counter;
    attention(torch::randn({2, 15, 8}), inputs).sum().backward();
    return counter.count().executed;
  };
  const int64_t products = flops({.mask = torch::ones({15, 15}, at::kBool)}) - 2 * 2 * 15 * 15 * 4 * 2 * (2 + 5);
  // Forward two products of the scores' shape, backward five, of 2 heads with 4 features each.
  const int64_t scores = 5 * 5 + 1 + 7 * 7 + 9 * 9 + 5 * 5;
  EXPECT_EQ(flops({.positions = positions_of_documents()}), products + 2 * scores * 4 * 2 * (2 + 5));
}

TEST(BlockOperators, SiluMultiplyIsLibTorchs) {
  torch::manual_seed(1);
  for (const auto type : {at::kFloat, at::kBFloat16})
    for (const int64_t size : {1, 15, 16, 40'001}) {
      const std::vector<at::Tensor> in{torch::randn({size}).to(type) * 8, torch::randn({size}).to(type)};
      expect_near(run(in, [](const auto& of) { return silu_multiply(of[0], of[1]); }),
                  run(in, [](const auto& of) { return at::silu(of[0]) * of[1]; }));
    }
  const auto large = torch::tensor({-200.0F, -90.0F, 90.0F, 200.0F});
  expect_near(run({large, torch::ones({4})}, [](const auto& of) { return silu_multiply(of[0], of[1]); }),
              run({large, torch::ones({4})}, [](const auto& of) { return at::silu(of[0]) * of[1]; }));
}

TEST(BlockOperators, NotANumberStaysOne) {
  const auto nan = torch::full({1, 20}, std::numeric_limits<float>::quiet_NaN());
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = nan.to(type);
    EXPECT_TRUE(rms_norm(x, {}, 1e-5, false).isnan().all().item<bool>());
    EXPECT_TRUE(silu_multiply(x, torch::ones_like(x)).isnan().all().item<bool>());
  }
}

TEST(BlockOperators, RotateIsLibTorchs) {
  torch::manual_seed(1);
  for (const auto type : {at::kFloat, at::kBFloat16})
    for (const int64_t dim : {6, 32})
      for (const bool by_row : {false, true}) {
        SCOPED_TRACE(fmt::format("dim {}, by row {}", dim, by_row));
        // As attention has them: heads of a projection, and positions for each row or for all.
        const at::Tensor x = torch::randn({2, 9, 3 * 34}).to(type);
        RotaryEmbedding rotary(RotaryOptions{.dim = dim});
        const at::Tensor positions = by_row ? torch::stack({torch::arange(9), torch::arange(9) + 4}) : torch::arange(9);
        const auto heads = [](const at::Tensor& from) { return from.unflatten(-1, {3, 34}).transpose(1, 2); };
        const auto plain = [&](const std::vector<at::Tensor>& in) {
          const at::Tensor given = heads(in[0]);
          const at::Tensor frequencies =
              at::pow(10'000.0, torch::arange(0, dim, 2) / static_cast<double>(dim)).reciprocal();
          at::Tensor angles = positions.to(at::kFloat).unsqueeze(-1) * frequencies;
          if (by_row) angles = angles.unsqueeze(1);
          const at::Tensor cosines = angles.cos().to(type);
          const at::Tensor sines = angles.sin().to(type);
          const at::Tensor a = given.narrow(-1, 0, dim / 2);
          const at::Tensor b = given.narrow(-1, dim / 2, dim / 2);
          return at::cat({a * cosines - b * sines, b * cosines + a * sines, given.narrow(-1, dim, 34 - dim)}, -1);
        };
        const auto own = [&](const std::vector<at::Tensor>& in) {
          const at::Tensor rotated = rotary(heads(in[0]), positions);
          EXPECT_TRUE(is_own(rotated));
          return rotated;
        };
        expect_near(run({x}, own), run({x}, plain));
      }
}

TEST(BlockOperators, HaveSecondDerivatives) {
  torch::manual_seed(1);
  const auto second = [](const std::vector<at::Tensor>& inputs,
                         const std::function<at::Tensor(const std::vector<at::Tensor>&)>& compute) {
    std::vector<at::Tensor> leaves;
    for (const at::Tensor& input : inputs) leaves.push_back(input.detach().clone().requires_grad_());
    const auto first = torch::autograd::grad({compute(leaves).square().sum()}, leaves, {}, true, /*create_graph=*/true);
    at::Tensor penalty = torch::zeros({});
    for (const at::Tensor& gradient : first) penalty = penalty + gradient.square().sum();
    return Results{penalty.detach(), torch::autograd::grad({penalty}, leaves)};
  };
  const std::vector<at::Tensor> norm{torch::randn({3, 8}), torch::rand({8})};
  expect_near(second(norm, [](const auto& in) { return rms_norm(in[0], in[1], 1e-5, true); }),
              second(norm, [](const auto& in) { return at::rms_norm(in[0], {8}, in[1] + 1, 1e-5); }));
  const std::vector<at::Tensor> gates{torch::randn({3, 8}), torch::randn({3, 8})};
  expect_near(second(gates, [](const auto& in) { return silu_multiply(in[0], in[1]); }),
              second(gates, [](const auto& in) { return at::silu(in[0]) * in[1]; }));
  const at::Tensor cosines = torch::rand({4, 3});
  const at::Tensor sines = torch::rand({4, 3});
  const std::vector<at::Tensor> heads{torch::randn({2, 3, 4, 6})};
  expect_near(second(heads, [&](const auto& in) { return rotate(in[0], cosines, sines); }),
              second(heads, [&](const auto& in) {
                const at::Tensor a = in[0].narrow(-1, 0, 3);
                const at::Tensor b = in[0].narrow(-1, 3, 3);
                return at::cat({a * cosines - b * sines, b * cosines + a * sines}, -1);
              }));
}

TEST(BlockOperators, AreTheSameForAllVectorsAndThreads) {
  torch::manual_seed(1);
  const at::Tensor x = torch::randn({300, 37});
  const at::Tensor slope = torch::randn({300, 37});
  const at::Tensor weight = torch::rand({37});
  const auto norms = [&](VectorSet vectors) {
    const at::Tensor y = torch::empty_like(x);
    const at::Tensor factors = torch::empty({300});
    const at::Tensor x_slope = torch::empty_like(x);
    const at::Tensor weight_slope = torch::zeros({37});
    normalize_rows_forward(x.const_data_ptr<float>(), weight.const_data_ptr<float>(), 1e-5, y.mutable_data_ptr<float>(),
                           factors.mutable_data_ptr<float>(), 300, 37, vectors);
    normalize_rows_backward(slope.const_data_ptr<float>(), x.const_data_ptr<float>(), weight.const_data_ptr<float>(),
                            factors.const_data_ptr<float>(), x_slope.mutable_data_ptr<float>(),
                            weight_slope.mutable_data_ptr<float>(), 300, 37, vectors);
    return torch::cat({y.flatten(), x_slope.flatten(), weight_slope});
  };
  const at::Tensor portable = norms(VectorSet::kPortable);
  EXPECT_TRUE(torch::equal(norms(vector_set()), portable));
  if (vector_set() >= VectorSet::kAvx2) EXPECT_TRUE(torch::equal(norms(VectorSet::kAvx2), portable));

  const auto by_threads = [&](int threads) {
    const int before = at::get_num_threads();
    at::set_num_threads(threads);
    const Results results =
        run({torch::cat({x, x, x}), weight}, [](const auto& in) { return rms_norm(in[0], in[1], 1e-5, false); });
    at::set_num_threads(before);
    return results;
  };
  const Results one = by_threads(1);
  const Results two = by_threads(2);
  EXPECT_TRUE(torch::equal(one.value, two.value));
  EXPECT_TRUE(torch::equal(one.gradients[1], two.gradients[1]));
}

TEST(BlockOperators, AreTakenWhereTheyFit) {
  RMSNorm norm(RMSNormOptions{.size = 8, .eps = 1e-5});
  const at::Tensor x = torch::randn({2, 3, 8});
  EXPECT_TRUE(is_own(norm(x)));
  EXPECT_FALSE(is_own(norm(x.to(at::kDouble))));
  Mlp mlp(MlpOptions{.width = 8});
  EXPECT_EQ(mlp(x).sizes(), x.sizes());
  // With and without gradients the same kernels run: a recomputation gives the same bits.
  const at::Tensor with = mlp(norm(x));
  const at::NoGradGuard no_gradients;
  EXPECT_TRUE(torch::equal(mlp(norm(x)), with));
}

TEST(BlockOperators, TakeTheTypesOfAutocast) {
  RMSNorm norm(RMSNormOptions{.size = 8, .eps = 1e-5});
  at::autocast::set_autocast_enabled(at::kCPU, true);
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = torch::randn({2, 8}).to(type);
    EXPECT_EQ(norm(x).scalar_type(), at::rms_norm(x, {8}, norm->weight, 1e-5).scalar_type()) << type;
  }
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
}

}  // namespace
}  // namespace levin::nn::detail
