#include "tests/support/sim_device/sim_device.h"

#include <levin/core/optim/adamw8bit.h>
#include <levin/core/optim/block_quantization.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace levin::testing {
namespace {

using sim::device;

void seed(uint64_t seed) {
  at::Generator(at::detail::getDefaultCPUGenerator()).set_current_seed(seed);
  for (c10::DeviceIndex i = 0; i < 2; ++i)
    at::Generator(at::globalContext().defaultGenerator(device(i))).set_current_seed(seed);
}

/// The results, and the gradients by all inputs, of a function on a device; each on the CPU.
using Function = std::function<at::Tensor(const std::vector<at::Tensor>&)>;
std::vector<at::Tensor> results_on(const at::Device& where, const std::vector<at::Tensor>& inputs,
                                   const Function& function) {
  seed(11);
  std::vector<at::Tensor> there;
  for (const at::Tensor& input : inputs) {
    const at::Tensor copy = input.detach().to(where, input.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    there.push_back(copy.set_requires_grad(input.requires_grad()));
  }
  const at::Tensor output = function(there);
  std::vector<at::Tensor> results = {output.detach().cpu()};
  if (output.requires_grad()) {
    (output * output.detach().cos()).to(at::kFloat).sum().backward();
    for (const at::Tensor& input : there) results.push_back(input.requires_grad() ? input.grad().cpu() : at::Tensor());
  }
  return results;
}

/// Equal to the bit, on both indices.
void expect_as_on_cpu(const std::vector<at::Tensor>& inputs, const Function& function) {
  const auto expected = results_on(at::kCPU, inputs, function);
  for (c10::DeviceIndex index = 0; index < 2; ++index) {
    const auto results = results_on(device(index), inputs, function);
    ASSERT_EQ(results.size(), expected.size());
    for (size_t i = 0; i < results.size(); ++i) {
      if (!expected[i].defined()) continue;
      EXPECT_EQ(results[i].scalar_type(), expected[i].scalar_type());
      EXPECT_TRUE(results[i].equal(expected[i]))
          << "result " << i << " on sim:" << int{index} << ", largest difference "
          << (results[i] - expected[i]).abs().max().item<double>();
    }
  }
  EXPECT_TRUE(sim::report().faults.empty()) << sim::report().to_string();
}

at::Tensor leaf(at::IntArrayRef sizes) { return at::randn(sizes).set_requires_grad(true); }

TEST(SimOperators, LinearLayersAreThoseOfTheCpu) {
  expect_as_on_cpu({leaf({16, 8}), leaf({4, 8}), leaf({4})},
                   [](const auto& in) { return at::linear(in[0], in[1], in[2]); });
  expect_as_on_cpu({leaf({2, 16, 8}), leaf({4, 8}), leaf({4})},
                   [](const auto& in) { return at::gelu(at::linear(in[0], in[1], in[2])); });
}

TEST(SimOperators, ConvolutionsAndPoolingAreThoseOfTheCpu) {
  expect_as_on_cpu({leaf({2, 3, 9, 9}), leaf({4, 3, 3, 3}), leaf({4})}, [](const auto& in) {
    return at::max_pool2d(at::conv2d(in[0], in[1], in[2], 1, 1), {2, 2}, {2, 2});
  });
  expect_as_on_cpu({leaf({2, 4, 9}), leaf({4, 2, 3})},
                   [](const auto& in) { return at::conv1d(in[0], in[1], {}, 2, 1, 1, 2); });
  expect_as_on_cpu({leaf({2, 4, 5, 5}), leaf({4, 3, 3, 3})},
                   [](const auto& in) { return at::conv_transpose2d(in[0], in[1]); });
}

TEST(SimOperators, NormalisationIsThatOfTheCpu) {
  expect_as_on_cpu({leaf({4, 6, 5}), leaf({5}), leaf({5})},
                   [](const auto& in) { return at::layer_norm(in[0], {5}, in[1], in[2]); });
  expect_as_on_cpu({leaf({4, 6, 5}), leaf({6}), leaf({6})},
                   [](const auto& in) { return at::group_norm(in[0], 2, in[1], in[2]); });
  expect_as_on_cpu({leaf({8, 6, 5}), leaf({6}), leaf({6}), at::zeros({6}), at::ones({6})}, [](const auto& in) {
    return at::batch_norm(in[0], in[1], in[2], in[3], in[4], true, 0.1, 1e-5, false) + in[3].unsqueeze(1) +
           in[4].unsqueeze(1);
  });
}

TEST(SimOperators, AttentionIsThatOfTheCpu) {
  expect_as_on_cpu({leaf({2, 2, 6, 8}), leaf({2, 2, 6, 8}), leaf({2, 2, 6, 8})},
                   [](const auto& in) { return at::scaled_dot_product_attention(in[0], in[1], in[2], {}, 0.0, true); });
}

TEST(SimOperators, EmbeddingsLossesAndIndexingAreThoseOfTheCpu) {
  const at::Tensor indices = at::tensor({3, 0, 3, 1}, at::kLong);
  expect_as_on_cpu({leaf({4, 6}), indices}, [](const auto& in) { return at::embedding(in[0], in[1]); });
  expect_as_on_cpu({leaf({4, 6}), indices}, [](const auto& in) { return at::cross_entropy_loss(in[0], in[1]); });
  expect_as_on_cpu({leaf({4, 6}), indices}, [](const auto& in) {
    return at::cat({in[0].index({in[1]}), in[0]}).softmax(1);
  });
  expect_as_on_cpu({leaf({4, 6})}, [](const auto& in) { return std::get<0>(in[0].t().topk(3)); });
}

TEST(SimOperators, FusedAndForeachKernelsAreThoseOfTheCpu) {
  const std::vector<at::Tensor> inputs = {at::randn({10}), at::randn({10}), at::rand({10}), at::rand({10}),
                                          at::ones({})};
  for (const bool with_scale : {false, true})
    expect_as_on_cpu(inputs, [&](const auto& in) {
      const auto scale = with_scale ? std::optional(at::full({}, 4.0F, in[0].options())) : std::nullopt;
      const auto found = with_scale ? std::optional(at::zeros({}, in[0].options())) : std::nullopt;
      at::Tensor p = in[0].clone(), g = in[1].clone(), m = in[2].clone(), v = in[3].clone(), step = in[4].clone();
      at::_fused_adamw_({p}, {g}, {m}, {v}, {}, {step}, 0.1, 0.9, 0.999, 0.01, 1e-8, false, false, scale, found);
      return at::cat({p, m, v, at::_foreach_norm({p, g})[1].reshape({1})});
    });
}

TEST(SimOperators, UnscalingFindsInfinitiesAsOnTheCpu) {
  expect_as_on_cpu({at::tensor({1.0F, INFINITY}), at::zeros({}), at::full({}, 0.5F)}, [](const auto& in) {
    at::Tensor gradient = in[0].clone(), found = in[1].clone();
    at::_amp_foreach_non_finite_check_and_unscale_({gradient}, found, in[2]);
    return at::cat({gradient, found.reshape({1})});
  });
}

/// Forward and backward; a device has fused cells, which add up in another order than the CPU's layers.
TEST(SimOperators, RecurrentLayersAreNearlyThoseOfTheCpu) {
  for (const int64_t gates : {4, 3}) {
    const auto run = [gates](const std::vector<at::Tensor>& in) {
      const std::vector<at::Tensor> parameters(in.begin() + 1, in.begin() + 5);
      return gates == 4 ? std::get<0>(at::lstm(in[0], {in[5], in[5]}, parameters, true, 1, 0, true, false, true))
                        : std::get<0>(at::gru(in[0], in[5], parameters, true, 1, 0, true, false, true));
    };
    const std::vector<at::Tensor> inputs = {leaf({2, 5, 3}),   leaf({gates * 4, 3}), leaf({gates * 4, 4}),
                                            leaf({gates * 4}), leaf({gates * 4}),    leaf({1, 2, 4})};
    const auto expected = results_on(at::kCPU, inputs, run);
    const auto results = results_on(device(1), inputs, run);
    ASSERT_EQ(results.size(), expected.size());
    for (size_t i = 0; i < results.size(); ++i) EXPECT_TRUE(results[i].allclose(expected[i], 1e-4, 1e-6)) << i;
  }
  EXPECT_TRUE(sim::report().faults.empty()) << sim::report().to_string();
}

TEST(SimRandom, NumbersAreThoseOfTheCpu) {
  expect_as_on_cpu({at::ones({200})}, [](const auto& in) {
    at::Tensor x = in[0].clone();
    const at::TensorOptions options = x.options();
    return at::cat({x.bernoulli_(0.3), x.normal_(1, 2), x.uniform_(-1, 1), x.exponential_(2.0), x.random_(0, 1000),
                    at::rand({50}, options), at::randn({50}, options), at::randint(0, 9, {50}, options),
                    at::rand_like(x), at::randn_like(x), at::bernoulli(x.fill_(0.5)), at::normal(x, 2.0),
                    at::randperm(77, options), at::multinomial(x.abs() + 0.1, 20).to(at::kFloat)});
  });
}

TEST(SimRandom, DropoutIsThatOfTheCpuForwardAndBackward) {
  for (const auto type : {at::kFloat, at::kBFloat16})
    expect_as_on_cpu({at::randn({64, 8}).to(type).set_requires_grad(true)},
                     [](const auto& in) { return at::dropout(in[0], 0.3, true).exp(); });
  expect_as_on_cpu({leaf({64, 8})}, [](const auto& in) { return at::dropout(in[0], 0.3, false); });
}

TEST(SimRandom, DevicesHaveGeneratorsOfTheirOwn) {
  seed(5);
  const at::Tensor first = at::rand({8}, device(0)).cpu();
  at::rand({8});
  at::rand({8}, device(1));
  const at::Tensor second = at::rand({8}, device(0)).cpu();
  seed(5);
  EXPECT_TRUE(at::rand({16}, device(1)).cpu().narrow(0, 0, 8).equal(first));
  EXPECT_TRUE(at::rand({8}, device(0)).cpu().equal(first));
  EXPECT_TRUE(at::rand({8}, device(0)).cpu().equal(second));
}

TEST(SimRandom, AGeneratorOfTheCpuIsRefused) {
  EXPECT_THROW(at::empty({4}, device(0)).uniform_(0, 1, at::detail::createCPUGenerator()), c10::Error);
}

TEST(SimRandom, StatesCanBeTakenAndGivenBack) {
  const at::Generator& generator = at::globalContext().defaultGenerator(device(1));
  const at::Tensor state = generator.get_state().clone();
  const at::Tensor drawn = at::randn({9}, device(1)).cpu();
  at::Generator(generator).set_state(state);
  EXPECT_TRUE(at::randn({9}, device(1)).cpu().equal(drawn));
}

TEST(SimAutocast, LowersTheOperatorsThatItLowersOnTheCpu) {
  std::set<std::string> on_cpu, on_sim;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto operation = dispatcher.findSchema(name);
    if (!operation) continue;
    if (operation->hasKernelForDispatchKey(c10::DispatchKey::AutocastCPU)) on_cpu.insert(c10::toString(name));
    if (operation->hasKernelForDispatchKey(c10::DispatchKey::AutocastPrivateUse1)) on_sim.insert(c10::toString(name));
  }
  EXPECT_EQ(on_sim, on_cpu);
}

TEST(SimAutocast, GivesTheResultsOfTheCpu) {
  expect_as_on_cpu({leaf({16, 8}), leaf({4, 8}), leaf({4})}, [](const auto& in) {
    const auto type = in[0].device().type();
    at::autocast::set_autocast_dtype(type, at::kBFloat16);
    at::autocast::set_autocast_enabled(type, true);
    const at::Tensor hidden = at::linear(in[0], in[1], in[2]);
    EXPECT_EQ(hidden.scalar_type(), at::kBFloat16);
    const at::Tensor loss = at::mse_loss(at::layer_norm(hidden, {4}), in[0].narrow(1, 0, 4));
    at::autocast::set_autocast_enabled(type, false);
    at::autocast::clear_cache();
    EXPECT_EQ(loss.scalar_type(), at::kFloat);
    return loss;
  });
}

TEST(SimAutograd, RunsOnAThreadOfTheDevice) {
  std::set<std::thread::id> threads;
  const at::Tensor x = at::ones({4}, device(1)).set_requires_grad(true);
  at::Tensor y = x * 2;
  y.register_hook([&](const at::Tensor&) { threads.insert(std::this_thread::get_id()); });
  y.sum().backward();
  EXPECT_EQ(threads.size(), 1);
  EXPECT_EQ(threads.count(std::this_thread::get_id()), 0);
}

TEST(SimAutograd, TrainsAsTheCpu) {
  expect_as_on_cpu({leaf({4, 8}), leaf({4}), at::randn({3, 16, 8}), at::randn({3, 16, 4})}, [](const auto& in) {
    std::vector<at::Tensor> parameters = {in[0].detach().clone().set_requires_grad(true),
                                          in[1].detach().clone().set_requires_grad(true)};
    torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int64_t i = 0; i < 3; ++i) {
      optimizer.zero_grad();
      (at::linear(in[2][i], parameters[0], parameters[1]) - in[3][i]).square().mean().backward();
      optimizer.step();
    }
    return parameters[0].detach();
  });
}

