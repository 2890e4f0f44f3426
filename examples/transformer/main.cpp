// Trains a small GPT on a text, character by character, and has it write.
//
//   build/bin/transformer fit --config examples/transformer/tiny.yaml
//   build/bin/transformer predict --config examples/transformer/tiny.yaml --ckpt last

#include "gpt.h"
#include "text.h"

#include <chrono>
#include <iostream>
#include <span>

namespace {

/// The model, where its tokens are the characters of a text: prints what it writes and logs how fast it reads.
class TextGpt : public example::Gpt {
 public:
  using Options = example::GptOptions;
  explicit TextGpt(const Options& options) : Gpt(options) {}

  void setup(levin::Stage /*stage*/) override {
    if (vocabulary().size() > options().vocabulary)
      throw levin::ConfigError("model.vocabulary must be at least the number of characters in the text; got " +
                               std::to_string(options().vocabulary) + " for " + std::to_string(vocabulary().size()));
  }

  void on_train_start() override {
    tokens_ = 0;
    seconds_ = 0;
    last_step_ = Clock::now();  // a run that goes on in the middle of an epoch does not begin one
  }
  void on_train_epoch_start() override { last_step_ = Clock::now(); }
  void on_validation_end() override { last_step_ = Clock::now(); }
  /// Over the run so far, validation left out.
  void on_train_batch_end(const levin::StepOutput& /*output*/, const levin::Batch& batch,
                          int64_t /*batch_idx*/) override {
    const auto now = Clock::now();
    seconds_ += std::chrono::duration<double>(now - last_step_).count();
    last_step_ = now;
    tokens_ += static_cast<double>(batch["target"].numel());
    log("tokens_per_second", tokens_ / seconds_,
        {.on_step = true, .prog_bar = true, .reduce = levin::LogReduce::kSum, .sync_dist = true});
  }

  void on_predict_batch_end(const levin::Batch& prediction, const levin::Batch& /*batch*/, int64_t /*batch_idx*/,
                            int64_t /*dataloader_idx*/) override {
    const torch::Tensor texts = prediction["text"].cpu();
    for (const torch::Tensor& text : texts.unbind())
      std::cout << vocabulary().decode({text.const_data_ptr<int64_t>(), static_cast<size_t>(text.numel())}) << "\n\n";
  }

 private:
  using Clock = std::chrono::steady_clock;

  const levin::data::CharacterVocabulary& vocabulary() const {
    return trainer().data_module<example::Text>().vocabulary();
  }

  Clock::time_point last_step_;
  double tokens_ = 0;
  double seconds_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  levin::Cli cli;
  cli.modules.add<TextGpt>("gpt", "a decoder-only transformer");
  cli.data.add<example::Text>("text", "the characters of a text");
  return cli.run(argc, argv);
}
