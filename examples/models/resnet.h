#pragma once

#include <levin/levin.h>

#include <array>
#include <cstdint>

/// Models with the parameter names of their Python originals, so that weights go either way by name.
namespace example::models {

struct ResNetOptions {
  std::array<int64_t, 4> blocks = {2, 2, 2, 2};  ///< of each stage
  bool bottleneck = false;                       ///< blocks of 1x1, 3x3 and 1x1 convolutions
  int64_t classes = 1000;                        ///< 0: no `fc`, features come out

  static void describe(levin::Schema<ResNetOptions>& schema);
};

ResNetOptions resnet18(int64_t classes = 1000);
ResNetOptions resnet50(int64_t classes = 1000);

/// A block with a shortcut (He et al., 2015, arXiv:1512.03385), striding in its 3x3 convolution as torchvision's do:
/// [N, in, H, W] becomes [N, out, H / stride, W / stride].
struct ResidualBlockImpl : torch::nn::Module {
  ResidualBlockImpl(int64_t in, int64_t width, int64_t stride, bool bottleneck);
  torch::Tensor forward(const torch::Tensor& x);

  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr}, conv3{nullptr};  ///< conv3: of a bottleneck
  torch::nn::BatchNorm2d bn1{nullptr}, bn2{nullptr}, bn3{nullptr};
  torch::nn::Sequential downsample{nullptr};  ///< empty where the shortcut is the input
};
LEVIN_UNIT(ResidualBlock);

/// torchvision's and timm's ResNet: images [N, 3, H, W] become logits [N, classes], or, of 0 classes as in timm,
/// features [N, feature_count].
struct ResNetImpl : torch::nn::Module {
  explicit ResNetImpl(const ResNetOptions& options);
  torch::Tensor forward(const torch::Tensor& images);

  torch::nn::Conv2d conv1{nullptr};
  torch::nn::BatchNorm2d bn1{nullptr};
  std::array<levin::Sequential, 4> layers{{nullptr, nullptr, nullptr, nullptr}};  ///< layer1 to layer4
  torch::nn::Linear fc{nullptr};
  int64_t feature_count = 0;
};
TORCH_MODULE(ResNet);

}  // namespace example::models
