#include <levin/core/optim/fused_optimizer.h>

#include <levin/core/base/error.h>
#include <levin/core/optim/adagrad.h>
#include <levin/core/optim/adam.h>
#include <levin/core/optim/sgd.h>

#include "optimizer_problem.h"

#include <c10/core/Allocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <vector>

namespace levin::optim {
namespace {

/// Counts what tensors allocate on this thread.
class AllocationCounter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override { count += size > 0; }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t count = 0;
};

template <class Optimizer>
std::shared_ptr<FusedOptimizer> make_optimizer(const std::vector<at::Tensor>& params,
                                               const typename Optimizer::Options& options = {}) {
  return std::make_shared<Optimizer>(params, options);
}

using Factory = std::function<std::shared_ptr<FusedOptimizer>(const std::vector<at::Tensor>&)>;

std::vector<Factory> all_optimizers() {
  return {
      [](const auto& params) { return make_optimizer<SGD>(params, {.lr = 0.1, .momentum = 0.9}); },
      [](const auto& params) { return make_optimizer<Adam>(params, {.lr = 0.1, .amsgrad = true}); },
      [](const auto& params) { return make_optimizer<AdamW>(params, {.lr = 0.1}); },
      [](const auto& params) { return make_optimizer<Adagrad>(params, {.lr = 0.1}); },
  };
}

TEST(FusedOptimizer, StepRunsTheClosureWithGradients) {
  at::Tensor weight = torch::ones({4}, torch::requires_grad());
  SGD optimizer({weight}, {.lr = 0.5});
  at::NoGradGuard no_grad;
  const at::Tensor loss = optimizer.step([&] {
    optimizer.zero_grad();
    at::Tensor value = weight.sum();
    value.backward();
    return value;
  });
  EXPECT_EQ(loss.item<float>(), 4);
  EXPECT_TRUE(weight.equal(torch::full({4}, 0.5f)));
}

TEST(FusedOptimizer, StateAndTensorsStayTheSameObjectsFromStepToStep) {
  for (const auto& factory : all_optimizers()) {
    Problem problem;
    auto optimizer = factory(problem.params);
    const auto names = problem.names();
    problem.train(*optimizer, 0, 2);
    std::vector<const void*> before;
    const auto collect = [&] {
      std::vector<const void*> pointers;
      const State states = optimizer->parameter_states(names);
      for (const auto& [parameter, state] : states.as_map())
        for (const auto& [name, tensor] : state.as_map()) pointers.push_back(tensor.as_tensor().data_ptr());
      return pointers;
    };
    before = collect();
    EXPECT_FALSE(before.empty());
    problem.train(*optimizer, 2, 3);
    EXPECT_EQ(collect(), before);
  }
}

TEST(FusedOptimizer, SteadyStepsAllocateNoTensor) {
  for (const auto& factory : all_optimizers()) {
    Problem problem;
    auto optimizer = factory(problem.params);
    problem.train(*optimizer, 0, 2);
    auto counter = std::make_shared<AllocationCounter>();
    for (int step = 2; step < 6; ++step) {
      problem.set_gradients(step);
      {
        c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counter);
        optimizer->step();
      }
      optimizer->zero_grad();
    }
    EXPECT_EQ(counter->count, 0);
  }
}

TEST(FusedOptimizer, KeepsNoGradientAlive) {
  Problem problem;
  AdamW optimizer(problem.params);
  for (int step = 0; step < 3; ++step) {
    problem.set_gradients(step);
    const c10::weak_intrusive_ptr<c10::TensorImpl> grad(problem.params[0].grad().getIntrusivePtr());
    optimizer.step();
    EXPECT_FALSE(grad.expired());
    optimizer.zero_grad();
    EXPECT_TRUE(grad.expired());
    EXPECT_FALSE(problem.params[0].grad().defined());
  }
}

TEST(FusedOptimizer, ZeroGradCanKeepTheTensors) {
  Problem problem;
  problem.set_gradients(0);
  const void* before = problem.params[0].grad().data_ptr();
  AdamW optimizer(problem.params);
  optimizer.zero_grad(/*set_to_none=*/false);
  EXPECT_EQ(problem.params[0].grad().data_ptr(), before);
  EXPECT_EQ(problem.params[0].grad().abs().sum().item<double>(), 0);
}

