#include <levin/core/devices/accounting_allocator.h>

#include <levin/core/nn/checkpointed_call.h>

#include <levin/core/base/error.h>
#include <levin/core/base/thread_generator.h>
#include <levin/core/nn/checkpoint.h>
#include <levin/core/nn/unit.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <c10/core/InferenceMode.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

namespace levin {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Runs the calls of its units checkpointed.
struct Checkpointing : UnitRunner {
  void run(UnitCall& call) override { run_checkpointed(call, "the block", /*offload=*/false); }
};

/// Counts the runs of a unit.
struct Counter : UnitHook {
  void before_forward(UnitCall& call) override { ++(call.is_repetition() ? repetitions : runs); }
  void after_forward(UnitCall& call) override {
    bool any = false;
    call.for_each_result([&](at::Tensor&) { any = true; });
    if (!any) ++stopped_early;
  }
  int runs = 0;
  int repetitions = 0;
  int stopped_early = 0;
};

struct CheckpointedBlockImpl : torch::nn::Module {
  CheckpointedBlockImpl() {
    first = register_module("first", torch::nn::Linear(8, 16));
    norm = register_module("norm", torch::nn::BatchNorm1d(16));
    dropout = register_module("dropout", torch::nn::Dropout(0.3));
    second = register_module("second", torch::nn::Linear(16, 8));
  }
  at::Tensor forward(const at::Tensor& x) { return x + second(dropout(norm(first(x)).tanh())); }
  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
  torch::nn::Linear second{nullptr};
};
LEVIN_UNIT(CheckpointedBlock);

/// Two blocks, the second called twice, inside a unit.
struct PairImpl : torch::nn::Module {
  PairImpl() {
    first = register_module("first", CheckpointedBlock());
    second = register_module("second", CheckpointedBlock());
  }
  at::Tensor forward(const at::Tensor& x) { return second(second(first(x)).tanh()); }
  CheckpointedBlock first{nullptr};
  CheckpointedBlock second{nullptr};
};
LEVIN_UNIT(Pair);

/// What one training step leaves behind.
struct Outcome {
  at::Tensor loss;
  Tensors gradients;
  Tensors buffers;
  at::Tensor next_random;
};

Outcome step(torch::nn::Module& module, const std::function<at::Tensor(const at::Tensor&)>& forward) {
  for (auto& parameter : module.parameters()) parameter.mutable_grad() = at::Tensor();
  torch::manual_seed(7);
  at::Tensor x = at::randn({6, 8}).requires_grad_();
  Outcome outcome;
  outcome.loss = forward(x).square().sum();
  outcome.loss.backward();
  for (const auto& parameter : module.parameters()) outcome.gradients.push_back(parameter.grad().clone());
  outcome.gradients.push_back(x.grad());
  for (const auto& buffer : module.buffers()) outcome.buffers.push_back(buffer.clone());
  outcome.next_random = at::rand({4});
  return outcome;
}

/// Equal to the bit.
void expect_same(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i])) << i;
}

void expect_same(const Outcome& plain, const Outcome& checkpointed) {
  EXPECT_TRUE(plain.loss.equal(checkpointed.loss));
  expect_same(plain.gradients, checkpointed.gradients);
  expect_same(plain.buffers, checkpointed.buffers);
  EXPECT_TRUE(plain.next_random.equal(checkpointed.next_random));
}

/// Two modules with the same weights.
template <class Holder>
std::pair<Holder, Holder> twins() {
  torch::manual_seed(1);
  Holder first;
  torch::manual_seed(1);
  Holder second;
  return {first, second};
}

