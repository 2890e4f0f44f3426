// Learns names character by character with four LSTM layers, and invents new ones.
//
//   build/bin/pet_names fit --config examples/pet_names/pet_names.yaml
//   build/bin/pet_names predict --config examples/pet_names/pet_names.yaml --ckpt last --data.beginning=MA

#include "names.h"

#include <iostream>
#include <string>
#include <tuple>

namespace {

namespace F = torch::nn::functional;

/// torch::nn::LSTM in batches, whose outputs alone go on: [N, window, in] becomes [N, window, hidden].
class LstmLayerImpl : public torch::nn::Module {
 public:
  LstmLayerImpl(int64_t in, int64_t hidden)
      : lstm_(register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(in, hidden).batch_first(true)))) {}
  torch::Tensor forward(const torch::Tensor& x) { return std::get<0>(lstm_(x)); }

 private:
  torch::nn::LSTM lstm_;
};
LEVIN_UNIT(LstmLayer);

struct CharacterLstmOptions {
  int64_t vocabulary = 32;
  int64_t layers = 4;
  int64_t hidden = 64;
  double lr = 0.004;
  int64_t longest = 16;
  int64_t shown = 5;

  static void describe(levin::Schema<CharacterLstmOptions>& schema) {
    using O = CharacterLstmOptions;
    schema.field("vocabulary", &O::vocabulary, "characters told apart; at least those of the data").at_least(2);
    schema.field("layers", &O::layers, "stacked LSTM layers").at_least(1);
    schema.field("hidden", &O::hidden, "features of each layer").at_least(1);
    schema.field("lr", &O::lr, "Adam's learning rate").above(0);
    schema.field("longest", &O::longest, "characters of an invented name, at most").at_least(1);
    schema.field("shown", &O::shown, "names that each validation invents").at_least(1);
  }
};

class CharacterLstm : public levin::Module {
 public:
  using Options = CharacterLstmOptions;

  explicit CharacterLstm(const Options& options) : options_(options) {
    levin::Sequential net([count = options.vocabulary](const torch::Tensor& characters) {
      // In the type that the trainer's precision computes in.
      return F::one_hot(characters, count).to(torch::get_default_dtype());
    });
    for (int64_t i = 0; i < options.layers; ++i)
      net->push_back(LstmLayer(i == 0 ? options.vocabulary : options.hidden, options.hidden));
    net->push_back([](const torch::Tensor& states) { return states.select(1, -1); });
    net->push_back(torch::nn::Linear(options.hidden, options.vocabulary));
    net_ = register_module("net", net);
  }

  void setup(levin::Stage /*stage*/) override {
    const auto& names = trainer().data_module<example::Names>();
    if (names.vocabulary().size() > options_.vocabulary)
      throw levin::ConfigError("model.vocabulary must be at least the number of characters in the names; got " +
                               std::to_string(options_.vocabulary) + " for " +
                               std::to_string(names.vocabulary().size()));
  }

  levin::StepOutput training_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    const torch::Tensor loss = F::cross_entropy(net_(batch["window"]), batch["next"]);
    log("train_loss", loss, {.on_step = true, .on_epoch = true, .prog_bar = true, .sync_dist = true});
    return loss;
  }

  /// Invents names beside the first batch: in a step, where every strategy has all of the model.
  levin::StepOutput validation_step(const levin::Batch& batch, int64_t batch_idx) override {
    log("val_loss", F::cross_entropy(net_(batch["window"]), batch["next"]), {.prog_bar = true});
    if (batch_idx > 0) return {};
    return levin::Batch{{"name", invent(torch::zeros_like(batch["window"][0]).repeat({options_.shown, 1}))}};
  }

  levin::Batch predict_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    return {{"name", invent(batch["window"])}};
  }

  levin::OptimizerConfigs configure_optimizers() override {
    return std::make_shared<levin::optim::Adam>(parameters(), levin::optim::AdamOptions{.lr = options_.lr});
  }

 private:
  /// The windows, and after each the characters that follow. As many for each name, so that all ranks call the network
  /// equally often; what follows a stop sign means nothing.
  torch::Tensor invent(torch::Tensor names) {
    const int64_t window = names.size(1);
    for (int64_t i = 0; i < options_.longest; ++i) {
      const torch::Tensor logits = net_(names.slice(1, names.size(1) - window));
      names = torch::cat({names, torch::multinomial(torch::softmax(logits, 1, torch::kFloat), 1)}, 1);
    }
    return names;
  }

  Options options_;
  levin::Sequential net_{nullptr};
};

/// Prints the names that validation and prediction invent.
class InventedNames : public levin::Callback {
 public:
  void on_validation_batch_end(levin::Trainer& trainer, levin::Module& /*module*/, const levin::StepOutput& output,
                               const levin::Batch& /*batch*/, int64_t /*batch_idx*/,
                               int64_t /*dataloader_idx*/) override {
    const torch::Tensor* names = output.outputs().find("name");
    if (names == nullptr || trainer.sanity_checking() || !trainer.is_global_zero()) return;
    std::cout << "\nepoch " << trainer.current_epoch() << " invents";
    for (const torch::Tensor& name : names->unbind()) std::cout << " " << decode(trainer, name);
    std::cout << std::endl;
  }

  void on_predict_batch_end(levin::Trainer& trainer, levin::Module& /*module*/, const levin::Batch& prediction,
                            const levin::Batch& /*batch*/, int64_t /*batch_idx*/, int64_t /*dataloader_idx*/) override {
    for (const torch::Tensor& name : prediction["name"].unbind()) std::cout << decode(trainer, name) << "\n";
  }

 private:
  static std::string decode(levin::Trainer& trainer, const torch::Tensor& name) {
    return trainer.data_module<example::Names>().decode(name);
  }
};

}  // namespace

int main(int argc, char** argv) {
  levin::Cli cli;
  cli.callbacks.add<InventedNames>("invented_names", "prints the names that validation and prediction invent");
  cli.modules.add<CharacterLstm>("character_lstm", "stacked LSTM layers and a dense layer");
  cli.data.add<example::Names>("names", "names, character by character");
  return cli.run(argc, argv);
}
