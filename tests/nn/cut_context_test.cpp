#include <levin/core/nn/cut_context.h>
#include <levin/core/nn/uneven_targets.h>

#include "tests/nn/on_thread_ranks.h"

#include <levin/core/base/error.h>
#include <levin/core/base/local_values.h>
#include <levin/core/base/thread_generator.h>
#include <levin/core/devices/accounting_allocator.h>
#include <levin/core/nn/checkpoint.h>
#include <levin/core/nn/cut_sequence.h>
#include <levin/core/nn/transformer/attention.h>
#include <levin/core/nn/transformer/transformer_stack.h>
#include <levin/core/nn/weight_behaviour.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional/loss.h>

#include <algorithm>
#include <atomic>
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

constexpr int64_t kContextExamples = 2;
constexpr int64_t kContextPositions = 16;
constexpr int64_t kContextFeatures = 12;
constexpr int64_t kContextHeads = 4;

/// What a function of activations [2, 16, 12] and parameters gives, and the gradients of a sum of it, added up over the
/// ranks as a strategy does.
struct ContextOutcome {
  at::Tensor value;
  std::vector<at::Tensor> gradients;
};

using ContextFunction = std::function<at::Tensor(const at::Tensor& x, const std::vector<at::Tensor>& parameters)>;

std::vector<at::Tensor> context_parameters() {
  const at::Tensor numbers = at::arange(10 * kContextPositions * kContextFeatures, at::kDouble).sin();
  return {numbers.narrow(0, 0, 12), numbers.narrow(0, 12, 12), numbers.narrow(0, 30, 144).view({12, 12}) / 3,
          numbers.narrow(0, 200, 192).view({16, 12}), numbers.narrow(0, 500, 432).view({36, 12}) / 2};
}

at::Tensor context_input() {
  return at::arange(kContextExamples * kContextPositions * kContextFeatures, at::kDouble)
      .cos()
      .view({kContextExamples, kContextPositions, kContextFeatures});
}

ContextOutcome context_outcome(const ContextFunction& function, const std::shared_ptr<Collective>& group,
                               ContextMethod method = ContextMethod::kAllToAll) {
  const ThreadGeneratorScope random_numbers(at::make_generator<at::CPUGeneratorImpl>(5));
  std::vector<at::Tensor> leaves{context_input().requires_grad_()};
  for (const at::Tensor& parameter : context_parameters()) leaves.push_back(parameter.clone().requires_grad_());
  const std::vector<at::Tensor> own(leaves.begin() + 1, leaves.end());
  at::Tensor result = function(group == nullptr ? leaves[0] : cut_context(leaves[0], 1, group, method), own);
  // Weights by the place among all positions.
  at::Tensor value = full_sequence(result).detach();
  const at::Tensor weights = at::arange(value.numel(), value.options()).view(value.sizes()).sin();
  at::Tensor sum = (result * weights).sum();
  if (group != nullptr && !is_context_part(result)) sum = sum / group->world_size();
  sum.backward();
  ContextOutcome outcome{.value = value, .gradients = {}};
  for (const at::Tensor& leaf : leaves) {
    at::Tensor gradient = leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf);
    if (group != nullptr) group->all_reduce(gradient, ReduceOp::kSum)->wait();
    outcome.gradients.push_back(gradient);
  }
  return outcome;
}

struct ContextCase {
  const char* name;
  ContextFunction function;
};

at::Tensor context_heads(const at::Tensor& x) { return x.unflatten(2, {kContextHeads, -1}).transpose(1, 2); }
at::Tensor from_context_heads(const at::Tensor& x) { return x.transpose(1, 2).flatten(2); }

