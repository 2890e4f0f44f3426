#include <levin/strategies/data_parallel.h>

#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/metrics/collector.h>
#include <levin/core/metrics/mean.h>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace levin {
namespace {

namespace F = torch::nn::functional;

/// Collects what a module logs.
class CollectingRuntime : public detail::ModuleRuntime {
 public:
  Trainer& trainer() override { throw std::logic_error("this test has no trainer"); }
  void log(std::string_view name, const at::Tensor& value, const LogOptions& options) override {
    calls.emplace_back(name);
    collector.log(name, value, options);
  }
  void log(std::string_view name, double value, const LogOptions& options) override {
    calls.emplace_back(name);
    collector.log(name, value, options);
  }
  void log(std::string_view name, metrics::Metric& metric, const LogOptions& options) override {
    calls.emplace_back(name);
    collector.log(name, metric, options);
  }
  const at::Device& device() const override { return device_; }
  int64_t dataloader_idx() const override { return 7; }
  std::vector<OptimizerHandle*>& optimizers() override { return optimizers_; }
  void manual_backward(const at::Tensor&, const BackwardOptions&) override {}
  void clip_gradients(OptimizerHandle&, double, ClipAlgorithm, bool) override {}
  at::Tensor all_gather(const at::Tensor& tensor, bool /*sync_grads*/) override { return tensor.detach().unsqueeze(0); }

  std::map<std::string, double> epoch() const {
    std::map<std::string, double> values;
    collector.visit_epoch([&](const metrics::Collector::Value& value) { values[value.name] = value.value; });
    return values;
  }

  metrics::Collector collector;
  std::vector<std::string> calls;

 private:
  at::Device device_{at::kCPU};
  std::vector<OptimizerHandle*> optimizers_;
};

struct NetOptions {
  bool batch_norm = false;
  double dropout = 0;
  static void describe(Schema<NetOptions>& schema) {
    schema.field("batch_norm", &NetOptions::batch_norm, "normalises the hidden layer");
    schema.field("dropout", &NetOptions::dropout, "dropout probability");
  }
};

/// A small regressor whose step a test may replace. Its weights do not depend on random numbers.
class Net : public Module {
 public:
  using Options = NetOptions;
  using Step = std::function<StepOutput(Net&, const Batch&)>;

  explicit Net(const Options& options) {
    first = register_module("first", torch::nn::Linear(3, 5));
    if (options.batch_norm) norm = register_module("norm", torch::nn::BatchNorm1d(5));
    dropout = register_module("dropout", torch::nn::Dropout(options.dropout));
    second = register_module("second", torch::nn::Linear(5, 1));
    unused = register_module("unused", torch::nn::Linear(2, 2));
    calls = register_buffer("calls", at::zeros({1}, at::kLong));
    const at::NoGradGuard no_grad;
    double start = 0.1;
    for (auto& parameter : parameters())
      parameter.copy_(at::arange(parameter.numel(), at::kDouble).add(start += 0.37).sin().reshape(parameter.sizes()));
  }

  at::Tensor forward(const at::Tensor& x) {
    auto hidden = first(x).tanh();
    if (norm) hidden = norm(hidden);
    return second(dropout(hidden));
  }
  at::Tensor loss(const Batch& batch) { return F::mse_loss(forward(batch["x"]), batch["y"]); }

  StepOutput training_step(const Batch& batch, int64_t) override {
    calls += 1;
    return step ? step(*this, batch) : StepOutput(loss(batch));
  }
  StepOutput training_step_end(StepOutput output) override { return step_end ? step_end(*this, output) : output; }

  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
  torch::nn::Linear second{nullptr};
  torch::nn::Linear unused{nullptr};
  at::Tensor calls;
  metrics::Mean mean;

  // Replicas are built from options alone, so what a test puts into the step is reached through these.
  static inline Step step;
  static inline std::function<StepOutput(Net&, StepOutput)> step_end;
};

/// The loop's part, as small as it can be.
class Phases : public StepPhases {
 public:
  explicit Phases(Module& module) : module_(module) {}
  Module& module() override { return module_; }
  StepOutput step(Module& module, const Batch& batch) override { return module.training_step(batch, 0); }
  StepOutput step_end(StepOutput output) override {
    ++step_ends;
    return module_.training_step_end(std::move(output));
  }
  void before_backward(StepOutput&) override { events.push_back("before"); }
  void weigh(const StepOutput&, double) override {}
  const LossWeight& window_weight() const override { return weight_; }
  void backward(StepOutput& output) override {
    events.push_back("backward");
    if (run_backward)
      run_backward(output.loss());
    else
      output.loss().backward();
  }
  void after_backward() override { events.push_back("after"); }
  std::shared_ptr<void> forward_scope() override { return nullptr; }

