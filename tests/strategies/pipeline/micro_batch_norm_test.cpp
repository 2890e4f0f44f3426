#include <levin/strategies/pipeline/micro_batch_norm.h>

#include "../../support/lockstep_ranks.h"

#include <levin/core/nn/checkpoint.h>
#include <levin/strategies/ddp/sync_batch_norm.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace levin {
namespace {

using testing::run_in_lockstep;
using Sizes = std::vector<int64_t>;
using Tensors = std::vector<at::Tensor>;

constexpr int64_t kChannels = 3;

int64_t sum(const Sizes& sizes) { return std::accumulate(sizes.begin(), sizes.end(), int64_t{0}); }

at::Tensor values(at::IntArrayRef shape, double frequency, double offset = 0.4) {
  const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  return at::arange(count, at::kDouble).mul(frequency).sin().mul(1.7).add(offset).reshape(shape);
}

/// A batch with this many dimensions after the channels.
at::Tensor batch_of(int64_t examples, int64_t space, at::ScalarType type, double frequency = 0.77) {
  Sizes shape{examples, kChannels};
  for (int64_t i = 0; i < space; ++i) shape.push_back(4 - i);
  return values(shape, frequency).to(type);
}

/// A batch-norm layer for that many dimensions. Every one made with the same arguments is the same.
torch::nn::AnyModule layer_for(int64_t space, at::ScalarType type, std::optional<double> momentum = 0.1) {
  const auto options = torch::nn::BatchNormOptions(kChannels).momentum(momentum);
  const auto fill = [&](auto module) {
    module->to(type);
    const at::NoGradGuard no_grad;
    module->weight.copy_(values({kChannels}, 0.9));
    module->bias.copy_(values({kChannels}, 1.9));
    return torch::nn::AnyModule(module);
  };
  if (space < 2) return fill(torch::nn::BatchNorm1d(options));
  return space == 2 ? fill(torch::nn::BatchNorm2d(options)) : fill(torch::nn::BatchNorm3d(options));
}

Tensors buffers_of(const torch::nn::Module& module) {
  Tensors copies;
  for (const auto& buffer : module.buffers())
    if (buffer.defined()) copies.push_back(buffer.clone());
  return copies;
}

void expect_same(const Tensors& actual, const Tensors& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(actual[i].equal(expected[i])) << i;
}

/// 1e-6, and of double precision far less; counts are equal.
void expect_near(const Tensors& actual, const Tensors& expected, std::optional<double> tolerance = std::nullopt) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    const at::ScalarType type = expected[i].scalar_type();
    EXPECT_EQ(actual[i].scalar_type(), type);
    const double bound = type == at::kLong ? 0 : tolerance.value_or(type == at::kDouble ? 1e-13 : 1e-6);
    EXPECT_TRUE(actual[i].allclose(expected[i], bound, bound))
        << i << ": " << actual[i] << " instead of " << expected[i];
  }
}

using Forward = std::function<at::Tensor(const at::Tensor&)>;

/// What a step gives besides the running statistics.
struct Results {
  Tensors outputs;
  Tensors gradients;  ///< of each micro-batch's input and, last, of the parameters
};

/// One training step: all forwards, then all backwards. Without `statistics` these are plain calls.
Results run_step(const torch::nn::Module& module, const Forward& forward, const at::Tensor& batch, const Sizes& sizes,
                 MicroBatchStatistics* statistics) {
  for (const auto& parameter : module.parameters()) at::Tensor(parameter).mutable_grad() = at::Tensor();
  Results results;
  Tensors inputs;
  for (const at::Tensor& part : batch.split_with_sizes(sizes)) {
    inputs.push_back(part.detach().clone().requires_grad_());
    std::optional<MicroBatchNormScope> scope;
    if (statistics != nullptr) scope.emplace(*statistics, static_cast<int64_t>(inputs.size()) - 1);
    results.outputs.push_back(forward(inputs.back()));
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    const at::Tensor& output = results.outputs[i];
    (output * values(output.sizes(), 1.31).to(output.scalar_type())).sum().backward();
    results.gradients.push_back(inputs[i].grad());
    results.outputs[i] = output.detach();
  }
  if (statistics != nullptr) statistics->apply();
  for (const auto& parameter : module.parameters()) results.gradients.push_back(parameter.grad().clone());
  return results;
}

