#include <levin/strategies/ddp/sync_batch_norm.h>

#include "../support/lockstep_ranks.h"

#include <levin/core/base/error.h>
#include <levin/core/comm/single_process.h>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/nn/functional/batchnorm.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>

#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace levin {
namespace {

using testing::LockstepCollective;
using testing::run_in_lockstep;

constexpr int64_t kSyncChannels = 3;

/// One layer over some ranks.
struct SyncCase {
  std::vector<int64_t> sizes;  ///< examples of each rank
  std::vector<int64_t> space;  ///< dimensions after the channels
  at::ScalarType type = at::kDouble;
  bool affine = true;
  bool track = true;
  std::optional<double> momentum = 0.1;
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
  int64_t steps = 1;
};

/// What layers gave on the whole batch: of one process, or of ranks in rank order.
struct Result {
  at::Tensor output;
  at::Tensor input_gradient;
  at::Tensor weight_gradient;
  at::Tensor bias_gradient;
  std::vector<at::Tensor> buffers;
};

at::Tensor values(at::IntArrayRef shape, double frequency) {
  const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  return at::arange(count, at::kDouble).mul(frequency).sin().mul(1.7).add(0.4).reshape(shape);
}

/// A batch-norm layer of any number of dimensions with fixed weights.
class NormLayer {
 public:
  explicit NormLayer(const SyncCase& options) {
    const auto fill = [&](auto module) {
      module->to(options.type);
      if (options.affine) {
        const at::NoGradGuard no_grad;
        module->weight.copy_(values({kSyncChannels}, 0.9));
        module->bias.copy_(values({kSyncChannels}, 1.9));
      }
      weight = module->weight;
      bias = module->bias;
      module_ = module.ptr();
      forward_ = [module](const at::Tensor& x) mutable { return module(x); };
    };
    torch::nn::BatchNormOptions common(kSyncChannels);
    common.affine(options.affine).track_running_stats(options.track).momentum(options.momentum);
    if (options.space.size() < 2)
      fill(torch::nn::BatchNorm1d(common));
    else if (options.space.size() == 2)
      fill(torch::nn::BatchNorm2d(common));
    else
      fill(torch::nn::BatchNorm3d(common));
  }
  at::Tensor operator()(const at::Tensor& x) { return forward_(x); }
  torch::nn::Module& module() { return *module_; }
  std::vector<at::Tensor> buffers() const {
    std::vector<at::Tensor> copies;
    for (const auto& buffer : defined(module_->buffers())) copies.push_back(buffer.clone());
    return copies;
  }

  at::Tensor weight;
  at::Tensor bias;

 private:
  static std::vector<at::Tensor> defined(std::vector<at::Tensor> tensors) {
    std::erase_if(tensors, [](const at::Tensor& tensor) { return !tensor.defined(); });
    return tensors;
  }

