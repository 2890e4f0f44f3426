#include "../support/tiny.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/core/base/seed.h>
#include <levin/core/data/tensor_dataset.h>
#include <levin/core/optim/adam.h>
#include <levin/core/optim/sgd.h>

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace levin {
namespace {

using testing::fresh_folder;
using testing::quiet;
using testing::weights;

constexpr const char* kContiguous = "contiguous";
constexpr const char* kChannelsLast = "channels_last";

// Of all ranks and replicas of a test that are threads.
std::atomic<int> forwards{0};

/// Whether the elements lie as the option says; neither test tensor fits both.
bool lies(const at::Tensor& tensor, bool channels_last) {
  const auto order = !channels_last      ? at::MemoryFormat::Contiguous
                     : tensor.dim() == 5 ? at::MemoryFormat::ChannelsLast3d
                                         : at::MemoryFormat::ChannelsLast;
  return tensor.is_contiguous(order);
}

struct FormatNetOptions {
  int64_t dimensions = 2;
  std::string optimizer = "adamw";
  bool channels_last = false;
  static void describe(Schema<FormatNetOptions>& schema) {
    schema.field("dimensions", &FormatNetOptions::dimensions, "of the images: 2, or 3 for volumes");
    schema.field("optimizer", &FormatNetOptions::optimizer, "adamw, sgd or torch_sgd")
        .one_of({"adamw", "sgd", "torch_sgd"});
    schema.field("channels_last", &FormatNetOptions::channels_last, "how images and weights are expected to lie");
  }
};

/// Two convolutions and a linear layer. Ends the run where images, activations, weights of convolutions or their
/// gradients lie otherwise than expected.
class ConvolutionNet : public Module {
 public:
  using Options = FormatNetOptions;
  explicit ConvolutionNet(const Options& options) : options_(options) {
    if (options.dimensions == 2) {
      images_ = register_module("images", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 6, 3).padding(1).bias(false)));
      norm_ = register_module("norm", torch::nn::BatchNorm2d(6));
      narrow_ = register_module("narrow", torch::nn::Conv2d(torch::nn::Conv2dOptions(6, 4, 3).stride(2)));
    } else {
      volumes_ = register_module("volumes", torch::nn::Conv3d(torch::nn::Conv3dOptions(3, 4, 3).padding(1)));
    }
    head_ = register_module("head", torch::nn::Linear(4, 1));
  }

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = options_.dimensions == 2 ? narrow_(norm_(images_(x)).relu()) : volumes_(x);
    expect_order({x, y, first_weight()});
    if (!head_->weight.is_contiguous()) throw std::runtime_error("the linear layer's weight is not contiguous");
    ++forwards;
    return head_(y.flatten(2).mean(2));
  }

  at::Tensor loss_of(const Batch& batch) {
    return torch::nn::functional::mse_loss(forward(batch["x"]).to(at::kFloat), batch["y"].to(at::kFloat));
  }
  StepOutput training_step(const Batch& batch, int64_t) override { return loss_of(batch); }
  StepOutput validation_step(const Batch& batch, int64_t) override {
    log("val_loss", loss_of(batch));
    return {};
  }
  StepOutput test_step(const Batch& batch, int64_t) override { return loss_of(batch); }
  Batch predict_step(const Batch& batch, int64_t) override { return {{"y", forward(batch["x"])}}; }
  void on_before_optimizer_step(OptimizerHandle&) override { expect_order({first_weight().grad()}); }

  OptimizerConfigs configure_optimizers() override {
    if (options_.optimizer == "adamw") return std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{});
    if (options_.optimizer == "sgd")
      return std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.05, .momentum = 0.9});
    return std::make_shared<torch::optim::SGD>(parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  }

 private:
  const at::Tensor& first_weight() { return options_.dimensions == 2 ? images_->weight : volumes_->weight; }
  void expect_order(const std::vector<at::Tensor>& tensors) const {
    for (size_t i = 0; i < tensors.size(); ++i)
      if (!lies(tensors[i], options_.channels_last))
        throw std::runtime_error("tensor " + std::to_string(i) + " lies otherwise than expected");
  }

  Options options_;
  torch::nn::Conv2d images_{nullptr};
  torch::nn::BatchNorm2d norm_{nullptr};
  torch::nn::Conv2d narrow_{nullptr};
  torch::nn::Conv3d volumes_{nullptr};
  torch::nn::Linear head_{nullptr};
};

/// Images [3, 6, 6], or volumes [3, 4, 4, 4], always the same.
DataLoader image_loader(int64_t dimensions = 2, bool shuffle = true) {
  constexpr int64_t kExamples = 32;
  const at::Tensor flat = at::arange(kExamples * 3 * 64, at::kFloat).mul(0.7).sin();
  const at::Tensor x = dimensions == 2 ? flat.view({kExamples, 3, 64}).narrow(2, 0, 36).reshape({kExamples, 3, 6, 6})
                                       : flat.view({kExamples, 3, 4, 4, 4});
  auto dataset = std::make_shared<data::TensorDataset>(Batch{{"x", x}, {"y", x.flatten(1).sum(1, true)}});
  return DataLoader(dataset, {.batch_size = 8, .shuffle = shuffle});
}

TrainerOptions in_format(TrainerOptions options, const std::string& memory_format) {
  options.memory_format = memory_format;
  forwards = 0;
  return options;
}

std::shared_ptr<ConvolutionNet> net(const std::string& memory_format, const std::string& optimizer = "adamw",
                                    int64_t dimensions = 2) {
  seed_everything(3);
  return make<ConvolutionNet>(
      {.dimensions = dimensions, .optimizer = optimizer, .channels_last = memory_format == kChannelsLast});
}