/// Micro-batches of a layer against one forward of the whole batch, in running statistics, and against plain LibTorch
/// on each micro-batch, in outputs and gradients.
void expect_as_one_batch(int64_t space, at::ScalarType type, const Sizes& sizes, std::optional<double> momentum,
                         int64_t steps) {
  SCOPED_TRACE(c10::str(space, "d ", type, " in ", sizes, ", momentum ", momentum.value_or(-1)));
  torch::nn::AnyModule actual = layer_for(space, type, momentum);
  torch::nn::AnyModule whole = layer_for(space, type, momentum);
  torch::nn::AnyModule plain = layer_for(space, type, momentum);
  for (int64_t step = 0; step < steps; ++step) {
    const at::Tensor batch = batch_of(sum(sizes), space, type, 0.77 + 0.1 * static_cast<double>(step));
    MicroBatchStatistics statistics(*actual.ptr());
    const auto run = [&](torch::nn::AnyModule& layer, MicroBatchStatistics* to) {
      return run_step(
          *layer.ptr(), [&](const at::Tensor& x) { return layer.forward(x); }, batch, sizes, to);
    };
    const Results results = run(actual, &statistics);
    const Results expected = run(plain, nullptr);
    expect_same(results.outputs, expected.outputs);
    expect_same(results.gradients, expected.gradients);
    whole.forward(batch);
    expect_near(buffers_of(*actual.ptr()), buffers_of(*whole.ptr()));
  }
}

TEST(MicroBatchNorm, RunningStatisticsAreThoseOfOneForward) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat})
    for (const int64_t space : {0, 1, 2, 3})
      for (const auto& sizes : std::vector<Sizes>{{7}, {4, 4}, {2, 5, 3}, {2, 3, 5, 4, 2}})
        expect_as_one_batch(space, type, sizes, 0.1, /*steps=*/2);
}

TEST(MicroBatchNorm, ACumulativeAverageCountsWholeBatches) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat})
    expect_as_one_batch(2, type, {2, 5, 3}, std::nullopt, /*steps=*/3);
}

TEST(MicroBatchNorm, AFarOffMeanCostsNoPrecision) {
  const at::Tensor batch = values({600, kChannels}, 0.77, 1e3).to(at::kFloat);
  torch::nn::AnyModule layer = layer_for(0, at::kFloat, 1.0);
  MicroBatchStatistics statistics(*layer.ptr());
  run_step(
      *layer.ptr(), [&](const at::Tensor& x) { return layer.forward(x); }, batch, {100, 200, 300}, &statistics);
  const at::Tensor expected = batch.to(at::kDouble).var(0, /*unbiased=*/true);
  expect_near({layer.ptr()->named_buffers()["running_var"].to(at::kDouble)}, {expected}, 1e-5);
}

TEST(MicroBatchNorm, SingleElementsAndEmptyMicroBatchesCombine) {
  const at::Tensor batch = batch_of(6, 0, at::kDouble);
  const auto norm = [](const at::Tensor& x, const at::Tensor& mean, const at::Tensor& variance) {
    return at::batch_norm(x, {}, {}, mean, variance, /*training=*/true, 0.1, 1e-5, false);
  };
  const Tensors expected{at::zeros({kChannels}, at::kDouble), at::ones({kChannels}, at::kDouble)};
  norm(batch, expected[0], expected[1]);
  // A function instead of a module.
  const Tensors actual{at::zeros({kChannels}, at::kDouble), at::ones({kChannels}, at::kDouble)};
  MicroBatchStatistics statistics{*torch::nn::Sequential()};
  const Tensors parts = batch.split_with_sizes({1, 0, 3, 1, 1});
  for (size_t i = 0; i < parts.size(); ++i) {
    const MicroBatchNormScope scope(statistics, static_cast<int64_t>(i));
    norm(parts[i], actual[0], actual[1]);
  }
  statistics.apply();
  expect_near(actual, expected);
}

