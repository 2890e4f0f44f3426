// Classifies Fashion-MNIST with a multilayer perceptron (`mlp`) or a small convolutional network (`cnn`).
//
//   build/bin/fashion_mnist fit --config examples/fashion_mnist/mlp.yaml

#include <levin/levin.h>

namespace {

namespace F = torch::nn::functional;

/// What both models do with their logits. A subclass makes `net_`.
class Classifier : public levin::Module {
 public:
  levin::StepOutput training_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    auto loss = F::cross_entropy(net_(batch["image"]), batch["label"]);
    log("train_loss", loss, {.prog_bar = true});
    return loss;
  }

  levin::StepOutput validation_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    return evaluate(batch, "val");
  }

  levin::StepOutput test_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    return evaluate(batch, "test");
  }

  levin::Batch predict_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    return {{"class", net_(batch["image"]).argmax(1)}};
  }

  levin::Batch export_step(const levin::Batch& batch) override { return {{"logits", net_(batch["image"])}}; }

  levin::OptimizerConfigs configure_optimizers() override {
    auto adamw = std::make_shared<levin::optim::AdamW>(parameters(), levin::optim::AdamWOptions{.lr = lr_});
    return levin::OptimizerConfig{.optimizer = adamw,
                                  .scheduler = {.name = "cosine", .interval = levin::Interval::kStep}};
  }

 protected:
  Classifier(levin::Sequential net, double lr) : net_(register_module("net", std::move(net))), lr_(lr) {}

 private:
  levin::StepOutput evaluate(const levin::Batch& batch, const std::string& stage) {
    auto logits = net_(batch["image"]);
    auto loss = F::cross_entropy(logits, batch["label"]);
    log(stage + "_loss", loss, {.prog_bar = true});
    log(stage + "_acc", accuracy_.update(logits, batch["label"]), {.prog_bar = true});
    return loss;
  }

  levin::Sequential net_;
  double lr_;
  levin::metrics::Accuracy accuracy_{{.num_classes = 10}};
};

struct MlpOptions {
  int64_t hidden = 128;
  double lr = 1e-3;

  static void describe(levin::Schema<MlpOptions>& schema) {
    schema.field("hidden", &MlpOptions::hidden, "width of the hidden layer").at_least(1);
    schema.field("lr", &MlpOptions::lr, "AdamW learning rate").above(0);
  }
};

class Mlp : public Classifier {
 public:
  using Options = MlpOptions;

  explicit Mlp(const Options& options)
      : Classifier(levin::Sequential(torch::nn::Flatten(), torch::nn::Linear(784, options.hidden), torch::nn::ReLU(),
                                     torch::nn::Linear(options.hidden, 10)),
                   options.lr) {}
};

struct CnnOptions {
  int64_t channels = 32;
  double dropout = 0.1;
  double lr = 2e-3;

  static void describe(levin::Schema<CnnOptions>& schema) {
    schema.field("channels", &CnnOptions::channels, "channels of the first block; the second has twice as many")
        .at_least(1);
    schema.field("dropout", &CnnOptions::dropout, "share of the features left out while training").at_least(0).below(1);
    schema.field("lr", &CnnOptions::lr, "AdamW learning rate").above(0);
  }
};

/// Convolution, normalisation, and half the height and width.
levin::Sequential conv_block(int64_t in, int64_t out) {
  return levin::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1).bias(false)),
                           torch::nn::BatchNorm2d(out), torch::nn::ReLU(), torch::nn::MaxPool2d(2));
}

class Cnn : public Classifier {
 public:
  using Options = CnnOptions;

  explicit Cnn(const Options& options)
      : Classifier(
            levin::Sequential(conv_block(1, options.channels), conv_block(options.channels, 2 * options.channels),
                              torch::nn::Flatten(), torch::nn::Dropout(options.dropout),
                              torch::nn::Linear(2 * options.channels * 7 * 7, 10)),
            options.lr) {}
};

}  // namespace

int main(int argc, char** argv) {
  levin::Cli cli;
  cli.modules.add<Mlp>("mlp", "one hidden layer");
  cli.modules.add<Cnn>("cnn", "two convolutional blocks");
  cli.data.add<levin::data::FashionMnist>("fashion_mnist", "28x28 images of garments, 10 classes");
  return cli.run(argc, argv);
}
