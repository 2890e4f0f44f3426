#include "resnet.h"

#include <string>

namespace example::models {

namespace {

constexpr int64_t kStemChannels = 64;
constexpr int64_t kExpansion = 4;  // channels that leave a bottleneck, in widths

torch::nn::Conv2d make_conv(int64_t in, int64_t out, int64_t kernel, int64_t stride = 1) {
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
  torch::nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut, torch::kReLU);
  return conv;
}

}  // namespace

ResNetOptions resnet18(int64_t classes) { return {.blocks = {2, 2, 2, 2}, .bottleneck = false, .classes = classes}; }

ResNetOptions resnet50(int64_t classes) { return {.blocks = {3, 4, 6, 3}, .bottleneck = true, .classes = classes}; }

void ResNetOptions::describe(levin::Schema<ResNetOptions>& schema) {
  using O = ResNetOptions;
  schema.field("blocks", &O::blocks, "blocks of each of the four stages");
  schema.field("bottleneck", &O::bottleneck, "blocks of 1x1, 3x3 and 1x1 convolutions instead of two 3x3 ones");
  schema.field("classes", &O::classes, "logits of an image; 0: features").at_least(0);
}

ResidualBlockImpl::ResidualBlockImpl(int64_t in, int64_t width, int64_t stride, bool bottleneck) {
  const int64_t out = bottleneck ? kExpansion * width : width;
  conv1 = register_module("conv1", bottleneck ? make_conv(in, width, 1) : make_conv(in, width, 3, stride));
  bn1 = register_module("bn1", torch::nn::BatchNorm2d(width));
  conv2 = register_module("conv2", make_conv(width, width, 3, bottleneck ? stride : 1));
  bn2 = register_module("bn2", torch::nn::BatchNorm2d(width));
  if (bottleneck) {
    conv3 = register_module("conv3", make_conv(width, out, 1));
    bn3 = register_module("bn3", torch::nn::BatchNorm2d(out));
  }
  if (stride != 1 || in != out)
    downsample = register_module("downsample",
                                 torch::nn::Sequential(make_conv(in, out, 1, stride), torch::nn::BatchNorm2d(out)));
}

torch::Tensor ResidualBlockImpl::forward(const torch::Tensor& x) {
  torch::Tensor y = bn2(conv2(torch::relu(bn1(conv1(x)))));
  if (conv3) y = bn3(conv3(torch::relu(y)));
  return torch::relu(y + (downsample ? downsample->forward(x) : x));
}

ResNetImpl::ResNetImpl(const ResNetOptions& options) {
  conv1 = register_module("conv1", make_conv(3, kStemChannels, 7, 2));
  bn1 = register_module("bn1", torch::nn::BatchNorm2d(kStemChannels));
  int64_t channels = kStemChannels;
  for (size_t stage = 0; stage < layers.size(); ++stage) {
    const int64_t width = kStemChannels << stage;
    levin::Sequential layer;
    for (int64_t i = 0; i < options.blocks[stage]; ++i) {
      layer->push_back(ResidualBlock(channels, width, i == 0 && stage > 0 ? 2 : 1, options.bottleneck));
      channels = options.bottleneck ? kExpansion * width : width;
    }
    layers[stage] = register_module("layer" + std::to_string(stage + 1), layer);
  }
  feature_count = channels;
  if (options.classes > 0) fc = register_module("fc", torch::nn::Linear(channels, options.classes));
}

torch::Tensor ResNetImpl::forward(const torch::Tensor& images) {
  torch::Tensor x = torch::max_pool2d(torch::relu(bn1(conv1(images))), 3, 2, 1);
  for (auto& layer : layers) x = layer(x);
  const torch::Tensor features = torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1);
  return fc ? fc(features) : features;
}

}  // namespace example::models
