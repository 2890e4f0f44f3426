#include <levin/core/nn/cut_sequence.h>

#include "tests/nn/on_thread_ranks.h"

#include <levin/core/base/error.h>
#include <levin/core/base/thread_generator.h>
#include <levin/core/comm/dimension_cut.h>
#include <levin/core/nn/checkpoint.h>
#include <levin/core/nn/linear_partition.h>
#include <levin/core/nn/weight_behaviour.h>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional/dropout.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

using ::testing::HasSubstr;
using testing::on_thread_ranks;
using testing::ThreadCollective;

constexpr int64_t kCutExamples = 2;
constexpr int64_t kCutPositions = 8;
constexpr int64_t kCutFeatures = 6;

bool are_equal_parts(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.allclose(b, 0, 1e-12);
}

/// What a function of activations and parameters gives, and the gradients of a sum of it.
struct CutOutcome {
  at::Tensor value;
  std::vector<at::Tensor> gradients;
};

using PartFunction = std::function<at::Tensor(const at::Tensor& x, const std::vector<at::Tensor>& parameters)>;

CutOutcome cut_outcome_of(const PartFunction& function, const std::shared_ptr<Collective>& group, const at::Tensor& x,
                          const std::vector<at::Tensor>& parameters, bool* stayed_cut) {
  const ThreadGeneratorScope random_numbers(at::make_generator<at::CPUGeneratorImpl>(5));
  std::vector<at::Tensor> leaves{x.clone().requires_grad_()};
  for (const at::Tensor& parameter : parameters) leaves.push_back(parameter.clone().requires_grad_());
  const std::vector<at::Tensor> own(leaves.begin() + 1, leaves.end());
  const at::Tensor result = function(group == nullptr ? leaves[0] : cut_sequence(leaves[0], group), own);
  if (stayed_cut != nullptr) *stayed_cut = is_cut_sequence(result);
  const at::Tensor value = full_sequence(result);
  (value * at::arange(value.numel(), value.options()).view(value.sizes()).sin()).sum().backward();
  CutOutcome outcome{.value = value.detach(), .gradients = {}};
  for (const at::Tensor& leaf : leaves) outcome.gradients.push_back(leaf.grad());
  return outcome;
}

struct OperatorCase {
  const char* name;
  PartFunction function;
  bool stays_cut = true;
};

