// Classifies the photographs of a folder that has a folder for each class, with a small residual network.
//
//   build/bin/image_folder fit --config examples/image_folder/image_folder.yaml --data.root=FOLDER

#include <levin/levin.h>

namespace {

namespace F = torch::nn::functional;

/// Two convolutions and a way around them; the first may halve height and width.
class BlockImpl : public torch::nn::Module {
 public:
  BlockImpl(int64_t in, int64_t out, int64_t stride)
      : first_(register_module("first", convolution(in, out, 3, stride))),
        first_norm_(register_module("first_norm", torch::nn::BatchNorm2d(out))),
        second_(register_module("second", convolution(out, out, 3, 1))),
        second_norm_(register_module("second_norm", torch::nn::BatchNorm2d(out))) {
    if (in != out || stride != 1) shortcut_ = register_module("shortcut", convolution(in, out, 1, stride));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    auto y = torch::relu(first_norm_(first_(x)));
    y = second_norm_(second_(y));
    return torch::relu(y + (shortcut_ ? shortcut_(x) : x));
  }

 private:
  static torch::nn::Conv2d convolution(int64_t in, int64_t out, int64_t size, int64_t stride) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, size).stride(stride).padding(size / 2).bias(false));
  }

  torch::nn::Conv2d first_;
  torch::nn::BatchNorm2d first_norm_;
  torch::nn::Conv2d second_;
  torch::nn::BatchNorm2d second_norm_;
  torch::nn::Conv2d shortcut_{nullptr};
};
LEVIN_UNIT(Block);

struct ResNetOptions {
  int64_t num_classes = 2;
  int64_t width = 16;
  double lr = 2e-3;

  static void describe(levin::Schema<ResNetOptions>& schema) {
    schema.field("num_classes", &ResNetOptions::num_classes, "folders of images").at_least(2);
    schema.field("width", &ResNetOptions::width, "channels of the first block; each further one has twice as many")
        .at_least(1);
    schema.field("lr", &ResNetOptions::lr, "learning rate").above(0);
  }
};

class ResNet : public levin::Module {
 public:
  using Options = ResNetOptions;
  explicit ResNet(const Options& options)
      : net_(register_module("net", layers(options.width, options.num_classes))),
        lr_(options.lr),
        accuracy_({.num_classes = options.num_classes}) {}

  levin::StepOutput training_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    auto loss = F::cross_entropy(net_(batch["image"]), batch["label"]);
    log("train_loss", loss, {.prog_bar = true});
    return loss;
  }

  levin::StepOutput validation_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    auto logits = net_(batch["image"]);
    auto loss = F::cross_entropy(logits, batch["label"]);
    log("val_loss", loss, {.prog_bar = true});
    log("val_acc", accuracy_.update(logits, batch["label"]), {.prog_bar = true});
    return loss;
  }

  levin::OptimizerConfigs configure_optimizers() override {
    auto adamw = std::make_shared<levin::optim::AdamW>(parameters(), levin::optim::AdamWOptions{.lr = lr_});
    return levin::OptimizerConfig{.optimizer = adamw,
                                  .scheduler = {.name = "cosine", .interval = levin::Interval::kStep}};
  }

 private:
  static levin::Sequential layers(int64_t width, int64_t num_classes) {
    return levin::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, width, 3).padding(1)),
                             Block(width, width, 1), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2),
                             torch::nn::AdaptiveAvgPool2d(1), torch::nn::Flatten(),
                             torch::nn::Linear(4 * width, num_classes));
  }

  levin::Sequential net_;
  double lr_;
  levin::metrics::Accuracy accuracy_;
};

}  // namespace

int main(int argc, char** argv) {
  levin::Cli cli;
  cli.modules.add<ResNet>("resnet", "three residual blocks");
  cli.data.add<levin::data::ImageFolder>("image_folder", "a folder of images for each class");
  return cli.run(argc, argv);
}
