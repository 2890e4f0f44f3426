// Texts that models continue, against generate of transformers.

#include "../data/small_tokenizer.h"
#include "../loggers/test_python.h"
#include "../support/run_program.h"
#include "../support/tiny.h"
#include "../support/torch_python.h"

#include <levin/core/checkpoint/safetensors.h>
#include <levin/core/data/tokens/tokenizer.h>
#include <levin/core/models/generate.h>
#include <levin/core/models/language_model_files.h>
#include <levin/core/models/text_perplexity.h>
#include <levin/core/models/token_choice.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace levin {
namespace {

using Tokens = std::vector<std::vector<int64_t>>;

Tokens tokens_of(const std::vector<Generated>& texts) {
  Tokens tokens;
  for (const Generated& text : texts) tokens.push_back(text.tokens);
  return tokens;
}

class GenerationOracle : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = testing::missing_module("transformers"); !missing.empty()) GTEST_SKIP() << missing;
    torch_packages_ = testing::torch_packages();
    if (torch_packages_.empty()) GTEST_SKIP() << "no torch for Python; hint: scripts/bootstrap";
  }
  void python(const std::vector<std::string>& more) const {
    std::vector<std::string> words{testing::test_python(), "-W", "ignore",
                                   testing::source_path("tests/models/generation.py")};
    words.insert(words.end(), more.begin(), more.end());
    const auto run = testing::run_program(
        words, {.environment = {{"PYTHONPATH", torch_packages_ + ":" + testing::source_path("tests/models")},
                                {"HF_HUB_OFFLINE", "1"},
                                {"PYTHONDONTWRITEBYTECODE", "1"}}});
    ASSERT_EQ(run.status, 0) << run.out << run.err;
  }
  void expect_families(int64_t count, const std::vector<std::string>& names) const {
    std::vector<std::string> words{"make", folder_, std::to_string(count)};
    words.insert(words.end(), names.begin(), names.end());
    python(words);
    if (HasFatalFailure()) return;
    for (const std::string& name : names) {
      SCOPED_TRACE(name);
      const auto expected = nlohmann::json::parse(testing::read_text(folder_ + "/" + name + "/generated.json"));
      const Tokens prompts = expected["prompts"].get<Tokens>();
      nn::CausalLanguageModel model = load_language_model(folder_ + "/" + name);
      EXPECT_EQ(model->options().end_tokens, std::vector<int64_t>{2});
      const auto greedy = generate(model, prompts, {.max_new_tokens = count, .end_tokens = std::vector<int64_t>()});
      EXPECT_EQ(tokens_of(greedy), expected["greedy"].get<Tokens>());
      const auto penalized = generate(
          model, {prompts[0]}, {.max_new_tokens = 12, .repetition_penalty = 1.3, .end_tokens = std::vector<int64_t>()});
      EXPECT_EQ(tokens_of(penalized), expected["penalized"].get<Tokens>());
      for (const auto& beams : expected["beams"]) {
        SCOPED_TRACE(beams.dump());
        const auto found = generate(model, prompts,
                                    {.max_new_tokens = 12,
                                     .beams = beams["beams"].get<int64_t>(),
                                     .length_penalty = beams["length_penalty"].get<double>(),
                                     .end_tokens = beams["end_tokens"].get<std::vector<int64_t>>()});
        EXPECT_EQ(tokens_of(found), beams["tokens"].get<Tokens>());
      }
    }
  }
  const std::string folder_ = testing::fresh_folder("generation");

 private:
  std::string torch_packages_;
};

TEST_F(GenerationOracle, TextsAreThoseOfTransformers) {
  expect_families(12, {"llama3", "smollm3", "mistral", "qwen2_sliding", "qwen3", "olmo2", "gemma3", "gpt2"});
}

using LongGenerationOracle = GenerationOracle;
TEST_F(LongGenerationOracle, TextsOf256TokensAreThoseOfTransformers) {
  expect_families(256, {"llama2", "llama3", "llama_biases", "smollm", "smollm3", "smollm3_sliding", "mistral",
                        "mistral_all", "qwen2", "qwen2_sliding", "qwen3", "olmo2", "gemma3", "gemma3_scaled", "gpt2"});
}

TEST_F(GenerationOracle, ProbabilitiesAreThoseOfTransformersProcessors) {
  python({"choices", folder_});
  if (HasFatalFailure()) return;
  const SafetensorsFile file(folder_ + "/choices.safetensors");
  const at::Tensor scores = file.read("scores");
  const at::Tensor prompts = file.read("prompts");
  Tokens rows;
  for (int64_t row = 0; row < prompts.size(0); ++row) {
    const at::Tensor prompt = prompts[row].contiguous();
    rows.emplace_back(prompt.data_ptr<int64_t>(), prompt.data_ptr<int64_t>() + prompt.size(0));
  }
  for (int i = 0; i < 9; ++i) {
    const at::Tensor given = file.read("options" + std::to_string(i));
    const auto option = [&](int64_t index) { return given[index].item<double>(); };
    const GenerateOptions options{
        .temperature = option(0), .top_k = static_cast<int64_t>(option(1)), .top_p = option(2), .min_p = option(3)};
    const at::Tensor penalized = penalize_repetition(scores, seen_tokens(rows, scores.size(1), at::kCPU), option(4));
    const at::Tensor expected = file.read("probabilities" + std::to_string(i));
    const at::Tensor got = sampling_probabilities(penalized, options);
    EXPECT_LT((got - expected).abs().max().item<double>(), 1e-6) << i;
    EXPECT_TRUE(got.ne(0).equal(expected.ne(0))) << i;
  }
}

TEST_F(GenerationOracle, PerplexityIsThatOfALoopInPython) {
  std::ofstream(folder_ + "/tokenizer.json") << testing::small_tokenizer();
  std::ofstream(folder_ + "/text.txt") << "The other day, there was a path that they took through the heath.\n"
                                          "Ünïcödé texts — and “numbers”: 1, 22, 333 — count as their bytes.\n"
                                          "Then the end of it came.";
  python({"perplexity", folder_});
  if (HasFatalFailure()) return;
  const data::Tokenizer tokenizer(folder_ + "/tokenizer.json");
  nn::CausalLanguageModel model = load_language_model(folder_ + "/model");
  const auto expected = nlohmann::json::parse(testing::read_text(folder_ + "/perplexity.json"));
  for (const auto& [words, perplexity] : expected["perplexity"].items()) {
    const size_t space = words.find(' ');
    for (const int64_t batch_size : {1, 3}) {
      const TextPerplexityOptions options{.length = std::stoll(words.substr(0, space)),
                                          .stride = std::stoll(words.substr(space)),
                                          .batch_size = batch_size};
      EXPECT_NEAR(text_perplexity(model, tokenizer, folder_ + "/text.txt", options) / perplexity.get<double>(), 1, 1e-5)
          << words;
    }
  }
  EXPECT_NEAR(text_perplexity(model, tokenizer, folder_ + "/text.txt") / expected["perplexity"]["64 64"].get<double>(),
              1, 1e-5);
}

}  // namespace
}  // namespace levin
