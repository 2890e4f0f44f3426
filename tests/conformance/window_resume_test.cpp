#include "tests/conformance/strategy_conformance.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/core/checkpoint/checkpoint.h>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace levin::testing {
namespace {

/// Saves after this many batches, or when the window ends where ranks hold parts of the model.
auto save_after(int64_t batches, const std::string& path) {
  return [batches, path](TrainerOptions& options) {
    options.callbacks = {make<LambdaCallback>(
        {.on_train_batch_end = [=](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) {
          if (trainer.total_batches() + 1 == batches) trainer.save_checkpoint(path);
        }})};
  };
}

const std::vector<StrategyCase>& targets() {
  static const std::vector<StrategyCase> targets = {
      {"single_device", 1},
      {"ddp_threads", 2},
      {"ddp_threads", 4},
      {"dp", 2},
      {"sharded_threads", 2, 1},
      {"sharded_threads", 4, 2},
      {"sharded_threads", 4, 3},
      {"sharded_threads", 4, 3, "shard_group: 2"},
      {"sharded_threads", 4, 2, "keep_window_gradients: true"},
      {"sharded_threads", 2, 3, "offload: true"},
      {"pipeline_threads", 2, 0, "micro_batches: 2"},
      {"pipeline_threads", 4, 0, "micro_batches: 2, schedule: zero_bubble"},
      {"pipeline_threads", 4, 0, "data_parallel: 2, micro_batches: 2"},
      {"pipeline_threads", 4, 0, "data_parallel: 2, shard_optimizer: true, micro_batches: 2"},
      {"parameter_server_threads", 4, 0, "servers: 2"},
  };
  return targets;
}

/// That divide layers. The ranks of a shard group hold elements of different ones of their parameters.
const std::vector<StrategyCase>& tensor_meshes() {
  static const std::vector<StrategyCase> meshes = {
      {"mesh", 2, 0, "tensor: 2"},
      {"mesh", 4, 0, "replicate: 2, tensor: 2"},
      {"mesh", 4, 0, "shard: {size: 2, stage: 1}, tensor: 2"},
      {"mesh", 4, 0, "shard: {size: 2, stage: 2}, tensor: 2"},
      {"mesh", 4, 0, "shard: {size: 2, stage: 3}, tensor: 2"},
      {"mesh", 8, 0, "replicate: 2, shard: {size: 2, stage: 3}, tensor: 2"},
  };
  return meshes;
}

/// The same beside pipelines, which do not step by hand.
const std::vector<StrategyCase>& tensor_pipelines() {
  static const std::vector<StrategyCase> meshes = {
      {"mesh", 4, 0, "pipeline: {size: 2, micro_batches: 2}, tensor: 2"},
      {"mesh", 8, 0, "pipeline: {size: 2, micro_batches: 2}, shard: {size: 2, stage: 1}, tensor: 2"},
      {"mesh", 8, 0, "pipeline: {size: 2, micro_batches: 2}, shard: {size: 2, stage: 2}, tensor: 2"},
      {"mesh", 8, 0, "pipeline: {size: 2, micro_batches: 2}, shard: {size: 2, stage: 3}, tensor: 2"},
  };
  return meshes;
}

std::vector<StrategyCase> operator+(std::vector<StrategyCase> cases, const std::vector<StrategyCase>& more) {
  cases.insert(cases.end(), more.begin(), more.end());
  return cases;
}

/// Resumed inside of a window, any strategy takes the step that a run that was not stopped takes.
TEST(WindowUnderWay, GoesOnUnderOtherStrategies) {
  const auto accumulate = [](TrainerOptions& options) { options.accumulate_grad_batches = 4; };
  const Outcome expected = train_on_one_device({.configure = accumulate});
  for (const StrategyCase& saved : targets()) {
    // Where ranks hold parts of the model, the checkpoint waits for the window's end: few runs tell whether it did.
    const bool is_divided = saved.is_sharded() || saved.is_pipeline() || std::string(saved.options) == "servers: 2";
    for (const int64_t batches : {2, 8}) {
      if (is_divided && batches != 2) continue;
      const std::string path = fresh_folder("window") + "/checkpoint";
      train({.configure =
                 [&](TrainerOptions& options) {
                   accumulate(options);
                   save_after(batches, path)(options);
                 }},
            saved);
      for (const StrategyCase& now : targets()) {
        if (is_divided && std::string(now.strategy) != "ddp_threads") continue;
        const Outcome resumed = train({.configure = accumulate, .ckpt = path}, now);
        EXPECT_EQ(difference(resumed.weights, expected.weights, kSummationOrder), "")
            << saved << " after " << batches << " batches, resumed as " << now;
      }
    }
  }
}

TEST(WindowUnderWay, GoesOnWhereLayersAreCut) {
  const auto accumulate = [](TrainerOptions& options) { options.accumulate_grad_batches = 4; };
  const Outcome one_device = train_on_one_device({.configure = accumulate});
  for (const StrategyCase& on : tensor_meshes() + tensor_pipelines()) {
    const Outcome expected = train({.configure = accumulate}, on);
    EXPECT_EQ(difference(expected.weights, one_device.weights, kSummationOrder), "") << on;
    const std::string path = fresh_folder("window") + "/checkpoint";
    train({.configure =
               [&](TrainerOptions& options) {
                 accumulate(options);
                 save_after(2, path)(options);
               }},
          on);
    const Outcome resumed = train({.configure = accumulate, .ckpt = path}, on);
    EXPECT_TRUE(identical(resumed.weights, expected.weights)) << on;
    for (const StrategyCase& now : {StrategyCase{"single_device", 1}, tensor_meshes().back()}) {
      const Outcome other = train({.configure = accumulate, .ckpt = path}, now);
      EXPECT_EQ(difference(other.weights, one_device.weights, kSummationOrder), "") << on << " resumed as " << now;
    }
  }
}

/// A parameter that only the batches before the checkpoint used.
TEST(WindowUnderWay, KeepsGradientsOfParametersThatItsOtherBatchesLeaveOut) {
  const auto accumulate = [](TrainerOptions& options) { options.accumulate_grad_batches = 2; };
  const NetOptions net{.alternate = true};
  const Outcome expected = train_on_one_device({.net = net, .configure = accumulate});
  const std::string path = fresh_folder("window") + "/checkpoint";
  train({.net = net,
         .configure =
             [&](TrainerOptions& options) {
               accumulate(options);
               save_after(1, path)(options);
             }},
        {"ddp_threads", 4, 0, "find_unused_parameters: true"});
  for (const StrategyCase& now : {StrategyCase{"single_device", 1},
                                  {"ddp_threads", 2, 0, "find_unused_parameters: true"},
                                  {"sharded_threads", 2, 1, "find_unused_parameters: true"},
                                  {"sharded_threads", 4, 2, "find_unused_parameters: true"},
                                  {"sharded_threads", 4, 3, "find_unused_parameters: true"},
                                  {"parameter_server_threads", 4, 0, "servers: 3"}}) {
    const Outcome resumed = train({.net = net, .configure = accumulate, .ckpt = path}, now);
    EXPECT_EQ(difference(resumed.weights, expected.weights, kSummationOrder), "") << now;
  }
}

// ---- Steps by hand

/// Steps after each third batch.
class SteppedByHand : public Net {
 public:
  explicit SteppedByHand(const Options& options) : Net(options) {}
  StepOutput training_step(const Batch& batch, int64_t) override {
    manual_backward(torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]) / 3);
    if ((trainer().total_batches() + 1) % 3 != 0) return {};
    for (OptimizerHandle* optimizer : optimizers()) {
      optimizer->step();
      optimizer->zero_grad();
    }
    return {};
  }
};

