/// Seconds of each epoch of the Fashion-MNIST MLP, validation and checkpoint included, on one thread: the peer of
/// benchmarks/peers/lightning_fashion_mnist.py.
///
///   build/bin/fashion_mnist_benchmark [epochs] [workers] [graph]       the word: with recorded steps

#include <levin/levin.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <vector>

namespace {

namespace F = torch::nn::functional;

class Mlp : public levin::Module {
 public:
  Mlp() {
    net_ = register_module("net", levin::Sequential(torch::nn::Flatten(), torch::nn::Linear(784, 128),
                                                    torch::nn::ReLU(), torch::nn::Linear(128, 10)));
  }
  levin::StepOutput training_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    auto loss = F::cross_entropy(net_(batch["image"]), batch["label"]);
    log("train_loss", loss, {.prog_bar = true});
    return loss;
  }
  levin::StepOutput validation_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    auto logits = net_(batch["image"]);
    log("val_loss", F::cross_entropy(logits, batch["label"]), {.prog_bar = true});
    log("val_acc", accuracy_.update(logits, batch["label"]), {.prog_bar = true});
    return {};
  }
  levin::OptimizerConfigs configure_optimizers() override {
    return levin::OptimizerConfig{
        .optimizer = std::make_shared<levin::optim::AdamW>(parameters(), levin::optim::AdamWOptions{.lr = 1e-3}),
        .scheduler = {.name = "cosine", .interval = levin::Interval::kStep}};
  }

 private:
  levin::Sequential net_{nullptr};
  levin::metrics::Accuracy accuracy_{{.num_classes = 10}};
};

}  // namespace

int main(int argc, char** argv) {
  const int64_t epochs = argc > 1 ? std::stoll(argv[1]) : 4;
  const int64_t workers = argc > 2 ? std::stoll(argv[2]) : 0;
  torch::set_num_threads(1);
  levin::seed_everything(1);
  const std::string root = (std::filesystem::temp_directory_path() / "levin_fashion_mnist_benchmark").string();
  std::vector<std::chrono::steady_clock::time_point> times;
  const auto now = [&](levin::Trainer&, levin::Module&) { times.push_back(std::chrono::steady_clock::now()); };
  levin::TrainerOptions options;
  options.max_epochs = epochs;
  options.accelerator = "cpu";
  options.default_root_dir = root;
  options.graph = argc > 3;
  options.callbacks = {levin::make<levin::LambdaCallback>({.on_train_end = now, .on_train_epoch_start = now}),
                       levin::make<levin::ModelCheckpoint>({.monitor = "val_loss"})};
  levin::Trainer trainer(options);
  trainer.fit(std::make_shared<Mlp>(),
              levin::make<levin::data::FashionMnist>({.batch_size = 64, .num_workers = workers}));
  std::printf("epoch seconds:");
  for (size_t i = 0; i + 1 < times.size(); ++i)
    std::printf(" %.3f", std::chrono::duration<double>(times[i + 1] - times[i]).count());
  std::printf("\n");
  std::filesystem::remove_all(root);
  return 0;
}
