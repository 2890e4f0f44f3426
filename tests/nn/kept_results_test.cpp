// Results of chosen operators that a checkpointed forward keeps.

#include "../support/captured_log.h"

#include <levin/core/nn/kept_results.h>

#include <levin/core/base/error.h>
#include <levin/core/base/permanent_library.h>
#include <levin/core/devices/accounting_allocator.h>
#include <levin/core/nn/checkpointed_call.h>
#include <levin/core/nn/unit.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/utils.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace levin {
namespace {

using ::testing::HasSubstr;
using Names = std::vector<std::string>;

/// Keeps results of these operators.
struct Keeping : UnitRunner {
  explicit Keeping(const Names& names) : choice(std::make_shared<const OperatorChoice>(names, "keep")) {}
  void run(UnitCall& call) override { run_checkpointed(call, "the block", /*offload=*/false, choice); }
  std::shared_ptr<const OperatorChoice> choice;
};

std::atomic<int> runs_of_cube = 0;

/// x³, with a gradient, as a library of operators defines it.
at::Tensor cube(const at::Tensor& x) {
  struct Cube : torch::autograd::Function<Cube> {
    static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
      const at::AutoDispatchBelowAutograd below;
      static auto op =
          c10::Dispatcher::singleton().findSchemaOrThrow("levin_test::cube", "").typed<at::Tensor(const at::Tensor&)>();
      at::Tensor y = op.call(x);
      context->save_for_backward({x});
      return y;
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                   const torch::autograd::variable_list& gradients) {
      return {gradients[0] * 3 * context->get_saved_variables()[0].square()};
    }
  };
  static const bool is_defined = [] {
    permanent_library(torch::Library::DEF, "levin_test", std::nullopt).def("cube(Tensor x) -> Tensor");
    permanent_library(torch::Library::IMPL, "levin_test", c10::DispatchKey::CPU).impl("cube", [](const at::Tensor& x) {
      ++runs_of_cube;
      return x * x * x;
    });
    return true;
  }();
  EXPECT_TRUE(is_defined);
  return Cube::apply(x);
}

/// Attention, layers, dropout, statistics, and results that are changed in place.
struct KeptBlockImpl : torch::nn::Module {
  KeptBlockImpl() {
    mix = register_module("mix", torch::nn::Linear(8, 24));
    first = register_module("first", torch::nn::Linear(8, 16));
    norm = register_module("norm", torch::nn::BatchNorm1d(16));
    dropout = register_module("dropout", torch::nn::Dropout(0.3));
    second = register_module("second", torch::nn::Linear(16, 8));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto parts = mix(x).view({2, 3, 3, 2, 4}).permute({2, 0, 3, 1, 4}).unbind();
    const at::Tensor seen = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    at::Tensor hidden = first(x + dropout(seen.transpose(1, 2).reshape({6, 8})));
    hidden.mul_(0.5);  // of a result that may be kept
    hidden = cube(norm(hidden)).tanh();
    return x + dropout(second(dropout(hidden))).relu_();
  }
  torch::nn::Linear mix{nullptr};
  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
  torch::nn::Linear second{nullptr};
};
LEVIN_UNIT(KeptBlock);

/// Two blocks, the second called twice.
struct KeptPairImpl : torch::nn::Module {
  KeptPairImpl() {
    first = register_module("first", KeptBlock());
    second = register_module("second", KeptBlock());
  }
  at::Tensor forward(const at::Tensor& x) { return second(second(first(x)).tanh()); }
  KeptBlock first{nullptr};
  KeptBlock second{nullptr};
};
LEVIN_UNIT(KeptPair);

