#include "tests/support/tiny.h"

#include <levin/core/base/error.h>
#include <levin/core/nn/sequential.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace levin {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::identical;
using testing::quiet;
using testing::tiny_dataset;

using Members = std::function<void(Sequential&)>;
/// What a step gives to the sequential.
using Inputs = std::function<at::Tensor(const Batch&)>;

class InPlaceModel : public Module {
 public:
  // What a test sets, since ranks build the module again.
  static inline Members members;
  static inline Inputs inputs;

  InPlaceModel() {
    Sequential net;
    members(net);
    net_ = register_module("net", net);
  }
  at::Tensor forward(const Batch& batch) { return net_(inputs ? inputs(batch) : batch["x"]); }
  StepOutput training_step(const Batch& batch, int64_t) override {
    return torch::nn::functional::mse_loss(forward(batch), batch["y"]);
  }
  StepOutput validation_step(const Batch& batch, int64_t) override {
    log("val_loss", torch::nn::functional::mse_loss(forward(batch), batch["y"]));
    return {};
  }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 0.02});
  }

 private:
  Sequential net_{nullptr};
};

struct InPlaceCase {
  Members members;
  Inputs inputs = {};
  std::string strategy = "single_device";
  int devices = 1;
  int64_t global_batch = 16;
  int64_t accumulate = 1;
  std::string precision = "32-true";
};

/// Weights after two epochs, and the loss of validation after them.
std::vector<at::Tensor> train_in_place(const InPlaceCase& tested) {
  torch::manual_seed(5);
  TrainerOptions options = quiet(2);
  options.strategy = Spec<Strategy>(Config::parse(tested.strategy, {.source = "test"}));
  options.devices = tested.devices;
  options.accumulate_grad_batches = tested.accumulate;
  options.precision = tested.precision;
  InPlaceModel::members = tested.members;
  InPlaceModel::inputs = tested.inputs;
  const auto module = make<InPlaceModel>();
  Trainer trainer(options);
  trainer.fit(module, DataLoader(tiny_dataset(48), {.shuffle = true, .global_batch_size = tested.global_batch}),
              DataLoader(tiny_dataset(8), {.batch_size = 8}));
  auto weights = testing::weights(*module);
  weights.push_back(at::scalar_tensor(trainer.callback_metrics().at("val_loss")));
  return weights;
}

std::string cut(const std::string& options) { return "{name: pipeline_threads, " + options + "}"; }

/// A batch in four micro-batches does the arithmetic of four accumulated batches: see PipelineExact.
std::vector<at::Tensor> accumulated(const Members& members, const Inputs& inputs = {}) {
  return train_in_place({.members = members, .inputs = inputs, .global_batch = 4, .accumulate = 4});
}

/// Every second member changes in place what it is given, from the second on.
void chain_of_in_place(Sequential& net) {
  net->push_back(torch::nn::Linear(4, 8));
  net->push_back(torch::nn::ReLU(torch::nn::ReLUOptions(true)));
  net->push_back(torch::nn::Linear(8, 8));
  net->push_back([](const at::Tensor& x) { return x.add_(0.5).mul_(1.5); });
  net->push_back(torch::nn::Linear(8, 8));
  net->push_back(torch::nn::LeakyReLU(torch::nn::LeakyReLUOptions().negative_slope(0.1).inplace(true)));
  net->push_back(torch::nn::Linear(8, 8));
  // A part of it, through a view.
  net->push_back([](const at::Tensor& x) {
    x.slice(1, 0, 4).sigmoid_();
    return x;
  });
  net->push_back(torch::nn::Linear(8, 1));
}

TEST(PipelineInPlace, EqualsOneDeviceBehindEveryCut) {
  const auto expected = accumulated(chain_of_in_place);
  for (int first = 1; first < 9; ++first) {
    SCOPED_TRACE(first);
    EXPECT_TRUE(
        identical(train_in_place({.members = chain_of_in_place,
                                  .strategy = cut(fmt::format("micro_batches: 4, balance: [{}, {}]", first, 9 - first)),
                                  .devices = 2}),
                  expected));
  }
}