  std::shared_ptr<torch::nn::Module> module_;
  std::function<at::Tensor(const at::Tensor&)> forward_;
};

at::Tensor input_of(const SyncCase& options, int64_t step) {
  std::vector<int64_t> shape{std::accumulate(options.sizes.begin(), options.sizes.end(), int64_t{0}), kSyncChannels};
  shape.insert(shape.end(), options.space.begin(), options.space.end());
  return values(shape, 0.77 + 0.1 * static_cast<double>(step)).to(options.type).contiguous(options.format);
}

/// Runs a layer over examples [begin, end) of the whole batch, several times where gradients are accumulated.
Result run_layer(const SyncCase& options, int64_t begin, int64_t end) {
  NormLayer layer(options);
  Result result;
  for (int64_t step = 0; step < options.steps; ++step) {
    const at::Tensor whole = input_of(options, step);
    const at::Tensor x = whole.slice(0, begin, end).contiguous(options.format).detach().requires_grad_();
    result.output = layer(x);
    // A different gradient everywhere.
    const at::Tensor factors = values(whole.sizes(), 1.31).to(options.type).slice(0, begin, end);
    (result.output * factors).sum().backward();
    result.input_gradient = x.grad();
  }
  result.weight_gradient = layer.weight.defined() ? layer.weight.grad() : at::Tensor();
  result.bias_gradient = layer.bias.defined() ? layer.bias.grad() : at::Tensor();
  result.buffers = layer.buffers();
  return result;
}

Result run_on_ranks(const SyncCase& options) {
  const auto ranks = static_cast<int64_t>(options.sizes.size());
  std::vector<Result> results(options.sizes.size());
  run_in_lockstep(ranks, [&](int64_t rank, const auto& collective) {
    const SyncBatchNormScope scope(collective);
    const int64_t begin = std::accumulate(options.sizes.begin(), options.sizes.begin() + rank, int64_t{0});
    const auto index = static_cast<size_t>(rank);
    results[index] = run_layer(options, begin, begin + options.sizes[index]);
    EXPECT_EQ(collective->all_gathers, options.steps);
    EXPECT_EQ(collective->all_reduces, options.steps);
  });
  Result all;
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> gradients;
  for (const auto& result : results) {
    outputs.push_back(result.output);
    gradients.push_back(result.input_gradient);
    if (!options.affine) continue;
    all.weight_gradient =
        all.weight_gradient.defined() ? all.weight_gradient + result.weight_gradient : result.weight_gradient;
    all.bias_gradient = all.bias_gradient.defined() ? all.bias_gradient + result.bias_gradient : result.bias_gradient;
  }
  all.output = at::cat(outputs);
  all.input_gradient = at::cat(gradients);
  all.buffers = results.front().buffers;
  for (const auto& result : results)
    for (size_t i = 0; i < all.buffers.size(); ++i) EXPECT_TRUE(result.buffers[i].equal(all.buffers[i]));
  return all;
}

void expect_near(const at::Tensor& actual, const at::Tensor& expected, double tolerance, const char* what) {
  ASSERT_EQ(actual.defined(), expected.defined()) << what;
  if (!actual.defined()) return;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  EXPECT_EQ(actual.scalar_type(), expected.scalar_type()) << what;
  if (actual.numel() == 0) return;
  EXPECT_LE((actual.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>(), tolerance) << what;
}

/// Ranks against one process that has the whole batch.
void expect_as_one_process(const SyncCase& options, double tolerance) {
  SCOPED_TRACE(c10::str(options.sizes, " examples of ", options.space, " ", options.type));
  const int64_t total = std::accumulate(options.sizes.begin(), options.sizes.end(), int64_t{0});
  const Result expected = run_layer(options, 0, total);
  const Result actual = run_on_ranks(options);
  expect_near(actual.output, expected.output.detach(), tolerance, "output");
  expect_near(actual.input_gradient, expected.input_gradient, tolerance, "gradient of the input");
  // A sum over all elements of a channel.
  const double elements = static_cast<double>(expected.output.numel()) / kSyncChannels;
  expect_near(actual.weight_gradient, expected.weight_gradient, tolerance * elements, "gradient of the weight");
  expect_near(actual.bias_gradient, expected.bias_gradient, tolerance * elements, "gradient of the bias");
  ASSERT_EQ(actual.buffers.size(), expected.buffers.size());
  for (size_t i = 0; i < expected.buffers.size(); ++i)
    expect_near(actual.buffers[i], expected.buffers[i], tolerance, "running statistics");
}

double tolerance_of(at::ScalarType type) { return type == at::kDouble ? 1e-12 : 1e-6; }

const std::vector<std::vector<int64_t>> kSpaces = {{}, {5}, {4, 3}, {2, 3, 2}};

TEST(SyncBatchNorm, RanksGiveWhatOneProcessGives) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat})
    for (const auto& space : kSpaces)
      for (const auto& sizes : std::vector<std::vector<int64_t>>{{4, 4}, {2, 5}, {3, 2, 6}})
        expect_as_one_process({.sizes = sizes, .space = space, .type = type}, tolerance_of(type));
}

TEST(SyncBatchNorm, OptionsOfTheLayerHold) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    const double tolerance = tolerance_of(type);
    const SyncCase common{.sizes = {3, 5}, .space = {4, 3}, .type = type};
    SyncCase options = common;
    options.affine = false;
    expect_as_one_process(options, tolerance);
    options = common;
    options.track = false;
    expect_as_one_process(options, tolerance);
    options = common;
    options.momentum = std::nullopt;  // a cumulative average
    options.steps = 3;
    expect_as_one_process(options, tolerance);
    options = common;
    options.format = at::MemoryFormat::ChannelsLast;
    expect_as_one_process(options, tolerance);
  }
}

TEST(SyncBatchNorm, GradientsAccumulate) { expect_as_one_process({.sizes = {4, 3}, .space = {5}, .steps = 3}, 1e-12); }

TEST(SyncBatchNorm, ARankMayHaveNoExamples) {
  expect_as_one_process({.sizes = {4, 0, 3}, .space = {2, 2}}, 1e-12);
  expect_as_one_process({.sizes = {0, 5}, .space = {}, .type = at::kFloat}, 1e-6);
}

