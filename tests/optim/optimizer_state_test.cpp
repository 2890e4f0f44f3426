#include <levin/core/optim/optimizer_state.h>

#include <levin/core/base/error.h>
#include <levin/core/optim/adagrad.h>
#include <levin/core/optim/adam.h>
#include <levin/core/optim/sgd.h>

#include "optimizer_problem.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <functional>
#include <memory>

namespace levin::optim {
namespace {

using torch::optim::Optimizer;
using TorchFactory = std::function<std::shared_ptr<Optimizer>(const std::vector<at::Tensor>&)>;

template <class T, class Options>
TorchFactory made_with(Options options) {
  return [options](const std::vector<at::Tensor>& params) { return std::make_shared<T>(params, options); };
}

/// What a file would hold: nothing shared with the run that goes on.
State deep_copy(const State& state) {
  if (state.is_tensor()) return state.as_tensor().detach().clone();
  if (state.is_list()) {
    State copy = State::list();
    for (const auto& item : state.as_list()) copy.push_back(deep_copy(item));
    return copy;
  }
  if (!state.is_map()) return state;
  State copy = State::map();
  for (const auto& [key, value] : state.as_map()) copy[key] = deep_copy(value);
  return copy;
}

void train(Problem& problem, Optimizer& optimizer, int first_step, int steps) {
  for (int step = first_step; step < first_step + steps; ++step) {
    problem.set_gradients(step);
    optimizer.step([&] {
      problem.set_gradients(step);
      return (problem.params[0].detach().square().sum() + problem.params[1].detach().square().sum());
    });
    optimizer.param_groups()[0].options().set_lr(optimizer.param_groups()[0].options().get_lr() * 0.9);
  }
}

/// Four steps, a save, three more; then a second problem with the weights and the loaded state takes the same three.
void expect_bitwise_resume(const std::string& name, const TorchFactory& factory) {
  SCOPED_TRACE(name);
  Problem straight;
  auto optimizer = factory(straight.params);
  train(straight, *optimizer, 0, 4);
  const State saved = deep_copy(optimizer_state_dict(*optimizer, straight.names()));
  const std::vector<at::Tensor> weights = {straight.params[0].detach().clone(), straight.params[1].detach().clone()};
  train(straight, *optimizer, 4, 3);

  Problem resumed;
  auto again = factory(resumed.params);
  train(resumed, *again, 20, 2);  // other state, which loading must replace
  {
    at::NoGradGuard no_grad;
    for (size_t i = 0; i < weights.size(); ++i) resumed.params[i].copy_(weights[i]);
  }
  load_optimizer_state_dict(*again, resumed.names(), saved);
  train(resumed, *again, 4, 3);
  EXPECT_TRUE(straight.params[0].equal(resumed.params[0]));
  EXPECT_TRUE(straight.params[1].equal(resumed.params[1]));
  EXPECT_EQ(optimizer->param_groups()[0].options().get_lr(), again->param_groups()[0].options().get_lr());
}

TEST(OptimizerState, LevinsOptimizersResumeBitwise) {
  expect_bitwise_resume("sgd", made_with<SGD>(SGDOptions{.lr = 0.1 / 3}));
  expect_bitwise_resume("sgd_momentum", made_with<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.2}));
  expect_bitwise_resume("adam", made_with<Adam>(AdamOptions{.lr = 0.05, .betas = {0.8, 1.0 - 1e-3 / 7}}));
  expect_bitwise_resume("adamw", made_with<AdamW>(AdamWOptions{.lr = 0.05, .amsgrad = true}));
  expect_bitwise_resume("adagrad", made_with<Adagrad>(AdagradOptions{.lr = 0.1, .lr_decay = 0.1}));
}