TEST(PipelineInPlace, EqualsOneDeviceUnderEverySchedule) {
  const auto expected = accumulated(chain_of_in_place);
  for (const char* checkpoint : {"never", "always", "except_last"})
    for (const char* schedule :
         {"gpipe, balance: [1, 4, 4]", "1f1b, balance: [3, 2, 4]", "interleaved, balance: [1, 2, 2, 4]",
          "zero_bubble, balance: [1, 4, 4]", "zero_bubble, balance: [2, 1, 6]"}) {
      SCOPED_TRACE(fmt::format("{}, checkpoint {}", schedule, checkpoint));
      const bool is_interleaved = std::string(schedule).starts_with("interleaved");
      EXPECT_TRUE(identical(
          train_in_place(
              {.members = chain_of_in_place,
               .strategy = cut(fmt::format("micro_batches: 4, checkpoint: {}, schedule: {}", checkpoint, schedule)),
               .devices = is_interleaved ? 2 : 3}),
          expected));
    }
}

TEST(PipelineInPlace, IsTimedForTheAutomaticBalance) {
  const auto expected = accumulated(chain_of_in_place);
  for (const char* balance_by : {"time", "memory"})
    EXPECT_TRUE(identical(train_in_place({.members = chain_of_in_place,
                                          .strategy = cut(fmt::format("micro_batches: 4, balance_by: {}", balance_by)),
                                          .devices = 2}),
                          expected))
        << balance_by;
}

// Elements draw from streams of their own, wherever the sequential is cut.
TEST(PipelineInPlace, DropsTheSameValuesWhereverItIsCut) {
  const Members members = [](Sequential& net) {
    net->push_back(torch::nn::Linear(4, 8));
    net->push_back(torch::nn::Dropout(torch::nn::DropoutOptions(0.3).inplace(true)));
    net->push_back(torch::nn::Linear(8, 8));
    net->push_back(torch::nn::AlphaDropout(torch::nn::AlphaDropoutOptions(0.3).inplace(true)));
    net->push_back(torch::nn::Linear(8, 1));
  };
  const auto expected =
      train_in_place({.members = members, .strategy = cut("micro_batches: 4, balance: [3, 2]"), .devices = 2});
  for (const char* other : {"balance: [1, 4]", "balance: [2, 3]", "balance: [1, 4], checkpoint: always",
                            "schedule: zero_bubble, balance: [1, 4]", "schedule: interleaved, balance: [1, 1, 1, 2]"})
    EXPECT_TRUE(identical(
        train_in_place({.members = members, .strategy = cut(fmt::format("micro_batches: 4, {}", other)), .devices = 2}),
        expected))
        << other;
}

/// Batches are the step's, and their micro-batches lie in one memory.
TEST(PipelineInPlace, MayChangeWhatTheStepGives) {
  const Members members = [](Sequential& net) {
    net->push_back([](const at::Tensor& x) { return x.mul_(0.5).add_(0.25); });
    net->push_back(torch::nn::Linear(4, 8));
    net->push_back(torch::nn::ReLU(torch::nn::ReLUOptions(true)));
    net->push_back(torch::nn::Linear(8, 1));
  };
  // The step changes its batch too.
  for (const Inputs& inputs : {Inputs(), Inputs([](const Batch& batch) { return batch["x"].sub_(0.125); })}) {
    const auto expected = accumulated(members, inputs);
    for (const char* options : {"balance: [2, 2]", "balance: [1, 3], checkpoint: always", "balance_by: time",
                                "balance: [1, 3], schedule: zero_bubble"}) {
      SCOPED_TRACE(options);
      EXPECT_TRUE(identical(train_in_place({.members = members,
                                            .inputs = inputs,
                                            .strategy = cut(fmt::format("micro_batches: 4, {}", options)),
                                            .devices = 2}),
                            expected));
    }
  }
}

