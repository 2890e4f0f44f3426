// How models continue texts: in batches, as a stream, up to an end, and what is said where they cannot.

#include "../data/small_tokenizer.h"
#include "../support/tiny.h"

#include <levin/core/base/config.h>
#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>
#include <levin/core/data/tokens/tokenizer.h>
#include <levin/core/models/generate.h>
#include <levin/core/models/stop_texts.h>
#include <levin/core/models/text_perplexity.h>
#include <levin/core/models/token_choice.h>
#include <levin/core/nn/transformer/language_model_config.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace levin {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Tokens = std::vector<std::vector<int64_t>>;

const std::string kMistral =
    "model_type: mistral, vocab_size: 260, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 2, "
    "num_attention_heads: 4, num_key_value_heads: 2, sliding_window: 5, initializer_range: 0.6";

nn::CausalLanguageModel random_model(const std::string& config, uint64_t seed = 5) {
  seed_everything(seed);
  return nn::CausalLanguageModel(nn::language_model_options(Config::parse("{" + config + "}", {}), "config.json"));
}

class Generation : public ::testing::Test {
 protected:
  Generation() {
    std::ofstream(folder_ + "/tokenizer.json") << testing::small_tokenizer();
    tokenizer_ = std::make_unique<data::Tokenizer>(folder_ + "/tokenizer.json");
  }
  std::string message_of(const std::function<void()>& call) const {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  const std::string folder_ = testing::fresh_folder("generate");
  std::unique_ptr<data::Tokenizer> tokenizer_;
};

const Tokens kPrompts{{65, 66, 67, 68, 69, 70, 71}, {97}, {98, 99, 100}, {97, 98, 99, 100, 101, 102, 103}};

TEST_F(Generation, ATextIsTheSameWhateverElseIsInTheBatch) {
  nn::CausalLanguageModel model = random_model(kMistral);
  for (const GenerateOptions& options :
       {GenerateOptions{.max_new_tokens = 30}, GenerateOptions{.max_new_tokens = 30, .temperature = 1, .seed = 11},
        GenerateOptions{.max_new_tokens = 30, .temperature = 0.8, .top_k = 40, .top_p = 0.9, .min_p = 0.01},
        GenerateOptions{.max_new_tokens = 30, .temperature = 1, .repetition_penalty = 1.2},
        GenerateOptions{.max_new_tokens = 12, .beams = 3}}) {
    const auto together = generate(model, kPrompts, options);
    ASSERT_EQ(together.size(), kPrompts.size());
    GenerateOptions alone = options;
    for (size_t i = 0; i < kPrompts.size(); ++i) {
      alone.indices = {static_cast<int64_t>(i)};
      EXPECT_EQ(generate(model, {kPrompts[i]}, alone)[0].tokens, together[i].tokens) << i;
    }
    // Backwards, and the same prompt twice.
    GenerateOptions backwards = options;
    backwards.indices = {3, 2, 1, 0, 1};
    const auto others = generate(model, {kPrompts[3], kPrompts[2], kPrompts[1], kPrompts[0], kPrompts[1]}, backwards);
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(others[i].tokens, together[3 - i].tokens) << i;
    EXPECT_EQ(others[4].tokens, together[1].tokens);
  }
  const auto sampled = [&](uint64_t seed, int64_t index) {
    return generate(model, {kPrompts[0]}, {.max_new_tokens = 30, .temperature = 1, .seed = seed, .indices = {index}})[0]
        .tokens;
  };
  EXPECT_NE(sampled(1, 0), sampled(2, 0));
  EXPECT_NE(sampled(1, 0), sampled(1, 1));
}

TEST_F(Generation, TokensComeAsOftenAsTheirProbabilitiesSay) {
  nn::CausalLanguageModel model = random_model(
      "model_type: llama, vocab_size: 11, hidden_size: 8, intermediate_size: 8, num_hidden_layers: 1, "
      "num_attention_heads: 2, initializer_range: 0.5");
  constexpr int64_t kRows = 4000;
  const std::vector<int64_t> prompt{3, 1, 4};
  const GenerateOptions options{.max_new_tokens = 1, .temperature = 0.7, .top_k = 8, .seed = 2};
  const auto texts = generate(model, Tokens(kRows, prompt), options);
  std::vector<double> counts(11, 0);
  for (const Generated& text : texts) ++counts[static_cast<size_t>(text.tokens.at(0))];
  const torch::NoGradGuard no_gradients;
  const at::Tensor probabilities =
      sampling_probabilities(model->last_logits(torch::tensor(prompt).unsqueeze(0)), options)[0];
  EXPECT_EQ(probabilities.gt(0).sum().item<int64_t>(), 8);
  for (int64_t token = 0; token < 11; ++token) {
    const auto expected = probabilities[token].item<double>() * kRows;
    EXPECT_NEAR(counts[static_cast<size_t>(token)], expected, 4.5 * std::sqrt(expected)) << token;
  }
}

TEST_F(Generation, StreamsTokensAndText) {
  nn::CausalLanguageModel model = random_model(kMistral);
  std::vector<std::vector<int64_t>> tokens(2);
  std::vector<std::string> pieces(2);
  GenerateOptions options{.max_new_tokens = 40, .temperature = 1, .seed = 3};
  options.on_token = [&](int64_t prompt, int64_t token) { tokens[static_cast<size_t>(prompt)].push_back(token); };
  options.on_text = [&](int64_t prompt, std::string_view text) { pieces[static_cast<size_t>(prompt)] += text; };
  const auto texts = generate(model, *tokenizer_, {"Then the other", "x"}, options);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(texts[i].tokens, tokens[i]);
    EXPECT_EQ(texts[i].tokens.size(), 40U);
    EXPECT_EQ(texts[i].text, pieces[i]);
    EXPECT_EQ(texts[i].text, tokenizer_->decode(tokens[i], {.skip_special_tokens = true}));
    EXPECT_EQ(texts[i].end, GenerationEnd::kLength);
  }
  EXPECT_TRUE(generate(model, Tokens()).empty());
}