std::vector<OperatorCase> operator_cases() {
  using P = std::vector<at::Tensor>;
  const auto last = [](const at::Tensor& x) { return x.size(-1); };
  return {
      {"residual", [](const at::Tensor& x, const P&) { return x + x.sin() * x; }},
      {"in place", [](const at::Tensor& x, const P& p) { return x.sin().add_(p[0]).mul_(2).add_(x); }},
      {"layer_norm", [](const at::Tensor& x, const P& p) { return at::layer_norm(x, {kCutFeatures}, p[0], p[1]); }},
      {"rms_norm", [](const at::Tensor& x, const P& p) { return at::rms_norm(x, {kCutFeatures}, 1 + p[0], 1e-6); }},
      {"rms by hand", [](const at::Tensor& x,
                         const P& p) { return x * (x.square().mean(-1, /*keepdim=*/true) + 1e-6).rsqrt() * p[0]; }},
      {"weight used twice", [](const at::Tensor& x, const P& p) { return (x * p[0]).sin() * p[0] + p[1]; }},
      {"scalar parameter", [](const at::Tensor& x, const P& p) { return x * p[0].sum() + x * p[1][0]; }},
      {"positions", [](const at::Tensor& x, const P& p) { return x + p[3]; }},
      {"all positions of an example", [](const at::Tensor& x, const P& p) { return x * p[3].unsqueeze(0).sin(); }},
      {"mask", [](const at::Tensor& x, const P& p) { return x.masked_fill(p[3].detach().unsqueeze(0) > 0, 0.5); }},
      {"where", [](const at::Tensor& x, const P& p) { return at::where(x > 0, x, p[0]); }},
      {"softmax", [last](const at::Tensor& x, const P&) { return x.softmax(-1) * static_cast<double>(last(x)); }},
      {"linear", [](const at::Tensor& x, const P& p) { return at::linear(x, p[2], p[0]); }},
      {"matmul", [](const at::Tensor& x, const P& p) { return at::matmul(x, p[2]).add_(p[1]); }},
      {"views",
       [](const at::Tensor& x, const P&) {
         return x.unflatten(-1, {2, 3}).transpose(2, 3).flatten(2).slice(-1, 1) * 2;
       }},
      {"view",
       [](const at::Tensor& x, const P&) {
         return x.view({kCutExamples, -1, 3, 2}).sin().reshape({kCutExamples, -1, 6});
       }},
      {"cat",
       [](const at::Tensor& x, const P&) {
         return at::cat({x, x.sin()}, -1);
       }},
      {"chunk",
       [](const at::Tensor& x, const P&) {
         const auto halves = x.chunk(2, -1);
         return halves[0] * halves[1].sigmoid();
       }},
      {"in place on a view",
       [](const at::Tensor& x, const P&) {
         at::Tensor y = x * 1;
         y.slice(-1, 0, 2).mul_(3);
         return y * y;
       }},
      {"dropout", [](const at::Tensor& x, const P&) { return at::dropout(x, 0.4, true) + at::dropout(x, 0.2, true); }},
      {"dropout in place",
       [](const at::Tensor& x, const P&) {
         at::Tensor y = x * 1;
         at::dropout_(y, 0.4, true);
         return y;
       }},
      {"evaluated dropout", [](const at::Tensor& x, const P&) { return at::dropout(x, 0.4, false) * 2; }},
      {"cast", [](const at::Tensor& x, const P&) { return x.to(at::kFloat).to(at::kDouble) + x; }},
      // What needs all positions.
      {"cumsum", [](const at::Tensor& x, const P&) { return x.cumsum(1); }, false},
      {"shift", [](const at::Tensor& x, const P&) { return x.roll(1, 1) + x; }},
      {"mean of positions", [](const at::Tensor& x, const P& p) { return x * x.mean(1, true) + p[0]; }},
      {"loss", [](const at::Tensor& x, const P&) { return x.square().mean(); }, false},
      {"last position", [](const at::Tensor& x, const P&) { return x.select(1, -1); }, false},
      {"rows", [](const at::Tensor& x, const P& p) { return at::addmm(p[0], x.flatten(0, 1), p[2]); }, false},
      {"transposed", [](const at::Tensor& x, const P&) { return x.transpose(0, 1) * 2; }, false},
      {"feature dropout", [](const at::Tensor& x, const P&) { return at::feature_dropout(x, 0.4, true); }, false},
      {"stack",
       [](const at::Tensor& x, const P&) {
         return at::stack({x, x.sin()});
       },
       false},
      {"written into whole",
       [](const at::Tensor& x, const P& p) {
         return p[3].expand({2, 8, 6}).clone().add_(x);
       },
       false},
      {"checkpointed",
       [](const at::Tensor& x, const P& p) {
         return checkpoint(
             [&](const at::Tensor& input) {
               return at::dropout(at::layer_norm(input, {kCutFeatures}, p[0], p[1]), 0.3, true);
             },
             x);
       }},
  };
}

TEST(CutSequence, OperatorsGiveWhatTheyDoOnOneDevice) {
  torch::manual_seed(1);
  const at::Tensor x = at::randn({kCutExamples, kCutPositions, kCutFeatures}, at::kDouble);
  const std::vector<at::Tensor> parameters{
      at::randn({kCutFeatures}, at::kDouble), at::randn({kCutFeatures}, at::kDouble),
      at::randn({kCutFeatures, kCutFeatures}, at::kDouble), at::randn({kCutPositions, kCutFeatures}, at::kDouble)};
  for (const OperatorCase& each : operator_cases()) {
    SCOPED_TRACE(each.name);
    const CutOutcome expected = cut_outcome_of(each.function, nullptr, x, parameters, nullptr);
    for (const int64_t ranks : {2, 4})
      on_thread_ranks(ranks, [&](const std::shared_ptr<Collective>& group) {
        bool stays_cut = false;
        const CutOutcome got = cut_outcome_of(each.function, group, x, parameters, &stays_cut);
        EXPECT_EQ(stays_cut, each.stays_cut) << each.name;
        EXPECT_TRUE(are_equal_parts(got.value, expected.value)) << each.name;
        for (size_t i = 0; i < expected.gradients.size(); ++i) {
          ASSERT_EQ(got.gradients[i].defined(), expected.gradients[i].defined()) << each.name << " " << i;
          if (expected.gradients[i].defined())
            EXPECT_TRUE(are_equal_parts(got.gradients[i], expected.gradients[i])) << each.name << " " << i;
        }
      });
  }
}