/// Indices, and values that need no gradient, pass as well.
TEST(PipelineInPlace, MayChangeWhatHasNoGradient) {
  const Members members = [](Sequential& net) {
    net->push_back(torch::nn::Linear(4, 8));
    net->push_back([](const at::Tensor& x) {
      return std::make_tuple(x * 1.25, at::argsort(x.detach(), /*dim=*/1, /*descending=*/false),
                             at::ones({x.size(0), 8}));
    });
    net->push_back([](const at::Tensor& x, const at::Tensor& order, const at::Tensor& scale) {
      return std::make_tuple(x.mul_(1.5), order.add_(1).remainder_(8), scale.mul_(0.5));
    });
    // What has no gradient gets one in place.
    net->push_back([](const at::Tensor& x, const at::Tensor& order, const at::Tensor& scale) {
      return scale.add_(x).gather(1, order);
    });
    net->push_back(torch::nn::Linear(8, 1));
  };
  const auto expected = accumulated(members);
  const std::vector<std::pair<const char*, int>> cases = {{"balance: [2, 3]", 2},
                                                          {"balance: [3, 2]", 2},
                                                          {"balance: [3, 2], checkpoint: always", 2},
                                                          {"balance_by: time", 2},
                                                          {"balance: [1, 1, 3], schedule: zero_bubble", 3},
                                                          {"balance: [2, 1, 2], schedule: gpipe", 3}};
  for (const auto& [options, devices] : cases) {
    SCOPED_TRACE(options);
    EXPECT_TRUE(identical(
        train_in_place(
            {.members = members, .strategy = cut(fmt::format("micro_batches: 4, {}", options)), .devices = devices}),
        expected));
  }
}

/// Under zero_bubble a linear layer is an operation of the pipeline's own, whose result a member may change.
TEST(PipelineInPlace, MayChangeTheResultsOfLinearLayers) {
  class FunctionalImpl : public torch::nn::Module {
   public:
    FunctionalImpl() : layer_(register_module("layer", torch::nn::Linear(4, 4))) {}
    at::Tensor forward(const at::Tensor& x) {
      return at::linear(layer_(x).relu_(), layer_->weight, layer_->bias).relu_();
    }

   private:
    torch::nn::Linear layer_;
  };
  for (const bool deep : {false, true}) {
    const Members members = [deep](Sequential& net) {
      net->push_back([deep](const at::Tensor& x) { return deep ? x.unsqueeze(1).repeat({1, 3, 1}) : x * 2; });
      net->push_back(std::make_shared<FunctionalImpl>());
      net->push_back(torch::nn::Linear(4, 4));
      net->push_back(torch::nn::ReLU(torch::nn::ReLUOptions(true)));
      net->push_back([deep](const at::Tensor& x) { return deep ? x.sum(1) : x * 1; });
      net->push_back(torch::nn::Linear(4, 1));
    };
    const auto expected = accumulated(members);
    for (const char* balance : {"[2, 4]", "[3, 3]", "[4, 2]"}) {
      SCOPED_TRACE(balance);
      EXPECT_TRUE(identical(
          train_in_place({.members = members,
                          .strategy = cut(fmt::format("micro_batches: 4, schedule: zero_bubble, balance: {}", balance)),
                          .devices = 2}),
          expected));
    }
  }
}

