/// Fashion-MNIST by an MLP 784-512-512-10 on several workers, one of which may be slower than the others: seconds,
/// images a second and the accuracy after each epoch, as CSV.
///
///   build/bin/parameter_server_benchmark [strategy, as in YAML] [workers] [slowness of the last worker] [epochs]
///
///   build/bin/parameter_server_benchmark '{name: ddp_threads, backend: gloo}' 2 1 4
///   build/bin/parameter_server_benchmark '{name: parameter_server_threads, mode: async}' 2 2 4
///
/// A worker of slowness 2 sleeps in each step for as long as it has computed. Batches of 64 on each worker; SGD with
/// momentum. benchmarks/parameter_server_study.py runs it for docs/parameter-server.md.

#include "measure.h"

#include <levin/levin.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

namespace {

namespace F = torch::nn::functional;
using levin::benchmarks::Clock;
using levin::benchmarks::seconds_since;

struct NetOptions {
  double slowness = 1;
  double lr = 0.02;
  static void describe(levin::Schema<NetOptions>& schema) {
    schema.field("slowness", &NetOptions::slowness, "of the last worker: 2 takes twice the time").at_least(1);
    schema.field("lr", &NetOptions::lr, "learning rate").above(0);
  }
};

class Net : public levin::Module {
 public:
  using Options = NetOptions;
  explicit Net(const Options& options) : options_(options) {
    net_ = register_module(
        "net", levin::Sequential(torch::nn::Flatten(), torch::nn::Linear(784, 512), torch::nn::ReLU(),
                                 torch::nn::Linear(512, 512), torch::nn::ReLU(), torch::nn::Linear(512, 10)));
  }
  levin::StepOutput training_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    started_ = Clock::now();
    return F::cross_entropy(net_(batch["image"]), batch["label"]);
  }
  void on_after_backward() override {
    // In ddp the gradients have been reduced by now, which is no work of this worker: the forward is the measure there
    // and here, backward takes about twice its time.
    if (options_.slowness > 1 && trainer().global_rank() == trainer().world_size() - 1)
      std::this_thread::sleep_for(std::chrono::duration<double>((options_.slowness - 1) * 3 * forward_seconds_));
  }
  void on_before_backward(const at::Tensor& /*loss*/) override { forward_seconds_ = seconds_since(started_); }
  levin::StepOutput validation_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    log("val_acc", accuracy_.update(net_(batch["image"]), batch["label"]));
    return {};
  }
  levin::OptimizerConfigs configure_optimizers() override {
    return levin::OptimizerConfig{.optimizer = std::make_shared<levin::optim::SGD>(
                                      parameters(), levin::optim::SGDOptions{.lr = options_.lr, .momentum = 0.9})};
  }

 private:
  const Options options_;
  levin::Sequential net_{nullptr};
  Clock::time_point started_;
  double forward_seconds_ = 0;
  levin::metrics::Accuracy accuracy_{{.num_classes = 10}};
};

constexpr double kImages = 55000;  // of training; the others are validation

/// Rank 0's clock, validation left out.
class EpochTimer : public levin::Callback {
 public:
  void on_train_epoch_start(levin::Trainer&, levin::Module&) override { started_ = Clock::now(); }
  void on_train_epoch_end(levin::Trainer& trainer, levin::Module&) override {
    epoch_seconds_ = seconds_since(started_);
    seconds_ += epoch_seconds_;
    if (!trainer.is_global_zero()) return;
    std::printf("%d,%.3f,%.0f,%.4f\n", static_cast<int>(trainer.current_epoch() + 1), seconds_,
                kImages / epoch_seconds_, trainer.callback_metrics().at("val_acc"));
    std::fflush(stdout);
  }

 private:
  Clock::time_point started_;
  double epoch_seconds_ = 0;
  double seconds_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string strategy = argc > 1 ? argv[1] : "{name: parameter_server_threads, mode: async}";
  const int workers = argc > 2 ? std::stoi(argv[2]) : 2;
  const double slowness = argc > 3 ? std::stod(argv[3]) : 1;
  const int64_t epochs = argc > 4 ? std::stoll(argv[4]) : 4;
  torch::set_num_threads(1);
  levin::seed_everything(1);
  levin::TrainerOptions options;
  options.max_epochs = epochs;
  options.accelerator = "cpu";
  options.devices = workers;
  options.strategy = levin::Spec<levin::Strategy>(levin::Config::parse(strategy, {}));
  options.logger = false;
  options.num_sanity_val_steps = 0;
  options.enable_checkpointing = false;
  options.enable_progress_bar = false;
  options.enable_model_summary = false;
  options.callbacks = {levin::make<EpochTimer>()};
  levin::Trainer trainer(options);
  std::printf("epoch,seconds,images_per_second,val_acc\n");
  trainer.fit(levin::make<Net>({.slowness = slowness}),
              levin::make<levin::data::FashionMnist>({.batch_size = 64, .num_workers = 0}));
  return 0;
}