TEST_F(Generation, EndsAtEndTokensStopTextsAndTheLastPosition) {
  nn::CausalLanguageModel model = random_model(kMistral + ", eos_token_id: 258");
  EXPECT_THAT(model->options().end_tokens, ElementsAre(258));
  EXPECT_THAT(random_model(kMistral + ", eos_token_id: [7, 8]")->options().end_tokens, ElementsAre(7, 8));
  const GenerateOptions plain{
      .max_new_tokens = 25, .end_tokens = std::vector<int64_t>(), .tokenizer = tokenizer_.get()};
  const auto whole = generate(model, kPrompts, plain);

  GenerateOptions ended = plain;
  ended.end_tokens = {whole[1].tokens[7], whole[0].tokens[20]};
  const auto texts = generate(model, kPrompts, ended);
  for (size_t i = 0; i < kPrompts.size(); ++i) {
    const auto& all = whole[i].tokens;
    const auto end = std::find_first_of(all.begin(), all.end(), ended.end_tokens->begin(), ended.end_tokens->end());
    EXPECT_EQ(texts[i].tokens, std::vector<int64_t>(all.begin(), end)) << i;
    EXPECT_EQ(texts[i].end, end == all.end() ? GenerationEnd::kLength : GenerationEnd::kEndToken) << i;
    EXPECT_EQ(texts[i].text, tokenizer_->decode(texts[i].tokens, {.skip_special_tokens = true})) << i;
  }
  EXPECT_EQ(texts[1].end, GenerationEnd::kEndToken);

  // Across tokens, and the earliest of several.
  const std::string& text = whole[2].text;
  const auto whole_character = [&](size_t at) {
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) ++at;
    return at;
  };
  const size_t begin = whole_character(text.size() / 2);
  const std::string stop = text.substr(begin, whole_character(begin + 4) - begin);
  GenerateOptions stopped = plain;
  stopped.stop = {"never there at all", stop};
  std::string streamed;
  stopped.on_text = [&](int64_t prompt, std::string_view piece) {
    if (prompt == 2) streamed += piece;
  };
  const auto cut = generate(model, kPrompts, stopped);
  EXPECT_EQ(cut[2].end, GenerationEnd::kStopText);
  EXPECT_EQ(cut[2].text, text.substr(0, text.find(stop)));
  EXPECT_EQ(streamed, cut[2].text);
  EXPECT_LT(cut[2].tokens.size(), whole[2].tokens.size());
  EXPECT_EQ(cut[0].text, whole[0].text.substr(0, whole[0].text.find(stop)));

  nn::CausalLanguageModel small = random_model(
      "model_type: gpt2, vocab_size: 260, n_embd: 8, n_layer: 1, n_head: 2, n_positions: 12, initializer_range: 0.5");
  const auto short_texts = generate(small, kPrompts, {.max_new_tokens = 7, .end_tokens = std::vector<int64_t>()});
  EXPECT_EQ(short_texts[0].tokens.size(), 5U);
  EXPECT_EQ(short_texts[0].end, GenerationEnd::kPositions);
  EXPECT_EQ(short_texts[1].tokens.size(), 7U);
  EXPECT_EQ(short_texts[1].end, GenerationEnd::kLength);
}

