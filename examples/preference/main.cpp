// A language model learns which of two answers people prefer, by direct preference optimization (Rafailov et al., 2023,
// arXiv:2305.18290). Adapters are trained; the reference model is the same weights without them.
//
//   build/bin/preference fit --config examples/preference/preference.yaml
//   build/bin/preference generate --config examples/preference/preference.yaml --ckpt best --prompt="Name a sea."

#include <levin/levin.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace {

struct PreferenceOptions {
  std::string path;
  bool pretrained = true;
  double beta = 0.1;
  std::string end;

  static void describe(levin::Schema<PreferenceOptions>& schema) {
    using O = PreferenceOptions;
    schema.field("path", &O::path, "a folder of Hugging Face with config.json, weights and tokenizer.json");
    schema.field("pretrained", &O::pretrained, "start from the folder's weights; false: random ones");
    schema.field("beta", &O::beta, "how much a step away from the reference model costs").above(0);
    schema.field("end", &O::end, "text that ends each answer (<|im_end|>)");
  }
};

/// Batches have the texts "prompt", "chosen" and "rejected".
class PreferenceModel : public levin::CausalLm {
 public:
  using Options = PreferenceOptions;

  explicit PreferenceModel(const Options& options)
      : CausalLm({.path = options.path, .pretrained = options.pretrained}),
        options_(options),
        tokenizer_((std::filesystem::path(folder()) / "tokenizer.json").string()) {}

  levin::StepOutput training_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    if (levin::active_adapters(*this).empty())
      throw levin::ConfigError("adapters.name is not set; hint: the reference model is the one without adapters");
    return preference_step(batch, "train");
  }
  levin::StepOutput validation_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    return preference_step(batch, "val");
  }

 private:
  levin::StepOutput preference_step(const levin::Batch& batch, const std::string& name) {
    const auto [tokens, next] = rows_of(batch);
    const std::vector<std::string> adapters = levin::active_adapters(*this);
    torch::Tensor reference;
    {
      const torch::NoGradGuard no_gradients;
      levin::set_active_adapters(*this, {});
      reference = log_likelihood(tokens, next);
      levin::set_active_adapters(*this, adapters);
    }
    const std::vector<torch::Tensor> rewards = (options_.beta * (log_likelihood(tokens, next) - reference)).chunk(2);
    const torch::Tensor margin = rewards[0] - rewards[1];
    const torch::Tensor loss = -torch::log_sigmoid(margin).mean();
    log(name + "_loss", loss, {.prog_bar = true});
    log(name + "_accuracy", (margin > 0).to(torch::kFloat).mean());
    return loss;
  }

  /// Of the answer of each row, [rows].
  torch::Tensor log_likelihood(const torch::Tensor& tokens, const torch::Tensor& next) {
    const torch::Tensor logits = torch::log_softmax(predict_step({{"tokens", tokens}}, 0)["logits"], -1, torch::kFloat);
    const torch::Tensor of_next = logits.gather(-1, next.clamp_min(0).unsqueeze(-1)).squeeze(-1);
    return of_next.masked_fill(next < 0, 0).sum(-1);
  }

  /// Tokens and the ones that follow, −100 where they are not of an answer; rows with the chosen answers, then those
  /// with the rejected ones, padded at the end.
  std::pair<torch::Tensor, torch::Tensor> rows_of(const levin::Batch& batch) const {
    std::vector<torch::Tensor> tokens, next;
    for (const char* answers : {"chosen", "rejected"})
      for (size_t i = 0; i < batch.texts("prompt").size(); ++i) {
        const torch::Tensor prompt = torch::tensor(tokenizer_.encode(batch.texts("prompt")[i]));
        const torch::Tensor answer = torch::tensor(tokenizer_.encode(batch.texts(answers)[i] + options_.end));
        const torch::Tensor row = torch::cat({prompt, answer});
        tokens.push_back(row.slice(0, 0, -1));
        next.push_back(torch::cat({torch::full({prompt.numel() - 1}, -100, torch::kLong), answer}));
      }
    const torch::Device device = model()->parameters().front().device();
    return {torch::nn::utils::rnn::pad_sequence(tokens, /*batch_first=*/true).to(device),
            torch::nn::utils::rnn::pad_sequence(next, /*batch_first=*/true, /*padding_value=*/-100).to(device)};
  }

  Options options_;
  levin::data::Tokenizer tokenizer_;
};

}  // namespace

int main(int argc, char** argv) {
  levin::Cli cli;
  cli.modules.add<PreferenceModel>("preference", "a language model that learns from pairs of answers");
  cli.data.add<levin::data::JsonLines>("json_lines", "rows with a prompt, a chosen and a rejected answer");
  levin::add_generate_command(cli);
  return cli.run(argc, argv);
}