std::vector<at::Tensor> step_by_hand(const StrategyCase& on, const std::string& ckpt,
                                     const std::function<void(TrainerOptions&)>& configure) {
  seed_everything(7);
  const auto module = make<SteppedByHand>({.manual = true});
  Trainer trainer(trainer_options({.configure = configure}, on));
  trainer.fit(module, DataLoader(tiny_dataset(40), {.shuffle = true, .global_batch_size = 8}), {}, ckpt);
  std::vector<at::Tensor> result;
  for (const auto& weight : weights(*module)) result.push_back(weight.clone());
  return result;
}

TEST(WindowUnderWay, OfStepsByHandGoesOnUnderOtherStrategies) {
  const auto expected = step_by_hand({"single_device", 1}, "", {});
  const std::vector<StrategyCase> cases = {{"single_device", 1},
                                           {"ddp_threads", 2},
                                           {"ddp_threads", 4},
                                           {"sharded_threads", 2, 1},
                                           {"sharded_threads", 4, 2},
                                           {"sharded_threads", 4, 3},
                                           {"sharded_threads", 4, 3, "shard_group: 2"},
                                           {"parameter_server_threads", 4, 0, "servers: 2"}};
  for (const StrategyCase& saved : cases) {
    const std::string path = fresh_folder("window") + "/checkpoint";
    step_by_hand(saved, "", save_after(5, path));
    for (const StrategyCase& now : cases)
      EXPECT_EQ(difference(step_by_hand(now, path, {}), expected, kSummationOrder), "")
          << saved << " resumed as " << now;
  }
}

