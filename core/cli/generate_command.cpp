#include <levin/core/cli/generate_command.h>

#include <levin/core/base/log.h>
#include <levin/core/base/seed.h>
#include <levin/core/base/utf8.h>
#include <levin/core/cli/cli.h>
#include <levin/core/data/tokens/tokenizer.h>
#include <levin/core/models/causal_lm.h>
#include <levin/core/models/generate.h>
#include <levin/core/nn/move_to_device.h>
#include <levin/core/trainer/trainer.h>

#include <fmt/format.h>

#include <filesystem>
#include <iostream>
#include <string_view>

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

void generate_on_terminal(const CliRun& run, const GenerateCommandOptions& options) {
  if (!run.trainer->is_global_zero()) return;
  const auto module = std::dynamic_pointer_cast<CausalLm>(run.module);
  if (module == nullptr) throw ConfigError("generate needs a causal_lm as the model");
  const data::Tokenizer tokenizer(find_tokenizer(run, *module, options));
  if (run.ckpt.empty() && run.trainer->options().init_from.path.empty() && !module->is_pretrained())
    log::warning("generate without --ckpt uses weights that were never trained; hint: --ckpt best");
  run.trainer->load_weights(module, run.ckpt);
  move_to_device(*module, run.trainer->devices().front());
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
                      .seed = global_seed()};
  const auto say = [](std::string_view text) { std::cout << printable_text(text) << std::flush; };
  bool has_begun = false;
  if (options.beams == 1)
    how.on_text = [&](int64_t /*prompt*/, std::string_view text) {
      if (!has_begun) say(options.prompt);  // not before what may fail
      has_begun = true;
      say(text);
    };
  const std::vector<Generated> texts = generate(module->model(), tokenizer, {options.prompt}, how);
  if (!has_begun) say(options.prompt + texts.front().text);
  say("\n");
}

}  // namespace

void GenerateCommandOptions::describe(Schema<GenerateCommandOptions>& schema) {
  using O = GenerateCommandOptions;
  schema.field("prompt", &O::prompt, "the text to continue");
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
  cli.add_command<GenerateCommandOptions>("generate", "continues --prompt with the model's text", generate_on_terminal,
                                          /*needs_data=*/false);
}

}  // namespace levin