TEST(OptimizerState, LibTorchsOptimizersResumeBitwise) {
  namespace o = torch::optim;
  expect_bitwise_resume("sgd", made_with<o::SGD>(o::SGDOptions(0.1)));
  expect_bitwise_resume("sgd_momentum", made_with<o::SGD>(o::SGDOptions(0.1).momentum(0.9)));
  expect_bitwise_resume("adam", made_with<o::Adam>(o::AdamOptions(0.05).amsgrad(true)));
  expect_bitwise_resume("adamw", made_with<o::AdamW>(o::AdamWOptions(0.05).betas({0.8, 0.95})));
  expect_bitwise_resume("adagrad", made_with<o::Adagrad>(o::AdagradOptions(0.1).lr_decay(0.1)));
  expect_bitwise_resume("rmsprop", made_with<o::RMSprop>(o::RMSpropOptions(0.01).momentum(0.5).centered(true)));
  expect_bitwise_resume("lbfgs", made_with<o::LBFGS>(o::LBFGSOptions(0.1).max_iter(4).history_size(5)));
  expect_bitwise_resume("lbfgs with a long history", made_with<o::LBFGS>(o::LBFGSOptions(0.1).max_iter(4)));
}

TEST(OptimizerState, GroupOptionsComeBack) {
  Problem problem;
  AdamW optimizer({{{problem.params[0]}, {.lr = 0.1}}, {{problem.params[1]}, {.lr = 0.2, .betas = {0.5, 0.6}}}});
  const State saved = optimizer_state_dict(optimizer, problem.names());
  Problem other;
  AdamW loaded({{{other.params[0]}, {}}, {{other.params[1]}, {}}});
  load_optimizer_state_dict(loaded, other.names(), saved);
  EXPECT_EQ(learning_rates(loaded), (std::vector<double>{0.1, 0.2}));
  EXPECT_EQ(loaded.group_options(1).betas[0], 0.5);
}

TEST(OptimizerState, LoadsInPlace) {
  Problem problem;
  Adam optimizer(problem.params);
  train(problem, optimizer, 0, 2);
  const State saved = deep_copy(optimizer_state_dict(optimizer, problem.names()));
  const auto exp_avg = [&] {
    return optimizer.parameter_states(problem.names()).at("net.weight").at("exp_avg").as_tensor().data_ptr();
  };
  const void* before = exp_avg();
  train(problem, optimizer, 2, 2);
  load_optimizer_state_dict(optimizer, problem.names(), saved);
  EXPECT_EQ(exp_avg(), before);
}

TEST(OptimizerState, StateOfAParameterThatNeverHadAGradientIsLeftOut) {
  Problem problem;
  Adam optimizer(problem.params);
  problem.set_gradients(0);
  problem.params[1].mutable_grad().reset();
  optimizer.step();
  const State saved = deep_copy(optimizer_state_dict(optimizer, problem.names()));
  EXPECT_FALSE(saved.at("parameters").contains("net.bias"));
  train(problem, optimizer, 1, 2);
  load_optimizer_state_dict(optimizer, problem.names(), saved);
  EXPECT_FALSE(optimizer.parameter_states(problem.names()).contains("net.bias"));
}

TEST(OptimizerState, RefusesWhatDoesNotFit) {
  Problem problem;
  Adam adam(problem.params);
  train(problem, adam, 0, 1);
  const State saved = deep_copy(optimizer_state_dict(adam, problem.names()));

  AdamW adamw(problem.params);
  const std::string other_type = error_of([&] { load_optimizer_state_dict(adamw, problem.names(), saved); });
  EXPECT_NE(other_type.find("got levin::optim::Adam; valid: levin::optim::AdamW"), std::string::npos) << other_type;

  Adam two_groups({{{problem.params[0]}, {}}, {{problem.params[1]}, {}}});
  EXPECT_NE(error_of([&] {
              load_optimizer_state_dict(two_groups, problem.names(), saved);
            }).find("has 2 parameter groups; got 1"),
            std::string::npos);

  Adam reversed({problem.params[1], problem.params[0]});
  EXPECT_NE(error_of([&] {
              load_optimizer_state_dict(reversed, problem.names(), saved);
            }).find("got net.weight, net.bias in the checkpoint; valid: net.bias, net.weight"),
            std::string::npos);

  ParameterNames names;
  at::Tensor small = torch::zeros({2}, at::kDouble).set_requires_grad(true);
  names.add("net.weight", small);
  names.add("net.bias", problem.params[1]);
  Adam other_shape({small, problem.params[1]});
  EXPECT_NE(error_of([&] { load_optimizer_state_dict(other_shape, names, saved); }).find("net.weight.exp_avg"),
            std::string::npos);

  Adam unnamed({torch::zeros({2, 3}, torch::requires_grad())});
  EXPECT_NE(error_of([&] { optimizer_state_dict(unnamed, names); }).find("a parameter of shape [2, 3]"),
            std::string::npos);
}

