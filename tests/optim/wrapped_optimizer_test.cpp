#include <levin/core/optim/adam.h>
#include <levin/core/optim/lookahead.h>
#include <levin/core/optim/optimizer_state.h>
#include <levin/core/optim/sam.h>
#include <levin/core/optim/sgd.h>

#include "optimizer_problem.h"

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <stdexcept>

namespace levin::optim {
namespace {

constexpr int kSteps = 50;

std::shared_ptr<SGD> sgd_of(const Problem& problem) {
  return std::make_shared<SGD>(problem.params, SGDOptions{.lr = 0.1, .momentum = 0.9});
}
std::shared_ptr<AdamW> adamw_of(const Problem& problem) {
  return std::make_shared<AdamW>(problem.params, AdamWOptions{.lr = 0.05});
}

TEST(Lookahead, FollowsItsPaper) {
  Problem problem;
  Lookahead around_sgd(sgd_of(problem));
  problem.train(around_sgd, 0, kSteps);
  expect_values(problem, "lookahead_sgd", 1e-9);

  Problem other;
  Lookahead around_adamw(adamw_of(other), {.k = 3, .alpha = 0.8});
  other.train_by_closure(around_adamw, 0, kSteps);
  expect_values(other, "lookahead_adamw", 1e-9);
}

TEST(SAM, FollowsItsPaper) {
  Problem problem;
  SAM around_sgd(sgd_of(problem));
  problem.train_by_closure(around_sgd, 0, kSteps);
  expect_values(problem, "sam_sgd", 1e-9);

  Problem other;
  SAM adaptive(adamw_of(other), {.rho = 0.5, .adaptive = true});
  other.train_by_closure(adaptive, 0, kSteps);
  expect_values(other, "sam_adaptive", 1e-9);
}

TEST(SAM, GoesBackWhenTheSecondEvaluationFails) {
  Problem problem;
  SAM sam(sgd_of(problem));
  const auto before = problem.values();
  int evaluations = 0;
  EXPECT_THROW(sam.step([&]() -> at::Tensor {
    if (++evaluations == 2) throw std::runtime_error("out of memory");
    problem.set_gradients(0);
    return at::zeros({});
  }),
               std::runtime_error);
  EXPECT_EQ(problem.values(), before);
}

/// Steps, a save, more steps; a second problem with the weights and the state takes the same.
template <class Make>
void expect_bitwise_resume(const Make& make) {
  Problem straight;
  const auto once = make(straight);
  straight.train_by_closure(*once, 0, 11);

  Problem resumed;
  const auto before = make(resumed);
  resumed.train_by_closure(*before, 0, 4);
  const State saved = optimizer_state_dict(*before, resumed.names());
  const auto after = make(resumed);
  load_optimizer_state_dict(*after, resumed.names(), saved);
  resumed.train_by_closure(*after, 4, 7);
  EXPECT_EQ(straight.values(), resumed.values());
}

TEST(WrappedOptimizer, StateGoesOnWhereItWasSaved) {
  expect_bitwise_resume([](const Problem& problem) { return std::make_shared<Lookahead>(adamw_of(problem)); });
  expect_bitwise_resume([](const Problem& problem) {
    return std::make_shared<Lookahead>(std::make_shared<SGD>(problem.params, SGDOptions{.lr = 0.1}),
                                       LookaheadOptions{.k = 3});
  });
  expect_bitwise_resume([](const Problem& problem) { return std::make_shared<SAM>(adamw_of(problem)); });
  expect_bitwise_resume([](const Problem& problem) {
    return std::make_shared<SAM>(std::make_shared<Lookahead>(sgd_of(problem), LookaheadOptions{.k = 3}));
  });
}

TEST(Lookahead, AStateFromBeforeTheFirstStepCountsAnew) {
  Problem problem;
  Lookahead lookahead(sgd_of(problem), {.k = 3});
  const State before = optimizer_state_dict(lookahead, problem.names());
  problem.train(lookahead, 0, 2);
  load_optimizer_state_dict(lookahead, problem.names(), before);
  problem.train(lookahead, 0, 1);
  const State state = optimizer_state_dict(lookahead, problem.names());
  EXPECT_EQ(state.at("parameters").at("net.bias").at("lookahead_steps").as_int(), 1);
}

TEST(WrappedOptimizer, SavesByParameterName) {
  Problem problem;
  Lookahead lookahead(adamw_of(problem));
  problem.train(lookahead, 0, 2);
  const State state = optimizer_state_dict(lookahead, problem.names());
  EXPECT_EQ(state.at("groups").as_list().front().at("lr").as_double(), 0.05);
  const State& saved = state.at("parameters").at("net.bias");
  EXPECT_EQ(saved.at("lookahead_steps").as_int(), 2);
  EXPECT_EQ(saved.at("slow_weights").as_tensor().sizes(), problem.params[1].sizes());
  EXPECT_EQ(saved.at("exp_avg").as_tensor().sizes(), problem.params[1].sizes());
}

TEST(WrappedOptimizer, ItsGroupsHaveTheLearningRates) {
  Problem problem;
  Lookahead lookahead(sgd_of(problem));
  lookahead.param_groups().front().options().set_lr(0);
  const auto before = problem.values();
  problem.train(lookahead, 0, 7);
  EXPECT_EQ(problem.values(), before);
}

TEST(WrappedOptimizer, AParameterWithoutAGradientStays) {
  Problem problem;
  Lookahead lookahead(adamw_of(problem), {.k = 1});
  problem.set_gradients(0);
  problem.params[1].mutable_grad().reset();
  const at::Tensor before = problem.params[1].detach().clone();
  lookahead.step();
  EXPECT_TRUE(problem.params[1].equal(before));
  Problem other;
  Lookahead loaded(adamw_of(other), {.k = 1});
  load_optimizer_state_dict(loaded, other.names(), optimizer_state_dict(lookahead, problem.names()));
  EXPECT_FALSE(loaded.parameter_states(other.names()).at("net.bias").contains("exp_avg"));
}

TEST(WrappedOptimizer, TellsWhatItCanDo) {
  Problem problem;
  EXPECT_TRUE(capabilities_of(Lookahead(adamw_of(problem))).element_wise);
  EXPECT_FALSE(capabilities_of(Lookahead(adamw_of(problem))).needs_closure);
  EXPECT_TRUE(capabilities_of(SAM(adamw_of(problem))).needs_closure);
  EXPECT_FALSE(capabilities_of(SAM(adamw_of(problem))).element_wise);
}

TEST(WrappedOptimizer, RefusesWhatItCannotWrap) {
  Problem problem;
  const auto message = [](const auto& make) { return error_of(make); };
  EXPECT_NE(message([] { Lookahead(nullptr); }).find("lookahead was given no optimizer"), std::string::npos);
  EXPECT_NE(message([&] {
              Lookahead(std::make_shared<torch::optim::SGD>(problem.params, torch::optim::SGDOptions(0.1)));
            }).find("valid: those of levin::optim"),
            std::string::npos);
  EXPECT_NE(message([&] { Lookahead(std::make_shared<SAM>(adamw_of(problem))); }).find("put that one outside"),
            std::string::npos);
  EXPECT_NE(message([&] { Lookahead(adamw_of(problem), {.k = 0}); }).find("lookahead.k must be at least 1"),
            std::string::npos);
  EXPECT_NE(message([&] { SAM(adamw_of(problem)).step(); }).find("was given no closure"), std::string::npos);
}

}  // namespace
}  // namespace levin::optim