TEST(SyncBatchNorm, HalfPrecisionInputsAreComputedInSinglePrecision) {
  for (const at::ScalarType half : {at::kHalf, at::kBFloat16}) {
    const std::vector<int64_t> sizes{3, 5};
    const at::Tensor whole = values({8, kSyncChannels, 4}, 0.77).to(half);
    const at::Tensor factors = values({8, kSyncChannels, 4}, 1.31);
    const auto run = [&](const at::Tensor& input, int64_t begin, int64_t end) {
      NormLayer layer(SyncCase{.sizes = {}, .space = {4}, .type = at::kFloat});
      const at::Tensor x = input.slice(0, begin, end).clone().requires_grad_();
      const at::Tensor y = layer(x);
      (y * factors.slice(0, begin, end).to(y.scalar_type())).sum().backward();
      return std::pair(y.detach(), x.grad());
    };
    const auto [output, gradient] = run(whole.to(at::kFloat), 0, 8);
    std::vector<at::Tensor> outputs(2);
    std::vector<at::Tensor> gradients(2);
    run_in_lockstep(2, [&](int64_t rank, const auto& collective) {
      const SyncBatchNormScope scope(collective);
      std::tie(outputs[static_cast<size_t>(rank)], gradients[static_cast<size_t>(rank)]) =
          run(whole, rank == 0 ? 0 : 3, rank == 0 ? 3 : 8);
    });
    // Results, and the gradients that come in, are rounded to the input's type.
    const double rounding = half == at::kHalf ? 2e-3 : 2e-2;
    expect_near(at::cat(outputs), output.to(half), rounding, "output");
    expect_near(at::cat(gradients), gradient.to(half), 2 * rounding, "gradient of the input");
  }
}

TEST(SyncBatchNorm, AFarOffMeanCostsNoPrecision) {
  const at::Tensor whole = values({600, kSyncChannels}, 0.77).add(1e4).to(at::kFloat);
  const at::Tensor expected = whole.to(at::kDouble).var(0, /*unbiased=*/true);
  run_in_lockstep(3, [&](int64_t rank, const auto& collective) {
    const SyncBatchNormScope scope(collective);
    NormLayer layer(SyncCase{.sizes = {}, .space = {}, .type = at::kFloat, .momentum = 1.0});
    layer(whole.slice(0, 200 * rank, 200 * (rank + 1)));
    const at::Tensor variance = layer.module().named_buffers()["running_var"].to(at::kDouble);
    EXPECT_LE(((variance - expected) / expected).abs().max().item<double>(), 1e-4) << variance << expected;
  });
}

TEST(SyncBatchNorm, GradientsAreThoseOfFiniteDifferences) {
  const std::vector<int64_t> begins{0, 3, 5};
  const at::Tensor whole = values({5, kSyncChannels, 2}, 0.77);
  const at::Tensor factors = values({5, kSyncChannels, 2}, 1.31);
  const at::Tensor weight = values({kSyncChannels}, 0.9);
  const at::Tensor bias = values({kSyncChannels}, 1.9);
  // The loss over all ranks, and where asked for the gradients.
  const auto loss = [&](const at::Tensor& x, const at::Tensor& w, const at::Tensor& b,
                        std::vector<at::Tensor>* gradients) {
    std::vector<double> losses(2);
    std::vector<std::vector<at::Tensor>> found(2);
    run_in_lockstep(2, [&](int64_t rank, const auto& collective) {
      const SyncBatchNormScope scope(collective);
      const auto index = static_cast<size_t>(rank);
      const auto slice = [&](const at::Tensor& tensor) { return tensor.slice(0, begins[index], begins[index + 1]); };
      const std::vector<at::Tensor> inputs{slice(x).clone().requires_grad_(), w.clone().requires_grad_(),
                                           b.clone().requires_grad_()};
      const at::Tensor y = at::batch_norm(inputs[0], inputs[1], inputs[2], {}, {}, /*training=*/true, 0.1, 1e-5, false);
      const at::Tensor own = (y.pow(3) * slice(factors)).sum();
      losses[index] = own.template item<double>();
      if (gradients != nullptr) found[index] = torch::autograd::grad({own}, inputs);
    });
    if (gradients != nullptr)
      *gradients = {at::cat({found[0][0], found[1][0]}), found[0][1] + found[1][1], found[0][2] + found[1][2]};
    return losses[0] + losses[1];
  };
  std::vector<at::Tensor> gradients;
  loss(whole, weight, bias, &gradients);
  const std::vector<at::Tensor> inputs{whole, weight, bias};
  constexpr double kStep = 1e-6;
  for (size_t input = 0; input < inputs.size(); ++input) {
    for (int64_t i = 0; i < inputs[input].numel(); ++i) {
      const auto moved = [&](double by) {
        std::vector<at::Tensor> copies{whole.clone(), weight.clone(), bias.clone()};
        copies[input].view(-1)[i] += by;
        return loss(copies[0], copies[1], copies[2], nullptr);
      };
      const double expected = (moved(kStep) - moved(-kStep)) / (2 * kStep);
      EXPECT_NEAR(gradients[input].reshape(-1)[i].item<double>(), expected, 1e-6 * (1 + std::abs(expected)))
          << "input " << input << ", element " << i;
    }
  }
}

