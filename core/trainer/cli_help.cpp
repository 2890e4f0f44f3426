#include <levin/core/trainer/cli_help.h>

#include <levin/core/base/error.h>
#include <levin/core/data/data_module.h>
#include <levin/core/interfaces/callback.h>
#include <levin/core/interfaces/logger.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/profiler.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/optim/scheduler.h>
#include <levin/core/precision/precision.h>
#include <levin/core/trainer/memory_planner.h>
#include <levin/core/trainer/options.h>

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace levin {
namespace {

constexpr size_t kColumns = 100;

/// Text broken between words, each line led by `indent` spaces.
std::string wrapped(const std::string& text, size_t indent) {
  const std::string lead(indent, ' ');
  std::string out;
  std::string line;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (!line.empty() && lead.size() + line.size() + 1 + word.size() > kColumns) {
      out += lead + line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
    begin = end + 1;
  }
  return line.empty() ? out : out + lead + line + "\n";
}

/// A name in a column of its own and what it means.
std::string row(const std::string& name, const std::string& meaning) {
  constexpr size_t kNameWidth = 24;
  const std::string lines = wrapped(meaning, kNameWidth);
  if (name.size() + 4 > kNameWidth) return fmt::format("  {}\n{}", name, lines);
  return fmt::format("  {:<{}}", name, kNameWidth - 2) + lines.substr(kNameWidth);
}

std::string option_text(const FieldDoc& field, const std::string& prefix) {
  std::string facts = fmt::format("{}, default {}", field.type, field.default_value);
  if (!field.constraint.empty()) facts += ", " + field.constraint;
  return fmt::format("  {}{}\n{}{}", prefix, field.name, wrapped(facts, 6), wrapped(field.doc, 6));
}

std::string options_text(const std::vector<FieldDoc>& fields, const std::string& prefix) {
  std::string text;
  for (const auto& field : fields) text += option_text(field, prefix);
  return text.empty() ? "  (no options)\n" : text;
}

std::string heading(const std::string& title) { return "\n" + title + "\n" + std::string(title.size(), '-') + "\n"; }

/// Each registered name with its options. `first_is_default`: whether the first one is taken where no name is given.
template <class Base>
std::string registry_text(const Registry<Base>& registry, const std::string& prefix, bool first_is_default = false) {
  if (registry.items().empty()) return fmt::format("  (this program has no {})\n", registry.kind());
  std::string text;
  for (const auto& item : registry.items()) {
    const bool is_default = first_is_default && &item == &registry.items().front();
    text +=
        fmt::format("\n{}{}{}\n", item.name, is_default ? " (default)" : "", item.doc.empty() ? "" : ": " + item.doc);
    text += options_text(item.fields, prefix);
  }
  return text;
}

std::string general_text(const HelpContents& contents) {
  std::string text =
      fmt::format("Usage: {} COMMAND [--config FILE]... [--SECTION.OPTION=VALUE]...\n\nCommands\n", contents.program);
  for (const auto& [name, doc] : contents.commands) text += row(name, doc);
  text += heading("general");
  text += row("--config FILE", "a YAML file with the sections below; may be given several times, later ones win");
  text += row("--seed N", "seeds weights, data order and random transforms; null draws one and prints it");
  text += row(
      "--ckpt CKPT",
      "last, best, auto (last, or a fresh start where there is none) or a path: what fit resumes from, and the weights "
      "that the other commands use");
  text += row(
      "--SECTION.OPTION=VALUE",
      "any option below, also as two words; VALUE is YAML such as 3, [1, 2] or '{name: x}'; the last one given wins; a "
      "flag without VALUE means true");
  text += row("--print_config", "prints the resolved configuration and where each value comes from, and ends");
  text += row("--help [SECTION]", "this help, or one section of it");
  text += row("--version", "the versions of Levin and LibTorch");
  text += row("--local_rank N", "as older launchers append it: LOCAL_RANK, where that is not set");
  text += "\nValues come from the defaults, then the files in order, then the command line.\n";
  return text;
}

using Section = std::pair<std::string, std::function<std::string()>>;

std::vector<Section> sections_of(const HelpContents& contents) {
  const auto& names = contents.names;
  return {
      {"general", [&] { return general_text(contents); }},
      {"trainer",
       [&] { return heading("trainer") + options_text(schema_of<TrainerOptions>().fields(), "--trainer."); }},
      {"plan", [&] { return heading("plan") + options_text(schema_of<PlanOptions>().fields(), "--plan."); }},
      {"model", [&] { return heading("model") + registry_text(names.modules, "--model.", true); }},
      {"data", [&] { return heading("data") + registry_text(names.data, "--data.", true); }},
      {"callbacks",
       [&] {
         return heading("callbacks") +
                "In YAML `trainer: {callbacks: [NAME, NAME: {option: value}]}`; "
                "--trainer.callbacks.NAME.option=VALUE\n" +
                registry_text(names.callbacks, "");
       }},
      {"loggers",
       [&] {
         return heading("loggers") +
                "In YAML `trainer: {logger: [NAME, NAME: {option: value}]}`; --trainer.logger.NAME.option=VALUE\n" +
                registry_text(names.loggers, "");
       }},
      {"strategies",
       [&] {
         return heading("strategies") + "In YAML `trainer: {strategy: {name: NAME, option: value}}`\n" +
                registry_text(names.strategies, "--trainer.strategy.");
       }},
      {"precisions", [&] { return heading("precisions") + registry_text(names.precisions, "--trainer.precision."); }},
      {"profilers",
       [&] {
         return heading("profilers") +
                "In YAML `trainer: {profiler: NAME}` or `trainer: {profiler: {name: NAME, "
                "option: value}}`\n" +
                registry_text(names.profilers, "--trainer.profiler.");
       }},
      {"schedulers",
       [&] {
         return heading("schedulers") + "For models that let their learning-rate schedule be chosen by name\n" +
                registry_text(contents.schedulers, "");
       }},
  };
}

}  // namespace

std::string help_text(const HelpContents& contents, const std::string& section) {
  std::string all;
  std::vector<std::string> valid;
  for (const auto& [name, text] : sections_of(contents)) {
    if (name == section) return text();
    if (section.empty()) all += text();
    valid.push_back(name);
  }
  if (section.empty()) return all;
  throw ConfigError(
      fmt::format("command line: there is no help section '{}'{}", section, valid_names_hint(section, valid)));
}

}  // namespace levin