TEST_F(Generation, TakesAsManyStepsAsOthersWhereItMust) {
  nn::CausalLanguageModel model = random_model(kMistral);
  const GenerateOptions plain{.max_new_tokens = 20, .end_tokens = std::vector<int64_t>()};
  GenerateOptions ended = plain;
  ended.end_tokens = {generate(model, kPrompts, plain)[0].tokens[3]};
  const auto expected = generate(model, kPrompts, ended);
  int64_t steps = 0;
  model->net->push_back([&](const at::Tensor& logits) {
    ++steps;
    return logits;
  });
  ended.keep_in_step = true;
  const auto texts = generate(model, kPrompts, ended);
  EXPECT_EQ(steps, 20);
  for (size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(texts[i].tokens, expected[i].tokens);
}

TEST_F(Generation, LeavesTheModelAsItWas) {
  nn::CausalLanguageModel model = random_model(
      "model_type: gpt2, vocab_size: 260, n_embd: 8, n_layer: 1, n_head: 2, n_positions: 32, initializer_range: 0.5");
  model->train();
  model->net->element(1).module()->eval();
  const auto first = generate(model, kPrompts, {.max_new_tokens = 8});
  EXPECT_EQ(generate(model, kPrompts, {.max_new_tokens = 8})[1].tokens, first[1].tokens) << "without dropout";
  EXPECT_TRUE(model->is_training());
  EXPECT_FALSE(model->net->element(1).module()->is_training());
  nn::CausalLanguageModel half = random_model(kMistral);
  half->to(torch::kBFloat16);
  EXPECT_EQ(generate(half, kPrompts, {.max_new_tokens = 9, .temperature = 1})[2].tokens.size(), 9U);
}

TEST_F(Generation, SaysWhatDoesNotGoTogether) {
  nn::CausalLanguageModel model = random_model(kMistral);
  const auto of_options = [&](const GenerateOptions& options) {
    return message_of([&] { generate(model, kPrompts, options); });
  };
  EXPECT_THAT(of_options({.max_new_tokens = 0}), HasSubstr("max_new_tokens is at least 1; got 0"));
  EXPECT_THAT(of_options({.temperature = -1}), HasSubstr("temperature is 0 or above; got -1"));
  EXPECT_THAT(of_options({.temperature = 1, .top_p = 0}), HasSubstr("top_p is above 0 and at most 1; got 0"));
  EXPECT_THAT(of_options({.top_k = 5}), HasSubstr("hint: a temperature above 0"));
  EXPECT_THAT(of_options({.temperature = 1, .beams = 2}), HasSubstr("beams are of likeliest texts"));
  EXPECT_THAT(of_options({.beams = 2, .stop = {"a"}, .tokenizer = tokenizer_.get()}), HasSubstr("cannot be combined"));
  EXPECT_THAT(of_options({.stop = {"a"}}), HasSubstr("need a tokenizer"));
  EXPECT_THAT(of_options({.indices = {1}}), HasSubstr("indices has one for each prompt; got 1 for 4"));
  const nn::CausalLanguageModel endless = random_model(
      "model_type: llama, vocab_size: 260, hidden_size: 8, intermediate_size: 8, num_hidden_layers: 1, "
      "num_attention_heads: 2");
  EXPECT_THAT(message_of([&] { generate(endless, kPrompts, {.max_new_tokens = int64_t{1} << 40}); }),
              HasSubstr("does not fit into memory; got"))
      << "before it starts";

  const auto of_prompts = [&](const Tokens& prompts) { return message_of([&] { generate(model, prompts); }); };
  EXPECT_THAT(of_prompts({{1}, {}}), HasSubstr("prompt 1 has no tokens"));
  EXPECT_THAT(of_prompts({{1}, {2, 260}}), HasSubstr("prompt 1 has a token that is not in the vocabulary of the model; "
                                                     "got 260, valid: 0 to 259"));
  nn::CausalLanguageModel small =
      random_model("model_type: gpt2, vocab_size: 600, n_embd: 8, n_layer: 1, n_head: 2, n_positions: 7");
  EXPECT_THAT(message_of([&] { generate(small, kPrompts); }),
              HasSubstr("prompt 0 is longer than the positions of the model, of which the new tokens need some; got 7 "
                        "tokens, valid: up to 6"));
  EXPECT_THAT(message_of([&] { generate(small, {{1}}, {.max_new_tokens = 9, .keep_in_step = true}); }),
              HasSubstr("valid: up to 7 together"));
  EXPECT_THAT(message_of([&] { generate(small, *tokenizer_, {"a"}); }),
              HasSubstr("the tokenizer is that of another model; got 259 tokens, for a vocabulary of 600"));
  EXPECT_THAT(message_of([&] { text_perplexity(small, *tokenizer_, folder_ + "/tokenizer.json"); }),
              HasSubstr("that of another model"));
  EXPECT_THAT(message_of([&] { text_perplexity(model, *tokenizer_, folder_ + "/none.txt"); }), HasSubstr("none.txt"));
  std::ofstream(folder_ + "/short.txt") << "a";
  EXPECT_THAT(message_of([&] { text_perplexity(model, *tokenizer_, folder_ + "/short.txt"); }),
              HasSubstr("a perplexity needs a text of two tokens; got 1 token"));
  EXPECT_THAT(message_of([&] { text_perplexity(model, *tokenizer_, folder_ + "/short.txt", {.length = 1}); }),
              HasSubstr("length is at least 2; got 1"));

  nn::CausalLanguageModel broken = random_model(kMistral);
  {
    const torch::NoGradGuard no_gradients;
    broken->parameters().front().fill_(NAN);
  }
  for (const GenerateOptions& options :
       {GenerateOptions{}, GenerateOptions{.temperature = 1}, GenerateOptions{.beams = 2}})
    EXPECT_THAT(message_of([&] { generate(broken, kPrompts, options); }), HasSubstr("logits that are not finite"));
}

TEST_F(Generation, RefusesStopTextsThatCannotOccur) {
  const auto of_stop = [&](const std::string& stop, const data::Tokenizer& tokenizer) {
    return message_of([&] { check_stop_texts({stop}, tokenizer); });
  };
  EXPECT_EQ(of_stop("\n\nQ: é日", *tokenizer_), "");
  EXPECT_THAT(of_stop("", *tokenizer_), HasSubstr("the stop text '' cannot occur: it is empty"));
  EXPECT_THAT(of_stop("<end>", *tokenizer_),
              HasSubstr("a special token, which texts leave out; hint: end_tokens: [258]"));
  EXPECT_THAT(of_stop("\xff", *tokenizer_), HasSubstr("not UTF-8"));
  // Lower-case letters alone, as a normalizer makes them, and no bytes.
  nlohmann::json vocabulary = nlohmann::json::object();
  for (const std::string piece : {"<unk>", "a", "b", "c", "▁", "▁ab"}) vocabulary[piece] = vocabulary.size();
  const nlohmann::json json{
      {"version", "1.0"},
      {"added_tokens", nlohmann::json::array()},
      {"normalizer", {{"type", "Lowercase"}}},
      {"pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "always"}, {"split", true}}},
      {"decoder", {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "always"}, {"split", true}}},
      {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", nlohmann::json::array()}, {"unk_token", "<unk>"}}}};
  std::ofstream(folder_ + "/lower.json") << json;
  const data::Tokenizer lower(folder_ + "/lower.json");
  EXPECT_EQ(of_stop("c ab", lower), "");
  EXPECT_EQ(of_stop(" b", lower), "");
  EXPECT_THAT(of_stop("aB", lower), HasSubstr("no token of the tokenizer has 'B'"));
  EXPECT_THAT(of_stop("é", lower), HasSubstr("no token of the tokenizer has 'é'"));
}

TEST(StopTexts, FindsThemAcrossPieces) {
  const std::vector<std::string> stop{"abc", "bd", "ab ab!"};
  const auto pieces = [&](const std::vector<std::string>& given) {
    StopTexts texts(stop);
    std::string all;
    for (const std::string& piece : given) {
      all += texts.add(piece) + "|";
      if (texts.stopped()) return all + "stop";
    }
    return all + texts.finish();
  };
  EXPECT_EQ(pieces({"x", "a", "b", "c", "d"}), "x||||stop");
  EXPECT_EQ(pieces({"xab", "xabd"}), "x|abxa|stop");
  EXPECT_EQ(pieces({"ab ab", " ab"}), "|ab |ab ab");
  EXPECT_EQ(pieces({"zabcbd"}), "z|stop");
  EXPECT_EQ(pieces({"a", "x"}), "|ax|");
}

}  // namespace
}  // namespace levin
