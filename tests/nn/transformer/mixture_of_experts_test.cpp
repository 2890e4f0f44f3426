// Mixtures of experts against a loop over all experts, at the borders of what a router chooses.

#include "tests/nn/on_thread_ranks.h"

#include <levin/core/base/error.h>
#include <levin/core/nn/activation_checkpointing.h>
#include <levin/core/nn/cut_context.h>
#include <levin/core/nn/cut_sequence.h>
#include <levin/core/nn/sequential.h>
#include <levin/core/nn/transformer/mixture_of_experts.h>
#include <levin/core/nn/weight_behaviour.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin {
namespace {

using nn::ExpertScores;
using nn::MixtureOfExperts;
using nn::MixtureOfExpertsOptions;
using ::testing::HasSubstr;
using testing::on_thread_ranks;

MixtureOfExpertsOptions six_experts() { return {.width = 8, .hidden = 12, .experts = 6, .active = 2}; }

MixtureOfExperts in_double(const MixtureOfExpertsOptions& options) {
  torch::manual_seed(3);
  MixtureOfExperts mixture(options);
  mixture->to(at::kDouble);
  return mixture;
}

/// Every expert sees every token, and a mask says which count.
at::Tensor dense(MixtureOfExperts& mixture, const MixtureOfExpertsOptions& options, const at::Tensor& x) {
  const at::Tensor tokens = x.flatten(0, -2);
  const at::Tensor logits = at::linear(tokens, mixture->gate->weight);
  const at::Tensor scores = options.scores == ExpertScores::kSoftmax ? logits.softmax(-1) : logits.sigmoid();
  const at::Tensor biased = mixture->balance_bias.defined() ? scores + mixture->balance_bias.to(at::kDouble) : scores;
  const at::Tensor mask =
      at::zeros_like(scores).scatter(-1, std::get<1>(biased.detach().topk(options.active, -1)), 1.0);
  at::Tensor shares = scores * mask;
  if (options.normalize) shares = shares / shares.sum(-1, true);
  shares = shares * options.scale;
  at::Tensor sum = at::zeros_like(tokens);
  for (int64_t expert = 0; expert < options.experts; ++expert) {
    const auto parts = at::linear(tokens, mixture->experts->gate_up_proj[expert]).chunk(2, -1);
    sum = sum + at::linear(at::silu(parts[0]) * parts[1], mixture->experts->down_proj[expert]) *
                    shares.select(1, expert).unsqueeze(1);
  }
  return mixture->shared_experts ? sum.view_as(x) + mixture->shared_experts(x) : sum.view_as(x);
}

/// Output, and the gradients of x and of all weights.
std::vector<at::Tensor> outcome_of(MixtureOfExperts& mixture, const at::Tensor& input,
                                   const std::function<at::Tensor(const at::Tensor&)>& run) {
  mixture->zero_grad();
  const at::Tensor x = input.detach().clone().requires_grad_();
  const at::Tensor output = run(x);
  (output * at::arange(output.numel(), at::kDouble).view_as(output).sin()).sum().backward();
  std::vector<at::Tensor> outcome{output.detach(), x.grad()};
  for (const auto& parameter : mixture->parameters())
    outcome.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::zeros_like(parameter));
  return outcome;
}

void expect_dense(const MixtureOfExpertsOptions& options, MixtureOfExperts mixture, const at::Tensor& x) {
  const auto expected = outcome_of(mixture, x, [&](const at::Tensor& in) { return dense(mixture, options, in); });
  const auto got = outcome_of(mixture, x, [&](const at::Tensor& in) -> at::Tensor { return mixture(in); });
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(got[i].allclose(expected[i], 0, 1e-12)) << i;
}

TEST(MixtureOfExperts, IsThatOfALoopOverAllExperts) {
  const at::Tensor x = at::arange(3 * 7 * 8, at::kDouble).mul(0.37).sin().view({3, 7, 8});
  std::vector<MixtureOfExpertsOptions> all{six_experts()};
  all.push_back({.width = 8, .hidden = 12, .experts = 6, .active = 1, .normalize = false});
  all.push_back({.width = 8, .hidden = 12, .experts = 6, .active = 6});
  all.push_back({.width = 8,
                 .hidden = 12,
                 .experts = 6,
                 .active = 3,
                 .scores = ExpertScores::kSigmoid,
                 .scale = 2.5,
                 .shared_hidden = 5,
                 .has_balance_bias = true});
  all.push_back({.width = 8, .hidden = 12, .experts = 1, .active = 1});
  for (const MixtureOfExpertsOptions& options : all) {
    SCOPED_TRACE(options.experts * 10 + options.active);
    MixtureOfExperts mixture = in_double(options);
    if (mixture->balance_bias.defined()) mixture->balance_bias.copy_(at::arange(6, at::kDouble) * 0.1);
    expect_dense(options, mixture, x);
  }
}