TEST(WindowUnderWay, OfStepsByHandGoesOnWhereLayersAreCut) {
  const auto one_device = step_by_hand({"single_device", 1}, "", {});
  for (const StrategyCase& on : tensor_meshes()) {
    const auto expected = step_by_hand(on, "", {});
    EXPECT_EQ(difference(expected, one_device, kSummationOrder), "") << on;
    for (const int64_t batches : {1, 5}) {
      const std::string path = fresh_folder("window") + "/checkpoint";
      step_by_hand(on, "", save_after(batches, path));
      EXPECT_TRUE(identical(step_by_hand(on, path, {}), expected)) << on << " after " << batches << " batches";
      for (const StrategyCase& now : {StrategyCase{"single_device", 1}, tensor_meshes().back()})
        EXPECT_EQ(difference(step_by_hand(now, path, {}), one_device, kSummationOrder), "")
            << on << " after " << batches << " batches, resumed as " << now;
    }
    const std::string path = fresh_folder("window") + "/checkpoint";
    step_by_hand({"single_device", 1}, "", save_after(5, path));
    EXPECT_EQ(difference(step_by_hand(on, path, {}), one_device, kSummationOrder), "")
        << "one device resumed as " << on;
  }
}

/// Combines gradients at each third batch alone, and steps then.
class CombinedByHand : public Net {
 public:
  explicit CombinedByHand(const Options& options) : Net(options) {}
  StepOutput training_step(const Batch& batch, int64_t) override {
    const bool is_last = (trainer().total_batches() + 1) % 3 == 0;
    manual_backward(torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]) / 3, {.sync_grad = is_last});
    if (!is_last) return {};
    for (OptimizerHandle* optimizer : optimizers()) {
      optimizer->step();
      optimizer->zero_grad();
    }
    return {};
  }
};

TEST(WindowUnderWay, OfGradientsCombinedByHandResumesToTheBit) {
  const auto trained = [](const StrategyCase& on, const std::string& ckpt,
                          const std::function<void(TrainerOptions&)>& configure) {
    seed_everything(7);
    const auto module = make<CombinedByHand>({.manual = true});
    Trainer trainer(trainer_options({.epochs = 3, .configure = configure}, on));
    trainer.fit(module, DataLoader(tiny_dataset(40), {.shuffle = true, .global_batch_size = 8}), {}, ckpt);
    return weights(*module);
  };
  for (const StrategyCase& on : {StrategyCase{"single_device", 1},
                                 {"ddp_threads", 2},
                                 {"sharded_threads", 2, 1},
                                 {"sharded_threads", 2, 2, "keep_window_gradients: true"},
                                 {"sharded_threads", 2, 3},
                                 {"parameter_server_threads", 2, 0, "servers: 2"}}) {
    const auto expected = trained(on, "", {});
    for (const int64_t batches : {4, 5, 6}) {
      const std::string path = fresh_folder("window") + "/checkpoint";
      trained(on, "", save_after(batches, path));
      EXPECT_TRUE(identical(trained(on, path, {}), expected)) << on << " after " << batches << " batches";
    }
  }
}

