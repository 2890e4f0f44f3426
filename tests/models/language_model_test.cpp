// Language models of a folder of Hugging Face against transformers' classes.

#include "../loggers/test_python.h"
#include "../support/run_program.h"
#include "../support/tiny.h"
#include "../support/torch_python.h"

#include <levin/core/checkpoint/safetensors.h>
#include <levin/core/models/language_model_files.h>
#include <levin/core/nn/transformer/key_value_cache.h>
#include <levin/core/nn/transformer/language_model_config.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace levin {
namespace {

using ::testing::HasSubstr;

double difference(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max().clamp_min(1)).item<double>();
}

/// Tokens and the likeliest ones that follow, one by one.
at::Tensor continued(nn::CausalLanguageModel& model, at::Tensor tokens, int64_t more) {
  nn::KeyValueCache cache({.step = 4});
  at::Tensor fresh = tokens;
  for (int64_t i = 0; i < more; ++i) {
    const at::Tensor positions = torch::arange(cache.length(), cache.length() + fresh.size(1));
    const nn::KeyValueCache::Step step(cache, positions);
    fresh = model(fresh, positions).select(1, -1).argmax(1, /*keepdim=*/true);
    tokens = torch::cat({tokens, fresh}, 1);
  }
  return tokens;
}

class LanguageModelFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = testing::missing_module("transformers"); !missing.empty()) GTEST_SKIP() << missing;
    torch_packages_ = testing::torch_packages();
    if (torch_packages_.empty()) GTEST_SKIP() << "no torch for Python; hint: scripts/bootstrap";
  }
  void python(const std::string& command) const {
    const auto run = testing::run_program({testing::test_python(), "-W", "ignore",
                                           testing::source_path("tests/models/language_models.py"), command, folder_},
                                          {.environment = {{"PYTHONPATH", torch_packages_}, {"HF_HUB_OFFLINE", "1"}}});
    ASSERT_EQ(run.status, 0) << run.out << run.err;
  }
  const std::string folder_ = testing::fresh_folder("language_models");

 private:
  std::string torch_packages_;
};

TEST_F(LanguageModelFiles, ComputeWhatTransformersComputesAndGoBack) {
  python("make");
  if (HasFatalFailure()) return;
  for (const std::string name :
       {"llama2", "llama3", "llama_biases", "smollm", "smollm3", "smollm3_sliding", "mistral", "mistral_all", "qwen2",
        "qwen2_sliding", "qwen3", "olmo2", "gemma3", "gemma3_scaled", "gpt2"}) {
    SCOPED_TRACE(name);
    const std::string folder = folder_ + "/" + name;
    const at::Tensor generator = at::detail::getDefaultCPUGenerator().get_state();
    nn::CausalLanguageModel model = load_language_model(folder);
    EXPECT_TRUE(at::detail::getDefaultCPUGenerator().get_state().equal(generator)) << "nothing is drawn before loading";
    model->eval();
    const SafetensorsFile results(folder + "/results.safetensors.out");
    const at::Tensor tokens = results.read("tokens");
    const at::Tensor logits = results.read("logits");
    EXPECT_GT(logits.std().item<double>(), 0.1) << "logits that are all alike would show nothing";
    EXPECT_LT(difference(model(tokens), logits), 1e-5);
    const at::Tensor loss = model->loss(tokens, results.read("targets"));
    EXPECT_LT(difference(loss, results.read("loss")), 1e-5);
    loss.backward();
    const at::Tensor embedding = model->named_parameters()["net.0.embed_tokens"].grad();
    EXPECT_LT((embedding - results.read("embedding")).abs().max().item<double>(),
              1e-5 * results.read("embedding").abs().max().item<double>());

    const torch::NoGradGuard no_gradients;
    const at::Tensor positions = results.read("positions");
    const at::Tensor present = positions.ge(0).unsqueeze(-1);
    EXPECT_LT(difference(model(tokens, positions) * present, results.read("padded") * present), 1e-5);
    nn::KeyValueCache cache;
    std::vector<at::Tensor> pieces;
    int64_t begin = 0;
    for (const int64_t size : {6, 1, 1, 3}) {
      const at::Tensor some = positions.narrow(1, begin, size);
      const nn::KeyValueCache::Step step(cache, some);
      pieces.push_back(model(tokens.narrow(1, begin, size), some));
      begin += size;
    }
    EXPECT_LT(difference(torch::cat(pieces, 1) * present, results.read("padded") * present), 1e-5);

    EXPECT_TRUE(continued(model, tokens, 20).equal(results.read("words")));

    save_language_model(model, folder + "/back", folder + "/config.json");
  }
  python("check");

  // What older files leave out, or call otherwise.
  const auto older = [&](const std::string& name, const std::function<void(Config&)>& change) {
    Config config = Config::load(folder_ + "/" + name + "/config.json");
    change(config);
    const nn::LanguageModelOptions newer = nn::language_model_options(folder_ + "/" + name);
    const nn::LanguageModelOptions result = nn::language_model_options(config, name);
    EXPECT_EQ(result.has_sliding_window, newer.has_sliding_window) << name;
    EXPECT_EQ(result.has_rotary, newer.has_rotary) << name;
    EXPECT_EQ(result.block.attention.key_value_heads, newer.block.attention.key_value_heads) << name;
    const auto expect_rotary = [&](const std::optional<nn::RotaryOptions>& a,
                                   const std::optional<nn::RotaryOptions>& b) {
      ASSERT_EQ(a.has_value(), b.has_value()) << name;
      if (!a) return;
      const at::Tensor first = at::zeros({1}, at::kLong);
      EXPECT_TRUE(nn::RotaryEmbedding(*a)->frequencies(first).equal(nn::RotaryEmbedding(*b)->frequencies(first)))
          << name;
    };
    expect_rotary(result.rotary, newer.rotary);
    expect_rotary(result.sliding_rotary, newer.sliding_rotary);
  };
  for (const std::string name : {"qwen2_sliding", "smollm3_sliding", "gemma3_scaled"})
    older(name, [](Config& config) { config.erase("layer_types"); });
  older("smollm3_sliding", [](Config& config) { config.erase("no_rope_layers"); });
  older("llama3", [](Config& config) {
    Config scaling = *config.find("rope_parameters");
    config.set("rope_theta", *scaling.find("rope_theta"));
    scaling.erase("rope_theta");
    config.set("rope_scaling", scaling);
    config.erase("rope_parameters");
  });
  older("gemma3_scaled", [](Config& config) {
    config.set("rope_theta", Config::scalar("5000.0"));
    config.set("rope_local_base_freq", Config::scalar("100.0"));
    config.set("rope_scaling", Config::parse("{type: linear, factor: 8}", {}));
    config.erase("rope_parameters");
    config.set("sliding_window_pattern", Config::scalar("6"));
    config.erase("layer_types");
  });

  const nn::LanguageModelOptions options = nn::language_model_options(folder_ + "/body");
  const WeightReport report = load_weights(*nn::CausalLanguageModel(options), [&] {
    LoadWeightsOptions body = language_model_weights(options, folder_ + "/body");
    body.strict = false;
    return body;
  }());
  EXPECT_EQ(report.missing, std::vector<std::string>{"net.4.lm_head"});
  EXPECT_TRUE(report.left_over.empty());
}