std::vector<ContextCase> context_cases() {
  using P = std::vector<at::Tensor>;
  return {
      {"residual", [](const at::Tensor& x, const P&) { return x + x.sin() * x; }},
      {"in place", [](const at::Tensor& x, const P& p) { return x.sin().add_(p[0]).mul_(2).add_(x); }},
      {"layer_norm", [](const at::Tensor& x, const P& p) { return at::layer_norm(x, {12}, p[0], p[1]); }},
      {"rms_norm", [](const at::Tensor& x, const P& p) { return at::rms_norm(x, {12}, 1 + p[0], 1e-6); }},
      {"rms by hand", [](const at::Tensor& x,
                         const P& p) { return x * (x.square().mean(-1, /*keepdim=*/true) + 1e-6).rsqrt() * p[0]; }},
      {"mean of features", [](const at::Tensor& x, const P&) { return x.mean(-1) * x.sum(2); }},
      {"mean of examples", [](const at::Tensor& x, const P&) { return x.mean(0) * 2; }},
      {"largest of features", [](const at::Tensor& x, const P&) { return std::get<0>(x.max(-1)); }},
      {"scalar parameter", [](const at::Tensor& x, const P& p) { return x * p[0].sum() + x * p[1][0]; }},
      {"positions", [](const at::Tensor& x, const P& p) { return x + p[3]; }},
      {"positions of an example", [](const at::Tensor& x, const P& p) { return x * p[3].unsqueeze(0).sin(); }},
      {"where", [](const at::Tensor& x, const P& p) { return at::where(x > 0, x, p[0]); }},
      {"softmax", [](const at::Tensor& x, const P&) { return x.softmax(-1) * 12; }},
      {"linear", [](const at::Tensor& x, const P& p) { return at::linear(x, p[2], p[0]); }},
      {"matmul", [](const at::Tensor& x, const P& p) { return at::matmul(x, p[2]).add_(p[1]); }},
      {"rows", [](const at::Tensor& x, const P& p) { return at::addmm(p[0], x.flatten(0, 1), p[2]); }},
      {"rows and back",
       [](const at::Tensor& x, const P& p) {
         return at::linear(x.flatten(0, 1), p[2]).view({2, -1, 12}) + x;
       }},
      {"positions of rows",
       [](const at::Tensor& x, const P& p) {
         return x.flatten(0, 1) * p[3].expand({2, 16, 12}).reshape({32, 12});
       }},
      {"views",
       [](const at::Tensor& x, const P&) {
         return x.unflatten(-1, {2, 6}).transpose(2, 3).flatten(2).slice(-1, 1) * 2;
       }},
      {"positions first", [](const at::Tensor& x, const P& p) { return at::linear(x.transpose(0, 1), p[2]).sin(); }},
      {"copied", [](const at::Tensor& x, const P&) { return x.transpose(1, 2).contiguous().sin(); }},
      {"transposed and flattened",
       [](const at::Tensor& x, const P&) {
         return x.transpose(0, 1).reshape({-1, 12}).sin();
       }},
      {"inner positions", [](const at::Tensor& x, const P&) { return x.flatten(1).sin(); }},
      {"chunk",
       [](const at::Tensor& x, const P&) {
         const auto halves = x.chunk(2, -1);
         return halves[0] * halves[1].sigmoid();
       }},
      {"an example", [](const at::Tensor& x, const P&) { return x[1] * 2; }},
      {"cat",
       [](const at::Tensor& x, const P& p) {
         return at::cat({x, p[3].expand({2, 16, 12})}, -1);
       }},
      {"stack",
       [](const at::Tensor& x, const P&) {
         return at::stack({x, x.sin()});
       }},
      {"in place on a view",
       [](const at::Tensor& x, const P&) {
         at::Tensor y = x * 1;
         y.slice(-1, 0, 2).mul_(3);
         return y * y;
       }},
      {"dropout", [](const at::Tensor& x, const P&) { return at::dropout(x, 0.4, true) + at::dropout(x, 0.2, true); }},
      {"dropout of rows", [](const at::Tensor& x, const P&) { return at::dropout(x.flatten(0, 1), 0.4, true); }},
      {"dropout in place",
       [](const at::Tensor& x, const P&) {
         at::Tensor y = x * 1;
         at::dropout_(y, 0.4, true);
         return y;
       }},
      {"cast", [](const at::Tensor& x, const P&) { return x.to(at::kFloat).to(at::kDouble) + x; }},
      {"pooled", [](const at::Tensor& x,
                    const P& p) { return at::linear(full_sequence(at::linear(x, p[2]).sin()).mean(1), p[2]); }},
      {"attention",
       [](const at::Tensor& x, const P& p) {
         const auto qkv = at::linear(x, p[4]).unflatten(2, {3, kContextHeads, -1}).permute({2, 0, 3, 1, 4}).unbind();
         return from_context_heads(at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0, /*is_causal=*/true));
       }},
      {"grouped attention",
       [](const at::Tensor& x, const P& p) {
         const at::Tensor keys = at::linear(x, p[4]).flatten(2).slice(2, 0, 12).unflatten(2, {4, 3}).transpose(1, 2);
         const at::Tensor queries = at::linear(x, p[4]).slice(2, 0, 24).unflatten(2, {8, 3}).transpose(1, 2);
         return from_context_heads(at::scaled_dot_product_attention(queries, keys, keys, {}, 0, true, 0.3, true));
       }},
      {"masked attention",
       [](const at::Tensor& x, const P& p) {
         const at::Tensor h = context_heads(x);
         const at::Tensor mask = at::matmul(p[3], p[3].t());  // learned, of all positions
         return from_context_heads(at::scaled_dot_product_attention(h, h, h, mask));
       }},
      {"mask of heads",
       [](const at::Tensor& x, const P& p) {
         const at::Tensor h = context_heads(x);
         const at::Tensor mask = at::matmul(p[3], p[3].t()) * p[0].slice(0, 0, 4).view({1, 4, 1, 1});
         return from_context_heads(at::scaled_dot_product_attention(h, h, h, mask));
       }},
      {"mask of padding",
       [](const at::Tensor& x, const P&) {
         const at::Tensor h = context_heads(x);
         const at::Tensor mask = (x.select(2, 0) > -0.5).unsqueeze(1).unsqueeze(1);  // of the keys here
         return from_context_heads(at::scaled_dot_product_attention(h, h, h, mask));
       }},
      {"attention with dropout",
       [](const at::Tensor& x, const P&) {
         const at::Tensor h = context_heads(x);
         return from_context_heads(at::scaled_dot_product_attention(h, h, h, {}, 0.3, true)) +
                at::dropout(x, 0.3, true);
       }},
      {"masked attention with dropout",
       [](const at::Tensor& x, const P&) {
         const at::Tensor h = context_heads(x);
         const at::Tensor mask = at::ones({16, 16}, at::kBool).tril().triu(-4);
         return from_context_heads(at::scaled_dot_product_attention(h, h, h, mask, 0.3));
       }},
      {"attention to a memory",
       [](const at::Tensor& x, const P& p) {
         const at::Tensor memory = context_heads(p[3].slice(0, 0, 10).expand({2, 10, 12}));
         const at::Tensor mask = at::ones({16, 10}, at::kBool).tril(3);
         return from_context_heads(at::scaled_dot_product_attention(context_heads(x), memory, memory, mask));
       }},
      {"checkpointed",
       [](const at::Tensor& x, const P& p) {
         return checkpoint(
             [=](const at::Tensor& y) {
               const at::Tensor h = context_heads(at::linear(y, p[2]));
               return at::dropout(from_context_heads(at::scaled_dot_product_attention(h, h, h)), 0.2, true);
             },
             x);
       }},
  };
}

