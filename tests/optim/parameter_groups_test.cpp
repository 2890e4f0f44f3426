#include <levin/core/optim/parameter_groups.h>

#include <levin/core/optim/adagrad.h>
#include <levin/core/optim/adam.h>
#include <levin/core/optim/sgd.h>

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace levin::optim {
namespace {

/// backbone.{first, norm}, head; each with weight and bias.
struct BackboneAndHead : torch::nn::Module {
  BackboneAndHead() {
    backbone = register_module("backbone", std::make_shared<torch::nn::Module>("backbone"));
    backbone->register_module("first", torch::nn::Linear(3, 4));
    backbone->register_module("norm", torch::nn::BatchNorm1d(4));
    head = register_module("head", torch::nn::Linear(4, 2));
  }
  std::shared_ptr<torch::nn::Module> backbone;
  torch::nn::Linear head{nullptr};
};

/// The names in each group.
template <class Options>
std::vector<std::vector<std::string>> names(const BackboneAndHead& model,
                                            const std::vector<ParameterGroup<Options>>& groups) {
  std::vector<std::vector<std::string>> result;
  for (const auto& group : groups) {
    result.emplace_back();
    for (const auto& parameter : group.params)
      for (const auto& item : model.named_parameters())
        if (item.value().is_same(parameter)) result.back().push_back(item.key());
  }
  return result;
}

std::string message_of(const BackboneAndHead& model, const std::vector<GroupRule>& rules) {
  try {
    parameter_groups(model, SGDOptions{}, rules);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ParameterGroups, TheFirstRuleThatMatchesWins) {
  const BackboneAndHead model;
  const AdamWOptions base{.lr = 1e-3, .betas = {0.8, 0.9}, .weight_decay = 0.1};
  const auto groups = parameter_groups(model, base, {{"*.bias", {.weight_decay = 0}}, {"backbone.*", {.lr = 1e-4}}});
  using Names = std::vector<std::vector<std::string>>;
  EXPECT_EQ(names(model, groups), (Names{{"head.weight"},
                                         {"backbone.first.bias", "backbone.norm.bias", "head.bias"},
                                         {"backbone.first.weight", "backbone.norm.weight"}}));
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[0].options.lr, 1e-3);
  EXPECT_EQ(groups[0].options.weight_decay, 0.1);
  EXPECT_EQ(groups[1].options.lr, 1e-3);
  EXPECT_EQ(groups[1].options.weight_decay, 0);
  EXPECT_EQ(groups[2].options.lr, 1e-4);
  EXPECT_EQ(groups[2].options.weight_decay, 0.1);
  for (const auto& group : groups) EXPECT_EQ(group.options.betas, base.betas);
}

TEST(ParameterGroups, TrainEachParameterWithItsGroupsOptions) {
  BackboneAndHead model;
  const auto before = model.head->weight.detach().clone();
  const auto frozen_rate = model.backbone->parameters()[0].detach().clone();
  SGD optimizer(parameter_groups(model, SGDOptions{.lr = 1.0}, {{"backbone.*", {.lr = 0.25}}}));
  for (auto& parameter : model.parameters()) parameter.mutable_grad() = at::ones(parameter.sizes());
  optimizer.step();
  EXPECT_TRUE(model.head->weight.equal(before - 1));
  EXPECT_TRUE(model.backbone->parameters()[0].equal(frozen_rate - 0.25));
}

TEST(ParameterGroups, LeaveOutWhatIsNotTrainedAndEmptyGroups) {
  BackboneAndHead model;
  model.backbone->parameters()[0].set_requires_grad(false);
  const auto groups = parameter_groups(model, SGDOptions{}, {{"backbone.first.weight", {.lr = 1}}, {"*", {.lr = 2}}});
  ASSERT_EQ(groups.size(), 1u) << "neither the rest nor the frozen weight has a group";
  EXPECT_EQ(groups[0].params.size(), 5u);
  EXPECT_EQ(groups[0].options.lr, 2);
}

TEST(ParameterGroups, AParameterUsedTwiceIsInOneGroup) {
  BackboneAndHead model;
  model.register_module("same_head", model.head);
  const auto groups = parameter_groups(model, SGDOptions{}, {{"*head*", {.lr = 1}}});
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[1].params.size(), 2u);
}

TEST(ParameterGroups, PatternsMatchWholeNames) {
  const BackboneAndHead model;
  const auto count = [&](const std::string& pattern) {
    const auto groups = parameter_groups(model, AdagradOptions{}, {{pattern, {.lr = 7}}});
    return groups.back().options.lr == 7 ? groups.back().params.size() : 0;
  };
  EXPECT_EQ(count("*"), 6u);
  EXPECT_EQ(count("head.*"), 2u);
  EXPECT_EQ(count("head.weight"), 1u);
  EXPECT_EQ(count("*.norm.*"), 2u);
  EXPECT_EQ(count("b*.*.b*s"), 2u);
  EXPECT_EQ(count("*bias"), 3u);
  EXPECT_EQ(count("**.weight*"), 3u);
}

TEST(ParameterGroups, APatternThatMatchesNothingIsAnError) {
  const BackboneAndHead model;
  const std::string message = message_of(model, {{"*.bias", {}}, {"head.weigth", {.lr = 1}}});
  EXPECT_NE(message.find("'head.weigth'"), std::string::npos) << message;
  EXPECT_NE(message.find("did you mean 'head.weight'"), std::string::npos) << message;
  EXPECT_NE(message_of(model, {{"bias", {}}}).find("backbone.norm.bias"), std::string::npos) << "the names there are";
  const std::string hidden = message_of(model, {{"backbone.*", {.lr = 1}}, {"*.norm.*", {.weight_decay = 0}}});
  EXPECT_NE(hidden.find("'*.norm.*'"), std::string::npos) << hidden;
  EXPECT_NE(hidden.find("put it before them"), std::string::npos) << hidden;
}

TEST(ParameterGroups, DecayOfWeightsOnly) {
  const BackboneAndHead model;
  const auto groups = decay_weights_only(model, AdamWOptions{.lr = 0.5, .weight_decay = 0.1});
  using Names = std::vector<std::vector<std::string>>;
  EXPECT_EQ(names(model, groups),
            (Names{{"backbone.first.weight", "head.weight"},
                   {"backbone.first.bias", "backbone.norm.weight", "backbone.norm.bias", "head.bias"}}));
  EXPECT_EQ(groups[0].options.weight_decay, 0.1);
  EXPECT_EQ(groups[1].options.weight_decay, 0);
  EXPECT_EQ(groups[1].options.lr, 0.5);
}

}  // namespace
}  // namespace levin::optim