TEST(SyncBatchNorm, BackwardFindsTheRanksAfterTheScopeAndOnAnotherThread) {
  const SyncCase options{.sizes = {3, 4}, .space = {2}};
  const Result expected = run_layer(options, 0, 7);
  std::vector<at::Tensor> gradients(2);
  run_in_lockstep(2, [&](int64_t rank, const auto& collective) {
    const int64_t begin = rank == 0 ? 0 : 3;
    const int64_t end = rank == 0 ? 3 : 7;
    NormLayer layer(options);
    const at::Tensor x = input_of(options, 0).slice(0, begin, end).clone().requires_grad_();
    at::Tensor loss;
    {
      const SyncBatchNormScope scope(collective);
      loss = (layer(x) * values({7, kSyncChannels, 2}, 1.31).slice(0, begin, end)).sum();
    }
    std::thread([&] { loss.backward(); }).join();
    gradients[static_cast<size_t>(rank)] = x.grad();
  });
  expect_near(at::cat(gradients), expected.input_gradient, 1e-12, "gradient of the input");
}

TEST(SyncBatchNorm, AnInputWithoutGradientCostsNoCollectiveInBackward) {
  run_in_lockstep(2, [&](int64_t, const auto& collective) {
    const SyncBatchNormScope scope(collective);
    NormLayer layer(SyncCase{.sizes = {}, .space = {2}});
    layer(values({4, kSyncChannels, 2}, 0.7)).sum().backward();
    EXPECT_TRUE(layer.bias.grad().equal(at::full({kSyncChannels}, 8.0, at::kDouble)));
    EXPECT_EQ(collective->all_gathers, 1);
    EXPECT_EQ(collective->all_reduces, 0);
  });
}

/// Equal to the bit to what the layer gives outside any scope.
void expect_plain(const SyncCase& options, const std::function<Result()>& run) {
  const Result expected = run_layer(options, 0, options.sizes.front());
  const Result actual = run();
  EXPECT_TRUE(actual.output.equal(expected.output));
  EXPECT_TRUE(actual.input_gradient.equal(expected.input_gradient));
  EXPECT_TRUE(actual.weight_gradient.equal(expected.weight_gradient));
  for (size_t i = 0; i < expected.buffers.size(); ++i) EXPECT_TRUE(actual.buffers[i].equal(expected.buffers[i]));
}

TEST(SyncBatchNorm, AGroupOfOneAndNoGroupGetLibTorchsKernels) {
  const SyncCase options{.sizes = {6}, .space = {4, 3}};
  for (const auto& group : {std::shared_ptr<Collective>(), make_single_process_collective()}) {
    expect_plain(options, [&] {
      const SyncBatchNormScope scope(group);
      return run_layer(options, 0, 6);
    });
  }
}

TEST(SyncBatchNorm, ScopesNest) {
  const SyncCase options{.sizes = {6}, .space = {2}};
  const Result plain = run_layer(options, 0, 6);
  run_in_lockstep(2, [&](int64_t, const auto& collective) {
    {
      const SyncBatchNormScope outer(collective);
      {
        const SyncBatchNormScope inner(nullptr);
        EXPECT_TRUE(run_layer(options, 0, 6).output.equal(plain.output));
        const SyncBatchNormScope innermost(collective);
        run_layer(options, 0, 6);
      }
      EXPECT_EQ(collective->all_gathers, 1);
      run_layer(options, 0, 6);
    }
    EXPECT_EQ(collective->all_gathers, 2);
    EXPECT_TRUE(run_layer(options, 0, 6).output.equal(plain.output));
    EXPECT_EQ(collective->all_gathers, 2);
  });
}