std::vector<at::Tensor> fit(const TrainerOptions& options, const std::string& memory_format,
                            const std::string& optimizer = "adamw") {
  auto module = net(memory_format, optimizer);
  Trainer trainer(in_format(options, memory_format));
  trainer.fit(module, image_loader());
  return weights(*module);
}

/// Orders of addition differ, so that the last digits may.
void expect_close(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b, const std::string& where) {
  ASSERT_EQ(a.size(), b.size()) << where;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].sizes(), b[i].sizes()) << where;
    EXPECT_TRUE(at::allclose(a[i], b[i], 1e-3, 1e-4)) << where << ", parameter " << i;
  }
}

void expect_same_training(const TrainerOptions& options, const std::string& where,
                          const std::string& optimizer = "adamw") {
  expect_close(fit(options, kContiguous, optimizer), fit(options, kChannelsLast, optimizer), where);
}

TEST(MemoryFormatOption, ImagesAndWeightsInEveryStage) {
  for (const char* precision : {"32-true", "bf16-mixed", "bf16-true"}) {
    for (const char* format : {kContiguous, kChannelsLast}) {
      TrainerOptions options = in_format(quiet(1), format);
      options.precision = precision;
      const std::string where = std::string(format) + ", " + precision;
      const auto module = net(format);
      Trainer trainer(options);
      trainer.fit(module, image_loader(), image_loader(2, false));
      EXPECT_EQ(forwards, 4 + 4) << where;
      trainer.test(module, image_loader(2, false));
      trainer.predict(module, image_loader(2, false));
      EXPECT_EQ(forwards, 8 + 4 + 4) << where;
    }
  }
}

TEST(MemoryFormatOption, Volumes) {
  for (const char* format : {kContiguous, kChannelsLast}) {
    const auto module = net(format, "sgd", 3);
    Trainer trainer(in_format(quiet(1), format));
    trainer.fit(module, image_loader(3));
    EXPECT_EQ(forwards, 4) << format;
  }
}

TEST(MemoryFormatOption, TrainsAsTheContiguousRun) {
  for (const char* optimizer : {"adamw", "sgd", "torch_sgd"}) expect_same_training(quiet(3), optimizer, optimizer);
  for (const char* algorithm : {"norm", "value", "adaptive"}) {
    TrainerOptions options = quiet(3);
    options.gradient_clip_algorithm = algorithm;
    options.gradient_clip_val = 0.02;
    options.accumulate_grad_batches = 2;
    expect_same_training(options, algorithm);
  }
}

TEST(MemoryFormatOption, TrainsAsTheContiguousRunOnSeveralRanks) {
  for (const char* strategy : {"ddp_threads", "{name: ddp_threads, find_unused_parameters: true}", "ddp_spawn", "dp"}) {
    TrainerOptions options = quiet(2);
    options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
    options.devices = 2;
    expect_same_training(options, strategy, "sgd");
  }
}

/// A checkpoint in the middle of a window of accumulation has weights, moments of the optimizer and gradients.
TEST(MemoryFormatOption, CheckpointsOfOneFormatLoadInTheOther) {
  for (const char* optimizer : {"adamw", "sgd", "torch_sgd"}) {
    TrainerOptions options = quiet(3);
    options.accumulate_grad_batches = 2;
    const std::vector<at::Tensor> whole = fit(options, kContiguous, optimizer);
    for (const char* saved_in : {kContiguous, kChannelsLast}) {
      const std::string path = fresh_folder("memory_format") + "/checkpoint";
      TrainerOptions saving = options;
      saving.callbacks = {make<LambdaCallback>(LambdaCallbackOptions{
          .on_train_batch_end = [&](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t batch_idx) {
            if (trainer.current_epoch() == 1 && batch_idx == 2) trainer.save_checkpoint(path);
          }})};
      fit(saving, saved_in, optimizer);
      for (const char* loaded_in : {kContiguous, kChannelsLast}) {
        const std::string where = std::string(optimizer) + ", " + saved_in + " to " + loaded_in;
        const auto module = net(loaded_in, optimizer);
        Trainer trainer(in_format(options, loaded_in));
        trainer.fit(module, image_loader(), {}, path);
        EXPECT_EQ(forwards, 1 + 4) << where;
        expect_close(whole, weights(*module), where);
      }
    }
  }
}

TEST(MemoryFormatOption, WeightsOfOneFormatEvaluateInTheOther) {
  const std::string path = fresh_folder("memory_format") + "/checkpoint";
  const auto trained = net(kChannelsLast);
  Trainer trainer(in_format(quiet(1), kChannelsLast));
  trainer.fit(trained, image_loader(), image_loader(2, false));
  trainer.save_checkpoint(path);
  const double expected = trainer.callback_metrics().at("val_loss");
  for (const char* format : {kContiguous, kChannelsLast}) {
    const auto module = net(format);
    Trainer evaluator(in_format(quiet(1), format));
    EXPECT_NEAR(evaluator.validate(module, image_loader(2, false), path).at(0).at("val_loss"), expected,
                1e-4 * expected);
    EXPECT_EQ(forwards, 4) << format;
  }
}

TEST(MemoryFormatOption, OtherFormatsAreRefused) {
  try {
    const Trainer trainer(in_format(quiet(1), "channels_first"));
    FAIL() << "nothing was thrown";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what())
                  .find("trainer.memory_format must be one of contiguous, channels_last; got "
                        "channels_first"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace levin