void expect_outcomes_of_one_device(const ContextCase& item, ContextMethod method) {
  SCOPED_TRACE(item.name);
  const ContextOutcome expected = context_outcome(item.function, nullptr);
  for (const int64_t ranks : {2, 4})
    on_thread_ranks(ranks, [&](const std::shared_ptr<Collective>& group) {
      SCOPED_TRACE(item.name);
      ContextOutcome got;
      try {
        got = context_outcome(item.function, group, method);
      } catch (const std::exception& error) {
        ADD_FAILURE() << item.name << ": " << error.what();
        throw;
      }
      EXPECT_TRUE(got.value.sizes() == expected.value.sizes() && got.value.allclose(expected.value, 0, 1e-12));
      for (size_t i = 0; i < expected.gradients.size(); ++i)
        EXPECT_TRUE(got.gradients[i].allclose(expected.gradients[i], 0, 1e-12)) << i;
    });
}

TEST(CutContext, OperatorsGiveWhatOneDeviceGives) {
  for (const ContextCase& item : context_cases()) expect_outcomes_of_one_device(item, ContextMethod::kAllToAll);
}

bool ring_lacks(const std::string& name) {
  return name == "masked attention" || name == "mask of heads" ||  // learned
         name == "attention with dropout" || name == "masked attention with dropout";
}