TEST(MicroBatchNorm, NothingIsUpdatedBeforeApplyAndApplyUpdatesOnce) {
  torch::nn::AnyModule layer = layer_for(1, at::kFloat);
  const Tensors before = buffers_of(*layer.ptr());
  MicroBatchStatistics statistics(*layer.ptr());
  {
    const MicroBatchNormScope scope(statistics, 0);
    layer.forward(batch_of(4, 1, at::kFloat));
  }
  const auto buffers = layer.ptr()->named_buffers();
  EXPECT_TRUE(buffers["running_mean"].equal(before[0]));
  EXPECT_TRUE(buffers["running_var"].equal(before[1]));
  statistics.apply();
  EXPECT_FALSE(buffers["running_mean"].equal(before[0]));
  const Tensors after = buffers_of(*layer.ptr());
  statistics.apply();
  expect_same(buffers_of(*layer.ptr()), after);
}

/// Two layers, of which the second runs twice.
struct NormedNetImpl : torch::nn::Module {
  explicit NormedNetImpl(std::optional<double> momentum = 0.1) {
    torch::manual_seed(3);
    linear = register_module("linear", torch::nn::Linear(kChannels, 4));
    first = register_module("first", torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(4).momentum(momentum)));
    second = register_module("second", torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(4).momentum(momentum)));
  }
  at::Tensor forward(const at::Tensor& x) { return second(second(first(linear(x)).tanh()).exp()); }
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d first{nullptr};
  torch::nn::BatchNorm1d second{nullptr};
};
TORCH_MODULE(NormedNet);

Forward forward_of(NormedNet net) {
  return [net](const at::Tensor& x) mutable { return net(x); };
}

TEST(MicroBatchNorm, TheFirstLayerHasTheStatisticsOfTheWholeBatchAndEachCallOfALayerCounts) {
  const at::Tensor batch = batch_of(9, 0, at::kFloat);
  for (const auto momentum : {std::optional<double>(0.1), std::optional<double>()}) {
    NormedNet actual(momentum);
    NormedNet whole(momentum);
    for (int64_t step = 1; step <= 2; ++step) {
      MicroBatchStatistics statistics(*actual);
      run_step(*actual, forward_of(actual), batch, {2, 4, 3}, &statistics);
      whole(batch);
      // Later layers have inputs of their own: each micro-batch was normalised with its own statistics.
      expect_near(buffers_of(*actual->first), buffers_of(*whole->first));
      EXPECT_EQ(actual->second->num_batches_tracked.item<int64_t>(), 2 * step);
    }
  }
}

TEST(MicroBatchNorm, TheCallsOfALayerAreKeptApart) {
  const at::Tensor batch = batch_of(9, 0, at::kDouble);
  for (const auto momentum : {std::optional<double>(0.1), std::optional<double>()}) {
    torch::nn::AnyModule actual = layer_for(0, at::kDouble, momentum);
    torch::nn::AnyModule whole = layer_for(0, at::kDouble, momentum);
    const auto twice = [](torch::nn::AnyModule& layer, const at::Tensor& x) {
      return layer.forward(x) + layer.forward(x.exp());
    };
    for (int step = 0; step < 2; ++step) {
      MicroBatchStatistics statistics(*actual.ptr());
      run_step(
          *actual.ptr(), [&](const at::Tensor& x) { return twice(actual, x); }, batch, {2, 4, 3}, &statistics);
      twice(whole, batch);
      expect_near(buffers_of(*actual.ptr()), buffers_of(*whole.ptr()));
    }
  }
}

