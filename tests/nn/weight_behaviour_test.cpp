#include <levin/core/nn/weight_behaviour.h>

#include <levin/core/base/error.h>
#include <levin/core/base/weight_cast_scope.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace levin {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Notes what it sees, and multiplies what it gives.
class Noting : public WeightBehaviour {
 public:
  Noting(std::vector<std::string>& seen, std::string name, double factor = 1, std::string why = "")
      : seen_(seen), name_(std::move(name)), factor_(factor), why_(std::move(why)) {}
  at::Tensor linear(const LinearCall& call, const Linear& next) override {
    seen_.push_back(name_ + ": linear of " + call.name + (call.bias.defined() ? " with a bias" : ""));
    type = call.weight.scalar_type();
    return next(call) * factor_;
  }
  at::Tensor embedding(const EmbeddingCall& call, const Embedding& next) override {
    seen_.push_back(name_ + ": embedding of " + call.name);
    return next(call) * factor_;
  }
  std::string why_not_elsewhere() const override { return why_; }

  at::ScalarType type = at::kByte;

 private:
  std::vector<std::string>& seen_;
  std::string name_;
  double factor_;
  std::string why_;
};

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(WeightBehaviour, IsAroundEveryFormOfALinearLayerInTheOrderOfItsChain) {
  torch::manual_seed(1);
  std::vector<std::string> seen;
  torch::nn::Linear layer(4, 4);  // square: its transpose has its sizes
  const auto with_bias = [&](const at::Tensor& x) { return layer(x); };
  const auto as_function = [&](const at::Tensor& x) { return at::linear(x, layer->weight, layer->bias); };
  const std::vector<at::Tensor> inputs{at::randn({3, 4}), at::randn({2, 3, 4})};
  std::vector<at::Tensor> expected;
  for (const at::Tensor& x : inputs) expected.push_back(at::linear(x, layer->weight, at::Tensor()).detach());
  const void* identity = layer->weight.unsafeGetTensorImpl();
  add_weight_behaviour(layer->weight, "w", std::make_shared<Noting>(seen, "outer", 2));
  add_weight_behaviour(layer->weight, "w", std::make_shared<Noting>(seen, "inner", 3));
  EXPECT_EQ(layer->weight.unsafeGetTensorImpl(), identity);
  EXPECT_TRUE(has_weight_behaviours(layer->weight));

  with_bias(inputs[0]);
  EXPECT_THAT(seen, ElementsAre("outer: linear of w with a bias", "inner: linear of w with a bias"));
  seen.clear();
  // torch::nn::Linear adds the bias of a batch of matrices afterwards.
  EXPECT_TRUE(with_bias(inputs[1]).allclose(6 * expected[1] + layer->bias));
  EXPECT_THAT(seen, ElementsAre("outer: linear of w", "inner: linear of w"));
  seen.clear();
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_TRUE(as_function(inputs[i]).allclose(6 * (expected[i] + layer->bias)));
    const c10::InferenceMode inference;
    EXPECT_TRUE(at::matmul(inputs[i], layer->weight.t()).allclose(6 * expected[i]));
  }
  EXPECT_EQ(seen.size(), 8u);
  // Another thread, and a product that is none of a layer's.
  seen.clear();
  std::thread([&] { as_function(inputs[0]); }).join();
  EXPECT_EQ(seen.size(), 2u);
  EXPECT_TRUE(at::matmul(inputs[0], layer->weight).allclose(at::matmul(inputs[0], layer->weight.detach())));
  EXPECT_EQ(seen.size(), 2u);

  remove_weight_behaviours(layer->weight);
  EXPECT_EQ(layer->weight.unsafeGetTensorImpl(), identity);
  EXPECT_TRUE(at::linear(inputs[0], layer->weight).allclose(expected[0]));
  EXPECT_EQ(seen.size(), 2u);
}

TEST(WeightBehaviour, GradientsAndOptimizersSeeAnOrdinaryParameter) {
  torch::manual_seed(1);
  std::vector<std::string> seen;
  torch::nn::Linear plain(4, 3), marked(4, 3);
  {
    const at::NoGradGuard no_grad;
    marked->weight.copy_(plain->weight);
    marked->bias.copy_(plain->bias);
  }
  add_weight_behaviour(marked->weight, "w", std::make_shared<Noting>(seen, "one", 1, "is cut"));
  const auto train = [](torch::nn::Linear& layer, const at::Tensor& x) {
    torch::optim::AdamW optimizer(layer->parameters(), torch::optim::AdamWOptions(0.1).weight_decay(0.1));
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      layer(x).square().sum().backward();
      torch::nn::utils::clip_grad_norm_(layer->parameters(), 0.5);
      optimizer.step();
    }
  };
  const at::Tensor x = at::randn({2, 5, 4});
  train(plain, x);
  train(marked, x);
  EXPECT_EQ(seen.size(), 5u);
  EXPECT_TRUE(at::equal(plain->bias, marked->bias));
  EXPECT_FALSE(marked->weight.grad().key_set().has(c10::DispatchKey::DeferredInit));
  EXPECT_TRUE(has_weight_behaviours(marked->weight));
  remove_weight_behaviours(marked->weight);
  EXPECT_TRUE(at::equal(plain->weight, marked->weight));
}