  int64_t step_ends = 0;
  std::vector<std::string> events;
  std::function<void(const at::Tensor&)> run_backward;

 private:
  const LossWeight weight_;
  Module& module_;
};

Batch make_batch(int64_t size, at::ScalarType type = at::kDouble) {
  const auto x = at::arange(size * 3, at::kDouble).mul(0.7).sin().reshape({size, 3});
  const auto y = at::arange(size, at::kDouble).mul(1.3).cos().reshape({size, 1});
  return {{"x", x.to(type)}, {"y", y.to(type)}};
}

/// Waits until `count` threads are here, at most a minute.
class Rendezvous {
 public:
  explicit Rendezvous(int64_t count) : missing_(count) {}
  bool arrive_and_wait() {
    std::unique_lock lock(mutex_);
    if (--missing_ <= 0) all_here_.notify_all();
    return all_here_.wait_for(lock, std::chrono::minutes(1), [&] { return missing_ <= 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  int64_t missing_;
};

/// The identity, whose backward calls a function.
class BackwardCall : public torch::autograd::Function<BackwardCall> {
 public:
  static inline std::function<void()> function;
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    function();
    return gradients;
  }
};

class CustomError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A module under a strategy with some replicas.
class Training {
 public:
  explicit Training(int64_t replicas, NetOptions options = {}, at::ScalarType type = at::kDouble)
      : module(make<Net>(options)), phases(*module) {
    module->to(type);
    module->attach(&runtime);
    strategy.setup_environment({.devices = std::vector<at::Device>(static_cast<size_t>(replicas), at::kCPU)});
    strategy.setup_module(*module);
  }
  StepOutput train(const Batch& batch) {
    runtime.collector.begin({.batch_size = batch.size()});
    return strategy.forward_backward(batch, phases, {});
  }
  StepOutput evaluate(const Batch& batch) {
    runtime.collector.begin({.batch_size = batch.size()});
    return strategy.evaluate(batch, phases);
  }
  std::map<std::string, at::Tensor> gradients() const {
    std::map<std::string, at::Tensor> found;
    for (const auto& item : module->named_parameters()) found[item.key()] = item.value().grad();
    return found;
  }

  CollectingRuntime runtime;
  std::shared_ptr<Net> module;
  Phases phases;
  DataParallel strategy;
};

void expect_same(const std::map<std::string, at::Tensor>& actual, const std::map<std::string, at::Tensor>& expected,
                 double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    const at::Tensor& other = actual.at(name);
    ASSERT_EQ(other.defined(), tensor.defined()) << name;
    if (!tensor.defined()) continue;
    EXPECT_TRUE(at::allclose(other, tensor, 0, tolerance)) << name << other << tensor;
  }
}

class DataParallelTest : public ::testing::Test {
 protected:
  void SetUp() override { seed_everything(1); }
  void TearDown() override {
    Net::step = nullptr;
    Net::step_end = nullptr;
    BackwardCall::function = nullptr;
  }
};

/// Gradients and loss of `replicas` against those of one device.
void expect_as_on_one_device(int64_t replicas, const Batch& batch, at::ScalarType type = at::kDouble,
                             double tolerance = 1e-12) {
  SCOPED_TRACE(std::to_string(replicas) + " replicas, " + std::to_string(batch.size()) + " examples");
  Training one(1, {}, type);
  Training many(replicas, {}, type);
  const auto expected = one.train(batch);
  const auto actual = many.train(batch);
  EXPECT_NEAR(actual.loss().item<double>(), expected.loss().item<double>(), tolerance);
  expect_same(many.gradients(), one.gradients(), tolerance);
  EXPECT_EQ(many.phases.step_ends, 1);
  EXPECT_EQ(many.phases.events, (std::vector<std::string>{"before", "backward", "after"}));
}

// ---- Gradients

TEST_F(DataParallelTest, GradientsAreThoseOfTheWholeBatch) {
  for (const int64_t replicas : {2, 3, 4})
    for (const int64_t size : {12, 7, 5, 2, 1}) expect_as_on_one_device(replicas, make_batch(size));
  expect_as_on_one_device(3, make_batch(10, at::kFloat), at::kFloat, 1e-6);
}

TEST_F(DataParallelTest, GradientsAccumulateOverMicroBatches) {
  Training one(1);
  Training many(3);
  for (const int64_t size : {6, 7, 2}) {
    one.train(make_batch(size));
    many.train(make_batch(size));
  }
  expect_same(many.gradients(), one.gradients(), 1e-12);
}

TEST_F(DataParallelTest, UnusedAndFrozenParametersGetNoGradient) {
  Training run(2);
  run.module->second->bias.requires_grad_(false);
  run.train(make_batch(6));
  const auto gradients = run.gradients();
  EXPECT_FALSE(gradients.at("unused.weight").defined());
  EXPECT_FALSE(gradients.at("second.bias").defined());
  EXPECT_TRUE(gradients.at("first.weight").defined());
  // What is frozen or thawed later counts from the next step on.
  run.module->second->bias.requires_grad_(true);
  run.module->first->bias.requires_grad_(false);
  run.module->zero_grad();
  run.train(make_batch(6));
  EXPECT_TRUE(run.gradients().at("second.bias").defined());
  EXPECT_FALSE(run.gradients().at("first.bias").defined());
}

TEST_F(DataParallelTest, ParametersThatOnlyOneReplicaUsesGetItsGradient) {
  // The last example alone goes through the other layer: it is in the second part.
  Net::step = [](Net& net, const Batch& batch) {
    auto y = net.forward(batch["x"]);
    const auto selected = batch["x"].select(1, 0) > 0.95;
    if (selected.any().item<bool>()) {
      const auto rows = net.unused(batch["x"].slice(1, 0, 2)).sum(1, true);
      y = y + rows * selected.unsqueeze(1).to(rows.scalar_type());
    }
    return F::mse_loss(y, batch["y"]);
  };
  Batch batch = make_batch(6);
  for (int64_t used : {1, 5}) {
    batch["x"] = at::zeros({6, 3}, at::kDouble).add(0.3);
    batch["x"][used] = at::full({3}, 1.0, at::kDouble);
    expect_as_on_one_device(2, batch);
  }
}

TEST_F(DataParallelTest, AllParametersFrozenBehavesAsOnOneDevice) {
  Training run(2);
  for (auto& parameter : run.module->parameters()) parameter.requires_grad_(false);
  run.phases.run_backward = [](const at::Tensor& loss) { EXPECT_FALSE(loss.requires_grad()); };
  run.train(make_batch(4));
  for (const auto& [name, gradient] : run.gradients()) EXPECT_FALSE(gradient.defined()) << name;
}

TEST_F(DataParallelTest, AHookOnAParameterSeesTheWholeGradientOnce) {
  Training one(1);
  one.train(make_batch(7));
  Training many(3);
  std::vector<at::Tensor> seen;
  many.module->first->weight.register_hook([&](const at::Tensor& gradient) { seen.push_back(gradient.clone()); });
  many.train(make_batch(7));
  ASSERT_EQ(seen.size(), 1);
  EXPECT_TRUE(at::allclose(seen[0], one.module->first->weight.grad(), 0, 1e-12));
}

TEST_F(DataParallelTest, AnInputThatRequiresAGradientGetsOne) {
  const auto gradient_of_input = [](int64_t replicas) {
    Training run(replicas);
    Batch batch = make_batch(5);
    batch["x"].requires_grad_();
    run.train(batch);
    return batch["x"].grad();
  };
  EXPECT_TRUE(at::allclose(gradient_of_input(3), gradient_of_input(1), 0, 1e-12));
}

TEST_F(DataParallelTest, AGradientInsideTheStepMayBeDifferentiated) {
  Net::step = [](Net& net, const Batch& batch) {
    const auto x = batch["x"].detach().requires_grad_();
    const auto y = net.forward(x);
    const auto slope = torch::autograd::grad({y.sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    return slope.pow(2).sum(1).mean() + F::mse_loss(y, batch["y"]);
  };
  expect_as_on_one_device(3, make_batch(8));
}

TEST_F(DataParallelTest, BackwardMayRunTwiceWhenTheGraphIsRetained) {
  Training one(1);
  one.train(make_batch(6));
  Training many(2);
  many.phases.run_backward = [](const at::Tensor& loss) {
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
  };
  many.train(make_batch(6));
  for (const auto& [name, gradient] : one.gradients()) {
    if (!gradient.defined()) continue;
    EXPECT_TRUE(at::allclose(many.gradients().at(name), 2 * gradient, 0, 1e-12)) << name;
  }

  many.phases.run_backward = [](const at::Tensor& loss) {
    loss.backward();
    loss.backward();
  };
  EXPECT_ANY_THROW(many.train(make_batch(6)));
}

TEST_F(DataParallelTest, SecondDerivativesThroughTheGatheredOutputAreRefused) {
  Training run(2);
  run.phases.run_backward = [](const at::Tensor& loss) { loss.backward({}, {}, /*create_graph=*/true); };
  try {
    run.train(make_batch(4));
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("gradients of gradients"), std::string::npos) << error.what();
  }
}

TEST_F(DataParallelTest, WeightsFollowThoseOfOneDevice) {
  const auto trained = [](int64_t replicas) {
    Training run(replicas, {.batch_norm = false}, at::kFloat);
    torch::optim::SGD optimizer(run.module->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int64_t step = 0; step < 20; ++step) {
      optimizer.zero_grad();
      run.train(make_batch(9, at::kFloat));
      optimizer.step();
    }
    std::map<std::string, at::Tensor> weights;
    for (const auto& item : run.module->named_parameters()) weights[item.key()] = item.value().detach();
    return weights;
  };
  expect_same(trained(2), trained(1), 1e-5);
  expect_same(trained(4), trained(1), 1e-5);
}

TEST_F(DataParallelTest, ReplicasSeeWeightsInOtherMemory) {
  Training run(2);
  run.train(make_batch(4));
  {
    const at::NoGradGuard no_grad;
    for (auto& parameter : run.module->parameters()) parameter.set_data(parameter.mul(0.5));
  }
  run.module->zero_grad();
  const auto actual = run.train(make_batch(4));
  Training one(1);
  {
    const at::NoGradGuard no_grad;
    for (auto& parameter : one.module->parameters()) parameter.mul_(0.5);
  }
  const auto expected = one.train(make_batch(4));
  EXPECT_NEAR(actual.loss().item<double>(), expected.loss().item<double>(), 1e-12);
  expect_same(run.gradients(), one.gradients(), 1e-12);
}

// ---- Outputs

TEST_F(DataParallelTest, StepEndSeesTheGatheredOutputsAndMayBuildTheLossFromThem) {
  Net::step = [](Net& net, const Batch& batch) {
    const auto y = net.forward(batch["x"]);
    return StepOutput(
        {.loss = y.mean(), .outputs = {{"y", y}, {"target", batch["y"]}, {"size", at::scalar_tensor(batch.size())}}});
  };
  const auto batch = make_batch(7);
  Net::step_end = [&](Net& net, StepOutput output) {
    EXPECT_EQ(output.outputs()["y"].sizes(), (at::IntArrayRef{7, 1}));
    EXPECT_TRUE(output.outputs()["target"].equal(batch["y"]));
    EXPECT_EQ(output.outputs()["size"].dim(), 0);
    // A term of the module's own parameters beside one of the replicas' outputs.
    output.loss() = F::mse_loss(output.outputs()["y"], output.outputs()["target"]) * 2 + output.loss() +
                    net.first->weight.pow(2).sum();
    return output;
  };
  expect_as_on_one_device(3, batch);
}

TEST_F(DataParallelTest, ScalarOutputsAreMeansWeightedByPartSize) {
  Net::step = [](Net&, const Batch& batch) {
    return StepOutput(Batch{{"mean", batch["x"].mean()}, {"count", at::scalar_tensor(batch.size())}});
  };
  Training run(2);
  const auto batch = make_batch(5);
  const auto output = run.evaluate(batch);
  EXPECT_NEAR(output.outputs()["mean"].item<double>(), batch["x"].mean().item<double>(), 1e-12);
  EXPECT_NEAR(output.outputs()["count"].item<double>(), (3 * 3 + 2 * 2) / 5.0, 1e-6);
}

TEST_F(DataParallelTest, PartsWithoutALossAreLeftOut) {
  const auto batch = make_batch(5);
  Net::step = [&](Net& net, const Batch& part) {
    return part["x"][0].equal(batch["x"][0]) ? StepOutput(net.loss(part)) : StepOutput();
  };
  Training some(2);
  some.train(batch);
  Net::step = nullptr;
  Training first(1);
  first.train(batch.slice(0, 3));
  expect_same(some.gradients(), first.gradients(), 1e-12);

  Net::step = [](Net&, const Batch&) { return StepOutput(); };
  Training none(2);
  EXPECT_FALSE(none.train(batch).has_loss());
  EXPECT_TRUE(none.phases.events.empty());
}

TEST_F(DataParallelTest, RowsOfDifferentShapesAreRefusedByName) {
  Net::step = [](Net&, const Batch& batch) {
    return StepOutput(Batch{{"padded", at::zeros({batch.size(), batch.size()})}});
  };
  Training run(2);
  try {
    run.evaluate(make_batch(5));
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'padded'"), std::string::npos) << error.what();
  }
}

TEST_F(DataParallelTest, ABatchThatCannotBeSplitIsRefusedByName) {
  Training run(2);
  Batch graphs{{"nodes", at::ones({7, 3}, at::kDouble)}, {"edges", at::zeros({2, 9}, at::kLong)}};
  const auto message = [&] {
    try {
      run.train(graphs);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message(),
            "[data_parallel] strategies dp and ddp2 divide each batch among their replicas, and this one cannot be: "
            "the tensors of a batch disagree on the number of examples: 'edges' has 2, 'nodes' 7; valid: entries with "
            "one row for each example; hint: strategy ddp, or ddp_threads, whose ranks load batches of their own");
  graphs = {{"nodes", at::ones({2, 3}, at::kDouble)}};
  graphs.set_texts("names", {"a"});
  EXPECT_NE(message().find("a batch of 2 examples has 1 texts 'names'"), std::string::npos) << message();
}

/// Replicas on one device have parts of one memory.
TEST_F(DataParallelTest, AStepMayChangeItsPartInPlace) {
  Net::step = [](Net& net, const Batch& part) {
    part["x"].mul_(0.5).add_(0.25);
    return StepOutput(net.loss(part));
  };
  const auto gradients = [](int64_t replicas) {
    Training run(replicas);
    run.train(make_batch(6));
    return run.gradients();
  };
  expect_same(gradients(3), gradients(1), 1e-12);
}

// ---- Logs

TEST_F(DataParallelTest, LoggedValuesAreCombinedOverReplicas) {
  Net::step = [](Net& net, const Batch& batch) {
    const auto rows = static_cast<double>(batch.size());
    net.log("mean", batch["x"].mean());
    net.log("number", rows);
    net.log("sum", rows, {.reduce = LogReduce::kSum});
    net.log("min", batch["x"].min(), {.reduce = LogReduce::kMin});
    net.log("max", batch["x"].max(), {.reduce = LogReduce::kMax});
    net.log("weighted", rows, {.batch_size = 10 * batch.size() - 19});
    return net.loss(batch);
  };
  Training run(2);
  const auto batch = make_batch(5);
  run.train(batch);
  const auto values = run.runtime.epoch();
  EXPECT_NEAR(values.at("mean"), batch["x"].mean().item<double>(), 1e-12);
  EXPECT_NEAR(values.at("number"), (3 * 3 + 2 * 2) / 5.0, 1e-12);
  EXPECT_DOUBLE_EQ(values.at("sum"), 5);
  EXPECT_DOUBLE_EQ(values.at("min"), batch["x"].min().item<double>());
  EXPECT_DOUBLE_EQ(values.at("max"), batch["x"].max().item<double>());
  EXPECT_NEAR(values.at("weighted"), (3 * 11 + 2 * 1) / 12.0, 1e-12);
  EXPECT_EQ(run.runtime.calls, (std::vector<std::string>{"mean", "number", "sum", "min", "max", "weighted"}));
}

TEST_F(DataParallelTest, ValuesThatSomeReplicasLogWeighWhatThoseDo) {
  // Over two batches: 3 + 2 examples of which the last part logs, then all.
  Net::step = [](Net& net, const Batch& batch) {
    if (batch.size() == 2) net.log("odd", 2.0);
    return net.loss(batch);
  };
  Training run(2);
  run.train(make_batch(5));
  run.train(make_batch(4));
  Net::step = [](Net& net, const Batch& batch) {
    net.log("odd", 8.0);
    return net.loss(batch);
  };
  run.train(make_batch(6));
  EXPECT_NEAR(run.runtime.epoch().at("odd"), (2 * 2 + 4 * 2 + 6 * 8) / 12.0, 1e-12);
}

TEST_F(DataParallelTest, ANameLoggedTwiceInAStepIsCombinedTwice) {
  Net::step = [](Net& net, const Batch& batch) {
    net.log("twice", 1.0);
    net.log("twice", 2.0);
    return net.loss(batch);
  };
  Training run(3);
  run.train(make_batch(6));
  EXPECT_EQ(run.runtime.calls.size(), 2);
  EXPECT_DOUBLE_EQ(run.runtime.epoch().at("twice"), 1.5);
}

TEST_F(DataParallelTest, MetricsOfReplicasAreMergedIntoTheModules) {
  Net::step = [](Net& net, const Batch& batch) {
    net.log("mean", net.mean.update(batch["x"]), {.on_step = true, .on_epoch = true});
    return net.loss(batch);
  };
  Training run(3);
  const auto first = make_batch(7);
  const auto second = make_batch(2);
  run.train(first);
  run.train(second);
  const double expected = at::cat({first["x"], second["x"]}).mean().item<double>();
  EXPECT_NEAR(run.runtime.epoch().at("mean_epoch"), expected, 1e-6);
  EXPECT_NEAR(run.module->mean.compute().item<double>(), expected, 1e-6);
  EXPECT_NEAR(run.module->mean.compute_from(run.module->mean.last_batch()).item<double>(),
              second["x"].mean().item<double>(), 1e-6);
  // The next epoch starts with nothing left in any replica.
  run.runtime.collector.reset();
  run.train(second);
  EXPECT_NEAR(run.runtime.epoch().at("mean_epoch"), second["x"].mean().item<double>(), 1e-6);
}

TEST_F(DataParallelTest, LogsBelongToTheModuleOutsideTheStep) {
  Training run(2);
  run.train(make_batch(4));
  EXPECT_EQ(run.module->attached_runtime(), &run.runtime);
  run.module->log("hook", 3.0);
  EXPECT_EQ(run.runtime.calls, std::vector<std::string>{"hook"});
}

TEST_F(DataParallelTest, ATensorThatCannotBeLoggedIsRefusedAsOnOneDevice) {
  Net::step = [](Net& net, const Batch& batch) {
    net.log("rows", batch["x"]);
    return net.loss(batch);
  };
  Training run(2);
  EXPECT_THROW(run.train(make_batch(4)), Error);
  EXPECT_EQ(run.module->attached_runtime(), &run.runtime);
}

TEST_F(DataParallelTest, ReplicasReachTheModulesRuntime) {
  Net::step = [](Net& net, const Batch& batch) {
    EXPECT_EQ(net.dataloader_idx(), 7);
    EXPECT_THROW(net.all_gather(batch["x"]), Error);  // replicas are no ranks
    EXPECT_EQ(net.device(), at::Device(at::kCPU));
    return net.loss(batch);
  };
  Training run(2);
  run.train(make_batch(4));
}

// ---- State

TEST_F(DataParallelTest, BatchNormCountsWithTheStatisticsOfTheFirstPart) {
  const auto batch = make_batch(7);
  Training many(2, {.batch_norm = true});
  many.train(batch);
  Training first(1, {.batch_norm = true});
  first.train(batch.slice(0, 4));
  EXPECT_TRUE(at::allclose(many.module->norm->running_mean, first.module->norm->running_mean, 0, 1e-12))
      << many.module->norm->running_mean - first.module->norm->running_mean;
  EXPECT_TRUE(at::allclose(many.module->norm->running_var, first.module->norm->running_var, 0, 1e-12));
  EXPECT_EQ(many.module->norm->num_batches_tracked.item<int64_t>(), 1);
  EXPECT_EQ(many.module->calls.item<int64_t>(), 1);

  // Each part is normalised by itself.
  Training second(1, {.batch_norm = true});
  second.train(batch.slice(4, 7));
  for (const auto& [name, gradient] : many.gradients()) {
    if (!gradient.defined()) continue;
    const auto expected = (first.gradients().at(name) * 4 + second.gradients().at(name) * 3) / 7;
    EXPECT_TRUE(at::allclose(gradient, expected, 0, 1e-12)) << name;
  }
}

TEST_F(DataParallelTest, ReplicasTakeOverBuffersAndModes) {
  Training many(3, {.batch_norm = true});
  Training one(1, {.batch_norm = true});
  for (Training* run : {&many, &one}) {
    run->module->norm->running_mean.fill_(0.3);
    run->module->norm->running_var.fill_(2.0);
    run->module->norm->eval();  // the rest stays in training mode
  }
  Net::step = [](Net& net, const Batch& batch) {
    EXPECT_TRUE(net.is_training());
    EXPECT_FALSE(net.norm->is_training());
    return net.loss(batch);
  };
  const auto expected = one.train(make_batch(9));
  const auto actual = many.train(make_batch(9));
  EXPECT_NEAR(actual.loss().item<double>(), expected.loss().item<double>(), 1e-12);
  expect_same(many.gradients(), one.gradients(), 1e-12);
}

TEST_F(DataParallelTest, ReplicasRunUnderTheCallersModes) {
  Training run(3);
  run.module->eval();
  Net::step = [](Net& net, const Batch& batch) {
    EXPECT_FALSE(at::GradMode::is_enabled());
    EXPECT_TRUE(c10::InferenceMode::is_enabled());
    EXPECT_FALSE(net.is_training());
    const auto y = net.forward(batch["x"]);
    EXPECT_TRUE(y.is_inference());
    return StepOutput({.loss = F::mse_loss(y, batch["y"]), .outputs = {{"y", y}}});
  };
  const auto batch = make_batch(8);
  at::Tensor y;
  {
    const c10::InferenceMode inference;
    y = run.evaluate(batch).outputs()["y"];
  }
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(at::allclose(y, run.module->forward(batch["x"]), 0, 1e-12));
  Net::step = [](Net& net, const Batch& part) {
    EXPECT_FALSE(at::GradMode::is_enabled());
    EXPECT_FALSE(c10::InferenceMode::is_enabled());
    return StepOutput(Batch{{"y", net.forward(part["x"])}});
  };
  EXPECT_FALSE(run.evaluate(batch).outputs()["y"].requires_grad());
  EXPECT_EQ(run.phases.step_ends, 2);
  EXPECT_TRUE(run.phases.events.empty());
}

TEST_F(DataParallelTest, TrainingGoesOnAfterAnEvaluationInInferenceMode) {
  Training many(2);
  Training one(1);
  for (Training* run : {&many, &one}) {
    run->train(make_batch(4));
    {
      const c10::InferenceMode inference;
      run->evaluate(make_batch(6));
    }
    run->train(make_batch(5));
  }
  expect_same(many.gradients(), one.gradients(), 1e-12);
}

TEST_F(DataParallelTest, DropoutIsReproducible) {
  const auto losses = [](uint64_t seed) {
    seed_everything(seed);
    Training run(3, {.dropout = 0.5});
    std::vector<double> found;
    for (int64_t step = 0; step < 5; ++step) found.push_back(run.train(make_batch(9)).loss().item<double>());
    return found;
  };
  const auto first = losses(5);
  EXPECT_EQ(first, losses(5));
  EXPECT_NE(first, losses(6));
  EXPECT_EQ(std::set<double>(first.begin(), first.end()).size(), first.size());
}

TEST_F(DataParallelTest, ReplicasDrawFromDifferentStreams) {
  Net::step = [](Net&, const Batch& batch) { return StepOutput(Batch{{"drawn", at::rand({batch.size()})}}); };
  Training run(4);
  const auto drawn = run.evaluate(make_batch(4)).outputs()["drawn"];
  for (int64_t i = 0; i < 4; ++i)
    for (int64_t j = 0; j < i; ++j) EXPECT_NE(drawn[i].item<float>(), drawn[j].item<float>());
}

TEST_F(DataParallelTest, BuildingReplicasLeavesTheRandomNumbersOfTheRunAlone) {
  const auto drawn = [](int64_t replicas) {
    seed_everything(3);
    auto module = make<Net>();
    DataParallel strategy;
    strategy.setup_environment({.devices = std::vector<at::Device>(static_cast<size_t>(replicas), at::kCPU)});
    strategy.setup_module(*module);
    return at::rand({4});
  };
  EXPECT_TRUE(drawn(4).equal(drawn(1)));
}

// ---- Running

TEST_F(DataParallelTest, ReplicasRunForwardAndBackwardAtTheSameTime) {
  Training run(3);
  Rendezvous forward(3);
  Rendezvous backward(3);
  Net::step = [&](Net& net, const Batch& batch) {
    EXPECT_TRUE(forward.arrive_and_wait());
    return StepOutput(BackwardCall::apply(net.loss(batch)));
  };
  BackwardCall::function = [&] { EXPECT_TRUE(backward.arrive_and_wait()); };
  run.train(make_batch(6));
}

TEST_F(DataParallelTest, TheFirstReplicaIsTheModuleInTheCallingThread) {
  Training run(2);
  const auto caller = std::this_thread::get_id();
  Net::step = [&](Net& net, const Batch& batch) {
    EXPECT_EQ(&net == run.module.get(), std::this_thread::get_id() == caller);
    return net.loss(batch);
  };
  run.train(make_batch(4));
}

TEST_F(DataParallelTest, AnErrorOfAnyReplicaIsThrownWithItsTypeWhenAllHaveEnded) {
  Training run(3);
  const auto batch = make_batch(6);
  for (int64_t failing = 0; failing < 3; ++failing) {
    std::atomic<int64_t> ended{0};
    Net::step = [&](Net& net, const Batch& part) {
      ++ended;
      if (part["x"][0].equal(batch["x"][2 * failing])) throw CustomError("part " + std::to_string(failing));
      return net.loss(part);
    };
    try {
      run.train(batch);
      FAIL() << "nothing was thrown";
    } catch (const CustomError& error) {
      EXPECT_EQ(error.what(), "part " + std::to_string(failing));
    }
    EXPECT_EQ(ended, 3);
    EXPECT_EQ(run.module->attached_runtime(), &run.runtime);
  }
  Net::step = nullptr;
  run.module->zero_grad();
  run.train(batch);
  Training one(1);
  one.train(batch);
  expect_same(run.gradients(), one.gradients(), 1e-12);
}

TEST_F(DataParallelTest, OfSeveralErrorsThatOfTheFirstReplicaIsThrown) {
  Training run(3);
  const auto batch = make_batch(6);
  Net::step = [&](Net&, const Batch& part) -> StepOutput {
    for (int64_t i = 2; i >= 0; --i)
      if (part["x"][0].equal(batch["x"][2 * i])) throw CustomError("part " + std::to_string(i));
    return {};
  };
  try {
    run.train(batch);
    FAIL() << "nothing was thrown";
  } catch (const CustomError& error) {
    EXPECT_STREQ(error.what(), "part 0");
  }
}

TEST_F(DataParallelTest, AnErrorInBackwardIsThrownWithItsType) {
  Training run(3);
  const auto caller = std::this_thread::get_id();
  Net::step = [](Net& net, const Batch& batch) { return StepOutput(BackwardCall::apply(net.loss(batch))); };
  for (const bool in_first : {true, false}) {
    std::atomic<int64_t> calls{0};
    BackwardCall::function = [&] {
      ++calls;
      if ((std::this_thread::get_id() == caller) == in_first) throw CustomError("backward");
    };
    EXPECT_THROW(run.train(make_batch(6)), CustomError);
    EXPECT_EQ(calls, 3);
  }
  BackwardCall::function = [] {};
  run.module->zero_grad();
  run.train(make_batch(6));
  Net::step = nullptr;
  Training one(1);
  one.train(make_batch(6));
  expect_same(run.gradients(), one.gradients(), 1e-12);
}

TEST_F(DataParallelTest, GraphsAreFreedWithAndWithoutABackward) {
  Training run(2);
  std::mutex mutex;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> kept;
  Net::step = [&](Net& net, const Batch& batch) {
    const auto y = net.forward(batch["x"]);
    const auto squares = (y - batch["y"]).pow(2);
    const std::lock_guard lock(mutex);
    kept.emplace_back(y.getIntrusivePtr());
    return StepOutput({.loss = squares.mean(), .outputs = {{"squares", squares}}});
  };
  for (int64_t step = 0; step < 3; ++step) {
    run.train(make_batch(4));
    run.evaluate(make_batch(4));  // a graph that nothing ever runs through
  }
  ASSERT_EQ(kept.size(), 12);
  for (const auto& tensor : kept) EXPECT_TRUE(tensor.expired());
}

TEST_F(DataParallelTest, AGraphMayOutliveTheStrategy) {
  Training one(1);
  one.train(make_batch(6));
  std::shared_ptr<Net> module;
  StepOutput output;
  {
    Training run(3);
    module = run.module;
    output = run.evaluate(make_batch(6));
    module->attach(nullptr);
  }
  output.loss().backward();
  for (const auto& [name, gradient] : one.gradients()) {
    if (!gradient.defined()) continue;
    EXPECT_TRUE(at::allclose(module->named_parameters()[name].grad(), gradient, 0, 1e-12)) << name;
  }
}

// ---- Refusals

TEST_F(DataParallelTest, AModuleThatCannotBeMadeAgainIsRefused) {
  Net module{NetOptions{}};
  DataParallel strategy;
  strategy.setup_environment({.devices = {at::kCPU, at::kCPU}});
  try {
    strategy.setup_module(module);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("levin::make"), std::string::npos) << error.what();
  }
  strategy.setup_environment({.devices = {at::kCPU}});
  EXPECT_NO_THROW(strategy.setup_module(module));
}

TEST_F(DataParallelTest, AModuleChangedAfterItWasMadeIsRefused) {
  auto module = make<Net>();
  module->register_module("late", torch::nn::Linear(1, 1));
  DataParallel strategy;
  strategy.setup_environment({.devices = {at::kCPU, at::kCPU}});
  try {
    strategy.setup_module(*module);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'late.weight'"), std::string::npos) << error.what();
  }
}

TEST_F(DataParallelTest, ManualOptimizationIsRefusedInReplicas) {
  Net::step = [](Net& net, const Batch& batch) {
    net.automatic_optimization = false;
    net.manual_backward(net.loss(batch));
    return StepOutput();
  };
  Training run(2);
  EXPECT_THROW(run.train(make_batch(4)), Error);
  EXPECT_FALSE(run.strategy.capabilities().manual_optimization);
}

TEST_F(DataParallelTest, SyncBatchNormIsRefusedOnSeveralDevices) {
  DataParallel strategy;
  EXPECT_THROW(strategy.setup_environment({.devices = {at::kCPU, at::kCPU}, .sync_batchnorm = true}), ConfigError);
  EXPECT_NO_THROW(strategy.setup_environment({.devices = {at::kCPU}, .sync_batchnorm = true}));
}

// ---- Building

struct LateOptions {
  static void describe(Schema<LateOptions>& /*schema*/) {}
};

/// Builds its layer once the strategy is known.
class LateNet : public Module {
 public:
  using Options = LateOptions;
  explicit LateNet(const Options&) {}
  void configure_model() override {
    if (!layer) layer = register_module("layer", torch::nn::Linear(3, 1));
  }
  StepOutput training_step(const Batch& batch, int64_t) override { return F::mse_loss(layer(batch["x"]), batch["y"]); }
  torch::nn::Linear layer{nullptr};
};

TEST_F(DataParallelTest, ReplicasAreConfiguredAsTheModuleWas) {
  auto module = make<LateNet>();
  module->configure_model();
  module->to(at::kDouble);
  const auto gradient = [&](int64_t replicas) {
    DataParallel strategy;
    strategy.setup_environment({.devices = std::vector<at::Device>(static_cast<size_t>(replicas), at::kCPU)});
    strategy.setup_module(*module);
    Phases phases(*module);
    module->zero_grad();
    strategy.forward_backward(make_batch(5), phases, {});
    return module->layer->weight.grad().clone();
  };
  EXPECT_TRUE(at::allclose(gradient(2), gradient(1), 0, 1e-12));
}

}  // namespace
}  // namespace levin
