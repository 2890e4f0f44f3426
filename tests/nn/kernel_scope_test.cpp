#include <levin/core/nn/kernel_scope.h>

#include <levin/core/nn/functional.h>
#include <levin/core/nn/max_pool_2x2.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <tuple>
#include <vector>

namespace levin {
namespace {

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.strides() != b.strides() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor first = a.contiguous();
  const at::Tensor second = b.contiguous();
  return first.numel() == 0 || std::memcmp(first.const_data_ptr(), second.const_data_ptr(), first.nbytes()) == 0;
}

/// Values of which many are equal, some are zeros of both signs, and some are not finite.
at::Tensor awkward(at::IntArrayRef sizes, unsigned seed = 1) {
  const auto generator = at::detail::createCPUGenerator(seed);
  at::Tensor values = at::randint(-3, 4, sizes, generator, at::kFloat);
  const at::Tensor kind = at::randint(0, 12, sizes, generator, at::kFloat);
  values = at::where(kind == 0, at::full({}, std::nanf("")), values);
  values = at::where(kind == 1, at::full({}, -std::numeric_limits<float>::infinity()), values);
  values = at::where(kind == 2, at::full({}, std::numeric_limits<float>::infinity()), values);
  return at::where(kind == 3, at::full({}, -0.0F), values);
}

const std::vector<std::vector<int64_t>> kShapes = {{2, 3, 4, 4},   {1, 1, 2, 2},   {3, 2, 7, 9},   {2, 5, 14, 14},
                                                   {2, 3, 28, 28}, {1, 2, 5, 33},  {2, 2, 2, 64},  {4, 6, 10},
                                                   {1, 1, 3, 3},   {2, 3, 64, 71}, {1, 40, 32, 32}};

TEST(MaxPool2x2, GivesLibTorchsBitsWithEverySetOfVectors) {
  for (const auto& shape : kShapes) {
    const at::Tensor input = awkward(shape);
    const auto [output, indices] = at::max_pool2d_with_indices(input, {2, 2});
    for (const VectorSet vectors : {VectorSet::kPortable, VectorSet::kAvx2, VectorSet::kAvx512}) {
      if (vectors > vector_set()) continue;
      const at::Tensor own = at::empty_like(output);
      const at::Tensor own_indices = at::empty_like(indices);
      const int64_t height = input.size(-2);
      const int64_t width = input.size(-1);
      max_pool_2x2(input.const_data_ptr<float>(), own.mutable_data_ptr<float>(),
                   own_indices.mutable_data_ptr<int64_t>(), input.numel() / (height * width), height, width, vectors);
      EXPECT_TRUE(same_bits(own, output)) << c10::str(input.sizes(), " set ", static_cast<int>(vectors));
      EXPECT_TRUE(same_bits(own_indices, indices)) << c10::str(input.sizes(), " set ", static_cast<int>(vectors));
    }
  }
}

TEST(KernelScope, MaxPoolingGivesLibTorchsBitsWhateverItsArguments) {
  struct Case {
    at::Tensor input;
    std::vector<int64_t> kernel{2, 2}, stride{}, padding{0, 0}, dilation{1, 1};
    bool ceil_mode = false;
  };
  std::vector<Case> cases;
  for (const auto& shape : kShapes) {
    cases.push_back({.input = awkward(shape)});
    cases.push_back({.input = awkward(shape), .stride = {2}, .ceil_mode = true});
  }
  const at::Tensor image = awkward({2, 4, 12, 10});
  cases.push_back({.input = image, .kernel = {2}, .padding = {0}, .dilation = {1}});
  cases.push_back({.input = image, .kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}});
  cases.push_back({.input = image, .stride = {1, 1}});
  cases.push_back({.input = image, .stride = {2, 1}});
  cases.push_back({.input = image, .padding = {1, 1}});
  cases.push_back({.input = image, .dilation = {2, 2}});
  cases.push_back({.input = image, .kernel = {2, 1}});
  cases.push_back({.input = image.contiguous(at::MemoryFormat::ChannelsLast)});
  cases.push_back({.input = image.transpose(2, 3)});
  cases.push_back({.input = image.slice(3, 1, 9)});
  cases.push_back({.input = image.slice(1, 0, 2).slice(2, 1)});
  cases.push_back({.input = image.to(at::kDouble)});
  cases.push_back({.input = image.to(at::kBFloat16)});
  cases.push_back({.input = image.to(at::kHalf)});
  cases.push_back({.input = image.to(at::kFloat)._neg_view()});
  cases.push_back({.input = at::empty({0, 4, 12, 10})});
  for (const Case& item : cases) {
    const auto run = [&] {
      return at::max_pool2d_with_indices(item.input, item.kernel, item.stride, item.padding, item.dilation,
                                         item.ceil_mode);
    };
    const auto expected = run();
    const KernelScope scope;
    const auto own = run();
    EXPECT_TRUE(same_bits(std::get<0>(own), std::get<0>(expected))) << c10::str(item.input.sizes());
    EXPECT_TRUE(same_bits(std::get<1>(own), std::get<1>(expected))) << c10::str(item.input.sizes());
    at::Tensor out = at::empty({0}, item.input.options());
    at::Tensor indices = at::empty({0}, at::kLong);
    for (int again = 0; again < 2; ++again) {  // into places that must grow, then into those that fit
      at::max_pool2d_with_indices_out(out, indices, item.input, item.kernel, item.stride, item.padding, item.dilation,
                                      item.ceil_mode);
      EXPECT_TRUE(same_bits(out, std::get<0>(expected))) << c10::str(item.input.sizes());
      EXPECT_TRUE(same_bits(indices, std::get<1>(expected))) << c10::str(item.input.sizes());
    }
  }
}

