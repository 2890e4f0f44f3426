// Draws garments: a small DCGAN (Radford, Metz and Chintala, 2016, arXiv:1511.06434) on Fashion-MNIST. Two optimizers,
// stepped by hand.
//
//   build/bin/gan fit --config examples/gan/gan.yaml

#include <levin/levin.h>

#include <algorithm>

namespace {

namespace F = torch::nn::functional;

struct GanOptions {
  int64_t latent = 64;
  int64_t channels = 16;
  double lr = 1e-3;
  int64_t accumulate_grad_batches = 1;

  static void describe(levin::Schema<GanOptions>& schema) {
    schema.field("latent", &GanOptions::latent, "numbers that the generator starts from").at_least(1);
    schema.field("channels", &GanOptions::channels, "channels at 14x14; at 7x7 there are twice as many").at_least(1);
    schema.field("lr", &GanOptions::lr, "learning rate of both optimizers").above(0);
    schema
        .field("accumulate_grad_batches", &GanOptions::accumulate_grad_batches,
               "batches whose gradients are averaged for one step of both optimizers")
        .at_least(1);
  }
};

/// Noise [N, latent, 1, 1] becomes images [N, 1, 28, 28] between -1 and 1.
levin::Sequential make_generator(int64_t latent, int64_t channels) {
  using Options = torch::nn::ConvTranspose2dOptions;
  return levin::Sequential(
      torch::nn::ConvTranspose2d(Options(latent, 2 * channels, 7).bias(false)), torch::nn::BatchNorm2d(2 * channels),
      torch::nn::ReLU(),
      torch::nn::ConvTranspose2d(Options(2 * channels, channels, 4).stride(2).padding(1).bias(false)),
      torch::nn::BatchNorm2d(channels), torch::nn::ReLU(),
      torch::nn::ConvTranspose2d(Options(channels, 1, 4).stride(2).padding(1)), torch::nn::Tanh());
}

/// Images become logits [N]: above zero for what looks real. Dropout rather than the paper's batch normalisation keeps
/// it from running away from so small a generator.
levin::Sequential make_discriminator(int64_t channels) {
  using Options = torch::nn::Conv2dOptions;
  const auto leaky = torch::nn::LeakyReLUOptions().negative_slope(0.2);
  return levin::Sequential(
      torch::nn::Conv2d(Options(1, channels, 4).stride(2).padding(1)), torch::nn::LeakyReLU(leaky),
      torch::nn::Dropout(0.3), torch::nn::Conv2d(Options(channels, 2 * channels, 4).stride(2).padding(1)),
      torch::nn::LeakyReLU(leaky), torch::nn::Dropout(0.3), torch::nn::Conv2d(Options(2 * channels, 1, 7)),
      torch::nn::Flatten(torch::nn::FlattenOptions().start_dim(0)));
}

/// The initialisation of the paper, for a network with batch normalisation.
void initialize(torch::nn::Module& layer) {
  const torch::NoGradGuard no_grad;
  const bool is_norm = layer.as<torch::nn::BatchNorm2d>() != nullptr;
  for (auto& item : layer.named_parameters(/*recurse=*/false)) {
    if (item.key() == "weight")
      item.value().normal_(is_norm ? 1.0 : 0.0, 0.02);
    else
      item.value().zero_();
  }
}

class Gan : public levin::Module {
 public:
  using Options = GanOptions;

  explicit Gan(const Options& options)
      : options_(options),
        generator_(register_module("generator", make_generator(options.latent, options.channels))),
        discriminator_(register_module("discriminator", make_discriminator(options.channels))),
        shown_noise_(register_buffer("shown_noise", torch::randn({64, options.latent, 1, 1}))) {
    automatic_optimization = false;
    generator_->apply(initialize);
  }

  levin::StepOutput training_step(const levin::Batch& batch, int64_t batch_idx) override {
    // The last window of an epoch may be shorter: it steps all the same, with the mean over its own batches.
    const int64_t place = batch_idx % options_.accumulate_grad_batches;
    const int64_t left = trainer().num_training_batches().value() - (batch_idx - place);
    const int64_t window = std::min(options_.accumulate_grad_batches, left);
    const bool is_last = place == window - 1;
    {
      auto toggled = toggle_optimizer(optimizer(0), {.sync_grad = is_last});  // in it only the generator is trained
      manual_backward(generator_loss(batch) / window);
    }
    {
      auto toggled = toggle_optimizer(optimizer(1), {.sync_grad = is_last});
      manual_backward(discriminator_loss(batch) / window);
    }
    if (!is_last) return {};
    // Both step at the end, so that each window sees both networks as they were at its start, like one large batch.
    for (auto* stepped : optimizers()) {
      stepped->step();
      stepped->zero_grad();
    }
    return {};
  }

  /// What the generator makes of the same noise in every epoch. Every rank draws it, as the generator may be divided
  /// over them; log_image takes that of rank 0.
  void on_train_epoch_end() override {
    const torch::NoGradGuard no_grad;
    const auto autocast = trainer().autocast();
    generator_->eval();
    const auto images = generator_(shown_noise_);
    generator_->train();
    trainer().log_image("samples", levin::make_grid(images, {.normalize = true, .value_range = {{-1, 1}}}));
  }

  levin::Batch predict_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    return {{"image", generator_(noise_for(batch))}};
  }

  levin::OptimizerConfigs configure_optimizers() override {
    const levin::optim::AdamOptions adam{.lr = options_.lr, .betas = {0.5, 0.999}};
    return {std::make_shared<levin::optim::Adam>(generator_->parameters(), adam),
            std::make_shared<levin::optim::Adam>(discriminator_->parameters(), adam)};
  }

 private:
  torch::Tensor noise_for(const levin::Batch& batch) const {
    return torch::randn({batch.size(), options_.latent, 1, 1}, batch["image"].options());
  }

  /// How far the discriminator's opinion is from "all real" or "none real".
  torch::Tensor loss_of(const torch::Tensor& images, bool are_real) {
    const auto logits = discriminator_(images);
    return F::binary_cross_entropy_with_logits(logits, torch::full_like(logits, are_real ? 1.0 : 0.0));
  }

  torch::Tensor generator_loss(const levin::Batch& batch) {
    auto loss = loss_of(generator_(noise_for(batch)), true);
    log("g_loss", loss, {.prog_bar = true});
    return loss;
  }

  torch::Tensor discriminator_loss(const levin::Batch& batch) {
    auto loss = (loss_of(batch["image"], true) + loss_of(generator_(noise_for(batch)), false)) / 2;
    log("d_loss", loss, {.prog_bar = true});
    return loss;
  }

  Options options_;
  levin::Sequential generator_;
  levin::Sequential discriminator_;
  torch::Tensor shown_noise_;
};

}  // namespace

int main(int argc, char** argv) {
  levin::Cli cli;
  cli.modules.add<Gan>("dcgan", "a generator and a discriminator of convolutions");
  cli.data.add<levin::data::FashionMnist>("fashion_mnist", "28x28 images of garments, 10 classes");
  return cli.run(argc, argv);
}
