// Buffers that checkpoints leave out.

#include "../support/tiny.h"

#include <levin/callbacks/batch_size_finder.h>
#include <levin/callbacks/lambda_callback.h>
#include <levin/core/base/error.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/interfaces/load_weights.h>

#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

using ::testing::ElementsAre;
using testing::fresh_folder;
using testing::quiet;
using testing::tiny_loader;

struct MaskedOptions {
  std::vector<std::string> left_out = {"*mask*", "steps"};
  int64_t size = 4;  ///< of the mask
  static void describe(Schema<MaskedOptions>& schema) {
    schema.field("left_out", &MaskedOptions::left_out, "of checkpoints");
    schema.field("size", &MaskedOptions::size, "of the mask");
  }
};

/// A unit of LibTorch with a buffer of each kind, and a parameter whose name a pattern matches.
struct MaskedUnit : torch::nn::Module {
  explicit MaskedUnit(int64_t size) {
    mask = register_buffer("mask", at::ones({size}));
    mean = register_buffer("mean", at::zeros({}));
    weight = register_parameter("mask_weight", at::zeros({4, 1}));
  }
  at::Tensor mask, mean, weight;
};

class Masked : public Module {
 public:
  using Options = MaskedOptions;
  explicit Masked(const Options& options) {
    unit_ = register_module("unit", std::make_shared<MaskedUnit>(options.size));
    steps_ = register_buffer("steps", at::zeros({}, at::kLong));
    set_non_persistent_buffers(options.left_out);
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    const at::NoGradGuard no_grad;
    steps_.add_(1);
    unit_->mean.add_(1);
    const at::AutoGradMode grad(true);
    return (batch["x"].matmul(unit_->weight) - batch["y"]).square().mean();
  }
  OptimizerConfigs configure_optimizers() override {
    return OptimizerConfig{.optimizer = std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{})};
  }
  int64_t steps() const { return steps_.item<int64_t>(); }
  int64_t mean() const { return static_cast<int64_t>(unit_->mean.item<double>()); }

 private:
  std::shared_ptr<MaskedUnit> unit_;
  at::Tensor steps_;
};

std::vector<std::string> names_of(const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

/// A module inside of another one, whose own patterns count from there.
class Outer : public Module {
 public:
  Outer() { register_module("inner", make<Masked>({})); }
};

TEST(NonPersistentBuffers, AreLeftOutByName) {
  const auto module = make<Masked>({});
  EXPECT_THAT(names_of(named_tensors(*module)), ElementsAre("steps", "unit.mask_weight", "unit.mask", "unit.mean"));
  EXPECT_THAT(names_of(saved_tensors(*module)), ElementsAre("unit.mask_weight", "unit.mean"))
      << "parameters stay, whatever the patterns";
  EXPECT_THAT(names_of(saved_tensors(Outer())), ElementsAre("inner.unit.mask_weight", "inner.unit.mean"));
  EXPECT_EQ(saved_tensors(*make<Masked>({.left_out = {}})).size(), 4u);
}

class SavedWithout : public ::testing::TestWithParam<const char*> {};

TEST_P(SavedWithout, ACheckpointNeedsThemNot) {
  const std::string path = fresh_folder("non_persistent") + "/checkpoint";
  TrainerOptions options = quiet(1);
  options.strategy = GetParam();
  options.devices = std::string(GetParam()) == "single_device" ? 1 : 2;
  options.callbacks = {make<LambdaCallback>(
      LambdaCallbackOptions{.on_train_epoch_end = [path](Trainer& rank, Module&) { rank.save_checkpoint(path); }})};
  Trainer trainer(options);
  const auto module = make<Masked>({});
  trainer.fit(module, tiny_loader(48, 8));
  options.callbacks = {};
  const int64_t steps = std::string(GetParam()) == "single_device" ? 6 : 3;
  EXPECT_EQ(module->steps(), steps) << "this process has those of its ranks all the same";
  EXPECT_EQ(module->mean(), steps);
  std::vector<std::string> saved;
  const State tree = read_checkpoint(path, {"model"});
  for (const auto& [name, tensor] : tree.at("model").as_map()) saved.push_back(name);
  EXPECT_THAT(saved, ElementsAre("unit.mask_weight", "unit.mean"));

  // Of another size, which only a constructor knows.
  options.max_epochs = 2;
  Trainer again(options);
  const auto resumed = make<Masked>({.size = 9});
  again.fit(resumed, tiny_loader(48, 8), {}, path);
  EXPECT_EQ(resumed->steps(), steps);
  EXPECT_EQ(resumed->mean(), 2 * steps);

  // What a checkpoint has of one that has become non-persistent since is passed over; a missing one is not.
  const auto all = make<Masked>({.left_out = {}});
  EXPECT_ANY_THROW(again.fit(all, tiny_loader(48, 8), {}, path));
}

INSTANTIATE_TEST_SUITE_P(Strategies, SavedWithout,
                         ::testing::Values("single_device", "ddp_threads", "ddp_spawn", "sharded_threads"),
                         [](const auto& info) { return std::string(info.param); });

TEST(NonPersistentBuffers, ACheckpointThatHasThemIsRead) {
  const std::string path = fresh_folder("non_persistent") + "/checkpoint";
  Trainer trainer(quiet(1));
  trainer.fit(make<Masked>({.left_out = {}}), tiny_loader(48, 8));
  trainer.save_checkpoint(path);
  TrainerOptions options = quiet(2);
  Trainer again(options);
  const auto module = make<Masked>({});
  again.fit(module, tiny_loader(48, 8), {}, path);
  EXPECT_EQ(module->steps(), 6) << "not read";
  EXPECT_EQ(module->mean(), 12);
}

TEST(NonPersistentBuffers, FilesOfWeightsNeedThemNot) {
  const std::string path = fresh_folder("non_persistent") + "/weights.safetensors";
  const auto module = make<Masked>({});
  module->named_parameters()["unit.mask_weight"].detach().fill_(3);
  save_weights(*module, path);
  const auto loaded = make<Masked>({.size = 7});
  load_weights(*loaded, path);
  EXPECT_TRUE(loaded->named_parameters()["unit.mask_weight"].eq(3).all().item<bool>());
  EXPECT_THROW(load_weights(*make<Masked>({.left_out = {}}), path), Error);
}

/// A search trains for a while and takes all of it back.
TEST(NonPersistentBuffers, ADryRunLeavesThem) {
  TrainerOptions options = quiet(1);
  options.callbacks = {make<BatchSizeFinder>({.init_val = 2, .max_trials = 2})};
  options.max_steps = 1;
  Trainer trainer(options);
  const auto module = make<Masked>({});
  trainer.fit(module, tiny_loader(48, 8));
  EXPECT_EQ(module->steps(), 1);
  EXPECT_EQ(module->mean(), 1);
}

}  // namespace
}  // namespace levin