TEST(WindowUnderWay, OfGradientsCombinedByHandIsInTheCheckpointOfItsEpoch) {
  constexpr int64_t kEpochs = 2;  // of five batches each: both end inside of a window of three
  const auto trained = [](const StrategyCase& on, const std::string& folder, const std::string& ckpt) {
    seed_everything(7);
    const auto module = make<CombinedByHand>({.manual = true});
    const auto save = [&](TrainerOptions& options) {
      options.callbacks = {make<LambdaCallback>({.on_train_epoch_end = [=](Trainer& trainer, Module&) {
        trainer.save_checkpoint(fmt::format("{}/{}", folder, trainer.current_epoch()));
      }})};
    };
    Trainer trainer(trainer_options({.epochs = kEpochs, .configure = save}, on));
    trainer.fit(module, DataLoader(tiny_dataset(40), {.shuffle = true, .global_batch_size = 8}), {}, ckpt);
    return weights(*module);
  };
  const std::string one_device = fresh_folder("window");
  trained({"single_device", 1}, one_device, "");
  for (const StrategyCase& on : {StrategyCase{"ddp_threads", 2},
                                 {"sharded_threads", 2, 1},
                                 {"sharded_threads", 2, 1, "find_unused_parameters: true"},
                                 {"sharded_threads", 2, 2, "keep_window_gradients: true"},
                                 {"sharded_threads", 2, 3, "keep_window_gradients: true"},
                                 {"sharded_threads", 4, 1, "shard_group: 2"},
                                 {"parameter_server_threads", 2, 0, "servers: 2"}}) {
    const std::string folder = fresh_folder("window");
    const auto expected = trained(on, folder, "");
    for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
      const std::string name = std::to_string(epoch);
      const State saved = read_checkpoint(folder + "/" + name, {"loops", "model"});
      EXPECT_EQ(saved.at("loops").at("epoch").as_int(), epoch) << on;
      EXPECT_EQ(saved.at("loops").at("total_batches").as_int(), 5 * (epoch + 1)) << on;
      const State model = read_checkpoint(one_device + "/" + name, {"model"}).at("model");
      for (const auto& [parameter, value] : model.as_map())
        EXPECT_TRUE(at::allclose(saved.at("model").at(parameter).as_tensor(), value.as_tensor(), 1e-4, 1e-6))
            << on << ": " << parameter << " in epoch " << epoch;
    }
    EXPECT_TRUE(identical(trained(on, fresh_folder("window"), folder + "/0"), expected)) << on;
  }
}

/// Two optimizers: one steps after each third batch, the other after each, and its gradients stay and add up.
class OneWindowOfTwo : public Net {
 public:
  explicit OneWindowOfTwo(const Options& options) : Net(options) {}
  StepOutput training_step(const Batch& batch, int64_t) override {
    OptimizerHandle& body = optimizer(0);
    OptimizerHandle& branch = optimizer(1);
    const auto loss = [&] { return torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]); };
    {
      const auto toggled = toggle_optimizer(body);
      manual_backward(loss() / 3);
    }
    if ((trainer().total_batches() + 1) % 3 == 0) {
      body.step();
      body.zero_grad();
    }
    const auto toggled = toggle_optimizer(branch);
    manual_backward(loss());
    branch.step();
    return {};
  }
};

TEST(WindowUnderWay, OfOneOfSeveralOptimizersLeavesTheOthersAlone) {
  const auto trained = [](const StrategyCase& on, const std::string& ckpt,
                          const std::function<void(TrainerOptions&)>& configure) {
    seed_everything(7);
    const auto module = make<OneWindowOfTwo>({.lr = 0.001, .manual = true});
    Trainer trainer(trainer_options({.epochs = 3,
                                     .configure =
                                         [&](TrainerOptions& options) {
                                           options.precision = Spec<Precision>(Config::parse(
                                               "{name: 16-mixed, init_scale: 256, growth_interval: 4}", {}));
                                           if (configure) configure(options);
                                         }},
                                    on));
    trainer.fit(module, DataLoader(tiny_dataset(40), {.shuffle = true, .global_batch_size = 8}), {}, ckpt);
    return weights(*module);
  };
  for (const StrategyCase& on : {StrategyCase{"single_device", 1},
                                 {"ddp_threads", 2, 0, "find_unused_parameters: true"},
                                 {"sharded_threads", 2, 2, "find_unused_parameters: true"}}) {
    const auto expected = trained(on, "", {});
    for (const int64_t batches : {4, 5}) {
      const std::string path = fresh_folder("window") + "/checkpoint";
      trained(on, "", save_after(batches, path));
      EXPECT_TRUE(identical(trained(on, path, {}), expected)) << on << " after " << batches << " batches";
      const State saved = read_checkpoint(path, {"ranks", "gradients"});
      const State* divided = saved.find("gradients");
      const State& window = divided != nullptr ? *divided : saved.at("ranks").as_list().front();
      const auto& awaited = window.at("awaited_steps").as_list();
      EXPECT_TRUE(awaited.at(0).as_bool()) << on;
      EXPECT_FALSE(awaited.at(1).as_bool()) << on;
    }
  }
}