/// A product of two activations is not the product with a weight, though both have arrived.
TEST(PipelineInPlace, ProductsOfActivationsAreNotPutOff) {
  const Members members = [](Sequential& net) {
    net->push_back(torch::nn::Linear(4, 8));
    net->push_back([](const at::Tensor& x) { return std::make_tuple(x.tanh(), x.sigmoid()); });
    net->push_back(
        [](const at::Tensor& x, const at::Tensor& y) { return std::make_tuple(x.matmul(y.t()).softmax(-1), y * 1); });
    net->push_back(
        [](const at::Tensor& weights, const at::Tensor& y) { return at::linear(weights, weights.matmul(y).t()); });
    net->push_back(torch::nn::Linear(8, 1));
  };
  const auto expected = accumulated(members);
  for (const char* balance : {"[1, 4]", "[2, 3]", "[3, 2]"})
    EXPECT_TRUE(identical(
        train_in_place({.members = members,
                        .strategy = cut(fmt::format("micro_batches: 4, schedule: zero_bubble, balance: {}", balance)),
                        .devices = 2}),
        expected))
        << balance;
}

TEST(PipelineInPlace, EverySchedulesResultIsTheSameInMixedPrecision) {
  const auto train = [](const char* options) {
    return train_in_place({.members = chain_of_in_place,
                           .strategy = cut(fmt::format("micro_batches: 4, balance: [1, 8], {}", options)),
                           .devices = 2,
                           .precision = "bf16-mixed"});
  };
  const auto expected = train("schedule: 1f1b");
  for (const char* options : {"schedule: gpipe", "schedule: zero_bubble", "checkpoint: always"})
    EXPECT_TRUE(identical(train(options), expected)) << options;
}

std::string refusal_in_place(const InPlaceCase& tested) {
  try {
    train_in_place(tested);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// On one device the other tensor changes as well, which it does not where both were sent.
TEST(PipelineInPlace, IsRefusedWhereTwoTensorsThatPassShareTheirMemory) {
  const auto members = [](bool in_place) -> Members {
    return [in_place](Sequential& net) {
      net->push_back(torch::nn::Linear(4, 8));
      net->push_back([](const at::Tensor& x) { return std::make_tuple(x, x); });
      net->push_back(
          [in_place](const at::Tensor& x, const at::Tensor& skip) { return (in_place ? x.mul_(2) : x * 2) + skip; });
      net->push_back(torch::nn::Linear(8, 1));
    };
  };
  EXPECT_TRUE(identical(
      train_in_place({.members = members(false), .strategy = cut("micro_batches: 4, balance: [2, 2]"), .devices = 2}),
      accumulated(members(false))));
  EXPECT_TRUE(identical(
      train_in_place({.members = members(true), .strategy = cut("micro_batches: 4, balance: [1, 3]"), .devices = 2}),
      accumulated(members(true))));
  EXPECT_THAT(
      refusal_in_place({.members = members(true), .strategy = cut("micro_batches: 4, balance: [2, 2]"), .devices = 2}),
      AllOf(HasSubstr("the elements 2 to 3 of the sequential 'net' change in place tensor 0"), HasSubstr("clone()")));
  // Through a stage that passes them on.
  const Members passed_on = [](Sequential& net) {
    net->push_back(torch::nn::Linear(4, 8));
    net->push_back([](const at::Tensor& x) { return std::make_tuple(x, x.view({-1, 8})); });
    net->push_back([](const at::Tensor& x, const at::Tensor& skip) { return std::make_tuple(x, skip.relu(), skip); });
    net->push_back(
        [](const at::Tensor& x, const at::Tensor& y, const at::Tensor& skip) { return x.mul_(2) + y + skip; });
    net->push_back(torch::nn::Linear(8, 1));
  };
  EXPECT_THAT(
      refusal_in_place({.members = passed_on, .strategy = cut("micro_batches: 4, balance: [2, 1, 2]"), .devices = 3}),
      HasSubstr("the elements 3 to 4 of the sequential 'net' change in place tensor 0"));
}

/// Two halves of one memory, neither of which is the other's.
TEST(PipelineInPlace, MayChangeOneOfSeveralPartsOfATensor) {
  const Members members = [](Sequential& net) {
    net->push_back(torch::nn::Linear(4, 8));
    net->push_back([](const at::Tensor& x) { return std::make_tuple(x.slice(1, 0, 4), x.slice(1, 4, 8)); });
    net->push_back([](const at::Tensor& x, const at::Tensor& gate) { return x.sigmoid_() * gate; });
    net->push_back(torch::nn::Linear(4, 1));
  };
  for (const char* balance : {"[2, 2]", "[1, 3]"})
    EXPECT_TRUE(identical(
        train_in_place(
            {.members = members, .strategy = cut(fmt::format("micro_batches: 4, balance: {}", balance)), .devices = 2}),
        accumulated(members)))
        << balance;
}

// ---- Batches of graphs

/// Gives its batches an entry whose rows are not the examples.
class GraphModel : public InPlaceModel {
 public:
  Batch on_after_batch_transfer(Batch batch, int64_t) override {
    batch.set("edges", at::zeros({2, 3}, at::kLong));
    return batch;
  }
};

TEST(PipelineRaggedBatches, PassWholeOrAreRefused) {
  const auto train = [](const std::string& strategy, int devices) {
    torch::manual_seed(5);
    TrainerOptions options = quiet(1);
    options.strategy = Spec<Strategy>(Config::parse(strategy, {.source = "test"}));
    options.devices = devices;
    InPlaceModel::members = chain_of_in_place;
    InPlaceModel::inputs = {};
    const auto module = make<GraphModel>();
    Trainer(options).fit(module, DataLoader(tiny_dataset(32), {.batch_size = 8}));
    return testing::weights(*module);
  };
  const auto expected = train("single_device", 1);
  for (const char* balance : {"balance: [3, 6]", "balance_by: time"}) {
    EXPECT_TRUE(identical(train(cut(fmt::format("micro_batches: 1, {}", balance)), 2), expected));
    try {
      train(cut(fmt::format("micro_batches: 2, {}", balance)), 2);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("divides each batch into micro-batches, and this one cannot be"),
                                      HasSubstr("'edges' has 2, 'x' 8"), HasSubstr("hint: micro_batches: 1")));
    }
  }
}

