#include "resnet_v2.h"

#include <memory>
#include <vector>

namespace example {

namespace {

namespace F = torch::nn::functional;

constexpr int64_t kStemChannels = 64;

torch::nn::BatchNorm2d make_norm(int64_t channels) {
  return torch::nn::BatchNorm2d(torch::nn::BatchNorm2dOptions(channels).eps(1.001e-5));  // as Keras' models have it
}

/// Initialised for what ReLU follows or precedes (He et al., 2015, arXiv:1502.01852).
torch::nn::Conv2d make_conv(const torch::nn::Conv2dOptions& options) {
  torch::nn::Conv2d conv(options);
  torch::nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut, torch::kReLU);
  if (conv->bias.defined()) torch::nn::init::zeros_(conv->bias);
  return conv;
}

}  // namespace

void ResNetV2Options::describe(levin::Schema<ResNetV2Options>& schema) {
  using O = ResNetV2Options;
  schema.field("image_size", &O::image_size, "images are enlarged to squares of so many pixels").at_least(32);
  schema.field("classes", &O::classes, "logits of an image").at_least(2);
  schema.field("lr", &O::lr, "SGD's learning rate on one device; scale_lr of a strategy multiplies it").above(0);
  schema.field("momentum", &O::momentum, "of SGD").at_least(0).below(1);
  schema.field("weight_decay", &O::weight_decay, "of all parameters").at_least(0);
}

StemImpl::StemImpl(int64_t image_size) : image_size_(image_size) {
  conv = register_module("conv", make_conv(torch::nn::Conv2dOptions(3, kStemChannels, 7).stride(2).padding(3)));
}

torch::Tensor StemImpl::forward(const torch::Tensor& images) {
  torch::Tensor x = images.size(1) == 1 ? images.expand({-1, 3, -1, -1}) : images;
  if (x.size(2) != image_size_ || x.size(3) != image_size_)
    x = F::interpolate(x, F::InterpolateFuncOptions()
                              .size(std::vector<int64_t>{image_size_, image_size_})
                              .mode(torch::kBilinear)
                              .align_corners(false));
  // Keras pads with zeros; the padding of torch's pooling never wins.
  return torch::max_pool2d(torch::constant_pad_nd(conv(x), {1, 1, 1, 1}), 3, 2);
}

BlockImpl::BlockImpl(const BlockOptions& options) : stride_(options.stride) {
  using Conv = torch::nn::Conv2dOptions;
  const int64_t width = options.width;
  preact_bn = register_module("preact_bn", make_norm(options.in));
  if (options.projects)
    shortcut = register_module("shortcut", make_conv(Conv(options.in, 4 * width, 1).stride(options.stride)));
  conv1 = register_module("conv1", make_conv(Conv(options.in, width, 1).bias(false)));
  bn1 = register_module("bn1", make_norm(width));
  conv2 = register_module("conv2", make_conv(Conv(width, width, 3).stride(options.stride).padding(1).bias(false)));
  bn2 = register_module("bn2", make_norm(width));
  conv3 = register_module("conv3", make_conv(Conv(width, 4 * width, 1)));
}

torch::Tensor BlockImpl::forward(const torch::Tensor& x) {
  const torch::Tensor active = torch::relu(preact_bn(x));
  torch::Tensor passed = x;
  if (shortcut)
    passed = shortcut(active);
  else if (stride_ > 1)
    passed = torch::max_pool2d(x, 1, stride_);  // every other pixel
  torch::Tensor y = torch::relu(bn1(conv1(active)));
  y = torch::relu(bn2(conv2(y)));
  return passed + conv3(y);
}

HeadImpl::HeadImpl(int64_t channels, int64_t classes) {
  bn = register_module("bn", make_norm(channels));
  linear = register_module("linear", torch::nn::Linear(channels, classes));
}

torch::Tensor HeadImpl::forward(const torch::Tensor& x) { return linear(torch::relu(bn(x)).mean({2, 3})); }

void ResNetV2::configure_model() {
  if (net_) return;
  levin::Sequential net;
  net->push_back(Stem(options_.image_size));
  int64_t channels = kStemChannels;
  for (size_t stage = 0; stage < blocks_.size(); ++stage) {
    const int64_t width = kStemChannels << stage;
    for (int64_t i = 0; i < blocks_[stage]; ++i) {
      // As Keras has it, it is the last block of a stage that halves height and width; the paper's first one does.
      const bool halves = i == blocks_[stage] - 1 && stage + 1 < blocks_.size();
      net->push_back(Block(BlockOptions{.in = channels, .width = width, .stride = halves ? 2 : 1, .projects = i == 0}));
      channels = 4 * width;
    }
  }
  net->push_back(Head(channels, options_.classes));
  net_ = register_module("net", net);
}

levin::StepOutput ResNetV2::training_step(const levin::Batch& batch, int64_t /*batch_idx*/) {
  const torch::Tensor loss = F::cross_entropy(net_(batch["image"]), batch["label"]);
  log("train_loss", loss, {.on_epoch = true, .prog_bar = true, .sync_dist = true});
  return loss;
}

levin::StepOutput ResNetV2::validation_step(const levin::Batch& batch, int64_t /*batch_idx*/) {
  return evaluate(batch, "val");
}

levin::StepOutput ResNetV2::test_step(const levin::Batch& batch, int64_t /*batch_idx*/) {
  return evaluate(batch, "test");
}

levin::Batch ResNetV2::predict_step(const levin::Batch& batch, int64_t /*batch_idx*/) {
  return {{"class", net_(batch["image"]).argmax(1)}};
}

levin::OptimizerConfigs ResNetV2::configure_optimizers() {
  return levin::OptimizerConfig{
      .optimizer = std::make_shared<levin::optim::SGD>(
          parameters(), levin::optim::SGDOptions{
                            .lr = options_.lr, .momentum = options_.momentum, .weight_decay = options_.weight_decay})};
}

levin::StepOutput ResNetV2::evaluate(const levin::Batch& batch, const std::string& stage) {
  const torch::Tensor logits = net_(batch["image"]);
  const torch::Tensor loss = F::cross_entropy(logits, batch["label"]);
  log(stage + "_loss", loss, {.prog_bar = true});
  log(stage + "_acc", accuracy_.update(logits, batch["label"]), {.prog_bar = true});
  return loss;
}

}  // namespace example