// ---- Gradients that outlast their step

/// Does what `step` does, which thread ranks' modules do as well.
class StepsAsGiven : public Net {
 public:
  explicit StepsAsGiven(const Options& options) : Net(options) {}
  StepOutput training_step(const Batch& batch, int64_t) override {
    step(*this, batch);
    return {};
  }
  at::Tensor loss(const Batch& batch) { return torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]); }
  int64_t batches() const { return trainer().total_batches(); }
  void step_all() {
    for (OptimizerHandle* optimizer : optimizers()) optimizer->step();
  }
  void clear_all(bool set_to_none = true) {
    for (OptimizerHandle* optimizer : optimizers()) optimizer->zero_grad(set_to_none);
  }

  using Step = std::function<void(StepsAsGiven& module, const Batch& batch)>;
  inline static Step step;
};

const std::vector<std::pair<std::string, StepsAsGiven::Step>>& steps_that_leave_gradients() {
  static const std::vector<std::pair<std::string, StepsAsGiven::Step>> steps = {
      {"never cleared",
       [](StepsAsGiven& module, const Batch& batch) {
         module.manual_backward(module.loss(batch));
         module.step_all();
       }},
      {"cleared before each third batch",
       [](StepsAsGiven& module, const Batch& batch) {
         if (module.batches() % 3 == 0) module.clear_all();
         module.manual_backward(module.loss(batch));
         module.step_all();
       }},
      {"multiplied in place of momentum",
       [](StepsAsGiven& module, const Batch& batch) {
         module.manual_backward(module.loss(batch));
         module.step_all();
         const at::NoGradGuard no_grad;
         for (const OptimizerHandle* optimizer : module.optimizers())
           for (const at::Tensor& parameter : optimizer->parameters())
             if (parameter.grad().defined()) parameter.mutable_grad().mul_(0.5);
       }},
      {"zeros, which momentum and weights go on with",
       [](StepsAsGiven& module, const Batch& batch) {
         if (module.batches() % 2 == 0) {
           module.manual_backward(module.loss(batch));
           module.step_all();
           module.clear_all(/*set_to_none=*/false);
         } else {
           module.step_all();
         }
       }},
  };
  return steps;
}

std::vector<at::Tensor> stepped_as_given(const StrategyCase& on, const std::string& precision, const std::string& ckpt,
                                         const std::function<void(TrainerOptions&)>& configure) {
  seed_everything(7);
  const auto module = make<StepsAsGiven>({.lr = 0.002, .manual = true});
  Trainer trainer(trainer_options({.configure =
                                       [&](TrainerOptions& options) {
                                         options.precision = Spec<Precision>(Config::parse(precision, {}));
                                         if (configure) configure(options);
                                       }},
                                  on));
  trainer.fit(module, DataLoader(tiny_dataset(40), {.shuffle = true, .global_batch_size = 8}), {}, ckpt);
  return weights(*module);
}