std::string message_of(const std::function<void()>& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(CheckpointedCall, IsThePlainRunToTheBit) {
  auto [plain, checkpointed] = twins<CheckpointedBlock>();
  Checkpointing runner;
  Counter counter;
  checkpointed->set_runner(&runner);
  checkpointed->add_hook(counter);
  for (int i = 0; i < 3; ++i)
    expect_same(step(*plain, [&](const at::Tensor& x) { return plain(x); }),
                step(*checkpointed, [&](const at::Tensor& x) { return checkpointed(x); }));
  EXPECT_EQ(plain->norm->num_batches_tracked.item<int64_t>(), 3);
  EXPECT_EQ(counter.runs, 3);
  EXPECT_EQ(counter.repetitions, 3);
  // The last addition saves nothing, and what comes after the last tensor that is needed is not computed again.
  EXPECT_EQ(counter.stopped_early, 3);
}

TEST(CheckpointedCall, Nested) {
  auto [plain, checkpointed] = twins<Pair>();
  const Outcome expected = step(*plain, [&, p = plain](const at::Tensor& x) mutable { return p(x); });
  Checkpointing runner;
  Counter outer;
  Counter inner;
  checkpointed->set_runner(&runner);
  checkpointed->add_hook(outer);
  checkpointed->second->set_runner(&runner);
  checkpointed->second->add_hook(inner);
  expect_same(expected, step(*checkpointed, [&, p = checkpointed](const at::Tensor& x) mutable { return p(x); }));
  EXPECT_EQ(outer.repetitions, 1);
  EXPECT_EQ(inner.runs, 2 + outer.stopped_early);  // within the recompute of the outer unit up to the last input
  EXPECT_EQ(inner.repetitions, 2);
}

TEST(CheckpointedCall, CalledTwiceInAStep) {
  auto [plain, checkpointed] = twins<Pair>();
  const Outcome expected = step(*plain, [&, p = plain](const at::Tensor& x) mutable { return p(x); });
  Checkpointing runner;
  checkpointed->second->set_runner(&runner);
  expect_same(expected, step(*checkpointed, [&, p = checkpointed](const at::Tensor& x) mutable { return p(x); }));
}

/// Autocast in bfloat16 on the CPU, as a mixed precision has it.
class Autocast {
 public:
  explicit Autocast(bool cache) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_cache_enabled(cache);
  }
  ~Autocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_cache_enabled(true);
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
};

TEST(CheckpointedCall, UnderAutocast) {
  for (const bool cache : {true, false}) {
    auto [plain, checkpointed] = twins<CheckpointedBlock>();
    Checkpointing runner;
    checkpointed->set_runner(&runner);
    const auto forward = [cache](CheckpointedBlock block) {
      return [cache, block](const at::Tensor& x) mutable {
        const Autocast autocast(cache);
        return block(block(x));
      };
    };
    for (int i = 0; i < 2; ++i) {
      const Outcome expected = step(*plain, forward(plain));
      const Outcome got = step(*checkpointed, forward(checkpointed));
      expect_same(expected, got);
      // The next forward must not find weights that the recompute cast before the optimizer's step.
      for (CheckpointedBlock* block : {&plain, &checkpointed}) {
        const at::NoGradGuard no_grad;
        for (auto& parameter : (*block)->parameters()) parameter.mul_(0.5);
      }
    }
  }
}

TEST(CheckpointedCall, BackwardOnAnotherThread) {
  auto [plain, checkpointed] = twins<CheckpointedBlock>();
  Checkpointing runner;
  checkpointed->set_runner(&runner);
  const auto run = [](CheckpointedBlock& block, bool elsewhere) {
    std::optional<ThreadGeneratorScope> generator;
    generator.emplace(3);
    const at::Tensor x = at::ones({4, 8});
    at::Tensor loss;
    {
      const Autocast autocast(true);
      loss = block(x).square().sum();
    }
    if (elsewhere)
      std::thread([&] { loss.backward(); }).join();
    else
      loss.backward();
    Tensors gradients;
    for (const auto& parameter : block->parameters()) gradients.push_back(parameter.grad());
    gradients.push_back(at::rand({2}));
    return gradients;
  };
  expect_same(run(plain, false), run(checkpointed, true));
}

