#pragma once

#include <levin/levin.h>

#include <array>
#include <cstdint>
#include <string>

/// Residual networks with pre-activation (He et al., 2016, "Identity Mappings in Deep Residual Networks",
/// arXiv:1603.05027) as Keras has them: ResNet50V2, ResNet152V2.
namespace example {

struct ResNetV2Options {
  int64_t image_size = 128;
  int64_t classes = 10;
  double lr = 0.01;
  double momentum = 0.9;
  double weight_decay = 1e-4;

  static void describe(levin::Schema<ResNetV2Options>& schema);
};

/// Images [N, 1 or 3, H, W] become [N, 64, size / 4, size / 4]: enlarged to squares of `size` pixels where they are of
/// another size, the one channel of grey images taken three times, then a 7x7 convolution and pooling.
struct StemImpl : torch::nn::Module {
  explicit StemImpl(int64_t image_size);
  torch::Tensor forward(const torch::Tensor& images);

  torch::nn::Conv2d conv{nullptr};

 private:
  int64_t image_size_;
};
LEVIN_UNIT(Stem);

struct BlockOptions {
  int64_t in = 0;         ///< channels of what comes in
  int64_t width = 0;      ///< channels of the 3x3 convolution; what goes out has four times as many
  int64_t stride = 1;     ///< of the 3x3 convolution
  bool projects = false;  ///< the shortcut is a convolution
};

/// A bottleneck with normalisation and ReLU before each of its convolutions: [N, in, H, W] becomes
/// [N, 4 * width, H / stride, W / stride].
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const BlockOptions& options);
  torch::Tensor forward(const torch::Tensor& x);

  torch::nn::BatchNorm2d preact_bn{nullptr};
  torch::nn::Conv2d shortcut{nullptr};  ///< empty where the block does not project
  torch::nn::Conv2d conv1{nullptr};
  torch::nn::BatchNorm2d bn1{nullptr};
  torch::nn::Conv2d conv2{nullptr};
  torch::nn::BatchNorm2d bn2{nullptr};
  torch::nn::Conv2d conv3{nullptr};

 private:
  int64_t stride_;
};
LEVIN_UNIT(Block);

/// [N, channels, H, W] becomes logits [N, classes]: normalisation, ReLU, the mean over each channel, a linear layer.
struct HeadImpl : torch::nn::Module {
  HeadImpl(int64_t channels, int64_t classes);
  torch::Tensor forward(const torch::Tensor& x);

  torch::nn::BatchNorm2d bn{nullptr};
  torch::nn::Linear linear{nullptr};
};
LEVIN_UNIT(Head);

/// Batches have "image", float [N, 1 or 3, H, W], and "label", int64 [N]. Logs train_loss, val_loss, val_acc, test_loss
/// and test_acc.
class ResNetV2 : public levin::Module {
 public:
  using Options = ResNetV2Options;

  void configure_model() override;
  levin::StepOutput training_step(const levin::Batch& batch, int64_t batch_idx) override;
  levin::StepOutput validation_step(const levin::Batch& batch, int64_t batch_idx) override;
  levin::StepOutput test_step(const levin::Batch& batch, int64_t batch_idx) override;
  levin::Batch predict_step(const levin::Batch& batch, int64_t batch_idx) override;
  levin::Batch export_step(const levin::Batch& batch) override { return {{"logits", net_(batch["image"])}}; }
  levin::OptimizerConfigs configure_optimizers() override;

  /// Logits [N, classes], once configure_model has made the layers.
  torch::Tensor forward(const torch::Tensor& images) { return net_(images); }

 protected:
  /// `blocks`: of each of the four stages.
  ResNetV2(const Options& options, const std::array<int64_t, 4>& blocks)
      : options_(options), blocks_(blocks), accuracy_({.num_classes = options.classes}) {}

 private:
  levin::StepOutput evaluate(const levin::Batch& batch, const std::string& stage);

  Options options_;
  std::array<int64_t, 4> blocks_;
  levin::Sequential net_{nullptr};
  levin::metrics::Accuracy accuracy_;
};

class ResNet50V2 : public ResNetV2 {
 public:
  explicit ResNet50V2(const Options& options) : ResNetV2(options, {3, 4, 6, 3}) {}
};

class ResNet152V2 : public ResNetV2 {
 public:
  explicit ResNet152V2(const Options& options) : ResNetV2(options, {3, 8, 36, 3}) {}
};

}  // namespace example
