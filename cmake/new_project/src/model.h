#pragma once

#include <levin/levin.h>

struct ModelOptions {
  int64_t hidden = 64;

  static void describe(levin::Schema<ModelOptions>& schema) {
    schema.field("hidden", &ModelOptions::hidden, "width of the hidden layer").at_least(1);
  }
};

/// Tells two classes of points of the plane apart. The optimizer is named in config.yaml.
class Model : public levin::Module {
 public:
  using Options = ModelOptions;

  explicit Model(const Options& options) {
    first_ = register_module("first", torch::nn::Linear(2, options.hidden));
    second_ = register_module("second", torch::nn::Linear(options.hidden, 2));
  }

  at::Tensor forward(const at::Tensor& points) { return second_(first_(points).tanh()); }

  levin::StepOutput training_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    auto loss = torch::nn::functional::cross_entropy(forward(batch["point"]), batch["label"]);
    log("train_loss", loss, {.prog_bar = true});
    return loss;
  }

  levin::StepOutput validation_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    log("val_acc", accuracy_.update(forward(batch["point"]), batch["label"]), {.prog_bar = true});
    return {};
  }

  levin::Batch predict_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    return {{"label", forward(batch["point"]).argmax(1)}};
  }

 private:
  torch::nn::Linear first_{nullptr};
  torch::nn::Linear second_{nullptr};
  levin::metrics::Accuracy accuracy_{{.num_classes = 2}};
};
