#include <levin/core/optim/fast_adam.h>

#include <levin/core/optim/adam.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

namespace levin::optim {
namespace {

at::Tensor uniform(at::IntArrayRef sizes, unsigned seed) {
  return at::rand(sizes, at::detail::createCPUGenerator(seed), at::kFloat) * 2 - 1;
}

struct Model {
  std::vector<at::Tensor> params;
  Model() {
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{37, 5}, {1}, {3, 4, 2, 2}, {0}, {40000}})
      params.push_back(uniform(sizes, 7).requires_grad_());
    params[2].set_data(params[2].detach().contiguous(at::MemoryFormat::ChannelsLast));
  }
  void set_gradients(unsigned step) {
    for (at::Tensor& param : params) param.mutable_grad() = uniform(param.sizes(), 100 + step);
  }
};

/// The largest difference to LibTorch's kernel after steps, in units of the last place of a weight of 1.
template <class Optimizer>
double difference(typename Optimizer::Options options, bool recordable = false) {
  Model ours, libtorchs;
  options.fast_kernel = true;
  Optimizer fast(ours.params, options);
  options.fast_kernel = false;
  Optimizer plain(libtorchs.params, options);
  if (recordable) fast.make_recordable();
  double largest = 0;
  for (unsigned step = 0; step < 20; ++step) {
    for (auto* side : {&ours, &libtorchs}) side->set_gradients(step);
    fast.step();
    plain.step();
    for (size_t i = 0; i < ours.params.size(); ++i)
      if (ours.params[i].numel() > 0)
        largest = std::max(largest, (ours.params[i] - libtorchs.params[i]).abs().max().template item<double>());
  }
  return largest / std::numeric_limits<float>::epsilon();
}

TEST(FastAdam, FollowsLibTorchsKernelWithinRounding) {
  constexpr double kUnits = 2;  // of 20 steps
  EXPECT_LE(difference<AdamW>({}), kUnits);
  EXPECT_LE(difference<AdamW>({.lr = 1e-3, .betas = {0.8, 0.95}, .weight_decay = 0.3}), kUnits);
  EXPECT_LE(difference<AdamW>({.maximize = true}), kUnits);
  EXPECT_LE(difference<AdamW>({}, /*recordable=*/true), kUnits);
  EXPECT_LE(difference<Adam>({}), kUnits);
  EXPECT_LE(difference<Adam>({.weight_decay = 0.1, .maximize = true}), kUnits);
}

TEST(FastAdam, IsLibTorchsKernelWithAmsgrad) {
  EXPECT_EQ(difference<AdamW>({.amsgrad = true}), 0);
  EXPECT_EQ(difference<Adam>({.amsgrad = true}), 0);
}

TEST(FastAdam, IsTheSameBitsWithEverySetOfVectors) {
  for (const int64_t count : {0, 1, 7, 16, 33, 1000}) {
    std::vector<std::vector<at::Tensor>> results;
    for (const VectorSet vectors : {VectorSet::kPortable, VectorSet::kAvx2, VectorSet::kAvx512}) {
      if (vectors > vector_set()) continue;
      std::vector<at::Tensor> state = {uniform({count}, 1), uniform({count}, 2), uniform({count}, 3),
                                       uniform({count}, 4).abs()};
      fast_adam(state[0].mutable_data_ptr<float>(), state[1].const_data_ptr<float>(),
                state[2].mutable_data_ptr<float>(), state[3].mutable_data_ptr<float>(), count,
                {.lr = 0.01, .weight_decay = 0.1, .decoupled = false, .step = 3}, vectors);
      results.push_back(std::move(state));
    }
    for (const auto& result : results)
      for (size_t i = 0; i < result.size(); ++i) EXPECT_TRUE(at::equal(result[i], results[0][i])) << count;
  }
}

TEST(FastAdam, NotFiniteGradientsSpreadAsInLibTorch) {
  for (const float value : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<at::Tensor> after;
    for (const bool fast : {true, false}) {
      at::Tensor param = at::ones({40}).requires_grad_();
      AdamW optimizer({param}, {.fast_kernel = fast});
      param.mutable_grad() = at::ones({40});
      param.mutable_grad()[3] = value;
      optimizer.step();
      after.push_back(param.detach());
    }
    EXPECT_TRUE(at::equal(after[0].isfinite(), after[1].isfinite()));
  }
}

TEST(FastAdam, UnscalesGradientsAndSkipsAStepWithAnInfinity) {
  Model scaled, plain;
  AdamW by_scale(scaled.params, {.fast_kernel = true});
  AdamW by_hand(plain.params, {.fast_kernel = true});
  for (auto* side : {&scaled, &plain}) side->set_gradients(1);
  for (at::Tensor& param : scaled.params) param.mutable_grad().mul_(8);
  by_scale.fused_step({.grad_scale = at::full({}, 8.0F), .found_inf = at::zeros({})});
  by_hand.step();
  for (size_t i = 0; i < plain.params.size(); ++i) {
    EXPECT_TRUE(at::equal(scaled.params[i], plain.params[i]));
    EXPECT_TRUE(at::equal(scaled.params[i].grad(), plain.params[i].grad()));
  }
  by_scale.fused_step({.grad_scale = at::full({}, 8.0F), .found_inf = at::ones({})});
  for (size_t i = 0; i < plain.params.size(); ++i) EXPECT_TRUE(at::equal(scaled.params[i], plain.params[i]));
}

TEST(FastAdam, TellsAutogradThatWeightsChanged) {
  at::Tensor param = at::ones({4}).requires_grad_();
  AdamW optimizer({param}, {.fast_kernel = true});
  param.mutable_grad() = at::ones({4});
  const auto before = param._version();
  optimizer.step();
  EXPECT_GT(param._version(), before);
}

}  // namespace
}  // namespace levin::optim