TEST(GradientsByHand, ThatOutlastTheirStepAreInCheckpoints) {
  for (const auto& [name, step] : steps_that_leave_gradients()) {
    StepsAsGiven::step = step;
    const auto one_device = stepped_as_given({"single_device", 1}, "32-true", "", {});
    for (const StrategyCase& on : {StrategyCase{"single_device", 1},
                                   {"ddp_threads", 2},
                                   {"sharded_threads", 2, 1},
                                   {"sharded_threads", 2, 2},
                                   {"sharded_threads", 4, 3},
                                   {"parameter_server_threads", 2, 0, "servers: 2"}}) {
      const auto expected = stepped_as_given(on, "32-true", "", {});
      EXPECT_EQ(difference(expected, one_device, kSummationOrder), "") << on << ", " << name;
      for (const int64_t batches : {1, 3, 5}) {
        const std::string path = fresh_folder("outlast") + "/checkpoint";
        stepped_as_given(on, "32-true", "", save_after(batches, path));
        EXPECT_TRUE(identical(stepped_as_given(on, "32-true", path, {}), expected))
            << on << " after " << batches << " batches, " << name;
        // Those that ranks have combined are saved once.
        const auto& ranks = read_checkpoint(path, {"ranks"}).at("ranks").as_list();
        for (size_t rank = 1; rank < ranks.size(); ++rank) EXPECT_FALSE(ranks[rank].contains("gradients")) << on;
      }
    }
  }
}

TEST(GradientsByHand, ThatOutlastTheirStepKeepTheirScale) {
  const std::string precision = "{name: 16-mixed, init_scale: 256, growth_interval: 2}";
  for (const auto& [name, step] : steps_that_leave_gradients()) {
    StepsAsGiven::step = step;
    for (const StrategyCase& on : {StrategyCase{"single_device", 1}, {"ddp_threads", 2}, {"sharded_threads", 2, 2}}) {
      const auto expected = stepped_as_given(on, precision, "", {});
      for (const int64_t batches : {1, 2, 3, 5}) {
        const std::string path = fresh_folder("outlast") + "/checkpoint";
        stepped_as_given(on, precision, "", save_after(batches, path));
        EXPECT_TRUE(identical(stepped_as_given(on, precision, path, {}), expected))
            << on << " after " << batches << " batches, " << name;
      }
    }
  }
}

TEST(GradientsByHand, ThatOutlastTheirStepGoOnUnderOtherStrategies) {
  StepsAsGiven::step = steps_that_leave_gradients().at(1).second;
  const auto expected = stepped_as_given({"single_device", 1}, "32-true", "", {});
  const std::vector<StrategyCase> cases = {{"single_device", 1}, {"ddp_threads", 4}, {"sharded_threads", 2, 3}};
  for (const StrategyCase& saved : cases) {
    const std::string path = fresh_folder("outlast") + "/checkpoint";
    stepped_as_given(saved, "32-true", "", save_after(5, path));
    for (const StrategyCase& now : cases)
      EXPECT_EQ(difference(stepped_as_given(now, "32-true", path, {}), expected, kSummationOrder), "")
          << saved << " resumed as " << now;
  }
}

/// Never clears gradients, or makes them zeros.
class NeverClears : public Net {
 public:
  explicit NeverClears(const Options& options) : Net(options) {}
  void optimizer_zero_grad(OptimizerHandle& optimizer) override {
    if (makes_zeros) optimizer.zero_grad(/*set_to_none=*/false);
  }
  inline static bool makes_zeros = false;
};