/// What a step leaves behind: loss, gradients, buffers, the next random numbers.
std::vector<at::Tensor> outcome(KeptPair pair, UnitRunner* inner, UnitRunner* outer,
                                const std::function<void(const at::Tensor&)>& backward) {
  pair->set_runner(outer);
  for (KeptBlock& block : {std::ref(pair->first), std::ref(pair->second)}) block->set_runner(inner);
  torch::manual_seed(7);
  const at::Tensor x = at::randn({6, 8}).requires_grad_();
  const at::Tensor loss = pair(x).square().sum();
  backward(loss);
  std::vector<at::Tensor> left = {loss.detach(), x.grad()};
  for (const auto& parameter : pair->parameters()) left.push_back(parameter.grad().clone());
  for (const auto& buffer : pair->buffers()) left.push_back(buffer.clone());
  left.push_back(at::rand({4}));
  return left;
}

KeptPair new_pair() {
  torch::manual_seed(1);
  return KeptPair();
}

/// Layers of activations [examples, positions, features], whose products LibTorch views otherwise before it adds the
/// bias in place.
struct KeptSequencesImpl : torch::nn::Module {
  KeptSequencesImpl() {
    first = register_module("first", torch::nn::Linear(8, 16));
    second = register_module("second", torch::nn::Linear(16, 8));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = second(first(norm(x)).tanh());
    y += x;
    return at::matmul(y, second->weight).relu_().matmul(first->weight);
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};
LEVIN_UNIT(KeptSequences);

void backward_once(const at::Tensor& loss) { loss.backward(); }

std::string differing(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  std::string text;
  for (size_t i = 0; i < a.size(); ++i)
    if (!a[i].equal(b[i])) text += std::to_string(i) + " ";
  return text;
}

const std::vector<Names>& choices() {
  static const std::vector<Names> all = {{"linear"},
                                         {"scaled_dot_product_attention"},
                                         {"linear", "scaled_dot_product_attention"},
                                         {"matmul", "tanh", "relu"},
                                         {"native_dropout"},
                                         {"dropout", "mul", "native_batch_norm"},
                                         {"add", "_unsafe_view"},
                                         {"levin_test::cube"}};
  return all;
}

TEST(KeptResults, StepsAreThePlainOnesToTheBit) {
  cube(at::ones({1}));  // its operator has a name from here on
  const auto expected = outcome(new_pair(), nullptr, nullptr, backward_once);
  for (const Names& names : choices()) {
    SCOPED_TRACE(::testing::PrintToString(names));
    Keeping keeping(names);
    EXPECT_EQ(differing(outcome(new_pair(), &keeping, nullptr, backward_once), expected), "") << "inner units";
    EXPECT_EQ(differing(outcome(new_pair(), nullptr, &keeping, backward_once), expected), "") << "the outer unit";
    EXPECT_EQ(differing(outcome(new_pair(), &keeping, &keeping, backward_once), expected), "") << "both";
  }
}

TEST(KeptResults, OfSequencesAreThePlainOnesToTheBit) {
  cube(at::ones({1}));  // its operator has a name from here on
  const auto step = [](UnitRunner* runner) {
    torch::manual_seed(3);
    KeptSequences unit;
    unit->set_runner(runner);
    const at::Tensor x = at::randn({2, 3, 8}).requires_grad_();
    at::Tensor y = unit(x);
    y += 1;  // of what the unit gave
    y.square().sum().backward();
    std::vector<at::Tensor> left = {y.detach(), x.grad()};
    for (const auto& parameter : unit->parameters()) left.push_back(parameter.grad().clone());
    return left;
  };
  const auto expected = step(nullptr);
  std::vector<Names> all = choices();
  all.insert(all.end(), {{"mm"}, {"mm", "_unsafe_view"}, {"_unsafe_view"}, {"matmul", "add", "tanh"}});
  for (const Names& names : all) {
    SCOPED_TRACE(::testing::PrintToString(names));
    Keeping keeping(names);
    EXPECT_EQ(differing(step(&keeping), expected), "");
  }
}

TEST(KeptResults, GraphsThatAreKeptAndBackwardOnAnotherThread) {
  const auto twice = [](const at::Tensor& loss) {
    loss.backward({}, /*keep_graph=*/true);
    loss.backward();
  };
  const auto elsewhere = [](const at::Tensor& loss) { std::thread([&] { loss.backward(); }).join(); };
  for (const auto& backward : std::vector<std::function<void(const at::Tensor&)>>{twice, elsewhere}) {
    const auto expected = outcome(new_pair(), nullptr, nullptr, backward);
    for (const Names& names : choices()) {
      SCOPED_TRACE(::testing::PrintToString(names));
      Keeping keeping(names);
      EXPECT_EQ(differing(outcome(new_pair(), &keeping, nullptr, backward), expected), "");
    }
  }
}

TEST(KeptResults, AreNotComputedAgain) {
  cube(at::ones({1}));
  const auto runs = [](const Names& names) {
    Keeping keeping(names);
    runs_of_cube = 0;
    outcome(new_pair(), &keeping, nullptr, backward_once);
    return runs_of_cube.load();
  };
  EXPECT_EQ(runs({"levin_test::cube"}), 3) << "one for each call of a block";
  EXPECT_EQ(runs({"linear"}), 6);
}

struct ModifiedImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = cube(x);
    const at::Tensor z = y.exp();
    y.add_(1);
    return z * 2;
  }
};
LEVIN_UNIT(Modified);