TEST(FusedOptimizer, LeavesParametersWithoutAGradientAlone) {
  for (const auto& factory : all_optimizers()) {
    Problem problem;
    Problem alone;
    auto optimizer = factory(problem.params);
    auto expected = factory({alone.params[0]});
    const at::Tensor untouched = problem.params[1].detach().clone();
    for (int step = 0; step < 4; ++step) {
      problem.set_gradients(step);
      problem.params[1].mutable_grad().reset();
      optimizer->step();
      alone.set_gradients(step);
      expected->step();
    }
    EXPECT_TRUE(problem.params[1].equal(untouched));
    EXPECT_TRUE(problem.params[0].equal(alone.params[0]));
    EXPECT_FALSE(optimizer->parameter_states(problem.names()).contains("net.bias"));
    // It joins later with a step count of its own.
    problem.set_gradients(4);
    optimizer->step();
    EXPECT_FALSE(problem.params[1].equal(untouched));
  }
}

TEST(FusedOptimizer, AGradientInAnotherMemoryOrderCountsElementByElement) {
  for (const auto& factory : all_optimizers()) {
    const at::Tensor initial = torch::randn({2, 3, 4, 5});
    at::Tensor rows = initial.clone().set_requires_grad(true);
    at::Tensor channels_last = initial.clone().contiguous(at::MemoryFormat::ChannelsLast).set_requires_grad(true);
    auto expected = factory({rows});
    auto optimizer = factory({channels_last});
    for (int step = 0; step < 3; ++step) {
      const at::Tensor grad = torch::randn({2, 3, 4, 5});
      rows.mutable_grad() = grad.clone();
      channels_last.mutable_grad() = grad.clone();
      expected->step();
      optimizer->step();
      EXPECT_TRUE(channels_last.grad().is_contiguous());
    }
    // Vectorised and scalar parts of the kernels differ in the last bit.
    EXPECT_TRUE(at::allclose(rows, channels_last, 1e-6, 1e-6));
    EXPECT_TRUE(channels_last.is_contiguous(at::MemoryFormat::ChannelsLast));
  }
}

TEST(FusedOptimizer, UnscalesGradientsAndLeavesThemUnscaled) {
  for (const auto& factory : all_optimizers()) {
    const at::Tensor initial = torch::randn({2, 3, 4, 5});
    const at::Tensor grad = torch::randn({2, 3, 4, 5});
    at::Tensor plain = initial.clone().set_requires_grad(true);
    at::Tensor scaled = initial.clone().set_requires_grad(true);
    // Reaches the kernel as a copy.
    at::Tensor reordered = initial.clone().contiguous(at::MemoryFormat::ChannelsLast).set_requires_grad(true);
    plain.mutable_grad() = grad.clone();
    scaled.mutable_grad() = grad * 8;
    reordered.mutable_grad() = grad * 8;
    factory({plain})->step();
    auto optimizer = factory({scaled, reordered});
    optimizer->fused_step({.grad_scale = torch::full({}, 8.0f), .found_inf = torch::zeros({})});
    EXPECT_TRUE(at::allclose(plain, scaled, 1e-6, 1e-6));
    EXPECT_TRUE(at::allclose(plain, reordered, 1e-6, 1e-6));
    EXPECT_TRUE(at::allclose(scaled.grad(), grad));
    EXPECT_TRUE(at::allclose(reordered.grad(), grad));
  }
}

TEST(FusedOptimizer, AFoundInfinitySkipsTheStepEntirely) {
  for (const auto& factory : all_optimizers()) {
    Problem problem;
    Problem expected;
    auto optimizer = factory(problem.params);
    auto reference = factory(expected.params);
    for (const int skipped : {0, 2}) {
      problem.set_gradients(7);
      optimizer->fused_step({.grad_scale = torch::ones({}), .found_inf = torch::ones({})});
      problem.train(*optimizer, skipped, 2);
      expected.train(*reference, skipped, 2);
      EXPECT_TRUE(problem.params[0].equal(expected.params[0]));
      EXPECT_TRUE(problem.params[1].equal(expected.params[1]));
    }
  }
}

TEST(FusedOptimizer, StateMadeUnderInferenceModeIsUsableOutside) {
  Problem problem;
  AdamW optimizer(problem.params);
  problem.set_gradients(0);
  {
    c10::InferenceMode inference;
    optimizer.step();
  }
  problem.train(optimizer, 1, 1);
  EXPECT_FALSE(optimizer.parameter_states(problem.names()).at("net.bias").at("exp_avg").as_tensor().is_inference());
}

TEST(FusedOptimizer, MixedTypesAreUpdatedApart) {
  at::Tensor single = torch::ones({8}, torch::requires_grad());
  at::Tensor twice = torch::ones({8}, at::kDouble).set_requires_grad(true);
  at::Tensor half = torch::ones({8}, at::kBFloat16).set_requires_grad(true);
  Adam optimizer({single, twice, half}, {.lr = 0.5});
  for (auto& param : {single, twice, half}) param.mutable_grad() = at::ones_like(param);
  optimizer.step();
  for (auto& param : {single, twice, half}) EXPECT_NEAR(param[3].item<double>(), 0.5, 1e-2);
}