TEST(CheckpointedCall, KeptGraphsAndSecondDerivatives) {
  torch::manual_seed(1);
  CheckpointedBlock block;
  Counter counter;
  block->add_hook(counter);
  const auto gradients = [&](bool checkpointed) {
    Checkpointing runner;
    block->set_runner(checkpointed ? &runner : nullptr);
    block->norm->reset_running_stats();
    torch::manual_seed(2);
    const at::Tensor x = at::randn({6, 8}).requires_grad_();
    const at::Tensor loss = block(x).square().sum();
    const at::Tensor first = torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true)[0];
    const at::Tensor again = torch::autograd::grad({loss}, {x}, {}, true, /*create_graph=*/true)[0];
    Tensors all = torch::autograd::grad({again.square().sum()}, block->parameters(), {}, false, false, true);
    all.insert(all.end(), {first, again.detach()});
    std::erase_if(all, [](const at::Tensor& tensor) { return !tensor.defined(); });
    block->set_runner(nullptr);
    return all;
  };
  const Tensors expected = gradients(false);
  EXPECT_EQ(counter.repetitions, 0);
  EXPECT_GT(expected.size(), 4u);
  expect_same(expected, gradients(true));
  EXPECT_EQ(counter.repetitions, 3);
}

/// A gradient inside of the forward, and the derivative of it.
struct PenaltyImpl : torch::nn::Module {
  PenaltyImpl() { linear = register_module("linear", torch::nn::Linear(8, 8)); }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor leaf = x.detach().requires_grad_();
    const at::Tensor y = linear(leaf).tanh().sum();
    return x + torch::autograd::grad({y}, {leaf}, {}, true, true)[0].square();
  }
  torch::nn::Linear linear{nullptr};
};
LEVIN_UNIT(Penalty);

TEST(CheckpointedCall, BackwardInsideOfTheForward) {
  auto [plain, checkpointed] = twins<Penalty>();
  Checkpointing runner;
  checkpointed->set_runner(&runner);
  expect_same(step(*plain, [&, p = plain](const at::Tensor& x) mutable { return p(x); }),
              step(*checkpointed, [&, p = checkpointed](const at::Tensor& x) mutable { return p(x); }));
}

TEST(CheckpointedCall, WithoutGradientsTheCallJustRuns) {
  CheckpointedBlock block;
  Checkpointing runner;
  Counter counter;
  block->set_runner(&runner);
  block->add_hook(counter);
  {
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(block(at::ones({4, 8})).requires_grad());
  }
  {
    const c10::InferenceMode inference;
    block(at::ones({4, 8}));
  }
  EXPECT_EQ(counter.runs, 2);
  EXPECT_EQ(counter.repetitions, 0);
}

TEST(CheckpointedCall, OutlivesTheModule) {
  at::Tensor loss;
  const at::Tensor x = at::ones({4, 8}).requires_grad_();
  {
    CheckpointedBlock block;
    Checkpointing runner;
    block->set_runner(&runner);
    loss = block(x).sum();
  }
  loss.backward();
  EXPECT_TRUE(x.grad().defined());
}

TEST(CheckpointedCall, InputsModifiedInPlaceAreNoticed) {
  CheckpointedBlock block;
  Checkpointing runner;
  block->set_runner(&runner);
  at::Tensor x = at::ones({4, 8});
  const at::Tensor loss = block(x).sum();
  x.add_(1);
  EXPECT_EQ(message_of([&] { loss.backward(); }),
            "[activation_checkpointing] the block: its input 0 was modified in place after its forward began, so that "
            "the forward cannot be run again; hint: use the operation that gives a new tensor, or checkpoint another "
            "unit");
}

TEST(CheckpointedCall, ParametersModifiedInPlaceAreNoticed) {
  CheckpointedBlock block;
  Checkpointing runner;
  block->set_runner(&runner);
  const at::Tensor loss = block(at::ones({4, 8}).requires_grad_()).sum();
  {
    const at::NoGradGuard no_grad;
    block->second->weight.mul_(2);
  }
  EXPECT_NE(message_of([&] { loss.backward(); }).find("the block: one of its parameters was modified in place"),
            std::string::npos);
}

/// Modifies in place what backward needs.
struct CarelessImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = x.exp();
    y.add_(1);
    return y.square() * x.sin();
  }
};
LEVIN_UNIT(Careless);

