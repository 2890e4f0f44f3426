#include <levin/core/models/generate.h>

#include <levin/core/base/error.h>
#include <levin/core/data/tokens/decode_stream.h>
#include <levin/core/data/tokens/tokenizer.h>
#include <levin/core/models/beam_search.h>
#include <levin/core/models/decoding.h>
#include <levin/core/models/evaluation_mode.h>
#include <levin/core/models/stop_texts.h>
#include <levin/core/models/token_choice.h>
#include <levin/core/models/tokenizer_check.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

namespace levin {
namespace {

using Prompts = std::vector<std::vector<int64_t>>;

void check_generate_options(const GenerateOptions& options, size_t prompts) {
  const auto fail = [](const std::string& what) { throw ConfigError("generate: " + what); };
  const auto check = [&](bool is_valid, const char* name, auto value, const char* valid) {
    if (!is_valid) fail(fmt::format("{} is {}; got {}", name, valid, value));
  };
  check(options.max_new_tokens >= 1, "max_new_tokens", options.max_new_tokens, "at least 1");
  check(options.temperature >= 0 && std::isfinite(options.temperature), "temperature", options.temperature,
        "0 or above");
  check(options.top_k >= 0, "top_k", options.top_k, "0 or above");
  check(options.top_p > 0 && options.top_p <= 1, "top_p", options.top_p, "above 0 and at most 1");
  check(options.min_p >= 0 && options.min_p <= 1, "min_p", options.min_p, "between 0 and 1");
  check(options.repetition_penalty > 0 && std::isfinite(options.repetition_penalty), "repetition_penalty",
        options.repetition_penalty, "above 0");
  check(options.beams >= 1, "beams", options.beams, "at least 1");
  const bool narrows = options.top_k > 0 || options.top_p < 1 || options.min_p > 0;
  if (narrows && options.temperature == 0)
    fail("top_k, top_p and min_p are of sampling; hint: a temperature above 0, such as 1");
  if (options.beams > 1 && options.temperature > 0) fail("beams are of likeliest texts; hint: temperature 0");
  if (options.beams > 1 && (options.on_token || options.on_text || !options.stop.empty() || options.keep_in_step))
    fail("beams cannot be combined with on_token, on_text, stop and keep_in_step");
  if ((options.on_text || !options.stop.empty()) && options.tokenizer == nullptr)
    fail("stop and on_text need a tokenizer");
  if (!options.indices.empty() && options.indices.size() != prompts)
    fail(fmt::format("indices has one for each prompt; got {} for {}", options.indices.size(), prompts));
}

/// Positions of the model for a text; 0: any number.
int64_t positions_of(const nn::LanguageModelOptions& options) {
  if (options.learned_positions > 0) return options.learned_positions;
  const bool grows = options.rotary && options.rotary->scaling == nn::RotaryScaling::kDynamic;
  return grows ? 0 : options.max_positions;
}

/// Returns how many tokens may follow each prompt.
std::vector<int64_t> check_prompts(const Prompts& prompts, const nn::LanguageModelOptions& model,
                                   const GenerateOptions& options) {
  const int64_t positions = positions_of(model);
  std::vector<int64_t> most;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto length = static_cast<int64_t>(prompts[i].size());
    const auto fail = [&](const std::string& what) { throw Error("generate", fmt::format("prompt {} {}", i, what)); };
    if (length == 0) fail("has no tokens; hint: a token that begins texts, such as <s>");
    if (positions > 0 && length >= positions)
      fail(
          fmt::format("is longer than the positions of the model, of which the new tokens need some; got {} tokens, "
                      "valid: up to {}",
                      length, positions - 1));
    for (const int64_t token : prompts[i])
      if (token < 0 || token >= model.vocabulary)
        fail(
            fmt::format("has a token that is not in the vocabulary of the model; got {}, valid: 0 to {}; hint: the "
                        "tokenizer may be that of another model",
                        token, model.vocabulary - 1));
    most.push_back(positions > 0 ? std::min(options.max_new_tokens, positions - length) : options.max_new_tokens);
    if (options.keep_in_step && most.back() < options.max_new_tokens)
      fail(
          fmt::format("and max_new_tokens exceed the positions of the model, which keep_in_step needs; got {} and {} "
                      "tokens, valid: up to {} together",
                      length, options.max_new_tokens, positions));
  }
  return most;
}

/// What becomes of one prompt.
class Text {
 public:
  Text(const std::vector<int64_t>& prompt, int64_t number, int64_t most_new, const std::vector<int64_t>& end_tokens,
       const GenerateOptions& options)
      : options_(options), end_tokens_(end_tokens), number_(number), most_new_(most_new), stop_(options.stop) {
    if (options.tokenizer == nullptr) return;
    stream_ =
        std::make_unique<data::DecodeStream>(*options.tokenizer, data::DecodeOptions{.skip_special_tokens = true});
    // What the first new token means may depend on those before it.
    constexpr size_t kContext = 8;
    for (size_t i = prompt.size() - std::min(prompt.size(), kContext); i < prompt.size(); ++i) stream_->add(prompt[i]);
  }

