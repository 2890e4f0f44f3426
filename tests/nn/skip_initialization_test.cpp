#include <levin/core/nn/skip_initialization.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

namespace levin {
namespace {

at::Tensor generator_state() { return at::detail::getDefaultCPUGenerator().get_state(); }

at::Tensor drawn_weight() {
  torch::manual_seed(5);
  return torch::nn::Linear(40, 30)->weight.detach();
}

TEST(SkipInitialization, DrawsNothing) {
  const at::Tensor expected = drawn_weight();
  torch::manual_seed(5);
  const at::Tensor before = generator_state();
  at::Tensor kept = torch::full({4}, 3.0);
  {
    const SkipInitialization skip;
    const torch::nn::Linear linear(40, 30);
    EXPECT_EQ(linear->weight.sizes(), expected.sizes());
    EXPECT_TRUE(linear->weight.requires_grad());
    const torch::nn::Conv2d convolution(torch::nn::Conv2dOptions(3, 4, 3));
    const torch::nn::Embedding table(10, 4);
    const torch::nn::LSTM recurrent(3, 4);
    torch::nn::init::normal_(kept);
    torch::nn::init::xavier_uniform_(recurrent->all_weights()[0]);
    EXPECT_TRUE(generator_state().equal(before));
    EXPECT_TRUE(kept.eq(3).all().item<bool>());
  }
  EXPECT_TRUE(torch::nn::Linear(40, 30)->weight.equal(expected)) << "the scope has ended, and nothing was drawn in it";
}

TEST(SkipInitialization, ScopesNestAndAreOfOneThread) {
  const at::Tensor expected = drawn_weight();
  const SkipInitialization skip;
  { const SkipInitialization inner; }
  torch::manual_seed(5);
  const at::Tensor before = generator_state();
  const torch::nn::Linear linear(40, 30);
  EXPECT_TRUE(generator_state().equal(before)) << "still in the outer scope";
  at::Tensor of_thread;
  std::thread([&] { of_thread = torch::nn::Linear(40, 30)->weight.detach(); }).join();
  EXPECT_TRUE(of_thread.equal(expected));
}

/// Outside of a scope LibTorch draws: in float64, from a given generator, and in a graph of autograd.
TEST(SkipInitialization, DrawsGoOnBeyondIt) {
  { const SkipInitialization skip; }
  const auto generator = at::detail::createCPUGenerator(3);
  const auto again = at::detail::createCPUGenerator(3);
  const at::Tensor drawn = torch::empty({50}, torch::kDouble).normal_(1, 2, generator);
  EXPECT_TRUE(drawn.equal(at::normal(1.0, 2.0, {50}, again, torch::kDouble)));
  at::Tensor weight = torch::ones({3}, torch::requires_grad());
  weight.mul(2).uniform_(0, 1).sum().backward();
  EXPECT_TRUE(weight.grad().eq(0).all().item<bool>()) << "what was drawn does not depend on the weight";
}

}  // namespace
}  // namespace levin
