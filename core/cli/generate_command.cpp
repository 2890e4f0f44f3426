#include <levin/core/cli/generate_command.h>

#include <levin/core/base/log.h>
#include <levin/core/base/seed.h>
#include <levin/core/base/utf8.h>
#include <levin/core/cli/cli.h>
#include <levin/core/data/chats/chat_template.h>
#include <levin/core/data/tokens/tokenizer.h>
#include <levin/core/interfaces/divided_layers.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/models/causal_lm.h>
#include <levin/core/models/generate.h>
#include <levin/core/nn/move_to_device.h>
#include <levin/core/precision/precision.h>
#include <levin/core/trainer/trainer.h>

#include <fmt/format.h>

#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace levin {
namespace {

/// Where the tokenizer is: what the user says, what the data were made with, or a file beside the weights or the
/// config.json.
std::string find_tokenizer(const CliRun& run, const CausalLm& module, const GenerateCommandOptions& options) {
  const auto file_of = [](const std::string& path) {
    return std::filesystem::is_directory(path) ? path + "/tokenizer.json" : path;
  };
  if (options.tokenizer) return file_of(*options.tokenizer);
  const Config* const data = run.config.find("data");
  const Config* const of_data = data != nullptr ? data->find("tokenizer") : nullptr;
  if (of_data != nullptr && of_data->is_scalar() && !of_data->is_null() && !of_data->text().empty())
    return file_of(of_data->text());
  for (const std::string& folder : {run.ckpt, module.folder()}) {
    const std::filesystem::path file = std::filesystem::path(folder) / "tokenizer.json";
    if (std::filesystem::exists(file)) return file.string();
  }
  throw ConfigError(
      fmt::format("generate: there is no tokenizer.json in '{}'; hint: --tokenizer FILE", module.folder()));
}

/// What the model continues.
struct TerminalPrompt {
  std::vector<int64_t> tokens = {};
  std::string shown = {};               ///< in front of the model's text
  std::optional<int64_t> answer_end{};  ///< of a chat: the token that ends an answer
};

/// `file`: the tokenizer's, beside which a chat template is.
TerminalPrompt prompt_of(const CliRun& run, const data::Tokenizer& tokenizer, const std::string& file,
                         const GenerateCommandOptions& options) {
  if (!options.chat)
    return {.tokens = tokenizer.encode(options.prompt, {.add_special_tokens = true}), .shown = options.prompt};
  const std::string folder = std::filesystem::path(file).parent_path().string();
  const Config* const data = run.config.find("data");
  const Config* const named = data != nullptr ? data->find("chat_template") : nullptr;
  const bool has_name = named != nullptr && named->is_scalar() && !named->is_null() && named->text() != "none";
  const auto chat_template =
      has_name ? data::ChatTemplate::named(named->text(), data::special_tokens_of(folder.empty() ? "." : folder))
               : data::ChatTemplate::of_folder(folder.empty() ? "." : folder);
  std::vector<data::ChatMessage> chat{{.role = "user", .content = options.prompt}};
  TerminalPrompt prompt{.tokens = tokenizer.encode(chat_template.format(chat, /*begins_answer=*/true).text)};
  // The same chat with an answer says what comes after answers.
  chat.push_back({.role = "assistant", .content = "a"});
  const data::ChatText whole = chat_template.format(chat);
  const auto [begin, end] = whole.answers.back();
  const std::vector<int64_t> closing = tokenizer.encode(whole.text.substr(begin + 1, end - begin - 1));
  if (closing.size() == 1) prompt.answer_end = closing.front();
  return prompt;
}

/// On every rank of the trainer, whose module has its weights; rank 0 prints.
void generate_on_terminal(Trainer& trainer, const CausalLm& module, const data::Tokenizer& tokenizer,
                          const TerminalPrompt& prompt, const GenerateCommandOptions& options) {
  GenerateOptions how{.max_new_tokens = options.max_new_tokens,
                      .temperature = options.temperature,
                      .top_k = options.top_k,
                      .top_p = options.top_p,
                      .min_p = options.min_p,
                      .repetition_penalty = options.repetition_penalty,
                      .beams = options.beams,
                      .length_penalty = options.length_penalty,
                      .stop = options.stop,
                      .end_tokens = options.end_tokens,
                      .seed = global_seed(),
                      .tokenizer = &tokenizer};
  if (prompt.answer_end && !how.end_tokens) {
    how.end_tokens = module.model()->options().end_tokens;
    how.end_tokens->push_back(*prompt.answer_end);
  }
  if (trainer.world_size() > 1) {
    how.seed = std::stoull(trainer.strategy().broadcast(std::to_string(how.seed)));
    how.on_logits = [&](const at::Tensor& logits) { trainer.strategy().collective().broadcast(logits, 0)->wait(); };
  }
  const auto say = [&](std::string_view text) {
    if (trainer.is_global_zero()) std::cout << printable_text(text) << std::flush;
  };
  bool has_begun = false;
  if (options.beams == 1)
    how.on_text = [&](int64_t /*prompt*/, std::string_view text) {
      if (!has_begun) say(prompt.shown);  // not before what may fail
      has_begun = true;
      say(text);
    };
  const std::vector<Generated> texts = generate(module.model(), {prompt.tokens}, how);
  if (!has_begun) say(prompt.shown + texts.front().text);
  say("\n");
}

void run_generate_command(const CliRun& run, const GenerateCommandOptions& options) {
  Trainer& trainer = *run.trainer;
  const auto module = std::dynamic_pointer_cast<CausalLm>(run.module);
  if (module == nullptr) throw ConfigError("generate needs a causal_lm as the model");
  const std::string file = find_tokenizer(run, *module, options);
  const data::Tokenizer tokenizer(file);
  const TerminalPrompt prompt = prompt_of(run, tokenizer, file, options);
  if (run.ckpt.empty() && trainer.options().init_from.path.empty() && !module->is_pretrained())
    log::rank_zero_warning("generate without --ckpt uses weights that were never trained; hint: --ckpt best");
  const auto* const divided = dynamic_cast<const DividedLayers*>(&trainer.strategy());
  if (divided != nullptr && divided->divides_layers())
    return trainer.run_on_ranks(module, run.ckpt, [&](Trainer& rank) {
      generate_on_terminal(rank, dynamic_cast<const CausalLm&>(rank.module()), tokenizer, prompt, options);
    });
  if (!trainer.is_global_zero()) return;
  trainer.load_weights(module, run.ckpt);
  trainer.precision().convert_module(*module);
  move_to_device(*module, trainer.devices().front());
  generate_on_terminal(trainer, *module, tokenizer, prompt, options);
}

}  // namespace

