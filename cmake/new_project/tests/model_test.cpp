// What a model of yours should show before it trains for long: its shapes, and that it learns a little data.

#include "data.h"
#include "model.h"

#include <iostream>

namespace {

bool expect(bool holds, const char* what) {
  if (!holds) std::cerr << "model_test: " << what << "\n";
  return holds;
}

}  // namespace

int main() {
  levin::seed_everything(1);
  auto model = levin::make<Model>({.hidden = 32});
  bool passed = expect(model->forward(torch::zeros({3, 2})).sizes() == at::IntArrayRef({3, 2}), "logits are not [N, 2]");

  levin::TrainerOptions options;
  options.max_epochs = 10;
  options.accelerator = "cpu";
  options.enable_progress_bar = options.enable_checkpointing = options.enable_model_summary = false;
  options.logger = false;
  options.optimizer = levin::Spec<levin::optim::NamedOptimizer>(levin::Config::parse("{name: adamw, lr: 0.01}", {}));
  levin::Trainer trainer(options);
  trainer.fit(model, levin::make<Circles>({.size = 1000}));
  passed &= expect(trainer.callback_metrics().at("val_acc") > 0.95, "it does not learn");
  return passed ? 0 : 1;
}
