// A ResNet with weights of timm or torchvision learns other classes: its new head first, then all of it.
//
//   build/bin/fine_tuning fit --config examples/fine_tuning/fine_tuning.yaml --data.root=FOLDER

#include "../models/resnet.h"

namespace {

namespace F = torch::nn::functional;
namespace models = example::models;

struct FineTunedOptions {
  int64_t num_classes = 2;

  static void describe(levin::Schema<FineTunedOptions>& schema) {
    schema.field("num_classes", &FineTunedOptions::num_classes, "folders of images").at_least(2);
  }
};

/// `backbone` has the names of the file that it starts from; `head` is new. Its optimizer is that of the YAML.
class FineTuned : public levin::Module {
 public:
  using Options = FineTunedOptions;
  explicit FineTuned(const Options& options)
      : backbone_(register_module("backbone", models::ResNet(models::resnet18(/*classes=*/0)))),
        head_(register_module("head", torch::nn::Linear(backbone_->feature_count, options.num_classes))),
        accuracy_({.num_classes = options.num_classes}) {}

  levin::StepOutput training_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    const auto loss = F::cross_entropy(head_(backbone_(batch["image"])), batch["label"]);
    log("train_loss", loss, {.prog_bar = true});
    return loss;
  }

  levin::StepOutput validation_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    const auto logits = head_(backbone_(batch["image"]));
    log("val_loss", F::cross_entropy(logits, batch["label"]), {.prog_bar = true});
    log("val_acc", accuracy_.update(logits, batch["label"]), {.prog_bar = true});
    return {};
  }

 private:
  models::ResNet backbone_;
  torch::nn::Linear head_;
  levin::metrics::Accuracy accuracy_;
};

}  // namespace

int main(int argc, char** argv) {
  levin::Cli cli;
  cli.modules.add<FineTuned>("fine_tuned", "a ResNet-18 with a new head");
  cli.data.add<levin::data::ImageFolder>("image_folder", "a folder of images for each class");
  return cli.run(argc, argv);
}