/// The operator runs again where what it gave is not there any more.
TEST(KeptResults, ThatWereModifiedInPlaceAreComputedAgain) {
  runs_of_cube = 0;
  const at::Tensor x = at::rand({5}).requires_grad_();
  Keeping keeping({"levin_test::cube"});
  const auto call = [&](UnitRunner* runner) {
    x.mutable_grad() = at::Tensor();
    Modified unit;
    unit->set_runner(runner);
    unit(x).sum().backward();
    return x.grad().clone();
  };
  const at::Tensor expected = call(nullptr);
  EXPECT_TRUE(call(&keeping).equal(expected));
  EXPECT_EQ(runs_of_cube, 3);
}

TEST(KeptResults, TakeMemoryBetweenThatOfPlainAndOfCheckpointedSteps) {
  AccountingAllocator::install();
  struct Peak {
    static int64_t of(UnitRunner* runner) {
      std::vector<KeptPair> pairs;
      for (int i = 0; i < 6; ++i) pairs.push_back(KeptPair());
      for (auto& pair : pairs) pair->first->set_runner(runner);
      const at::Tensor x = at::ones({6, 8});
      return AccountingAllocator::of_all_threads().peak_of([&] {
        at::Tensor y = x;
        for (auto& pair : pairs) y = pair->first(y);
        y.sum().backward();
      });
    }
  };
  const int64_t plain = Peak::of(nullptr);
  Keeping nothing({"conv2d"});
  Keeping some({"linear"});
  EXPECT_LT(Peak::of(&nothing), Peak::of(&some));
  EXPECT_LT(Peak::of(&some), plain);
}

TEST(KeptResults, UnknownNamesAreRefusedAndOnesThatNeverRunAreSaid) {
  try {
    OperatorChoice({"linaer"}, "trainer.activation_checkpointing.keep");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("trainer.activation_checkpointing.keep: there is no operator 'linaer'; did you "
                                        "mean 'linear'?; valid: linear, matmul"));
  }
  for (const char* name : {"view", "relu_", "unbind"})
    EXPECT_THROW(OperatorChoice({name}, "keep"), ConfigError) << name;
  const testing::CapturedLog log;
  Keeping keeping({"linear", "conv3d"});
  for (int i = 0; i < 2; ++i) outcome(new_pair(), &keeping, nullptr, backward_once);
  const std::string text = log.text();
  EXPECT_THAT(text, HasSubstr("no unit that is checkpointed ran 'conv3d'"));
  EXPECT_EQ(text.find("ran 'conv3d'"), text.rfind("ran 'conv3d'")) << "once";
  EXPECT_EQ(text.find("ran 'linear'"), std::string::npos);
}

}  // namespace
}  // namespace levin
