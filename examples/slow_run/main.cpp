// Two ways to be slow, for docs/monitoring.md: garments that are turned at random before they are classified, one by
// one or a batch at once, by a network of convolutions that are costly or not.
//
//   build/bin/slow_run fit --config examples/slow_run/loader_bound.yaml
//   build/bin/slow_run fit --config examples/slow_run/compute_bound.yaml

#include <levin/levin.h>

#include <cmath>
#include <numbers>

namespace {

namespace F = torch::nn::functional;

/// Images turned by up to 15 degrees and scaled by up to a tenth, drawn for each sample.
class TurnedImages : public levin::data::Dataset {
 public:
  TurnedImages(std::shared_ptr<const levin::data::Dataset> images, bool whole_batches)
      : images_(std::move(images)), whole_batches_(whole_batches) {}

  int64_t size() const override { return images_->size(); }

  /// One image, as one writes it first.
  levin::Batch get(int64_t index, levin::data::Generator& generator) const override {
    const levin::Batch example = images_->get(index, generator);
    const torch::Tensor turned = turn(example["image"].unsqueeze(0), matrix(generator).unsqueeze(0));
    return {{"image", turned[0]}, {"label", example["label"]}};
  }

  /// All images of a batch in two operations.
  levin::Batch get_batch(std::span<const int64_t> indices, levin::data::Generator& generator) const override {
    if (!whole_batches_) return Dataset::get_batch(indices, generator);
    const levin::Batch batch = images_->get_batch(indices, generator);
    std::vector<torch::Tensor> matrices;
    for (const int64_t index : indices) {
      levin::data::Generator of_sample = generator.for_sample(index);
      matrices.push_back(matrix(of_sample));
    }
    return {{"image", turn(batch["image"], torch::stack(matrices))}, {"label", batch["label"]}};
  }

 private:
  static torch::Tensor matrix(levin::data::Generator& generator) {
    const double angle = (generator.uniform() - 0.5) * std::numbers::pi / 6;
    const double scale = 0.9 + 0.2 * generator.uniform();
    const auto cosine = static_cast<float>(scale * std::cos(angle));
    const auto sine = static_cast<float>(scale * std::sin(angle));
    return torch::tensor({{cosine, -sine, 0.0F}, {sine, cosine, 0.0F}});
  }

  static torch::Tensor turn(const torch::Tensor& images, const torch::Tensor& matrices) {
    return torch::grid_sampler(images, torch::affine_grid_generator(matrices, images.sizes(), false),
                               /*interpolation_mode=*/0, /*padding_mode=*/1, /*align_corners=*/false);
  }

  std::shared_ptr<const levin::data::Dataset> images_;
  bool whole_batches_;
};

struct TurnedFashionMnistOptions {
  std::string root = levin::data::FashionMnistDefaults::kRoot;
  int64_t batch_size = 64;
  int64_t num_workers = 0;
  bool whole_batches = false;

  static void describe(levin::Schema<TurnedFashionMnistOptions>& schema) {
    using O = TurnedFashionMnistOptions;
    schema.field("root", &O::root, "folder of the four IDX files");
    schema.field("batch_size", &O::batch_size, "examples in a batch").at_least(1);
    schema.field("num_workers", &O::num_workers, "threads that fetch batches ahead").at_least(0);
    schema.field("whole_batches", &O::whole_batches, "turn the images of a batch together");
  }
};

/// Fashion-MNIST with turned training images.
class TurnedFashionMnist : public levin::data::FashionMnist {
 public:
  using Options = TurnedFashionMnistOptions;
  explicit TurnedFashionMnist(const Options& options)
      : FashionMnist({.root = options.root, .batch_size = options.batch_size, .num_workers = options.num_workers}),
        options_(options) {}

  levin::DataLoader train_dataloader() override {
    const Images all = read(/*training=*/true);
    const int64_t kept = all.labels.size(0) - levin::data::FashionMnistOptions{}.val_size;
    auto images = std::make_shared<levin::data::ByteImages>(
        all.images.narrow(0, 0, kept), all.labels.narrow(0, 0, kept),
        levin::data::ByteImagesOptions{.mean = {levin::data::FashionMnistDefaults::kMean},
                                       .std = {levin::data::FashionMnistDefaults::kStd}});
    return {std::make_shared<TurnedImages>(std::move(images), options_.whole_batches),
            {.batch_size = options_.batch_size, .shuffle = true, .num_workers = options_.num_workers}};
  }

 private:
  Options options_;
};

struct ConvolutionsOptions {
  int64_t channels = 16;
  int64_t blocks = 2;

  static void describe(levin::Schema<ConvolutionsOptions>& schema) {
    schema.field("channels", &ConvolutionsOptions::channels, "of each convolution").at_least(1);
    schema.field("blocks", &ConvolutionsOptions::blocks, "convolutions after the first, at half the size").at_least(0);
  }
};

class Convolutions : public levin::Module {
 public:
  using Options = ConvolutionsOptions;
  explicit Convolutions(const Options& options) {
    const int64_t channels = options.channels;
    net_->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, channels, 3).stride(2).padding(1)));
    net_->push_back(torch::nn::ReLU());
    for (int64_t block = 0; block < options.blocks; ++block) {
      net_->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, channels, 3).padding(1)));
      net_->push_back(torch::nn::BatchNorm2d(channels));
      net_->push_back(torch::nn::ReLU());
    }
    net_->push_back(torch::nn::AdaptiveAvgPool2d(4));
    net_->push_back(torch::nn::Flatten());
    net_->push_back(torch::nn::Linear(channels * 16, 10));
    register_module("net", net_);
  }

  levin::StepOutput training_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    const torch::Tensor loss = F::cross_entropy(net_(batch["image"]), batch["label"]);
    log("train_loss", loss, {.prog_bar = true});
    return loss;
  }
  levin::StepOutput validation_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    const torch::Tensor logits = net_(batch["image"]);
    log("val_loss", F::cross_entropy(logits, batch["label"]), {.prog_bar = true});
    log("val_acc", accuracy_.update(logits, batch["label"]), {.prog_bar = true});
    return {};
  }
  levin::OptimizerConfigs configure_optimizers() override {
    return std::make_shared<levin::optim::AdamW>(parameters(), levin::optim::AdamWOptions{.lr = 2e-3});
  }

 private:
  levin::Sequential net_;
  levin::metrics::Accuracy accuracy_{{.num_classes = 10}};
};

}  // namespace

int main(int argc, char** argv) {
  levin::Cli cli;
  cli.modules.add<Convolutions>("convolutions", "a column of convolutions");
  cli.data.add<TurnedFashionMnist>("turned_fashion_mnist", "Fashion-MNIST, turned at random");
  return cli.run(argc, argv);
}