void GenerateCommandOptions::describe(Schema<GenerateCommandOptions>& schema) {
  using O = GenerateCommandOptions;
  schema.field("prompt", &O::prompt, "the text to continue");
  schema.field("chat", &O::chat, "takes the prompt as a user's message, by the chat template beside the tokenizer");
  schema.field(
      "tokenizer", &O::tokenizer,
      "a tokenizer.json, or its folder; null: data.tokenizer, or the file beside the weights or the config.json");
  schema.field("max_new_tokens", &O::max_new_tokens, "most tokens that are added").at_least(1);
  schema.field("temperature", &O::temperature, "of sampling; 0: always the likeliest token").at_least(0);
  schema.field("top_k", &O::top_k, "samples from the likeliest so many tokens; 0: from all").at_least(0);
  schema.field("top_p", &O::top_p, "samples from the likeliest tokens that together reach this probability")
      .above(0)
      .at_most(1);
  schema.field("min_p", &O::min_p, "samples from tokens with this share of the highest probability")
      .at_least(0)
      .at_most(1);
  schema.field("repetition_penalty", &O::repetition_penalty, "above 1: tokens that were there become less likely")
      .above(0);
  schema.field("beams", &O::beams, "above 1: beam search with so many, printed at the end").at_least(1);
  schema.field("length_penalty", &O::length_penalty, "of beams: scores are divided by the length to this power");
  schema.field("stop", &O::stop, "texts that end the text");
  schema.field("end_tokens", &O::end_tokens, "tokens that end the text; null: those of the model's folder");
}

void add_generate_command(Cli& cli) {
  cli.add_command<GenerateCommandOptions>("generate", "continues --prompt with the model's text", run_generate_command,
                                          /*needs_data=*/false);
}

}  // namespace levin