  bool has_ended() const { return has_ended_; }
  void add(int64_t token) {
    if (std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end())
      return end(GenerationEnd::kEndToken);
    result_.tokens.push_back(token);
    if (options_.on_token) options_.on_token(number_, token);
    if (stream_) say(stop_.add(stream_->add(token)));
    if (stop_.stopped()) return end(GenerationEnd::kStopText);
    if (static_cast<int64_t>(result_.tokens.size()) < most_new_) return;
    end(most_new_ < options_.max_new_tokens ? GenerationEnd::kPositions : GenerationEnd::kLength);
  }
  Generated take() { return std::move(result_); }

 private:
  void say(const std::string& text) {
    result_.text += text;
    if (options_.on_text && !text.empty()) options_.on_text(number_, text);
  }
  void end(GenerationEnd why) {
    has_ended_ = true;
    result_.end = why;
    if (!stream_ || stop_.stopped()) return;
    say(stop_.add(stream_->finish()));
    if (stop_.stopped())
      result_.end = GenerationEnd::kStopText;
    else
      say(stop_.finish());
  }

  const GenerateOptions& options_;
  const std::vector<int64_t>& end_tokens_;
  int64_t number_;
  int64_t most_new_;
  std::unique_ptr<data::DecodeStream> stream_;
  StopTexts stop_;
  bool has_ended_ = false;
  Generated result_;
};

/// Token by token, until all texts have ended. Rows of texts that have are left out.
void continue_texts(Decoding& decoding, const Prompts& prompts, std::vector<Text>& texts,
                    const nn::LanguageModelOptions& model, const GenerateOptions& options) {
  TokenChooser chooser(options, prompts, model.vocabulary, decoding.device());
  std::vector<size_t> rows;
  std::vector<int64_t> indices = options.indices;
  for (size_t i = 0; i < prompts.size(); ++i) rows.push_back(i);
  if (indices.empty()) indices.assign(rows.begin(), rows.end());

  at::Tensor logits = decoding.prompt_logits();
  for (int64_t step = 0;; ++step) {
    at::Tensor tokens = chooser.choose(logits, indices, step);
    std::vector<int64_t> going;
    for (size_t row = 0; row < rows.size(); ++row) {
      Text& text = texts[rows[row]];
      if (!text.has_ended()) text.add(tokens.data_ptr<int64_t>()[row]);
      if (!text.has_ended()) going.push_back(static_cast<int64_t>(row));
    }
    if (options.keep_in_step ? step + 1 == options.max_new_tokens : going.empty()) return;
    if (!options.keep_in_step && going.size() < rows.size()) {
      std::vector<size_t> left;
      std::vector<int64_t> left_indices;
      for (const int64_t row : going) {
        left.push_back(rows[static_cast<size_t>(row)]);
        left_indices.push_back(indices[static_cast<size_t>(row)]);
      }
      rows = std::move(left);
      indices = std::move(left_indices);
      const at::Tensor kept = at::tensor(going, at::kLong);
      tokens = tokens.index_select(0, kept);
      decoding.select_rows(kept.to(decoding.device()));
      chooser.select_rows(kept.to(decoding.device()));
    }
    logits = decoding.next_logits(tokens.to(decoding.device()));
  }
}

}  // namespace

std::vector<Generated> generate(nn::CausalLanguageModel model, const Prompts& prompts, const GenerateOptions& options) {
  check_generate_options(options, prompts.size());
  const nn::LanguageModelOptions& described = model->options();
  if (options.tokenizer != nullptr) {
    check_tokenizer(*options.tokenizer, described);
    check_stop_texts(options.stop, *options.tokenizer);
  }
  const std::vector<int64_t> most = check_prompts(prompts, described, options);
  if (prompts.empty()) return {};
  const std::vector<int64_t>& end_tokens = options.end_tokens ? *options.end_tokens : described.end_tokens;
  const bool searches = options.beams > 1;
  // Beams of all prompts have one length.
  const int64_t most_new =
      searches ? *std::min_element(most.begin(), most.end()) : *std::max_element(most.begin(), most.end());

  const at::NoGradGuard no_gradients;
  const EvaluationMode evaluation(*model);
  std::vector<Text> texts;
  texts.reserve(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i)
    texts.emplace_back(prompts[i], static_cast<int64_t>(i), searches ? most_new : most[i], end_tokens, options);
  Decoding decoding(model, prompts, most_new, static_cast<int64_t>(prompts.size()) * options.beams, options);
  if (searches) {
    const auto found = search_beams(decoding, prompts, end_tokens, most_new, options);
    for (size_t i = 0; i < texts.size(); ++i)
      for (const int64_t token : found[i]) texts[i].add(token);
  } else {
    continue_texts(decoding, prompts, texts, described, options);
  }
  std::vector<Generated> results;
  for (Text& text : texts) results.push_back(text.take());
  return results;
}

std::vector<Generated> generate(nn::CausalLanguageModel model, const data::Tokenizer& tokenizer,
                                const std::vector<std::string>& prompts, GenerateOptions options) {
  options.tokenizer = &tokenizer;
  check_tokenizer(tokenizer, model->options());
  Prompts tokens;
  for (const std::string& prompt : prompts) tokens.push_back(tokenizer.encode(prompt, {.add_special_tokens = true}));
  return generate(std::move(model), tokens, options);
}

}  // namespace levin