TEST(GradientsOfWindows, ThatTheModuleKeepsAreInCheckpoints) {
  const auto trained = [](const StrategyCase& on, int64_t accumulate, const std::string& ckpt,
                          const std::function<void(TrainerOptions&)>& configure) {
    seed_everything(7);
    // The branch has no gradient in odd batches: zeros let its momentum go on, no gradient at all does not.
    const auto module = make<NeverClears>({.lr = 0.002, .alternate = true});
    Trainer trainer(trainer_options({.configure =
                                         [&](TrainerOptions& options) {
                                           options.accumulate_grad_batches = accumulate;
                                           if (configure) configure(options);
                                         }},
                                    on));
    trainer.fit(module, DataLoader(tiny_dataset(40), {.shuffle = true, .global_batch_size = 8}), {}, ckpt);
    return weights(*module);
  };
  for (const bool makes_zeros : {false, true}) {
    NeverClears::makes_zeros = makes_zeros;
    for (const int64_t accumulate : {1, 2}) {
      const auto one_device = trained({"single_device", 1}, accumulate, "", {});
      for (const StrategyCase& on :
           {StrategyCase{"single_device", 1},
            {"ddp_threads", 2, 0, "find_unused_parameters: true"},
            {"sharded_threads", 2, 1, "find_unused_parameters: true"},
            {"sharded_threads", 2, 3, "find_unused_parameters: true"},
            {"mesh", 2, 0, "tensor: {size: 2, find_unused_parameters: true}"},
            {"mesh", 4, 0, "shard: {size: 2, stage: 1, find_unused_parameters: true}, tensor: 2"},
            {"mesh", 4, 0, "shard: {size: 2, stage: 2, find_unused_parameters: true}, tensor: 2"},
            {"mesh", 4, 0, "shard: {size: 2, stage: 3, find_unused_parameters: true}, tensor: 2"}}) {
        const std::string which = fmt::format("{}, windows of {}", makes_zeros ? "zeros" : "kept", accumulate);
        const auto expected = trained(on, accumulate, "", {});
        EXPECT_EQ(difference(expected, one_device, kSummationOrder), "") << on << ", " << which;
        for (const int64_t batches : {1, 2, 5, 6}) {
          const std::string path = fresh_folder("outlast") + "/checkpoint";
          trained(on, accumulate, "", save_after(batches, path));
          EXPECT_TRUE(identical(trained(on, accumulate, path, {}), expected))
              << on << " after " << batches << " batches, " << which;
        }
      }
    }
  }
}

// ---- Windows that are left without a step

/// Ends the first epoch after four of its five batches, inside of the second window of three.
class CutNet : public Net {
 public:
  explicit CutNet(const Options& options) : Net(options) {}
  bool on_train_batch_start(const Batch&, int64_t batch_idx) override {
    return trainer().current_epoch() > 0 || batch_idx < 4;
  }
};

TEST(WindowCutShort, IsLeftOutAndTheCheckpointIsOfItsEpoch) {
  const auto trained = [](const StrategyCase& on, const std::string& path) {
    seed_everything(7);
    const auto module = make<CutNet>({});
    Trainer trainer(trainer_options(
        {.configure =
             [&](TrainerOptions& options) {
               options.accumulate_grad_batches = 3;
               options.callbacks = {make<LambdaCallback>({.on_train_epoch_end = [&](Trainer& at_end, Module&) {
                 if (at_end.current_epoch() == 0) at_end.save_checkpoint(path);
               }})};
             }},
        on));
    trainer.fit(module, DataLoader(tiny_dataset(40), {.shuffle = true, .global_batch_size = 8}));
    return weights(*module);
  };
  const auto expected = trained({"single_device", 1}, fresh_folder("cut") + "/checkpoint");
  for (const StrategyCase& on : targets()) {
    const std::string path = fresh_folder("cut") + "/checkpoint";
    EXPECT_EQ(difference(trained(on, path), expected, kSummationOrder), "") << on;
    const State loops = read_checkpoint(path, {"loops"}).at("loops");
    EXPECT_EQ(loops.at("epoch").as_int(), 0) << on;
    EXPECT_EQ(loops.at("total_batches").as_int(), 4) << on;
    EXPECT_EQ(loops.at("global_step").as_int(), 1) << on;
  }
}

// ---- What ranks keep for themselves

/// Logs in a hook, in the first batch alone.
class LogsOnce : public Net {
 public:
  explicit LogsOnce(const Options& options) : Net(options) {}
  void on_train_batch_end(const StepOutput&, const Batch&, int64_t) override {
    if (trainer().total_batches() == 0) log("once", 15.0, {.on_step = true, .on_epoch = false});
  }
};

TEST(ResumedValues, OfHooksAreThoseOfARunThatWasNotStopped) {
  for (const StrategyCase& on :
       {StrategyCase{"single_device", 1}, {"ddp_threads", 2}, {"pipeline_threads", 2, 0, "micro_batches: 2"}}) {
    const std::string path = fresh_folder("values") + "/checkpoint";
    std::vector<double> left;
    for (const bool resumes : {false, true}) {
      seed_everything(7);
      const auto module = make<LogsOnce>({});
      TrainingRun run;
      if (!resumes) run.configure = save_after(3, path);
      Trainer trainer(trainer_options(run, on));
      trainer.fit(module, DataLoader(tiny_dataset(40), {.global_batch_size = 8}), {}, resumes ? path : "");
      const MetricMap& metrics = trainer.callback_metrics();
      left.push_back(metrics.count("once") == 0 ? -1 : metrics.at("once"));
    }
    EXPECT_EQ(left[0], 15) << on;
    EXPECT_EQ(left[1], 15) << on;
  }
}