TEST(CutContext, OperatorsInARingGiveWhatOneDeviceGives) {
  for (const ContextCase& item : context_cases())
    if (!ring_lacks(item.name)) expect_outcomes_of_one_device(item, ContextMethod::kRing);
  using P = std::vector<at::Tensor>;
  const std::vector<ContextCase> attention{
      {"of all keys",
       [](const at::Tensor& x, const P&) {
         const at::Tensor h = context_heads(x);
         return from_context_heads(at::scaled_dot_product_attention(h, h * 2, h.sin()));
       }},
      {"of one head of keys",
       [](const at::Tensor& x, const P& p) {
         const at::Tensor k = at::linear(x, p[2]).slice(2, 0, 3).unsqueeze(1);
         const at::Tensor h = context_heads(x);
         return from_context_heads(at::scaled_dot_product_attention(h, k, k.sin(), {}, 0, true, {}, true));
       }},
      {"of three heads",
       [](const at::Tensor& x, const P&) {
         const at::Tensor h = x.unflatten(2, {3, 4}).transpose(1, 2);
         return from_context_heads(at::scaled_dot_product_attention(h, h, h.sin(), {}, 0, true));
       }},
      {"with other features of values",
       [](const at::Tensor& x, const P&) {
         const at::Tensor h = context_heads(x);
         return from_context_heads(at::scaled_dot_product_attention(h, h, at::cat({h, h.sin()}, -1), {}, 0, true, 0.4));
       }},
      {"with other features and a mask",
       [](const at::Tensor& x, const P&) {
         const at::Tensor h = context_heads(x);
         const at::Tensor mask = at::ones({16, 16}, at::kBool).tril(3).triu(-2);
         return from_context_heads(at::scaled_dot_product_attention(h, h, at::cat({h, h.sin()}, -1), mask));
       }},
      {"in a window",
       [](const at::Tensor& x, const P&) {
         const at::Tensor h = context_heads(x);
         const at::Tensor mask = at::ones({16, 16}, at::kBool).tril().triu(-2);
         return from_context_heads(at::scaled_dot_product_attention(h, h, h.sin(), mask));
       }},
      {"with a slope for each head",
       [](const at::Tensor& x, const P&) {
         const at::Tensor h = context_heads(x);
         const at::Tensor places = at::arange(16, at::kDouble);
         const at::Tensor mask =
             (places.unsqueeze(0) - places.unsqueeze(1)) * at::arange(1, 5, at::kDouble).view({4, 1, 1}) * 0.1;
         return from_context_heads(at::scaled_dot_product_attention(h, h, h, mask));
       }},
      {"of queries that see nothing",
       [](const at::Tensor& x, const P&) {
         const at::Tensor h = context_heads(x);
         at::Tensor mask = at::ones({16, 16}, at::kBool).tril().triu(-2);
         mask[5].fill_(false);
         mask[14].fill_(false);
         return from_context_heads(at::scaled_dot_product_attention(h, h, h, mask));
       }},
      {"twice",
       [](const at::Tensor& x, const P&) {
         const at::Tensor h = context_heads(x);
         const at::Tensor once = at::scaled_dot_product_attention(h, h, h, {}, 0, true);
         return from_context_heads(at::scaled_dot_product_attention(once, h, once, {}, 0, true));
       }},
  };
  for (const ContextCase& item : attention) expect_outcomes_of_one_device(item, ContextMethod::kRing);
}

