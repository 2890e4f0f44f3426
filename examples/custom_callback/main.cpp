// A model, data and a callback of one's own, outside Levin's tree.

#include <levin/levin.h>

#include <iostream>

namespace {

struct AnnounceOptions {
  int64_t every = 1;

  static void describe(levin::Schema<AnnounceOptions>& schema) {
    schema.field("every", &AnnounceOptions::every, "epochs between two lines").at_least(1);
  }
};

/// Prints the training loss every few epochs.
class Announce : public levin::Callback {
 public:
  using Options = AnnounceOptions;
  explicit Announce(const Options& options) : options_(options) {}

  void on_train_epoch_end(levin::Trainer& trainer, levin::Module& /*module*/) override {
    if (trainer.current_epoch() % options_.every == 0 && trainer.is_global_zero())
      std::cout << "epoch " << trainer.current_epoch() << " loss " << trainer.callback_metrics().at("train_loss")
                << "\n";
  }

 private:
  Options options_;
};

struct PointsOptions {
  int64_t size = 10'000;
  int64_t batch_size = 32;

  static void describe(levin::Schema<PointsOptions>& schema) {
    schema.field("size", &PointsOptions::size, "how many points").at_least(1);
    schema.field("batch_size", &PointsOptions::batch_size, "points in a batch").at_least(1);
  }
};

/// Random points of 8 coordinates, and the sum of each.
class Points : public levin::DataModule {
 public:
  using Options = PointsOptions;
  explicit Points(const Options& options) : options_(options) {}

  void setup(levin::Stage /*stage*/) override {
    auto x = torch::randn({options_.size, 8});
    train_ = std::make_shared<levin::data::TensorDataset>(levin::Batch{{"x", x}, {"y", x.sum(1, true)}});
  }

  levin::DataLoader train_dataloader() override {
    return levin::DataLoader(train_, {.batch_size = options_.batch_size, .shuffle = true, .num_workers = 1});
  }

 private:
  Options options_;
  std::shared_ptr<levin::data::Dataset> train_;
};

struct LinearOptions {
  double lr = 0.1;

  static void describe(levin::Schema<LinearOptions>& schema) {
    schema.field("lr", &LinearOptions::lr, "SGD learning rate").above(0);
  }
};

class Linear : public levin::Module {
 public:
  using Options = LinearOptions;
  explicit Linear(const Options& options) : options_(options) {
    linear_ = register_module("linear", torch::nn::Linear(8, 1));
  }

  levin::StepOutput training_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    auto loss = torch::mse_loss(linear_(batch["x"]), batch["y"]);
    log("train_loss", loss, {.on_step = false, .on_epoch = true, .prog_bar = true});
    return loss;
  }

  levin::OptimizerConfigs configure_optimizers() override {
    return std::make_shared<levin::optim::SGD>(parameters(), levin::optim::SGDOptions{.lr = options_.lr});
  }

 private:
  Options options_;
  torch::nn::Linear linear_{nullptr};
};

}  // namespace

int main(int argc, char** argv) {
  levin::Cli cli;
  cli.callbacks.add<Announce>("announce", "prints the training loss");
  cli.modules.add<Linear>("linear", "least squares");
  cli.data.add<Points>("points", "random points and their sums");
  return cli.run(argc, argv);
}