TEST(SimOptimizers, QuantizeAsTheCpu) {
  seed(3);
  // Of many sizes, in a layout of its own; the last block is short, and one is zero.
  at::Tensor values =
      (at::randn({5, 8, 9, 7}) * at::randn({5, 8, 9, 7}).mul(4).exp()).contiguous(at::MemoryFormat::ChannelsLast);
  values.as_strided({256}, {1}, 512).zero_();
  for (const auto range : {optim::QuantizedRange::kSigned, optim::QuantizedRange::kNonNegative}) {
    if (range == optim::QuantizedRange::kNonNegative) values = values.abs();
    const auto quantized = [&](const at::Device& where) {
      const at::Tensor there = values.to(where);
      const at::Tensor codes = at::empty_like(there, at::TensorOptions().dtype(at::kByte));
      const at::Tensor scales =
          at::empty({optim::quantization_blocks(values.numel())}, at::TensorOptions().device(where));
      optim::quantize(there, codes, scales, range);
      return std::vector<at::Tensor>{codes.cpu(), scales.cpu(), optim::dequantize(codes, scales, range).cpu()};
    };
    const auto expected = quantized(at::kCPU);
    const auto found = quantized(device(1));
    for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(found[i].equal(expected[i])) << i;
    EXPECT_EQ(found[2].strides(), values.strides());
  }
}