TEST(WeightBehaviour, StandsAboveAutocast) {
  std::vector<std::string> seen;
  torch::nn::Linear layer(4, 3);
  const auto behaviour = std::make_shared<Noting>(seen, "one");
  add_weight_behaviour(layer->weight, "w", behaviour);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  {
    const WeightCastScope casts;
    for (const at::Tensor& x : {at::randn({2, 4}), at::randn({2, 3, 4})})
      EXPECT_EQ(layer(x).scalar_type(), at::kBFloat16);
  }
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(seen.size(), 2u);
  EXPECT_EQ(behaviour->type, at::kFloat);
}

TEST(WeightBehaviour, IsAroundEmbeddings) {
  std::vector<std::string> seen;
  torch::nn::Embedding table(5, 3);
  const at::Tensor indices = at::tensor({0, 4, 4});
  const at::Tensor expected = table(indices).detach();
  add_weight_behaviour(table->weight, "table", std::make_shared<Noting>(seen, "one", 2));
  EXPECT_TRUE(table(indices).allclose(2 * expected));
  EXPECT_THAT(seen, ElementsAre("one: embedding of table"));
}

TEST(WeightBehaviour, OtherOperatorsAreRefusedByNameWhereTheyMustNotCompute) {
  std::vector<std::string> seen;
  torch::nn::Linear layer(4, 4);
  const at::Tensor& w = layer->weight;
  const at::Tensor x = at::randn({3, 4});
  add_weight_behaviour(w, "blocks.0.up.weight", std::make_shared<Noting>(seen, "one", 1, "is cut over 2 ranks"));
  const std::vector<std::pair<std::string, std::function<void()>>> uses{
      {"aten::einsum",
       [&] {
         at::einsum("bi,oi->bo", {x, w});
       }},
      {"aten::mul", [&] { 2 * w; }},
      {"aten::clone", [&] { w.clone(); }},
      {"aten::_to_copy", [&] { w.to(at::kDouble); }},
      {"aten::cat",
       [&] {
         at::cat({x, w});
       }},
      {"aten::square", [&] { w.square().sum(); }},
      {"aten::square", [&] { w.detach().square(); }},
      {"aten::matmul", [&] { at::matmul(x, w); }},
      {"aten::matmul", [&] { at::matmul(w, x.t()); }},
      {"aten::linear", [&] { at::linear(x, w.slice(0, 0, 2)); }},
      {"aten::linear", [&] { at::linear(x, w.t()); }},
      {"aten::linear", [&] { at::linear(x, w.slice(0, 1, 4)); }},
      {"aten::embedding", [&] { at::embedding(w.slice(0, 1), at::tensor({0})); }},
      {"aten::addmm", [&] { at::addmm(at::zeros({4}), x, w.t(), 1, 2); }}};
  for (const auto& [name, use] : uses) {
    for (const std::string& message : {message_of(use), message_of([&] {
                                         const c10::InferenceMode inference;
                                         use();
                                       })}) {
      EXPECT_THAT(message, HasSubstr("the weight 'blocks.0.up.weight' is cut over 2 ranks, and " + name));
    }
    // What is no forward may: optimizers, checkpoints, a backward.
    const at::NoGradGuard no_grad;
    EXPECT_EQ(message_of(use), "nothing was thrown") << name;
  }
  remove_weight_behaviours(w);
  for (const auto& [name, use] : uses) EXPECT_EQ(message_of(use), "nothing was thrown") << name;
}

TEST(WeightBehaviour, OtherMemoryTakesItAway) {
  std::vector<std::string> seen;
  torch::nn::Linear layer(4, 4);
  add_weight_behaviour(layer->weight, "w", std::make_shared<Noting>(seen, "one"));
  layer->weight.set_data(layer->weight.detach().clone());
  EXPECT_FALSE(has_weight_behaviours(layer->weight));
  layer(at::randn({3, 4}));
  EXPECT_TRUE(seen.empty());
}

}  // namespace
}  // namespace levin