TEST(FusedOptimizer, StateFollowsAParameterThatWasConverted) {
  torch::nn::Linear layer(3, 2);
  Adam optimizer(layer->parameters(), {.lr = 0.1});
  layer(torch::ones({1, 3})).sum().backward();
  optimizer.step();
  layer->to(at::kDouble);
  layer->zero_grad();
  layer(torch::ones({1, 3}, at::kDouble)).sum().backward();
  optimizer.step();
  const State states = optimizer.parameter_states(ParameterNames(*layer));
  EXPECT_EQ(states.at("weight").at("exp_avg").as_tensor().scalar_type(), at::kDouble);
  EXPECT_EQ(states.at("weight").at("step").as_tensor().item<float>(), 2);
}

TEST(FusedOptimizer, GroupsMayBeAddedLater) {
  Problem problem;
  SGD optimizer({problem.params[0]}, {.lr = 0.1});
  problem.set_gradients(0);
  optimizer.step();
  optimizer.add_param_group({{problem.params[1]}});
  const at::Tensor before = problem.params[1].detach().clone();
  problem.set_gradients(1);
  optimizer.step();
  EXPECT_TRUE(at::allclose(problem.params[1], before - 0.1 * problem.params[1].grad()));
}

TEST(FusedOptimizer, RefusesWhatItCannotUpdate) {
  at::Tensor weight = torch::ones({4}, torch::requires_grad());
  EXPECT_NE(error_of([] { AdamW(std::vector<at::Tensor>{}); }).find("adamw was given no parameters"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              AdamW({{{weight}, {}}, {{weight}, {}}});
            }).find("a parameter in two groups"),
            std::string::npos);
  EXPECT_NE(error_of([&] { AdamW({weight * 2}); }).find("computed from others"), std::string::npos);
  EXPECT_NE(error_of([&] { AdamW({torch::ones({2}, at::kLong)}); }).find("type Long"), std::string::npos);

  AdamW twice({weight, weight});
  EXPECT_EQ(twice.param_groups()[0].params().size(), 1);

  AdamW optimizer({weight});
  weight.mutable_grad() = torch::ones({4}).to_sparse();
  EXPECT_NE(error_of([&] { optimizer.step(); }).find("does not take sparse gradients"), std::string::npos);
  torch::serialize::OutputArchive archive;
  EXPECT_NE(error_of([&] { optimizer.save(archive); }).find("optimizer_state_dict"), std::string::npos);
}

/// The largest difference, relative to the values' size, between steps in 16 bits and the same in double precision.
template <class Optimizer, class Options>
double error_in_16_bits(at::ScalarType type, int64_t size, const Options& options) {
  const auto values = [&](double phase) { return at::arange(size, at::kDouble).add(phase).sin().to(type); };
  at::Tensor low = values(0.3).set_requires_grad(true);
  at::Tensor high = low.detach().to(at::kDouble).set_requires_grad(true);
  Optimizer in_low({low}, options);
  Optimizer in_high({high}, options);
  for (int step = 0; step < 4; ++step) {
    low.mutable_grad() = values(1.7 * step);
    high.mutable_grad() = low.grad().to(at::kDouble);
    in_low.step();
    in_high.step();
  }
  return (low.detach().to(at::kDouble) - high.detach()).abs().max().template item<double>();
}

TEST(FusedOptimizers, ComputeIn16BitsWhateverTheSize) {
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    for (const int64_t size : {1, 7, 8, 16, 33, 64, 1000}) {
      const double bound = type == at::kHalf ? 0.01 : 0.06;
      EXPECT_LT(error_in_16_bits<SGD>(type, size, SGDOptions{.lr = 0.1}), bound) << type << size;
      EXPECT_LT(error_in_16_bits<SGD>(type, size, SGDOptions{.lr = 0.1, .momentum = 0.9}), bound) << type << size;
      EXPECT_LT(error_in_16_bits<SGD>(type, size,
                                      SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true}),
                bound)
          << type << size;
      EXPECT_LT(
          error_in_16_bits<SGD>(type, size, SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.5, .maximize = true}),
          bound)
          << type << size;
      EXPECT_LT(error_in_16_bits<Adam>(type, size, AdamOptions{.lr = 0.05, .eps = 1e-3, .amsgrad = true}), bound)
          << type << size;
      EXPECT_LT(error_in_16_bits<AdamW>(type, size, AdamWOptions{.lr = 0.05, .eps = 1e-3}), bound) << type << size;
      EXPECT_LT(error_in_16_bits<Adagrad>(type, size, AdagradOptions{.lr = 0.05, .eps = 1e-3}), bound) << type << size;
    }
  }
}

}  // namespace
}  // namespace levin::optim