TEST(SimOptimizers, StateOf8BitsTrainsAndResumesAsOnTheCpu) {
  const auto trained = [](const at::Device& where, int64_t saved_after) {
    seed(4);
    const at::Tensor parameter = at::randn({80, 60}).to(where).set_requires_grad(true);
    optim::ParameterNames names;
    names.add("p", parameter);
    auto optimizer = std::make_unique<optim::AdamW8bit>(std::vector<at::Tensor>{parameter});
    for (int64_t i = 0; i < 8; ++i) {
      parameter.mutable_grad() = at::randn({80, 60}).to(where) + parameter.detach() * 0.5;
      if (i == saved_after) {
        const State states = optimizer->parameter_states(names);
        optimizer = std::make_unique<optim::AdamW8bit>(std::vector<at::Tensor>{parameter});
        optimizer->load_parameter_states(names, states);
      }
      const int64_t waits = sim::report().total_waits();
      optimizer->step();
      if (i > 0) EXPECT_EQ(sim::report().total_waits(), waits) << sim::report().to_string();
    }
    return parameter.detach().cpu();
  };
  const at::Tensor straight = trained(device(0), -1);
  EXPECT_TRUE(trained(device(0), 5).equal(straight));
  // Eight steps of at most 0.001; what lies between two codes may have either.
  EXPECT_LT((trained(at::kCPU, -1) - straight).abs().max().item<float>(), 1e-3);
  EXPECT_LT((trained(at::kCPU, -1) - straight).abs().mean().item<float>(), 1e-6);
}

TEST(SimAutograd, LibTorchsOwnMoveOfAModuleIsRefused) {
  // The reason why Levin moves modules by a function of its own.
  torch::nn::Linear layer(2, 2);
  EXPECT_THROW(layer->to(device(0)), c10::Error);
}

}  // namespace
}  // namespace levin::testing