TEST(MicroBatchNorm, ALayerMayRunInSomeMicroBatchesOrNone) {
  const at::Tensor batch = batch_of(9, 0, at::kFloat);
  for (const auto momentum : {std::optional<double>(0.1), std::optional<double>()}) {
    torch::nn::Sequential layers(torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(kChannels).momentum(momentum)),
                                 torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(kChannels).momentum(momentum)));
    torch::nn::BatchNorm1d expected(torch::nn::BatchNormOptions(kChannels).momentum(momentum));
    const Tensors untouched = buffers_of(*layers->ptr(1));
    for (int step = 0; step < 2; ++step) {
      MicroBatchStatistics statistics(*layers);
      int64_t micro_batch = 0;
      const auto forward = [&](const at::Tensor& x) {
        return micro_batch++ == 1 ? x * 2 : layers[0]->as<torch::nn::BatchNorm1d>()->forward(x);
      };
      for (const at::Tensor& part : batch.split_with_sizes({2, 4, 3})) {
        const MicroBatchNormScope scope(statistics, micro_batch);
        forward(part);
      }
      statistics.apply();
      const Tensors parts = batch.split_with_sizes({2, 4, 3});
      expected(at::cat({parts[0], parts[2]}));
      expect_near(buffers_of(*layers->ptr(0)), buffers_of(*expected));
      expect_same(buffers_of(*layers->ptr(1)), untouched);
    }
  }
}

TEST(MicroBatchNorm, ARecomputeInBackwardDoesNotCount) {
  const at::Tensor batch = batch_of(9, 0, at::kFloat);
  for (const auto momentum : {std::optional<double>(0.1), std::optional<double>()}) {
    NormedNet plain(momentum);
    NormedNet of_module(momentum);
    NormedNet of_function(momentum);  // whose buffers the recompute does not put back
    for (int step = 0; step < 2; ++step) {
      const auto run = [&](NormedNet& net, const Forward& forward) {
        MicroBatchStatistics statistics(*net);
        return run_step(*net, forward, batch, {2, 4, 3}, &statistics);
      };
      const Results expected = run(plain, forward_of(plain));
      int runs = 0;
      const std::vector<std::pair<NormedNet*, Forward>> checkpointed{
          {&of_module, [&](const at::Tensor& x) { return checkpoint(of_module, x); }},
          {&of_function, [&](const at::Tensor& x) {
             return checkpoint(
                 [&](const at::Tensor& y) {
                   ++runs;
                   return of_function(y);
                 },
                 x);
           }}};
      for (const auto& [net, forward] : checkpointed) {
        const Results results = run(*net, forward);
        expect_same(results.outputs, expected.outputs);
        expect_same(results.gradients, expected.gradients);
        expect_same(buffers_of(**net), buffers_of(*plain));
      }
      EXPECT_EQ(runs, 6);
    }
  }
}

TEST(MicroBatchNorm, ARecomputeOnAnotherThreadAndInsideARecomputeDoesNotCount) {
  const at::Tensor batch = batch_of(6, 0, at::kFloat);
  NormedNet plain;
  NormedNet nested;
  MicroBatchStatistics expected(*plain);
  run_step(*plain, forward_of(plain), batch, {6}, &expected);
  MicroBatchStatistics statistics(*nested);
  at::Tensor loss;
  {
    const MicroBatchNormScope scope(statistics, 0);
    const at::Tensor output = checkpoint([&](const at::Tensor& x) { return checkpoint(nested, x * 1).mul(1); },
                                         batch.clone().requires_grad_());
    loss = (output * values(output.sizes(), 1.31).to(at::kFloat)).sum();
  }
  std::thread([&] { loss.backward(); }).join();
  statistics.apply();
  expect_same(buffers_of(*nested), buffers_of(*plain));
}