TEST(MixtureOfExperts, OfTokensThatAllChooseAlikeOrTheSame) {
  const MixtureOfExpertsOptions options = six_experts();
  const at::Tensor x = at::arange(5 * 8, at::kDouble).mul(0.37).cos().abs().view({5, 8});
  const at::NoGradGuard weights_are_given;
  MixtureOfExperts mixture = in_double(options);
  mixture->gate->weight.fill_(-1);
  mixture->gate->weight[4].fill_(2);  // one expert first, and four that tie for the second
  {
    const at::AutoGradMode gradients(true);
    expect_dense(options, mixture, x);
  }
  mixture->gate->weight.zero_();  // all tie
  const at::AutoGradMode gradients(true);
  expect_dense(options, mixture, x);
  EXPECT_EQ(mixture->load.sum().item<int64_t>(), 2 * 5 * 2);
}

TEST(MixtureOfExperts, CheckpointedIsThePlainOneToTheBitAndCountsOnce) {
  const at::Tensor x = at::arange(5 * 8, at::kDouble).mul(0.37).sin().view({5, 8});
  const auto step = [&](bool checkpointed) {
    Sequential net(in_double(six_experts()).ptr());
    std::optional<ActivationCheckpointing> checkpointing;
    if (checkpointed)
      checkpointing.emplace(*net, ConfigCodec<ActivationCheckpointingOptions>::parse(
                                      Config::parse("[MixtureOfExperts]", {}), "activation_checkpointing"));
    const at::Tensor input = x.clone().requires_grad_();
    const at::Tensor output = net(input);
    const at::Tensor loss = output.square().sum() + nn::balance_loss(*net) + nn::router_z_loss(*net);
    loss.backward();
    std::vector<at::Tensor> left{loss.detach(), input.grad()};
    for (const auto& parameter : net->parameters()) left.push_back(parameter.grad());
    left.push_back(net->children()[0]->as<nn::MixtureOfExpertsImpl>()->load);
    return left;
  };
  const auto expected = step(false);
  const auto got = step(true);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(got[i].equal(expected[i])) << i;
}

TEST(MixtureOfExperts, OfPartsOfSequencesIsThatOfAll) {
  const at::Tensor x = at::arange(2 * 8 * 8, at::kDouble).mul(0.37).sin().view({2, 8, 8});
  MixtureOfExperts expected = in_double(six_experts());
  const at::Tensor whole = expected(x).detach();
  for (const ContextMethod method : {ContextMethod::kAllToAll, ContextMethod::kRing})
    on_thread_ranks(2, [&](const std::shared_ptr<Collective>& group) {
      const WeightForwardScope forward;
      MixtureOfExperts mixture(six_experts());
      mixture->to(at::kDouble);
      const at::NoGradGuard copies;
      for (const auto& entry : expected->named_parameters())
        mixture->named_parameters()[entry.key()].copy_(entry.value());
      const at::AutoGradMode gradients(true);
      EXPECT_TRUE(full_sequence(mixture(cut_context(x, 1, group, method))).allclose(whole, 0, 1e-12));
    });
}

TEST(MixtureOfExperts, BalancesByALossOrABias) {
  MixtureOfExpertsOptions options = six_experts();
  options.has_balance_bias = true;
  MixtureOfExperts mixture = in_double(options);
  const at::Tensor x = at::randn({400, 8}, at::kDouble);
  {
    const at::NoGradGuard no_grad;
    mixture->gate->weight.zero_();
    EXPECT_NEAR(mixture(x).numel() > 0 ? mixture->balance_loss().item<double>() : 0, 2, 1e-9)
        << "experts that are alike";
    EXPECT_NEAR(mixture->z_loss().item<double>(), std::log(6.0) * std::log(6.0), 1e-9);
    mixture->gate->weight.normal_(0, 0.3);
  }
  // Of tokens that lie to one side, most choose the same experts.
  const auto most = [&] {
    mixture->load.zero_();
    const at::NoGradGuard no_grad;
    mixture(x + 0.7);
    return mixture->load.max().item<int64_t>();
  };
  const int64_t before = most();
  mixture->load.zero_();
  for (int i = 0; i < 300; ++i) {
    mixture(x + 0.7);
    mixture->move_balance_bias(0.01);
  }
  EXPECT_GT(before, 200);
  EXPECT_LT(most(), 160) << "133 each would be even";
}

TEST(MixtureOfExperts, SaysWhatItCannotDo) {
  const auto message = [](const std::function<void()>& run) -> std::string {
    try {
      run();
    } catch (const std::exception& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_THAT(
      message([] { MixtureOfExperts(MixtureOfExpertsOptions{.width = 8, .hidden = 4, .experts = 2, .active = 3}); }),
      HasSubstr("active is 1 to experts, and shared_hidden 0 or above; got 8, 4, 2, 3 and 0"));
  MixtureOfExperts mixture(six_experts());
  EXPECT_THAT(message([&] {
                mixture(at::full({3, 8}, std::numeric_limits<float>::quiet_NaN()));
              }),
              HasSubstr("the router's logits of 3 tokens are not all numbers; hint: look for a NaN before it"));
  EXPECT_THAT(message([&] { mixture->move_balance_bias(0.1); }), HasSubstr("has no bias; hint: has_balance_bias"));
  EXPECT_THAT(message([&] { MixtureOfExperts(six_experts())->balance_loss(); }), HasSubstr("there was none"));
  EXPECT_THAT(message([&] { nn::balance_loss(torch::nn::LinearImpl(2, 2)); }), HasSubstr("has no MixtureOfExperts"));
}

}  // namespace
}  // namespace levin