// ---- What requires a gradient in some batches only

/// Detaches what it is given in the calls for which `detached` says so; the first is that which learns the shapes.
Members sometimes_detached(const std::function<bool(int64_t call)>& detached) {
  return [detached](Sequential& net) {
    net->push_back(torch::nn::Linear(4, 8));
    net->push_back([detached, call = std::make_shared<int64_t>(0)](const at::Tensor& x) {
      return detached((*call)++) ? x.detach() : x.tanh();
    });
    net->push_back(torch::nn::Linear(8, 1));
  };
}

TEST(PipelineRequiresGrad, MayEndWithoutAGradientInSomeBatches) {
  // One more call under pipeline.
  for (const char* options : {"schedule: 1f1b", "schedule: gpipe", "schedule: zero_bubble", "checkpoint: never"}) {
    SCOPED_TRACE(options);
    const auto expected = accumulated(sometimes_detached([](int64_t call) { return call % 3 == 1; }));
    EXPECT_TRUE(
        identical(train_in_place({.members = sometimes_detached([](int64_t call) { return call % 3 == 2; }),
                                  .strategy = cut(fmt::format("micro_batches: 4, balance: [2, 1], {}", options)),
                                  .devices = 2}),
                  expected));
  }
}

TEST(PipelineRequiresGrad, SaysWhatRequiresAGradientUnlikeBefore) {
  EXPECT_THAT(refusal_in_place({.members = sometimes_detached([](int64_t call) { return call < 3; }),
                                .strategy = cut("micro_batches: 4, balance: [2, 1]"),
                                .devices = 2}),
              AllOf(HasSubstr("the elements 0 to 1 of the sequential 'net' gave [4, 8] Float that requires a gradient"),
                    HasSubstr("they gave [4, 8] Float before"), HasSubstr("requires_grad_(false)")));
}

}  // namespace
}  // namespace levin