TEST(MicroBatchNorm, EvalModeFrozenLayersAndLayersWithoutStatisticsAreLeftAlone) {
  const at::Tensor batch = batch_of(8, 2, at::kFloat);
  torch::nn::BatchNorm2d frozen(kChannels);
  frozen->eval();
  torch::nn::BatchNorm2d untracked(torch::nn::BatchNormOptions(kChannels).track_running_stats(false));
  const Tensors before = buffers_of(*frozen);
  const Tensors expected{frozen(batch), untracked(batch)};
  torch::nn::Sequential both(frozen, untracked);
  MicroBatchStatistics statistics(*both);
  {
    const MicroBatchNormScope scope(statistics, 0);
    expect_same({frozen(batch), untracked(batch)}, expected);
  }
  statistics.apply();
  expect_same(buffers_of(*frozen), before);
}

TEST(MicroBatchNorm, HalfPrecisionInputsHaveStatisticsInSinglePrecision) {
  for (const at::ScalarType half : {at::kHalf, at::kBFloat16}) {
    const at::Tensor batch = batch_of(9, 2, half);
    torch::nn::AnyModule actual = layer_for(2, at::kFloat);
    torch::nn::AnyModule plain = layer_for(2, at::kFloat);
    torch::nn::AnyModule whole = layer_for(2, at::kFloat);
    const auto run = [&](torch::nn::AnyModule& layer, MicroBatchStatistics* to) {
      return run_step(
          *layer.ptr(), [&](const at::Tensor& x) { return layer.forward(x); }, batch, {2, 4, 3}, to);
    };
    MicroBatchStatistics statistics(*actual.ptr());
    const Results results = run(actual, &statistics);
    const Results expected = run(plain, nullptr);
    expect_same(results.outputs, expected.outputs);
    expect_same(results.gradients, expected.gradients);
    whole.forward(batch);
    expect_near(buffers_of(*actual.ptr()), buffers_of(*whole.ptr()));
  }
}

TEST(MicroBatchNorm, AutocastIsAsOutside) {
  const at::Tensor batch = batch_of(9, 2, at::kFloat);
  const auto make = [] {
    torch::manual_seed(5);
    return torch::nn::Sequential(torch::nn::Conv2d(kChannels, 4, 3), torch::nn::BatchNorm2d(4));
  };
  torch::nn::Sequential actual = make();
  torch::nn::Sequential plain = make();
  torch::nn::Sequential whole = make();
  const auto forward_of = [](torch::nn::Sequential net) {
    return [net](const at::Tensor& x) mutable {
      at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
      at::autocast::set_autocast_enabled(at::kCPU, true);
      at::Tensor output = net->forward(x);
      at::autocast::set_autocast_enabled(at::kCPU, false);
      at::autocast::clear_cache();
      return output;
    };
  };
  MicroBatchStatistics statistics(*actual);
  const Results results = run_step(*actual, forward_of(actual), batch, {2, 4, 3}, &statistics);
  const Results expected = run_step(*plain, forward_of(plain), batch, {2, 4, 3}, nullptr);
  EXPECT_EQ(results.outputs[0].scalar_type(), at::kBFloat16);
  expect_same(results.outputs, expected.outputs);
  expect_same(results.gradients, expected.gradients);
  forward_of(whole)(batch);
  expect_near(buffers_of(*actual), buffers_of(*whole));
}

TEST(MicroBatchNorm, RunningStatisticsOfInstanceNormAreThoseOfOneForward) {
  const at::Tensor batch = batch_of(9, 2, at::kFloat);
  const auto options = torch::nn::InstanceNormOptions(kChannels).affine(true).track_running_stats(true);
  torch::nn::InstanceNorm2d actual(options);
  torch::nn::InstanceNorm2d plain(options);
  torch::nn::InstanceNorm2d whole(options);
  for (int step = 0; step < 2; ++step) {
    const auto run = [&](torch::nn::InstanceNorm2d& layer, MicroBatchStatistics* to) {
      return run_step(
          *layer, [&](const at::Tensor& x) { return layer(x); }, batch, {2, 4, 3}, to);
    };
    MicroBatchStatistics statistics(*actual);
    const Results results = run(actual, &statistics);
    const Results expected = run(plain, nullptr);
    expect_same(results.outputs, expected.outputs);
    expect_same(results.gradients, expected.gradients);
    whole(batch);
    expect_near(buffers_of(*actual), buffers_of(*whole));
  }
}