TEST(SyncBatchNorm, ALayerInEvalModeKeepsToItself) {
  const at::Tensor x = values({4, kSyncChannels, 2}, 0.7);
  const auto evaluated = [&] {
    NormLayer layer(SyncCase{.sizes = {}, .space = {2}});
    layer.module().eval();
    return layer(x);
  };
  const at::Tensor expected = evaluated();
  run_in_lockstep(2, [&](int64_t rank, const auto& collective) {
    const SyncBatchNormScope scope(collective);
    if (rank == 0) return;  // ranks may evaluate differently often
    EXPECT_TRUE(evaluated().equal(expected));
    const c10::InferenceMode inference;
    EXPECT_TRUE(evaluated().equal(expected));
    EXPECT_EQ(collective->all_gathers, 0);
  });
}

TEST(SyncBatchNorm, InstanceNormKeepsToItself) {
  const auto normalised = [](int64_t size) {
    torch::nn::InstanceNorm2d layer(torch::nn::InstanceNormOptions(kSyncChannels).affine(true));
    return layer(values({size, kSyncChannels, 3, 2}, 0.7).to(at::kFloat));
  };
  const at::Tensor expected = normalised(2);
  run_in_lockstep(2, [&](int64_t rank, const auto& collective) {
    const SyncBatchNormScope scope(collective);
    EXPECT_TRUE(normalised(2 + rank).slice(0, 0, 2).equal(expected));
    EXPECT_EQ(collective->all_gathers, 0);
  });
}

TEST(SyncBatchNorm, WhatLibTorchRefusesIsRefused) {
  run_in_lockstep(2, [](int64_t, const auto& collective) {
    const SyncBatchNormScope scope(collective);
    const auto norm = [](const at::Tensor& x, const at::Tensor& weight) {
      return at::batch_norm(x, weight, {}, {}, {}, /*training=*/true, 0.1, 1e-5, false);
    };
    EXPECT_ANY_THROW(norm(at::zeros({4, kSyncChannels}), at::ones({kSyncChannels + 1})));
    EXPECT_ANY_THROW(norm(at::zeros({4}), at::ones({kSyncChannels})));
    EXPECT_EQ(collective->all_gathers, 0);
  });
}

TEST(SyncBatchNorm, SecondDerivativesAreRefused) {
  run_in_lockstep(2, [](int64_t, const auto& collective) {
    const SyncBatchNormScope scope(collective);
    NormLayer layer(SyncCase{.sizes = {}, .space = {2}});
    const at::Tensor x = values({4, kSyncChannels, 2}, 0.7).requires_grad_();
    const at::Tensor y = layer(x).pow(2).sum();
    EXPECT_THROW(torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true), Error);
  });
}

TEST(SyncBatchNorm, AFailedRankFailsTheLayerOfTheOthers) {
  EXPECT_THROW(run_in_lockstep(2,
                               [](int64_t rank, const auto& collective) {
                                 const SyncBatchNormScope scope(collective);
                                 if (rank == 1) throw std::logic_error("this rank fails");
                                 NormLayer layer(SyncCase{.sizes = {}, .space = {2}});
                                 EXPECT_THROW(layer(values({4, kSyncChannels, 2}, 0.7)), Error);
                               }),
               std::logic_error);
}

/// A suite, and so a process, of its own: nothing is registered before the first scope.
TEST(SyncBatchNormRegistration, OutsideAScopeLibTorchsKernelsRun) {
  const auto run = [] {
    std::vector<Result> results;
    for (const at::ScalarType type : {at::kDouble, at::kFloat})
      for (const auto& space : kSpaces)
        results.push_back(run_layer({.sizes = {6}, .space = space, .type = type}, 0, 6));
    return results;
  };
  const auto before = run();
  run_in_lockstep(2, [](int64_t, const auto& collective) { const SyncBatchNormScope scope(collective); });
  const auto after = run();
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(after[i].output.equal(before[i].output));
    EXPECT_EQ(after[i].output.grad_fn()->name(), before[i].output.grad_fn()->name());
    EXPECT_TRUE(after[i].input_gradient.equal(before[i].input_gradient));
    for (size_t buffer = 0; buffer < before[i].buffers.size(); ++buffer)
      EXPECT_TRUE(after[i].buffers[buffer].equal(before[i].buffers[buffer]));
  }
}

}  // namespace
}  // namespace levin