/// A block of two layers, of which a rank has a share where there is a group.
struct CutBlock {
  explicit CutBlock(int64_t hidden = 8)
      : up(kCutFeatures, hidden), gate(kCutFeatures, hidden), down(hidden, kCutFeatures) {
    for (auto* layer : {&up, &gate, &down}) (*layer)->to(at::kDouble);
    scale = at::randn({kCutFeatures}, at::kDouble).requires_grad_();
  }
  CutBlock share(const std::shared_ptr<Collective>& group) const {
    CutBlock own(up->weight.size(0) / group->world_size());
    const auto cut = [&](const torch::nn::Linear& from, torch::nn::Linear& to, bool by_row) {
      to->weight.set_data(DimensionCut(group, by_row ? 1 : 0).part_of(from->weight));
      to->bias.set_data(by_row ? from->bias.detach().clone() : DimensionCut(group, 0).part_of(from->bias));
      add_weight_behaviour(to->weight, "weight", by_row ? make_row_behaviour(group) : make_column_behaviour(group));
    };
    cut(up, own.up, false);
    cut(gate, own.gate, false);
    cut(down, own.down, true);
    own.scale = scale.detach().clone().requires_grad_();
    return own;
  }
  at::Tensor operator()(const at::Tensor& x) {
    const SequenceScope unit(x, "block");
    const at::Tensor y = at::layer_norm(x, {kCutFeatures}, scale);
    return x + at::dropout(down(up(y).sin() * gate(y)), 0.25, true);
  }
  std::vector<std::pair<at::Tensor, int>> parameters() const {  // with the dimension that is cut, or -1
    return {{up->weight, 0},   {up->bias, 0},    {gate->weight, 0}, {gate->bias, 0},
            {down->weight, 1}, {down->bias, -1}, {scale, -1}};
  }

  torch::nn::Linear up, gate, down;
  at::Tensor scale;
};

TEST(CutSequence, LayersOfAUnitAreThoseOfOneDevice) {
  torch::manual_seed(2);
  const CutBlock whole;
  const at::Tensor x = at::randn({kCutExamples, kCutPositions, kCutFeatures}, at::kDouble);
  const auto run = [&](CutBlock block, const std::shared_ptr<Collective>& group, bool checkpoints) {
    const ThreadGeneratorScope random_numbers(at::make_generator<at::CPUGeneratorImpl>(5));
    for (const auto& [parameter, cut] : block.parameters()) parameter.mutable_grad() = at::Tensor();
    at::Tensor input = x.clone().requires_grad_();
    at::Tensor y = group == nullptr ? input * 1 : cut_sequence(input, group);
    for (int i = 0; i < 2; ++i)
      y = checkpoints ? checkpoint([&block](const at::Tensor& given) { return block(given); }, y) : block(y);
    y = full_sequence(y);
    y.square().sum().backward();
    std::vector<at::Tensor> results{y.detach(), input.grad()};
    for (const auto& [parameter, cut] : block.parameters()) results.push_back(parameter.grad().clone());
    return results;
  };
  const std::vector<at::Tensor> expected = run(whole, nullptr, false);
  for (const bool checkpoints : {false, true})
    for (const int64_t ranks : {1, 2, 4})
      on_thread_ranks(ranks, [&](const std::shared_ptr<Collective>& group) {
        const CutBlock own = whole.share(group);
        const std::vector<at::Tensor> got = run(own, group, checkpoints);
        EXPECT_TRUE(are_equal_parts(got[0], expected[0]));
        EXPECT_TRUE(are_equal_parts(got[1], expected[1]));
        size_t i = 2;
        for (const auto& [parameter, cut] : own.parameters()) {
          const at::Tensor part = cut < 0 ? expected[i] : DimensionCut(group, cut).part_of(expected[i]);
          EXPECT_TRUE(are_equal_parts(got[i], part)) << i << " of " << ranks << " ranks, checkpointed: " << checkpoints;
          ++i;
        }
      });
}

