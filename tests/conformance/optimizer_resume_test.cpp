#include "tests/conformance/strategy_conformance.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/core/optim/named_optimizer.h>
#include <levin/core/optim/optimizer_capabilities.h>
#include <levin/core/options/registries.h>

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adam.h>

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

namespace levin::testing {
namespace {

/// Net without a configure_optimizers of its own. Its parameters have 32 elements and fewer, so that ranks hold some of
/// them only in part, or not at all.
class Configured : public Net {
 public:
  explicit Configured(const Options& options) : Net(options) {}
  OptimizerConfigs configure_optimizers() override { return Module::configure_optimizers(); }
};

/// YAML by name, or of one around another.
std::string optimizer_yaml(const std::string& name) {
  const std::string options = name == "lars"  ? ", lr: 0.05, momentum: 0.9"
                              : name == "sgd" ? ", lr: 0.05, momentum: 0.9"
                                              : ", lr: 0.01";
  if (name == "sam") return "{name: sam, base: {name: adam, lr: 0.01}}";
  return "{name: " + name + options + "}";
}

/// Whose state of a parameter is of another kind or size than the parameter, or follows from its size.
const std::vector<std::string>& particular_optimizers() {
  static const std::vector<std::string> all = {
      optimizer_yaml("adafactor"),
      optimizer_yaml("muon"),
      "{name: muon, lr: 0.01, groups: [{pattern: '*.4.weight', orthogonalize: false}]}",
      "{name: lookahead, k: 3, base: " + optimizer_yaml("adafactor") + "}",
      optimizer_yaml("adamw8bit"),
      optimizer_yaml("nadam"),
      optimizer_yaml("rprop")};
  return all;
}

/// The others that come with Levin, and some in further forms.
std::vector<std::string> other_optimizers() {
  std::vector<std::string> all = {"{name: lookahead, k: 3, base: " + optimizer_yaml("adam") + "}",
                                  "{name: rmsprop, lr: 0.01, momentum: 0.9, centered: true}",
                                  "{name: adam, lr: 0.01, amsgrad: true}"};
  for (const auto& item : registries().optimizers.items())
    if (item.name != "lookahead" && item.name != "sparse_adam" &&  // which takes sparse gradients alone
        std::ranges::find(particular_optimizers(), optimizer_yaml(item.name)) == particular_optimizers().end())
      all.push_back(optimizer_yaml(item.name));
  return all;
}

bool needs_closure(const std::string& optimizer) { return optimizer.find("name: sam") != std::string::npos; }

const std::vector<StrategyCase>& optimizer_layouts() {
  static const std::vector<StrategyCase> layouts = {
      {"single_device", 1},
      {"ddp_threads", 2},
      {"sharded_threads", 2, 1},
      {"sharded_threads", 3, 1},
      {"sharded_threads", 2, 2},
      {"sharded_threads", 3, 2},
      {"sharded_threads", 2, 3},
      {"sharded_threads", 3, 3},
      {"sharded_threads", 4, 3, "shard_group: 2"},
      {"pipeline_threads", 2, 0, "micro_batches: 2"},
      {"pipeline_threads", 3, 0, "micro_batches: 2"},
      {"pipeline_threads", 4, 0, "data_parallel: 2, micro_batches: 2"},
      {"pipeline_threads", 4, 0, "data_parallel: 2, shard_optimizer: true, micro_batches: 2"},
      {"pipeline_threads", 6, 0, "data_parallel: 3, shard_optimizer: true, micro_batches: 1"},
      {"parameter_server_threads", 2, 0, "servers: 2"},
      {"parameter_server_threads", 3, 0, "servers: 2"},
      {"parameter_server_threads", 3, 0, "servers: 3"},
  };
  return layouts;
}

bool is_replicated(const StrategyCase& on) {
  return std::string(on.strategy) == "single_device" || std::string(on.strategy) == "ddp_threads";
}

/// Whether the strategy takes the optimizer.
bool takes(const StrategyCase& on, const std::string& optimizer) {
  return !needs_closure(optimizer) || is_replicated(on);
}

template <class M>
std::vector<at::Tensor> trained_with(const std::string& optimizer, const StrategyCase& on, const std::string& save_to,
                                     const std::string& ckpt) {
  seed_everything(7);
  const auto module = make<M>({});
  TrainerOptions options = trainer_options({}, on);
  if (!optimizer.empty()) options.optimizer = Spec<optim::NamedOptimizer>(Config::parse(optimizer, {}));
  if (!save_to.empty())
    options.callbacks = {make<LambdaCallback>({.on_train_epoch_end = [&save_to](Trainer& trainer, Module&) {
      if (trainer.current_epoch() == 0) trainer.save_checkpoint(save_to);
    }})};
  Trainer trainer(options);
  // Twelve examples a batch: as many for each rank of any layout.
  trainer.fit(module, DataLoader(tiny_dataset(60), {.shuffle = true, .global_batch_size = 12}), {}, ckpt);
  return weights(*module);
}

std::string said_by(const std::function<std::string()>& compared) {
  try {
    return compared();
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// Saves after five of ten steps under each layout; resumed under the same one, to the bit, and under one device, and
/// after a save on one device under each.
template <class M>
void expect_resumes(const std::string& optimizer, const std::vector<StrategyCase>& layouts) {
  const StrategyCase one_device{"single_device", 1};
  const std::string of_one_device = fresh_folder("optimizers") + "/c";
  const auto expected = trained_with<M>(optimizer, one_device, of_one_device, "");
  for (const StrategyCase& on : layouts) {
    if (!takes(on, optimizer)) continue;
    SCOPED_TRACE(::testing::Message() << optimizer << " under " << on);
    const std::string path = fresh_folder("optimizers") + "/c";
    const auto off = [&](const std::function<std::vector<at::Tensor>()>& train) {
      return said_by([&] { return difference(train(), expected, kSummationOrder); });
    };
    EXPECT_EQ(off([&] {
                auto straight = trained_with<M>(optimizer, on, path, "");
                EXPECT_TRUE(identical(trained_with<M>(optimizer, on, "", path), straight))
                    << "does not resume to the bit";
                return straight;
              }),
              "");
    EXPECT_EQ(off([&] { return trained_with<M>(optimizer, one_device, "", path); }), "") << "on one device";
    EXPECT_EQ(off([&] { return trained_with<M>(optimizer, on, "", of_one_device); }), "") << "from one device";
  }
}

/// Gradient descent of a user's own, by the mean square of each row's gradients: a value for each row.
class RowScaled : public torch::optim::Adam, public optim::DeclaresCapabilities {
 public:
  using Adam::Adam;
  optim::OptimizerCapabilities capabilities() const override { return {.tensor_wise = true}; }
  at::Tensor step(LossClosure closure) override {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& param : param_groups_[0].params()) {
      if (!param.grad().defined() || param.numel() == 0) continue;
      auto& held = state_[param.unsafeGetTensorImpl()];
      if (held == nullptr) {
        auto made = std::make_unique<torch::optim::AdamParamState>();
        made->step(0);
        made->exp_avg(at::zeros({param.size(0)}));
        made->exp_avg_sq(at::zeros({2, 1}));
        held = std::move(made);
      }
      auto& state = static_cast<torch::optim::AdamParamState&>(*held);
      state.step(state.step() + 1);
      const at::Tensor rows = param.grad().reshape({param.size(0), -1});
      state.exp_avg().mul_(0.9).add_(rows.square().mean(1), 0.1);
      state.exp_avg_sq().add_(rows.sum());
      const at::Tensor divisors = state.exp_avg().sqrt().add_(0.1 + 1.0 / static_cast<double>(state.step()));
      param.sub_((rows / divisors.unsqueeze(1)).view_as(param) * 0.01 + state.exp_avg_sq()[0] * 1e-3);
    }
    return {};
  }
};

class ScaledByRows : public Net {
 public:
  explicit ScaledByRows(const Options& options) : Net(options) {}
  OptimizerConfigs configure_optimizers() override { return {std::make_shared<RowScaled>(parameters())}; }
};

TEST(ResumedOptimizers, OfAUsersOwnWithAValueForEachRow) {
  expect_resumes<ScaledByRows>("",
                               {{"pipeline_threads", 2, 0, "micro_batches: 2"},
                                {"pipeline_threads", 3, 0, "micro_batches: 2"},
                                {"pipeline_threads", 4, 0, "data_parallel: 2, micro_batches: 2"},
                                {"pipeline_threads", 4, 0, "data_parallel: 2, shard_optimizer: true, micro_batches: 2"},
                                {"sharded_threads", 2, 1},
                                {"sharded_threads", 3, 3},
                                {"parameter_server_threads", 2, 0, "servers: 2"},
                                {"parameter_server_threads", 3, 0, "servers: 3"}});
}

const std::vector<StrategyCase>& layouts_of_empty_ranks() {
  static const std::vector<StrategyCase> layouts = {
      {"sharded_threads", 3, 1},
      {"sharded_threads", 3, 3},
      {"pipeline_threads", 3, 0, "micro_batches: 2"},
      {"pipeline_threads", 6, 0, "data_parallel: 3, shard_optimizer: true, micro_batches: 1"},
      {"parameter_server_threads", 3, 0, "servers: 3"}};
  return layouts;
}

TEST(ResumedOptimizers, GoOnUnderLayoutsOfEmptyRanks) {
  const std::vector<StrategyCase>& layouts = layouts_of_empty_ranks();
  for (const std::string& optimizer : particular_optimizers()) expect_resumes<Configured>(optimizer, layouts);
  // Of the others each layout has a few; the long list has all.
  const std::vector<std::string> others = other_optimizers();
  for (size_t i = 0; i < others.size(); ++i) expect_resumes<Configured>(others[i], {layouts[i % layouts.size()]});
}

TEST(LongResumedOptimizers, GoOnUnderEveryLayout) {
  for (const auto& optimizers : {particular_optimizers(), other_optimizers()})
    for (const std::string& optimizer : optimizers) expect_resumes<Configured>(optimizer, optimizer_layouts());
}

}  // namespace
}  // namespace levin::testing
