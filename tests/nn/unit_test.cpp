#include <levin/core/nn/unit.h>

#include <levin/core/base/error.h>
#include <levin/core/nn/named_units.h>
#include <levin/core/nn/sequential.h>

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace levin {
namespace {

struct UnitPairImpl : torch::nn::Module {
  /// Adds everything that it is given.
  std::tuple<at::Tensor, std::vector<at::Tensor>> forward(at::Tensor x, const std::vector<at::Tensor>& more,
                                                          std::optional<at::Tensor> last, int64_t factor) {
    if (factor < 0) throw std::runtime_error("negative");
    at::Tensor sum = x * factor;
    for (const auto& tensor : more) sum = sum + tensor;
    if (last) sum = sum + *last;
    return {sum, {x, sum}};
  }
};
LEVIN_UNIT(UnitPair);

struct BlockImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x; }
};
LEVIN_UNIT(Block);

struct InPlaceImpl : torch::nn::Module {
  void forward(at::Tensor& x, int64_t& calls) {
    x = x + 1;
    ++calls;
  }
};
LEVIN_UNIT(InPlace);

/// Writes down what it is told.
class Listener : public UnitHook {
 public:
  Listener(std::string name, std::vector<std::string>& told) : name_(std::move(name)), told_(told) {}
  void before_forward(UnitCall& call) override {
    int64_t arguments = 0;
    call.for_each_argument([&](at::Tensor&) { ++arguments; });
    told_.push_back(name_ + " before " + std::to_string(arguments));
  }
  void after_forward(UnitCall& call) override {
    int64_t results = 0;
    call.for_each_result([&](at::Tensor&) { ++results; });
    told_.push_back(name_ + " after " + std::to_string(results));
  }

 private:
  std::string name_;
  std::vector<std::string>& told_;
};

TEST(UnitHooks, RunInOrderAndBackAndSeeTheTensors) {
  UnitPair pair;
  std::vector<std::string> told;
  Listener first("first", told);
  Listener second("second", told);
  pair->add_hook(first);
  pair->add_hook(second);
  const at::Tensor one = at::ones({2});
  auto [sum, list] = pair->forward(one, {one, one}, one, 3);
  EXPECT_TRUE(sum.equal(one * 6));
  EXPECT_EQ(told, (std::vector<std::string>{"first before 4", "second before 4", "second after 3", "first after 3"}));
  told.clear();
  pair->remove_hook(first);
  pair->forward(one, {}, std::nullopt, 1);
  EXPECT_EQ(told, (std::vector<std::string>{"second before 1", "second after 3"}));
  told.clear();
  pair->remove_hook(second);
  pair->forward(one, {}, std::nullopt, 1);
  EXPECT_TRUE(told.empty());
}

TEST(UnitHooks, HearOfAForwardThatThrows) {
  UnitPair pair;
  std::vector<std::string> told;
  Listener listener("hook", told);
  pair->add_hook(listener);
  EXPECT_THROW(pair->forward(at::ones({2}), {}, std::nullopt, -1), std::runtime_error);
  EXPECT_EQ(told, (std::vector<std::string>{"hook before 1", "hook after 0"}));
}

TEST(UnitHooks, MayReplaceArgumentsAndResults) {
  struct Replacing : UnitHook {
    void before_forward(UnitCall& call) override {
      call.for_each_argument([](at::Tensor& tensor) { tensor = tensor * 10; });
    }
    void after_forward(UnitCall& call) override {
      call.for_each_result([](at::Tensor& tensor) { tensor = tensor + 1; });
    }
  } hook;
  UnitPair pair;
  pair->add_hook(hook);
  const at::Tensor one = at::ones({2});
  auto [sum, list] = pair->forward(one, {one}, std::nullopt, 2);
  EXPECT_TRUE(sum.equal(one * 31));
  EXPECT_TRUE(list[0].equal(one * 11));
}