TEST(CutSequence, AUnitTalksOnceForEachTensorAndOnceForItsNorms) {
  const CutBlock whole;
  on_thread_ranks(2, [&](const std::shared_ptr<Collective>& group) {
    const auto& counted = dynamic_cast<const ThreadCollective&>(*group);
    CutBlock own = whole.share(group);
    const at::Tensor x =
        cut_sequence(at::randn({kCutExamples, kCutPositions, kCutFeatures}, at::kDouble).requires_grad_(), group);
    EXPECT_EQ(counted.calls(), 0);
    const at::Tensor y = own(x);
    EXPECT_EQ(counted.calls(), 2);  // one gather for both column layers, and the scattered sum
    const at::Tensor all = full_sequence(y);
    EXPECT_EQ(counted.calls(), 3);
    all.sum().backward();
    // The gradient of the sum is gathered, the input of the layers is gathered again, its gradient scattered, that of
    // norm and bias added up, and that of x gathered.
    EXPECT_EQ(counted.calls(), 8);
  });
}

TEST(CutSequence, InferenceGivesTheSame) {
  torch::manual_seed(3);
  CutBlock whole;
  const at::Tensor x = at::randn({kCutExamples, kCutPositions, kCutFeatures}, at::kDouble);
  const auto forward = [&](CutBlock& block, const at::Tensor& input) {
    const SequenceScope unit(input, "block");
    return full_sequence(input + block.down(block.up(at::layer_norm(input, {kCutFeatures}, block.scale)).sin()));
  };
  const at::Tensor expected = forward(whole, x).detach();
  on_thread_ranks(2, [&](const std::shared_ptr<Collective>& group) {
    CutBlock own = whole.share(group);
    {
      const at::NoGradGuard no_grad;
      const WeightForwardScope scope;
      EXPECT_TRUE(are_equal_parts(forward(own, cut_sequence(x, group)), expected));
    }
    const c10::InferenceMode inference;
    EXPECT_TRUE(are_equal_parts(forward(own, cut_sequence(x, group)), expected));
  });
}

TEST(CutSequence, TellsChangesOfWhatBackwardNeeds) {
  on_thread_ranks(2, [&](const std::shared_ptr<Collective>& group) {
    at::Tensor x = at::randn({kCutExamples, kCutPositions, kCutFeatures}).requires_grad_();
    at::Tensor y = cut_sequence(x, group).tanh();
    at::Tensor z = y * y;
    y.add_(1);
    EXPECT_THROW(full_sequence(z).sum().backward(), c10::Error);
    group->barrier();
  });
}

TEST(CutSequence, SaysWhatDoesNotFit) {
  const auto message = [&](const std::function<void(const at::Tensor& part)>& use) {
    std::string text = "nothing was thrown";
    try {
      on_thread_ranks(2, [&](const std::shared_ptr<Collective>& group) {
        const at::Tensor x = at::randn({kCutExamples, kCutPositions, kCutFeatures}).requires_grad_();
        use(cut_sequence(x, group));
      });
    } catch (const std::exception& error) {
      text = error.what();
    }
    return text;
  };
  EXPECT_THAT(
      message([](const at::Tensor& x) {
        const SequenceScope unit(x, "net.3");
        x + at::ones({x.size(1), kCutFeatures});
      }),
      HasSubstr("in the unit 'net.3', aten::add computes with 4 of the 8 positions of the sequence, which is cut "
                "over 2 ranks, and with a tensor [4, 6] that was made from the size of this part; valid: sizes "
                "of all positions; hint: levin::full_sequence_length(x) instead of x.size(1)"));
  EXPECT_THAT(message([](const at::Tensor& x) { (x * 1).cumsum_(1); }),
              HasSubstr("aten::cumsum_ writes to activations of which this rank has 4 of 8 positions, and needs all"));
  EXPECT_THAT(message([](const at::Tensor& x) {
                const at::Tensor y = full_sequence(x.sin()).sum();
                torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true);
              }),
              HasSubstr("gradients of gradients do not pass through sequences that are cut over ranks"));
}

TEST(CutSequence, TellsTheLengthOfAll) {
  on_thread_ranks(2, [&](const std::shared_ptr<Collective>& group) {
    const at::Tensor x = at::zeros({kCutExamples, kCutPositions, kCutFeatures});
    const at::Tensor part = cut_sequence(x, group);
    EXPECT_EQ(part.size(1), kCutPositions / 2);
    EXPECT_EQ(full_sequence_length(part), kCutPositions);
    EXPECT_EQ(full_sequence_length(x), kCutPositions);
    EXPECT_TRUE(full_sequence(x).is_same(x));
  });
}

}  // namespace
}  // namespace levin
