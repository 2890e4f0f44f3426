// Trains for two epochs with the installed package, with data loaded by a thread, and checks that the loss went down.

#include <levin/build_info.h>
#include <levin/levin.h>

#include <iostream>
#include <memory>

namespace {

class LinearModel : public levin::Module {
 public:
  LinearModel() { linear_ = register_module("linear", torch::nn::Linear(4, 1)); }

  levin::StepOutput training_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    auto loss = torch::mse_loss(linear_(batch["x"]), batch["y"]);
    log("train_loss", loss, {.on_step = false, .on_epoch = true});
    return loss;
  }

  levin::OptimizerConfigs configure_optimizers() override {
    return levin::OptimizerConfig{
        .optimizer = std::make_shared<levin::optim::SGD>(parameters(), levin::optim::SGDOptions{.lr = 0.1})};
  }

 private:
  torch::nn::Linear linear_{nullptr};
};

}  // namespace

int main() {
  levin::seed_everything(1);
  auto x = torch::randn({64, 4});
  auto data = std::make_shared<levin::data::TensorDataset>(levin::Batch{{"x", x}, {"y", x.sum(1, true)}});
  auto module = std::make_shared<LinearModel>();

  levin::Trainer trainer({.max_epochs = 5, .default_root_dir = "consumer_run"});
  trainer.fit(module, levin::DataLoader(data, {.batch_size = 8, .shuffle = true, .num_workers = 1}));

  const double loss = trainer.callback_metrics().at("train_loss");
  std::cout << "levin " << LEVIN_VERSION << " with LibTorch " << LEVIN_LIBTORCH_VERSION << ": loss " << loss << "\n";
  return loss < 0.1 ? 0 : 1;
}