const std::string kSizes =
    "model_type: llama, vocab_size: 37, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 2, "
    "num_attention_heads: 4";

std::string message_of(const std::string& config) {
  try {
    nn::CausalLanguageModel(nn::language_model_options(Config::parse("{" + config + "}", {}), "config.json"));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(LanguageModelConfig, RefusesWhatItDoesNotUnderstand) {
  EXPECT_EQ(message_of(kSizes), "");
  EXPECT_EQ(message_of(kSizes + ", rope_theta: 1e5, torch_dtype: bfloat16, architectures: [LlamaForCausalLM]"), "");
  const auto expect = [](const std::string& config, const std::string& part) {
    EXPECT_THAT(message_of(config), HasSubstr(part));
  };
  expect("vocab_size: 3", "model_type is missing; valid: gemma3_text, gpt2, llama");
  expect("model_type: lama", "got 'lama'; did you mean 'llama'?");
  expect("model_type: llama", "vocab_size is missing");
  expect(kSizes + ", vision_config: {a: 1}", "vision_config is not supported");
  expect(kSizes + ", kv_lora_rank: 8", "kv_lora_rank multi-latent attention is not supported");
  expect(kSizes + ", final_logit_softcapping: 30.0", "soft-capping of logits is not supported");
  expect(kSizes + ", attn_logit_softcapping: 50.0", "soft-capping of attention is not supported");
  expect(kSizes + ", rope_scaling: {type: longrope, factor: 2}", "got 'longrope'; valid: default, dynamic, linear");
  expect(kSizes + ", rope_scaling: {type: linear, factor: 2, other: 3}", "'other' is not supported");
  expect(kSizes + ", rope_scaling: {type: linear}", "rope_scaling: factor is missing");
  expect(kSizes + ", sliding_window: 4", "'sliding_window' is not supported for model_type 'llama'");
  expect(kSizes + ", num_experts: 8", "'num_experts' is not supported for model_type 'llama'; got");
  expect(kSizes + ", hidden_act: tanh", "hidden_act is not supported; got 'tanh'; valid: gelu");
  expect(kSizes + ", num_key_value_heads: 3", "heads is a multiple of key_value_heads; got 4 and 3");
  expect(kSizes + ", layer_types: [full_attention]", "layer_types has an entry for each layer; got 1 for 2");
  expect(kSizes + ", layer_types: [full_attention, linear_attention]", "got 'linear_attention'");
}

TEST(LanguageModel, NamesTokensAndPositionsThatItLacks) {
  nn::CausalLanguageModel model(nn::language_model_options(
      Config::parse("{model_type: gpt2, vocab_size: 7, n_embd: 8, n_layer: 1, n_head: 2, n_positions: 4}", {}), "c"));
  const at::Tensor tokens = torch::zeros({2, 4}, torch::kLong);
  EXPECT_THAT([&] { model(tokens + 7); }, ::testing::ThrowsMessage<Error>(HasSubstr("got 7, valid: 0 to 6")));
  EXPECT_THAT([&] { model(tokens - 1); }, ::testing::ThrowsMessage<Error>(HasSubstr("got -1, valid: 0 to 6")));
  EXPECT_THAT(
      [&] {
        model(torch::zeros({1, 5}, torch::kLong));
      },
      ::testing::ThrowsMessage<Error>(HasSubstr("got 5 tokens, valid: up to 4")));
  EXPECT_THAT([&] { model(tokens, torch::arange(1, 5)); },
              ::testing::ThrowsMessage<Error>(HasSubstr("got 4, valid: 0 to 3")));
}

}  // namespace
}  // namespace levin