TEST(KernelScope, WhatLibTorchRefusesIsRefusedInItsWords) {
  const auto message = [](const at::Tensor& input, at::IntArrayRef kernel, at::IntArrayRef padding) -> std::string {
    try {
      at::max_pool2d_with_indices(input, kernel, {}, padding);
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "";
  };
  for (const auto& [input, kernel, padding] :
       std::vector<std::tuple<at::Tensor, std::vector<int64_t>, std::vector<int64_t>>>{
           {at::zeros({4}), {2, 2}, {0, 0}},
           {at::zeros({1, 1, 1, 4}), {2, 2}, {0, 0}},
           {at::zeros({1, 0, 4, 4}), {2, 2}, {0, 0}},
           {at::zeros({1, 1, 4, 4}), {2, 2, 2}, {0, 0}},
           {at::zeros({1, 1, 4, 4}), {2, 2}, {2, 2}},
           {at::zeros({1, 1, 4, 4}, at::kBool), {2, 2}, {0, 0}}}) {
    const std::string expected = message(input, kernel, padding);
    EXPECT_NE(expected, "");
    const KernelScope scope;
    EXPECT_EQ(message(input, kernel, padding), expected);
  }
}

TEST(KernelScope, RegistersItsKernelsWithTheDispatcher) {
  const KernelScope scope;
  for (const char* overload : {"", "out"}) {
    const auto operation = c10::Dispatcher::singleton().findSchema({"aten::max_pool2d_with_indices", overload});
    ASSERT_TRUE(operation.has_value());
    EXPECT_TRUE(operation->hasKernelForDispatchKey(c10::DispatchKey::BackendSelect)) << overload;
  }
}

struct Pooled {
  at::Tensor output, gradient;
};

template <class Pool>
Pooled pool_and_go_back(const at::Tensor& values, const Pool& pool) {
  const at::Tensor input = values.clone().requires_grad_();
  const at::Tensor output = pool(input * 2);
  (output * at::arange(output.numel(), at::kFloat).view_as(output)).sum().backward();
  return {output.detach(), input.grad()};
}

TEST(KernelScope, ModulesAndFunctionsTakePartInAutograd) {
  const at::Tensor values = at::randn({2, 3, 14, 15});
  const auto libtorch = [](const at::Tensor& x) {
    return torch::nn::functional::max_pool2d(x, torch::nn::functional::MaxPool2dFuncOptions(2));
  };
  const Pooled expected = pool_and_go_back(values, libtorch);
  std::vector<Pooled> results;
  results.push_back(pool_and_go_back(values, [](const at::Tensor& x) {
    return nn::functional::max_pool2d(x, {2, 2});
  }));
  const KernelScope scope;
  results.push_back(pool_and_go_back(values, libtorch));
  results.push_back(pool_and_go_back(values, [](const at::Tensor& x) { return torch::nn::MaxPool2d(2)->forward(x); }));
  {
    const KernelScope libtorch_again(false);
    results.push_back(pool_and_go_back(values, libtorch));
  }
  std::thread([&] { results.push_back(pool_and_go_back(values, libtorch)); }).join();
  for (const Pooled& result : results) {
    EXPECT_TRUE(same_bits(result.output, expected.output));
    EXPECT_TRUE(same_bits(result.gradient, expected.gradient));
  }
}

TEST(KernelScope, WorksInInferenceModeAndUnderAutocast) {
  const at::Tensor values = at::randn({2, 3, 8, 8});
  const at::Tensor expected = at::max_pool2d(values, {2, 2});
  const KernelScope scope;
  {
    const c10::InferenceMode inference;
    EXPECT_TRUE(same_bits(at::max_pool2d(values, {2, 2}), expected));
    EXPECT_TRUE(same_bits(at::max_pool2d(values.clone(), {2, 2}), expected));
  }
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor cast = at::max_pool2d(values, {2, 2});
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_TRUE(same_bits(cast, expected));
}

}  // namespace
}  // namespace levin