/// Keeps state for its parameter but, like any optimizer that does not override save, saves none.
class Forgetful : public Optimizer {
 public:
  explicit Forgetful(std::vector<at::Tensor> params)
      : Optimizer(std::move(params), std::make_unique<torch::optim::SGDOptions>(0.1)) {}
  at::Tensor step(LossClosure = nullptr) override {
    state_[param_groups_[0].params()[0].unsafeGetTensorImpl()] = std::make_unique<torch::optim::SGDParamState>();
    return {};
  }
};

class Remembering : public Forgetful, public Stateful, public DeclaresCapabilities {
 public:
  using Forgetful::Forgetful;
  State state_dict() const override { return State::Map{{"count", count}}; }
  void load_state_dict(const State& state) override { count = state.at("count").as_int(); }
  OptimizerCapabilities capabilities() const override { return {.element_wise = true}; }
  int64_t count = 0;
};

TEST(OptimizerState, AUsersOptimizerIsSavedWhereItCanBeAndRefusedWhereNot) {
  Problem problem;
  Forgetful forgetful(problem.params);
  const State empty = optimizer_state_dict(forgetful, problem.names());
  forgetful.param_groups()[0].options().set_lr(0.7);
  load_optimizer_state_dict(forgetful, problem.names(), empty);
  EXPECT_EQ(forgetful.param_groups()[0].options().get_lr(), 0.1);
  forgetful.step();
  const std::string message = error_of([&] { optimizer_state_dict(forgetful, problem.names()); });
  EXPECT_NE(message.find("Forgetful has state but its save() writes none"), std::string::npos) << message;

  Remembering remembering(problem.params);
  remembering.step();
  remembering.count = 5;
  const State saved = optimizer_state_dict(remembering, problem.names());
  Remembering other(problem.params);
  load_optimizer_state_dict(other, problem.names(), saved);
  EXPECT_EQ(other.count, 5);
}

TEST(OptimizerCapabilities, AreKnownOrDeclared) {
  Problem problem;
  EXPECT_TRUE(capabilities_of(AdamW(problem.params)).found_inf);
  EXPECT_TRUE(capabilities_of(AdamW(problem.params)).element_wise);
  EXPECT_TRUE(capabilities_of(torch::optim::Adam(problem.params)).element_wise);
  EXPECT_FALSE(capabilities_of(torch::optim::Adam(problem.params)).found_inf);
  EXPECT_TRUE(capabilities_of(torch::optim::LBFGS(problem.params)).needs_closure);
  EXPECT_FALSE(capabilities_of(torch::optim::LBFGS(problem.params)).element_wise);
  EXPECT_FALSE(capabilities_of(Forgetful(problem.params)).element_wise);
  EXPECT_TRUE(capabilities_of(Remembering(problem.params)).element_wise);
}

struct TwoHeads : torch::nn::Module {
  TwoHeads() {
    first = register_module("first", torch::nn::Linear(2, 2));
    register_module("second", first);
  }
  torch::nn::Linear first{nullptr};
};

TEST(ParameterNames, ASharedParameterKeepsItsFirstName) {
  TwoHeads module;
  ASSERT_EQ(module.parameters().size(), 4);
  const ParameterNames names(module);
  ASSERT_EQ(names.items().size(), 2);
  EXPECT_EQ(names.require(module.first->weight), "first.weight");
  EXPECT_TRUE(names.find_parameter("first.bias")->is_same(module.first->bias));
  EXPECT_EQ(names.find_parameter("second.bias"), nullptr);
  AdamW optimizer(module.parameters());
  EXPECT_EQ(optimizer.param_groups()[0].params().size(), 2);

  ParameterNames clash;
  clash.add("w", module.first->weight);
  EXPECT_THROW(clash.add("w", module.first->bias), Error);
}

}  // namespace
}  // namespace levin::optim
