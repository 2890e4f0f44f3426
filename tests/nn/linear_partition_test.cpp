#include <levin/core/nn/linear_partition.h>

#include "tests/nn/on_thread_ranks.h"

#include <levin/core/base/error.h>
#include <levin/core/base/weight_cast_scope.h>
#include <levin/core/comm/dimension_cut.h>
#include <levin/core/nn/checkpoint.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/linear.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

using testing::on_thread_ranks;
using testing::ThreadCollective;

/// Two layers, of which a rank has a share.
struct Shares {
  torch::nn::Linear up;
  torch::nn::Linear down;
};

struct WholeLayers {
  explicit WholeLayers(at::ScalarType type, int64_t width = 6, int64_t hidden = 8)
      : up(width, hidden), down(hidden, width) {
    up->to(type);
    down->to(type);
  }
  /// Those of a rank: `up` by column, `down` by row.
  Shares shares(const std::shared_ptr<Collective>& group) const {
    const DimensionCut rows(group, 0);
    const DimensionCut columns(group, 1);
    const int64_t hidden = up->weight.size(0) / group->world_size();
    Shares shares{torch::nn::Linear(up->weight.size(1), hidden), torch::nn::Linear(hidden, up->weight.size(1))};
    shares.up->weight.set_data(rows.part_of(up->weight));
    shares.up->bias.set_data(rows.part_of(up->bias));
    shares.down->weight.set_data(columns.part_of(down->weight));
    shares.down->bias.set_data(down->bias.detach().clone());
    add_weight_behaviour(shares.up->weight, "up.weight", make_column_behaviour(group));
    add_weight_behaviour(shares.down->weight, "down.weight", make_row_behaviour(group));
    return shares;
  }

  torch::nn::Linear up;
  torch::nn::Linear down;
};

at::Tensor by_modules(torch::nn::Linear& up, torch::nn::Linear& down, const at::Tensor& x) { return down(up(x).sin()); }
at::Tensor by_functions(torch::nn::Linear& up, torch::nn::Linear& down, const at::Tensor& x) {
  return at::linear(at::linear(x, up->weight, up->bias).sin(), down->weight, down->bias);
}
at::Tensor checkpointed(torch::nn::Linear& up, torch::nn::Linear& down, const at::Tensor& x) {
  return checkpoint([&](const at::Tensor& input) { return by_modules(up, down, input); }, x);
}

TEST(LinearPartition, ColumnAndRowAreTheWholeLayers) {
  torch::manual_seed(1);
  const WholeLayers whole(at::kDouble);
  using Forward = std::function<at::Tensor(torch::nn::Linear&, torch::nn::Linear&, const at::Tensor&)>;
  for (const Forward& forward : {Forward(by_modules), Forward(by_functions), Forward(checkpointed)})
    for (const at::Tensor& input : {at::randn({3, 6}, at::kDouble), at::randn({2, 3, 6}, at::kDouble)}) {
      auto up = whole.up;
      auto down = whole.down;
      up->zero_grad();
      down->zero_grad();
      at::Tensor x = input.clone().requires_grad_();
      const at::Tensor y = forward(up, down, x);
      y.square().sum().backward();
      for (const int64_t ranks : {1, 2, 4})
        on_thread_ranks(ranks, [&](const std::shared_ptr<Collective>& group) {
          Shares shares = whole.shares(group);
          at::Tensor own_x = input.clone().requires_grad_();
          const at::Tensor own_y = forward(shares.up, shares.down, own_x);
          own_y.square().sum().backward();
          const auto near = [](const at::Tensor& a, const at::Tensor& b) { return a.allclose(b, 0, 1e-12); };
          EXPECT_TRUE(near(own_y.detach(), y.detach()));
          EXPECT_TRUE(near(own_x.grad(), x.grad()));
          const DimensionCut rows(group, 0);
          const DimensionCut columns(group, 1);
          EXPECT_TRUE(near(shares.up->weight.grad(), rows.part_of(up->weight.grad())));
          EXPECT_TRUE(near(shares.up->bias.grad(), rows.part_of(up->bias.grad())));
          EXPECT_TRUE(near(shares.down->weight.grad(), columns.part_of(down->weight.grad())));
          EXPECT_TRUE(near(shares.down->bias.grad(), down->bias.grad()));
          const c10::InferenceMode inference;
          EXPECT_TRUE(near(forward(shares.up, shares.down, input), y.detach()));
        });
    }
}

TEST(LinearPartition, TalksOnceInEachDirection) {
  const WholeLayers whole(at::kFloat);
  on_thread_ranks(2, [&](const std::shared_ptr<Collective>& group) {
    const auto& counted = dynamic_cast<const ThreadCollective&>(*group);
    Shares shares = whole.shares(group);
    const at::Tensor x = at::randn({3, 6}).requires_grad_();
    const at::Tensor y = by_modules(shares.up, shares.down, x);
    EXPECT_EQ(counted.calls(), 1);  // the sum of what the row layers give
    y.sum().backward();
    EXPECT_EQ(counted.calls(), 2);  // and of the gradients of the input
    by_modules(shares.up, shares.down, x.detach()).sum().backward();
    EXPECT_EQ(counted.calls(), 3);  // which has none here
  });
}

TEST(LinearPartition, IsAsNearUnderAutocastAsTheWholeLayers) {
  torch::manual_seed(1);
  const WholeLayers whole(at::kFloat, 32, 64);
  const at::Tensor x = at::randn({8, 32});
  auto up = whole.up;
  auto down = whole.down;
  const at::Tensor truth = by_modules(up, down, x).detach();
  on_thread_ranks(2, [&](const std::shared_ptr<Collective>& group) {
    Shares shares = whole.shares(group);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::Tensor y;
    {
      const WeightCastScope casts;
      y = by_modules(shares.up, shares.down, x);
    }
    at::autocast::set_autocast_enabled(at::kCPU, false);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    EXPECT_LT((y.detach().to(at::kFloat) - truth).norm().item<double>(), 0.02 * truth.norm().item<double>());
    y.to(at::kFloat).sum().backward();
    EXPECT_EQ(shares.up->weight.grad().scalar_type(), at::kFloat);
  });
}

TEST(LinearPartition, SaysWhatDoesNotFit) {
  const WholeLayers whole(at::kFloat);
  const auto message = [&](const std::function<void(Shares&)>& use) {
    std::string text = "nothing was thrown";
    try {
      on_thread_ranks(2, [&](const std::shared_ptr<Collective>& group) {
        Shares shares = whole.shares(group);
        use(shares);
      });
    } catch (const std::exception& error) {
      text = error.what();
    }
    return text;
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(message([](Shares& shares) {
                shares.down(at::randn({3, 8}));
              }),
              HasSubstr("the weight 'down.weight' is cut by row over 2 ranks, and its input has 8 features; valid: 4"));
  EXPECT_THAT(message([](Shares& shares) { at::embedding(shares.up->weight, at::tensor({0})); }),
              HasSubstr("the weight 'up.weight' is cut by column over 2 ranks, and aten::embedding"));
  EXPECT_THAT(message([](Shares& shares) { (2 * shares.down->weight).sum(); }), HasSubstr("aten::mul"));
  EXPECT_THAT(message([](Shares& shares) {
                const at::Tensor x = at::randn({3, 6}).requires_grad_();
                const at::Tensor y = by_modules(shares.up, shares.down, x).sum();
                torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true);
              }),
              HasSubstr("gradients of gradients do not pass through layers that are cut"));
}

}  // namespace
}  // namespace levin