TEST(CutContext, RanksOfARingHaveAnEarlyAndALateChunk) {
  const at::Tensor all = at::arange(16, at::kLong).view({1, 16});
  on_thread_ranks(4, [&](const std::shared_ptr<Collective>& group) {
    const at::Tensor part = cut_context(all, 1, group, ContextMethod::kRing);
    const int64_t late = 14 - 2 * group->rank();
    EXPECT_TRUE(
        local_part(part).equal(at::tensor({2 * group->rank(), 2 * group->rank() + 1, late, late + 1}).view({1, 4})));
    EXPECT_TRUE(full_sequence(part).equal(all));
  });
}

TEST(CutContext, RingsSayWhatTheyLack) {
  const at::Tensor x = context_input();
  const auto refusal = [&](const std::function<void(const at::Tensor&)>& attention) -> std::string {
    try {
      on_thread_ranks(2, [&](const std::shared_ptr<Collective>& group) {
        attention(context_heads(cut_context(x, 1, group, ContextMethod::kRing)));
      });
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_THAT(refusal([](const at::Tensor& h) { at::scaled_dot_product_attention(h, h, h, {}, 0.5); }),
              HasSubstr("attention in a ring has no dropout_p, whose mask no rank has; hint: "
                        "strategy.context.method: all_to_all, or dropout behind attention"));
  EXPECT_THAT(refusal([](const at::Tensor& h) {
                at::scaled_dot_product_attention(h, h, h, at::zeros({16, 16}, at::kDouble).requires_grad_());
              }),
              HasSubstr("attention in a ring gives its mask no gradient"));
  EXPECT_THAT(refusal([](const at::Tensor& h) {
                at::scaled_dot_product_attention(h, h, h, at::ones({16, 16}, at::kBool), 0, true);
              }),
              HasSubstr("attention is given a mask and is_causal; valid: one of them"));
}

TEST(CutContext, RingsCastAsAutocastDoes) {
  const at::Tensor x = context_input().to(at::kFloat);
  const auto attend = [](const at::Tensor& h) { return at::scaled_dot_product_attention(h, h, h, {}, 0, true); };
  const at::Tensor expected = attend(context_heads(x));
  on_thread_ranks(2, [&](const std::shared_ptr<Collective>& group) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    const at::Tensor part = cut_context(x, 1, group, ContextMethod::kRing).requires_grad_();
    const at::Tensor output = attend(context_heads(part));
    at::autocast::set_autocast_enabled(at::kCPU, false);
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(
        full_sequence(from_context_heads(output)).to(at::kFloat).allclose(from_context_heads(expected), 0, 0.02));
    output.sum().backward();
    EXPECT_EQ(part.grad().scalar_type(), at::kFloat);
  });
}

/// What a function of a part of activations says on the first rank.
std::string context_refusal(const ContextFunction& function) {
  try {
    on_thread_ranks(2, [&](const std::shared_ptr<Collective>& group) { context_outcome(function, group); });
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(CutContext, WhatMixesPositionsIsRefusedByName) {
  using P = std::vector<at::Tensor>;
  const std::vector<std::pair<const char*, ContextFunction>> mixing{
      {"aten::cumsum", [](const at::Tensor& x, const P&) { return x.cumsum(1); }},
      {"aten::roll", [](const at::Tensor& x, const P&) { return x.roll(1, 1); }},
      {"aten::mean", [](const at::Tensor& x, const P&) { return x * x.mean(1, /*keepdim=*/true); }},
      {"aten::sum", [](const at::Tensor& x, const P&) { return x.flatten(0, 1).sum(0); }},
      // Of one example, or one feature, the result has one element, and is no loss for that.
      {"aten::mean", [](const at::Tensor& x, const P&) { return x.select(2, 0).slice(0, 0, 1).mean(1); }},
      {"aten::sum", [](const at::Tensor& x, const P&) { return x.slice(2, 0, 1).flatten(0, 1).sum(0); }},
      {"aten::mean", [](const at::Tensor& x, const P&) { return x.select(0, 0).select(1, 0).mean(0); }},
      {"aten::where", [](const at::Tensor& x, const P&) { return at::where(x.select(2, 0).flatten() > -9)[0]; }},
      {"aten::one_hot", [](const at::Tensor& x, const P&) { return at::one_hot(x.abs().ceil().to(at::kLong)); }},
      {"aten::view_as_complex",
       [](const at::Tensor& x, const P&) {
         return at::view_as_complex(x.unflatten(2, {6, 2}));
       }},
      {"aten::select", [](const at::Tensor& x, const P&) { return x.select(1, -1); }},
      {"aten::slice", [](const at::Tensor& x, const P&) { return x.slice(1, 1); }},
      {"aten::slice", [](const at::Tensor& x, const P&) { return x.slice(1, 0, 4); }},
      {"aten::unfold", [](const at::Tensor& x, const P&) { return x.unfold(1, 8, 1); }},
      {"aten::softmax", [](const at::Tensor& x, const P&) { return x.softmax(1); }},
      {"aten::matmul", [](const at::Tensor& x, const P&) { return at::matmul(x, x.transpose(1, 2)); }},
      {"aten::bmm", [](const at::Tensor& x, const P&) { return at::bmm(x, x.transpose(1, 2)); }},
      {"aten::einsum",
       [](const at::Tensor& x, const P& p) {
         return at::einsum("ntc,cd->ntd", {x, p[2]});
       }},
      {"aten::sub", [](const at::Tensor& x, const P&) { return x.unsqueeze(1) - x.unsqueeze(2); }},
      {"aten::conv1d",
       [](const at::Tensor& x, const P& p) { return at::conv1d(x.transpose(1, 2), p[2].unsqueeze(2)); }},
      {"aten::index", [](const at::Tensor& x, const P&) { return x.index({x > 0}); }},
      {"aten::layer_norm",
       [](const at::Tensor& x, const P&) {
         return at::layer_norm(x, {8, 12});
       }},
      {"aten::native_dropout",
       [](const at::Tensor& x, const P&) { return std::get<0>(at::native_dropout(x, 0.5, true)); }},
      {"aten::add_",
       [](const at::Tensor& x, const P& p) {
         return p[3].expand({2, 16, 12}).clone().add_(x);
       }},
  };
  for (const auto& [name, function] : mixing) {
    SCOPED_TRACE(name);
    EXPECT_THAT(context_refusal(function), HasSubstr(std::string(name) + " would mix the 16 positions of a sequence of "
                                                                         "which this rank has 8; valid:"));
  }
  EXPECT_THAT(context_refusal([](const at::Tensor& x, const P& p) { return x + p[3].slice(0, 0, x.size(1)); }),
              HasSubstr("aten::add computes with 8 of the 16 positions of a sequence, which is cut over 2 ranks, and "
                        "with a tensor [8, 12] that was made from the size of this part"));
  EXPECT_THAT(context_refusal([](const at::Tensor& x, const P&) {
                const at::Tensor h = context_heads(x);
                return from_context_heads(at::scaled_dot_product_attention(h, h, h, at::ones({8, 8}, at::kDouble)));
              }),
              HasSubstr("the mask of attention is [8, 8]; valid over 2 ranks: one of all 16 queries and 16 keys"));
  EXPECT_THAT(
      context_refusal([](const at::Tensor& x, const P&) {
        const at::Tensor h = x.unflatten(2, {3, 4}).transpose(1, 2);
        return from_context_heads(at::scaled_dot_product_attention(h, h, h));
      }),
      HasSubstr("attention with 3 heads cannot be divided over 2 ranks; valid: a multiple of 2 (the next is 4)"));
}

TEST(CutContext, GivesOrdinaryTensorsWhereAsked) {
  on_thread_ranks(2, [](const std::shared_ptr<Collective>& group) {
    const at::Tensor x = cut_context(context_input(), 1, group);
    EXPECT_EQ(full_sequence_length(x), kContextPositions);
    EXPECT_TRUE(is_context_part(x.transpose(1, 2)));
    EXPECT_FALSE(is_context_part(local_part(x)));
    EXPECT_TRUE(local_part(x).cumsum(1).equal(context_input().narrow(1, 8 * group->rank(), 8).cumsum(1)));
    const LocalValuesScope as_in_a_metric;
    EXPECT_FALSE(is_context_part(x.cumsum(1)));
  });
}

TEST(CutContext, LossesAreThoseOfTheRanksPositions) {
  const at::Tensor scores = context_input();
  at::Tensor targets = at::arange(32, at::kLong).remainder(12).view({2, 16}).clone();
  targets.slice(1, 10).fill_(-100);
  targets[1].fill_(-100);
  namespace F = torch::nn::functional;
  const auto sum_of = [&](const at::Tensor& s, const at::Tensor& t) {
    return F::cross_entropy(s.flatten(0, 1), t.flatten(), F::CrossEntropyFuncOptions().reduction(torch::kSum));
  };
  for (const bool are_cut : {true, false})
    on_thread_ranks(4, [&](const std::shared_ptr<Collective>& group) {
      const at::Tensor s = cut_context(scores, 1, group);
      const at::Tensor t = are_cut ? cut_context(targets, 1, group) : targets;  // full ones are cut
      at::Tensor sum = sum_of(s, t);
      const at::Tensor mean = F::cross_entropy(s.transpose(1, 2), t);
      at::Tensor each = at::cross_entropy_loss(s.transpose(1, 2), t, {}, at::Reduction::None);
      EXPECT_EQ(each.sizes(), (std::vector<int64_t>{2, 4}));
      EXPECT_TRUE(is_context_part(each));
      const double count = std::max<double>(0, std::min<double>(4, 10 - 4.0 * static_cast<double>(group->rank())));
      EXPECT_NEAR(mean.item<double>() * count, sum.item<double>(), 1e-12);  // 0 where nothing counts
      group->all_reduce(sum, ReduceOp::kSum)->wait();
      EXPECT_NEAR(sum.item<double>(), sum_of(scores, targets).item<double>(), 1e-12);
    });
}

TEST(CutContext, ElementLossesOfTwoPartsAverageToThatOfAll) {
  namespace F = torch::nn::functional;
  const at::Tensor x = context_input();
  const at::Tensor y = x.sin();
  on_thread_ranks(2, [&](const std::shared_ptr<Collective>& group) {
    at::Tensor own_x = cut_context(x, 1, group);
    at::Tensor own_y = cut_context(y, 1, group);
    at::Tensor losses =
        at::stack({F::mse_loss(own_x, own_y), F::smooth_l1_loss(own_x, own_y), F::l1_loss(own_x, own_y)});
    group->all_reduce(losses, ReduceOp::kMean)->wait();
    EXPECT_TRUE(at::allclose(losses, at::stack({F::mse_loss(x, y), F::smooth_l1_loss(x, y), F::l1_loss(x, y)}), 1e-12));
  });
}

TEST(CutContext, MeansOverOtherTotalsThanPositionsAreNoted) {
  const at::Tensor scores = context_input();
  const at::Tensor targets = at::arange(32, at::kLong).remainder(12).view({2, 16});
  const at::Tensor weights = at::arange(12, at::kDouble) + 1;
  on_thread_ranks(2, [&](const std::shared_ptr<Collective>& group) {
    const at::Tensor s = cut_context(scores, 1, group).flatten(0, 1);
    const at::Tensor t = cut_context(targets, 1, group).flatten();
    const auto is_noted = [&](const at::Tensor& class_weights, int64_t reduction) {
      detail::take_uneven_targets();
      at::cross_entropy_loss(s, t, class_weights, reduction);
      at::nll_loss(s, t, class_weights, reduction);
      return detail::take_uneven_targets();
    };
    EXPECT_FALSE(is_noted({}, at::Reduction::Mean));
    EXPECT_TRUE(is_noted(weights, at::Reduction::Mean));
    EXPECT_FALSE(is_noted(weights, at::Reduction::Sum));
    EXPECT_FALSE(is_noted(weights, at::Reduction::None));
  });
}

TEST(CutContext, AttentionSendsWhatItsFormulaSays) {
  for (const int64_t ranks : {2, 4})
    on_thread_ranks(ranks, [&](const std::shared_ptr<Collective>& group) {
      const auto heads = [&](int64_t number) {
        return cut_context(at::randn({kContextExamples, number, kContextPositions, 3}, at::kDouble).requires_grad_(), 2,
                           group);
      };
      const at::Tensor queries = heads(8);
      const at::Tensor keys = heads(4);
      auto& counted = dynamic_cast<ThreadCollective&>(*group);
      const int64_t before = counted.received();
      const at::Tensor output = at::scaled_dot_product_attention(queries, keys, keys, {}, 0, true, {}, true);
      const int64_t of_query = kContextExamples * 8 * kContextPositions * 3 * 8;  // bytes of all positions
      const int64_t expected = (2 * of_query + of_query) * (ranks - 1) / (ranks * ranks);
      EXPECT_EQ(counted.received() - before, expected);
      output.sum().backward();
      EXPECT_EQ(counted.received() - before, 2 * expected);
    });
}

TEST(CutContext, RingsSendWhatTheirFormulaSays) {
  for (const int64_t ranks : {2, 4})
    on_thread_ranks(ranks, [&](const std::shared_ptr<Collective>& group) {
      const auto heads = [&](int64_t number) {
        return cut_context(at::randn({kContextExamples, number, kContextPositions, 3}, at::kDouble).requires_grad_(), 2,
                           group, ContextMethod::kRing);
      };
      const at::Tensor queries = heads(6);
      const at::Tensor keys = heads(3);
      auto& counted = dynamic_cast<ThreadCollective&>(*group);
      const int64_t before = counted.received();
      const at::Tensor output = at::scaled_dot_product_attention(queries, keys, keys, {}, 0, true, {}, true);
      const int64_t of_part = 2 * kContextExamples * 3 * kContextPositions / ranks * 3 * 8;  // bytes of keys and values
      EXPECT_EQ(counted.received() - before, (ranks - 1) * of_part);
      output.sum().backward();
      EXPECT_EQ(counted.received() - before, (3 * ranks - 2) * of_part);
    });
}

/// The most memory that a rank's step takes, for a sequence of so many positions over all ranks.
int64_t peak_of_context(int64_t positions, int64_t ranks, ContextMethod method) {
  std::atomic<int64_t> most{0};
  on_thread_ranks(ranks, [&](const std::shared_ptr<Collective>& group) {
    torch::manual_seed(1);
    nn::TransformerDecoder decoder(
        nn::TransformerStackOptions{.block = {.attention = {.width = 32, .heads = 4, .causal = true}}, .layers = 8});
    const at::Tensor x = at::ones({1, positions, 32});
    const WeightForwardScope forward;
    const int64_t peak = AccountingAllocator::of_this_thread().peak_of([&] {
      const at::Tensor part = ranks == 1 ? x : cut_context(x, 1, group, method);
      decoder(part).square().mean().backward();
    });
    int64_t seen = most;
    while (peak > seen && !most.compare_exchange_weak(seen, peak)) {
    }
  });
  return most;
}

/// What does not grow with the sequence, such as gradients of the weights, is the same on each rank.
TEST(CutContext, MemoryOfARankGrowsByItsPartOfTheSequence) {
  AccountingAllocator::install();
  const auto growth = [](int64_t ranks, ContextMethod method) {
    return static_cast<double>(peak_of_context(512, ranks, method) - peak_of_context(256, ranks, method));
  };
  const double of_one = growth(1, ContextMethod::kAllToAll);
  for (const ContextMethod method : {ContextMethod::kAllToAll, ContextMethod::kRing}) {
    for (const auto& [ranks, least] : {std::pair<int64_t, double>(2, 1.8), {4, 3.4}}) {
      const double times = of_one / growth(ranks, method);
      RecordProperty((method == ContextMethod::kRing ? "ring_" : "all_to_all_") + std::to_string(ranks),
                     std::to_string(times));
      EXPECT_GE(times, least) << ranks;
    }
  }
}

}  // namespace
}  // namespace levin