TEST(CheckpointedCall, TensorsModifiedInPlaceInsideAreNoticed) {
  Careless unit;
  EXPECT_ANY_THROW(unit(at::ones({3}).requires_grad_()).sum().backward());
  Checkpointing runner;
  unit->set_runner(&runner);
  const at::Tensor loss = unit(at::ones({3}).requires_grad_()).sum();
  EXPECT_NE(
      message_of([&] { loss.backward(); }).find("one of the tensors needed for its gradient was modified in place"),
      std::string::npos);
}

/// Does something else the second time.
struct FickleImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const bool first = calls++ == 0;
    if (kind == "shape") return (first ? x : x.narrow(0, 0, 1)).exp().sin();
    return first ? x.exp().sin().cos() : x.exp();
  }
  std::string kind;
  int calls = 0;
};
LEVIN_UNIT(Fickle);

TEST(CheckpointedCall, AForwardThatDoesSomethingElseIsNoticed) {
  const auto message = [](const std::string& kind) {
    Fickle unit;
    unit->kind = kind;
    Checkpointing runner;
    unit->set_runner(&runner);
    const at::Tensor loss = unit(at::ones({3}).requires_grad_()).sum();
    return message_of([&] { loss.backward(); });
  };
  EXPECT_NE(message("count").find("got 1 saved tensors; valid: 3, as the first time"), std::string::npos)
      << message("count");
  EXPECT_NE(message("shape").find("got Float [1] on cpu as saved tensor 1 of 2; valid: Float [3] on cpu"),
            std::string::npos)
      << message("shape");
}

TEST(CheckpointedCall, AFailureInTheForwardPassesOn) {
  torch::nn::Linear linear(8, 8);
  EXPECT_ANY_THROW(checkpoint(linear, at::ones({4, 5})));
  // Nothing is left of the scope.
  const at::Tensor x = at::ones({3}).requires_grad_();
  x.exp().sum().backward();
  EXPECT_TRUE(x.grad().equal(at::ones({3}).exp()));
}

TEST(CheckpointFunction, OfHoldersAndFunctions) {
  auto [plain, checkpointed] = twins<CheckpointedBlock>();
  const Outcome expected = step(*plain, [&, p = plain](const at::Tensor& x) mutable { return p(x); });
  expect_same(expected, step(*checkpointed, [p = checkpointed](const at::Tensor& x) { return checkpoint(p, x); }));

  const at::Tensor a = at::ones({3}).requires_grad_();
  const at::Tensor b = at::rand({3}).requires_grad_();
  auto [sum, product] =
      checkpoint([](const at::Tensor& x, const Tensors& more,
                    int64_t factor) { return std::make_tuple(x.exp() + more[0].sin() * factor, x.exp() * more[0]); },
                 a, Tensors{b}, int64_t{3});
  (sum + product).sum().backward();
  EXPECT_TRUE(a.grad().equal(a.exp() + b * a.exp()));
  EXPECT_TRUE(b.grad().equal(b.cos() * 3 + a.exp()));
}

TEST(CheckpointedCall, PeakOfMemoryFalls) {
  AccountingAllocator::install();
  constexpr int kBlocks = 8;
  std::vector<CheckpointedBlock> blocks(kBlocks);
  for (auto& block : blocks) block = CheckpointedBlock();
  const at::Tensor x = at::ones({4096, 8});
  const auto peak = [&](UnitRunner* runner) {
    for (auto& block : blocks) block->set_runner(runner);
    return AccountingAllocator::of_all_threads().peak_of([&] {
      at::Tensor y = x;
      for (auto& block : blocks) y = block(y);
      y.sum().backward();
    });
  };
  const int64_t first = peak(nullptr);  // makes the gradients of the parameters as well
  const int64_t plain = peak(nullptr);
  Checkpointing runner;
  const int64_t checkpointed = peak(&runner);
  for (auto& block : blocks) block->set_runner(nullptr);
  EXPECT_GE(first, plain);
  // A block saves some 8 times its input; what remains is every input, and all of one block.
  EXPECT_LT(static_cast<double>(checkpointed), 0.4 * static_cast<double>(plain)) << plain;
  EXPECT_GT(checkpointed, (kBlocks - 1) * 4096 * 8 * 4);
}

}  // namespace
}  // namespace levin
