#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/nn/sequential.h>
#include <levin/core/optim/adam.h>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <tests/support/tiny.h>
#include <torch/nn/modules/activation.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

/// Weights that hooks read and change: the whole ones of all ranks, and no change is lost.
namespace levin {
namespace {

using testing::quiet;
using testing::weights;

struct ChangedOptions {
  std::string when = "never";
  int64_t width = 8;
  static void describe(Schema<ChangedOptions>& schema) {
    schema.field("when", &ChangedOptions::when, "batch_end, epoch_start, fit_start, train_end, saved or never");
    schema.field("width", &ChangedOptions::width, "hidden width");
  }
};

/// Clamps its weights, in a scope of full_parameters or without one.
class ChangedNet final : public Module {
 public:
  using Options = ChangedOptions;
  explicit ChangedNet(const Options& options) : when_(options.when) {
    net_ = register_module(
        "net", Sequential(torch::nn::Linear(4, options.width), torch::nn::Tanh(), torch::nn::Linear(options.width, 1)));
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    return (net_(batch["x"]) - batch["y"]).square().mean();
  }
  void on_fit_start() override { change("fit_start"); }
  void on_train_epoch_start() override { change("epoch_start"); }
  void on_train_batch_end(const StepOutput&, const Batch&, int64_t) override {
    change("batch_end");
    if (when_ == "read") look();
    if (when_ != "saved") return;
    change("saved");
    trainer().save_checkpoint(trainer().options().default_root_dir + "/saved");
  }
  void on_train_end() override { change("train_end"); }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::Adam>(parameters(), optim::AdamOptions{.lr = 0.1});
  }

 private:
  void change(const std::string& when) {
    if (when != when_) return;
    const at::NoGradGuard no_grad;
    const auto full = trainer().full_parameters(*this);
    // Those that are small stay what they are, with all their digits.
    for (at::Tensor& parameter : parameters()) parameter.clamp_(-0.3, 0.3);
  }
  /// Compares what the ranks read.
  void look() {
    const at::NoGradGuard no_grad;
    const auto full = trainer().full_parameters(*this);
    std::vector<at::Tensor> all;
    for (const at::Tensor& parameter : parameters()) all.push_back(parameter.detach().flatten());
    const at::Tensor seen = at::cat(all);
    const at::Tensor greatest = seen.clone();
    trainer().strategy().collective().all_reduce(greatest, ReduceOp::kMax)->wait();
    // An error, which comes from forks too.
    if (!seen.equal(greatest)) throw Error("test", fmt::format("rank {} reads others", trainer().global_rank()));
  }

  const std::string when_;
  Sequential net_{nullptr};
};

std::vector<at::Tensor> train(const std::string& strategy, const std::string& precision, const ChangedOptions& net,
                              const std::string& folder = "") {
  seed_everything(3);
  TrainerOptions options = quiet(2);
  options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
  options.devices = 2;
  options.precision = precision;
  if (!folder.empty()) options.default_root_dir = folder;
  Trainer trainer(options);
  const auto module = make<ChangedNet>(net);
  trainer.fit(module, DataLoader(testing::tiny_dataset(), {.global_batch_size = 8}));
  return weights(*module);
}

double distance(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double greatest = 0;
  for (size_t i = 0; i < a.size(); ++i) greatest = std::max(greatest, (a[i] - b[i]).abs().max().item<double>());
  return greatest;
}

TEST(ChangedParameters, AreThoseOfDdp) {
  for (const char* precision : {"32-true", "bf16-mixed"}) {
    const double bound = precision == std::string("32-true") ? 1e-6 : 0.05;
    for (const char* when : {"batch_end", "epoch_start", "fit_start", "train_end"}) {
      const auto expected = train("ddp_threads", precision, {.when = when});
      const auto unchanged = train("ddp_threads", precision, {});
      EXPECT_GT(distance(expected, unchanged), 0.2) << "a change is seen";
      for (const char* options : {"stage: 1", "stage: 2", "stage: 1, offload: true", "stage: 2, offload: true",
                                  "stage: 3", "stage: 3, offload: true"}) {
        const auto got = train(fmt::format("{{name: sharded_threads, {}}}", options), precision, {.when = when});
        EXPECT_LE(distance(expected, got), bound) << options << ", " << precision << ", " << when;
      }
    }
  }
}

/// What a checkpoint has that is saved at the moment of the change.
TEST(ChangedParameters, AreSaved) {
  for (const char* precision : {"32-true", "bf16-mixed"}) {
    for (const int stage : {1, 2, 3}) {
      const std::string folder = testing::fresh_folder("changed_parameters");
      const auto left =
          train(fmt::format("{{name: sharded_threads, stage: {}}}", stage), precision, {.when = "saved"}, folder);
      const State tensors = read_checkpoint(folder + "/saved").at("model");
      double greatest = 0;
      for (const auto& [name, value] : tensors.as_map())
        greatest = std::max(greatest, value.as_tensor().abs().max().item<double>());
      EXPECT_LE(greatest, 0.302) << stage << ", " << precision;
    }
  }
}

/// Gathering takes a while for these.
TEST(ChangedParameters, AreReadWhole) {
  for (const char* strategy :
       {"{name: sharded_threads, stage: 1}", "{name: sharded_threads, stage: 2, backend: gloo}",
        "{name: sharded_spawn, stage: 1, backend: gloo}", "{name: sharded_spawn, stage: 2, backend: gloo}",
        "{name: sharded_spawn, stage: 3, backend: gloo}"}) {
    SCOPED_TRACE(strategy);
    train(strategy, "32-true", {.when = "read", .width = 100'000});
  }
}

}  // namespace
}  // namespace levin