/// Logs values of steps in validation and test.
class LogsEvaluatedSteps : public Net {
 public:
  explicit LogsEvaluatedSteps(const Options& options) : Net(options) {}
  StepOutput validation_step(const Batch& batch, int64_t batch_idx) override {
    log("val_last", batch["y"].mean(), {.on_step = true, .on_epoch = false});
    log("val_both", batch["y"].mean(), {.on_step = true, .on_epoch = true});
    if (batch_idx == 0) log("val_first", batch["y"].mean(), {.on_step = true, .on_epoch = false});
    return Net::validation_step(batch, batch_idx);
  }
  StepOutput test_step(const Batch& batch, int64_t batch_idx) override {
    log("test_last", batch["y"].mean(), {.on_step = true, .on_epoch = false});
    log("test_all", batch["y"].mean(), {.on_step = true, .on_epoch = false, .add_dataloader_idx = false});
    return Net::test_step(batch, batch_idx);
  }
};

TEST(EvaluatedSteps, HaveTheirValuesOnEveryStrategy) {
  for (const int64_t examples : {40, 41, 43}) {  // the last batch may have fewer than there are ranks
    MetricMap expected;
    for (const StrategyCase& on : targets()) {
      seed_everything(7);
      const auto module = make<LogsEvaluatedSteps>({});
      Trainer trainer(trainer_options({}, on));
      const DataLoader batches(tiny_dataset(examples), {.global_batch_size = 8});
      const DataLoader few(tiny_dataset(9), {.global_batch_size = 8});
      trainer.fit(module, DataLoader(tiny_dataset(40), {.global_batch_size = 8}), {batches});
      trainer.test(module, {few, batches, few}, "", /*verbose=*/false);
      const MetricMap& metrics = trainer.callback_metrics();
      if (expected.empty()) {
        expected = metrics;
        const at::Tensor y = tiny_dataset(examples)->tensors()["y"];
        const double last = y.slice(0, (examples - 1) / 8 * 8).mean().item<double>();
        EXPECT_NEAR(metrics.at("val_first"), y.narrow(0, 0, 8).mean().item<double>(), 1e-6);
        for (const char* name : {"val_last", "val_both_step", "test_last/dataloader_idx_1"})
          EXPECT_NEAR(metrics.at(name), last, 1e-6) << name;
        EXPECT_NEAR(metrics.at("test_all"), tiny_dataset(9)->tensors()["y"][8].item<double>(), 1e-6);
      }
      for (const char* name : {"val_first", "val_last", "val_both_step", "val_both_epoch", "val_both", "test_all",
                               "test_last/dataloader_idx_0", "test_last/dataloader_idx_1"}) {
        ASSERT_TRUE(metrics.contains(name)) << on << ", " << examples << " examples: " << name;
        EXPECT_NEAR(metrics.at(name), expected.at(name), 1e-6) << on << ", " << examples << " examples: " << name;
      }
    }
  }
}

TEST(ShuffledTest, AfterAFitReadsEveryExampleOnceOnAllRanks) {
  for (const StrategyCase& on : targets()) {
    seed_everything(7);
    const auto module = make<Net>({});
    Trainer trainer(trainer_options({}, on));
    trainer.fit(module, DataLoader(tiny_dataset(40), {.global_batch_size = 8}));
    const auto tested = [&](bool shuffles) {
      const DataLoader loader(tiny_dataset(19), {.shuffle = shuffles, .global_batch_size = 8});
      return trainer.test(module, {loader}, "", /*verbose=*/false).at(0).at("test_loss");
    };
    EXPECT_NEAR(tested(true), tested(false), 1e-5) << on;
  }
}

}  // namespace
}  // namespace levin::testing