TEST(MicroBatchNorm, InsideOfSyncBatchNormAMicroBatchIsThatOfAllRanks) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    // Of the third micro-batch rank 0 has no example.
    const at::Tensor batch = batch_of(16, 2, type);
    const std::vector<Sizes> sizes{{2, 4, 0, 1}, {3, 1, 3, 2}};
    torch::nn::AnyModule whole = layer_for(2, type);
    whole.forward(batch);
    const Tensors expected = buffers_of(*whole.ptr());
    run_in_lockstep(2, [&](int64_t rank, const auto& collective) {
      torch::nn::AnyModule layer = layer_for(2, type);
      torch::nn::AnyModule synchronised = layer_for(2, type);
      const at::Tensor own = rank == 0 ? batch.slice(0, 0, 7) : batch.slice(0, 7);
      const Sizes& own_sizes = sizes[static_cast<size_t>(rank)];
      MicroBatchStatistics statistics(*layer.ptr());
      const SyncBatchNormScope ranks(collective);
      const auto run = [&](torch::nn::AnyModule& of, MicroBatchStatistics* to) {
        return run_step(
            *of.ptr(),
            [&](const at::Tensor& x) { return checkpoint([&of](const at::Tensor& y) { return of.forward(y); }, x); },
            own, own_sizes, to);
      };
      const Results results = run(layer, &statistics);
      const Results without = run(synchronised, nullptr);
      expect_same(results.outputs, without.outputs);
      expect_same(results.gradients, without.gradients);
      expect_near(buffers_of(*layer.ptr()), expected);
    });
  }
}

TEST(MicroBatchNorm, TheInnermostScopeCounts) {
  const at::Tensor batch = batch_of(6, 1, at::kFloat);
  torch::nn::AnyModule actual = layer_for(1, at::kFloat);
  torch::nn::AnyModule whole = layer_for(1, at::kFloat);
  MicroBatchStatistics outer(*actual.ptr());
  MicroBatchStatistics inner(*actual.ptr());
  {
    const MicroBatchNormScope outer_scope(outer, 0);
    const MicroBatchNormScope inner_scope(inner, 0);
    actual.forward(batch);
  }
  inner.apply();
  outer.apply();
  whole.forward(batch);
  expect_near(buffers_of(*actual.ptr()), buffers_of(*whole.ptr()));
}

TEST(MicroBatchNorm, ThreadsShareAStepAndThoseWithoutAScopeAreLibTorchs) {
  const at::Tensor batch = batch_of(9, 1, at::kFloat);
  const auto make = [] { return layer_for(1, at::kFloat); };
  std::vector<torch::nn::AnyModule> staged{make(), make()};
  torch::nn::AnyModule outside = make();
  torch::nn::AnyModule whole = make();
  whole.forward(batch);
  torch::nn::Sequential both;
  for (const auto& layer : staged) both->push_back(layer);
  MicroBatchStatistics statistics(*both);
  std::vector<std::thread> threads;
  for (auto& layer : staged)
    threads.emplace_back([&] {
      int64_t micro_batch = 0;
      for (const at::Tensor& part : batch.split_with_sizes({2, 4, 3})) {
        const MicroBatchNormScope scope(statistics, micro_batch++);
        layer.forward(part);
      }
    });
  threads.emplace_back([&] { outside.forward(batch); });
  for (auto& thread : threads) thread.join();
  expect_same(buffers_of(*outside.ptr()), buffers_of(*whole.ptr()));
  statistics.apply();
  for (auto& layer : staged) expect_near(buffers_of(*layer.ptr()), buffers_of(*whole.ptr()));
}

}  // namespace
}  // namespace levin
