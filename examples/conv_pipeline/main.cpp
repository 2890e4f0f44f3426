// A convolutional network for small colour images, as one chain that `pipeline` cuts into stages, and the memory that
// each rank needs.
//
//   examples/conv_pipeline/compare

#include <levin/levin.h>

#include <algorithm>
#include <iostream>
#include <utility>
#include <vector>

namespace {

namespace F = torch::nn::functional;

struct ConvNetOptions {
  int64_t channels = 32;
  double lr = 1e-3;

  static void describe(levin::Schema<ConvNetOptions>& schema) {
    schema.field("channels", &ConvNetOptions::channels, "channels of the first convolution").at_least(1);
    schema.field("lr", &ConvNetOptions::lr, "Adam's learning rate").above(0);
  }
};

torch::nn::Conv2d convolution(int64_t in, int64_t out) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1));
}

/// Images [N, 3, 32, 32] become logits [N, 10]. 24 members, between any two of which a stage may end.
levin::Sequential make_net(int64_t channels) {
  levin::Sequential net;
  int64_t in = 3;
  // Each pair of convolutions ends with half the height and width: 16, 8, 4.
  for (const auto& [first, second] : {std::pair{1, 2}, {4, 4}, {8, 8}}) {
    net->push_back(convolution(in, first * channels));
    net->push_back(torch::nn::BatchNorm2d(first * channels));
    net->push_back(torch::nn::ReLU());
    net->push_back(convolution(first * channels, second * channels));
    net->push_back(torch::nn::ReLU());
    net->push_back(torch::nn::MaxPool2d(2));
    in = second * channels;
  }
  net->push_back(torch::nn::Flatten());
  net->push_back(torch::nn::Linear(in * 4 * 4, 32 * channels));
  net->push_back(torch::nn::ReLU());
  net->push_back(torch::nn::Linear(32 * channels, 16 * channels));
  net->push_back(torch::nn::ReLU());
  net->push_back(torch::nn::Linear(16 * channels, 10));
  return net;
}

class ConvNet : public levin::Module {
 public:
  using Options = ConvNetOptions;
  explicit ConvNet(const Options& options)
      : options_(options), net_(register_module("net", make_net(options.channels))) {}

  levin::StepOutput training_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    const torch::Tensor loss = F::cross_entropy(net_(batch["image"]), batch["label"]);
    log("train_loss", loss, {.prog_bar = true});
    return loss;
  }

  levin::StepOutput validation_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    const torch::Tensor logits = net_(batch["image"]);
    log("val_loss", F::cross_entropy(logits, batch["label"]));
    log("val_acc", accuracy_.update(logits, batch["label"]), {.prog_bar = true});
    return {};
  }

  levin::OptimizerConfigs configure_optimizers() override {
    return std::make_shared<levin::optim::Adam>(parameters(), levin::optim::AdamOptions{.lr = options_.lr});
  }

 private:
  Options options_;
  levin::Sequential net_;
  levin::metrics::Accuracy accuracy_{{.num_classes = 10}};
};

/// In CIFAR-10's place where it is not on disk: the images in its size, 3x32x32.
class EnlargedFashionMnist : public levin::data::FashionMnist {
 public:
  using FashionMnist::FashionMnist;

  levin::Batch on_after_batch_transfer(levin::Batch batch, int64_t /*dataloader_idx*/) override {
    const auto to_32 = F::InterpolateFuncOptions().size(std::vector<int64_t>{32, 32}).mode(torch::kNearest);
    batch.set("image", F::interpolate(batch["image"], to_32).repeat({1, 3, 1, 1}));
    return batch;
  }
};

/// Prints the most memory that tensors of each rank took in a step after the first, the data set left out: of a GPU as
/// LibTorch's allocator has it, of a CPU as the accounting allocator, which counts by thread.
class RankMemory : public levin::Callback {
 public:
  void setup(levin::Trainer& trainer, levin::Module& module, levin::Stage /*stage*/) override {
    device_ = trainer.strategy().root_device();
    most_ = 0;
    if (!device_.is_cpu()) return;
    before_ = levin::AccountingAllocator::of_this_thread().in_use();
    for (const auto& parameter : module.parameters()) before_ -= static_cast<int64_t>(parameter.nbytes());
    for (const auto& buffer : module.buffers()) before_ -= static_cast<int64_t>(buffer.nbytes());
  }

  void on_train_batch_start(levin::Trainer& /*trainer*/, levin::Module& /*module*/, const levin::Batch& /*batch*/,
                            int64_t /*batch_idx*/) override {
    if (device_.is_cpu())
      levin::AccountingAllocator::of_this_thread().restart_peak();
    else
      levin::accelerator_of(device_).restart_peak(device_);
  }

  void on_train_batch_end(levin::Trainer& trainer, levin::Module& /*module*/, const levin::StepOutput& /*output*/,
                          const levin::Batch& /*batch*/, int64_t /*batch_idx*/) override {
    if (trainer.global_step() < 2) return;  // the first step makes the optimizer's state
    const int64_t peak = device_.is_cpu() ? levin::AccountingAllocator::of_this_thread().peak() - before_
                                          : levin::accelerator_of(device_).memory_stats(device_).peak;
    most_ = std::max(most_, peak);
  }

  void on_train_end(levin::Trainer& trainer, levin::Module& /*module*/) override {
    const torch::Tensor own = torch::tensor({most_}, torch::device(device_).dtype(torch::kLong));
    const torch::Tensor all = torch::empty({trainer.world_size()}, own.options());
    trainer.strategy().collective().all_gather(all, own)->wait();
    if (!trainer.is_global_zero()) return;
    std::cout << "memory by rank (MB):";
    for (const torch::Tensor& bytes : all.cpu().unbind())
      std::cout << " " << (bytes.item<int64_t>() + 500'000) / 1'000'000;
    std::cout << std::endl;
  }

 private:
  torch::Device device_ = torch::kCPU;
  int64_t before_ = 0;
  int64_t most_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  levin::AccountingAllocator::install();  // before there is any tensor
  levin::Cli cli;
  cli.callbacks.add<RankMemory>("rank_memory", "prints the most memory that a step took on each rank");
  cli.modules.add<ConvNet>("conv_net", "six convolutions and three dense layers, as one chain");
  cli.data.add<EnlargedFashionMnist>("enlarged_fashion_mnist", "garments in CIFAR-10's size, 3x32x32, 10 classes");
  cli.data.add<levin::data::Cifar10>("cifar10", "32x32 colour images, 10 classes");
  return cli.run(argc, argv);
}