TEST(UnitHooks, ArgumentsByReferenceAreTheCallersOwn) {
  InPlace unit;
  UnitHook hook;
  unit->add_hook(hook);
  at::Tensor x = at::ones({2});
  int64_t calls = 0;
  unit(x, calls);
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(x.equal(at::ones({2}) * 2));
}

/// Runs each forward twice, and keeps the results of the second time.
struct Twice : UnitRunner {
  void run(UnitCall& call) override {
    const auto again = call.copy();
    call.run();
    again->run();
    EXPECT_FALSE(call.is_repetition());
    EXPECT_TRUE(again->is_repetition());
    again->for_each_result([&](at::Tensor& tensor) { results.push_back(tensor); });
  }
  std::vector<at::Tensor> results;
};

TEST(UnitRunners, RunACallAgainBetweenTheHooks) {
  UnitPair pair;
  std::vector<std::string> told;
  Listener listener("hook", told);
  Twice runner;
  pair->add_hook(listener);
  pair->set_runner(&runner);
  EXPECT_THROW(pair->set_runner(&runner), InternalError);
  const at::Tensor one = at::ones({2});
  auto [sum, list] = pair->forward(one, {one}, one, 2);
  ASSERT_EQ(runner.results.size(), 3u);
  EXPECT_TRUE(runner.results[0].equal(sum));
  EXPECT_EQ(told.size(), 4u);
}

TEST(UnitRunners, RefuseToRepeatWhatWritesToItsArguments) {
  InPlace unit;
  Twice runner;
  unit->set_runner(&runner);
  at::Tensor x = at::ones({2});
  int64_t calls = 0;
  try {
    unit(x, calls);
    FAIL() << "was repeated";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("the forward of InPlace cannot be run again"), std::string::npos)
        << error.what();
  }
  EXPECT_EQ(calls, 0);
}

TEST(UnitRunners, ACopyKeepsTheModule) {
  std::unique_ptr<UnitCall> kept;
  struct Keeping : UnitRunner {
    explicit Keeping(std::unique_ptr<UnitCall>& to) : to_(to) {}
    void run(UnitCall& call) override {
      to_ = call.copy();
      call.run();
    }
    std::unique_ptr<UnitCall>& to_;
  } runner(kept);
  {
    UnitPair pair;
    pair->set_runner(&runner);
    pair->forward(at::ones({2}), {}, std::nullopt, 3);
  }
  kept->run();
  std::vector<at::Tensor> results;
  kept->for_each_result([&](at::Tensor& tensor) { results.push_back(tensor); });
  ASSERT_EQ(results.size(), 3u);
  EXPECT_TRUE(results[0].equal(at::ones({2}) * 3));
}

struct NetImpl : torch::nn::Module {
  NetImpl() {
    net = register_module("net", Sequential(
                                     torch::nn::Linear(2, 2), [](const at::Tensor& x) { return x.relu(); }, Block()));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int i = 0; i < 2; ++i) blocks->push_back(Block().ptr());
    register_module("again", std::dynamic_pointer_cast<torch::nn::Module>(blocks->ptr(0)));
  }
  Sequential net{nullptr};
  torch::nn::ModuleList blocks{nullptr};
};

TEST(NamedUnits, FindsEachOnce) {
  NetImpl net;
  std::string found;
  for (const auto& unit : named_units(net)) found += unit.path + "=" + unit.type + " ";
  EXPECT_EQ(found, "net.0=Linear net.1=Function net.2=Block blocks.0=Block blocks.1=Block ");
}

TEST(SequentialUnits, RunTheirHooks) {
  Sequential net(
      torch::nn::Linear(2, 2), [](const at::Tensor& x) { return std::make_tuple(x, x); },
      [](const at::Tensor& a, const at::Tensor& b) { return a + b; });
  std::vector<std::string> told;
  Listener listener("hook", told);
  net->element(2).add_hook(listener);
  net->forward(at::ones({1, 2}));
  EXPECT_EQ(told, (std::vector<std::string>{"hook before 2", "hook after 1"}));
}

}  // namespace
}  // namespace levin
