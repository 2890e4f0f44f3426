#include <levin/core/cli/cli_help.h>

#include <levin/core/base/error.h>
#include <levin/core/cli/data_command.h>
#include <levin/core/cli/export_command.h>
#include <levin/core/data/data_module.h>
#include <levin/core/interfaces/callback.h>
#include <levin/core/interfaces/logger.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/profiler.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/optim/named_optimizer.h>
#include <levin/core/optim/scheduler.h>
#include <levin/core/optim/scheduler_option.h>
#include <levin/core/options/mesh_strategy.h>
#include <levin/core/options/options.h>
#include <levin/core/planning/memory_planner.h>
#include <levin/core/planning/strategy_choice.h>
#include <levin/core/precision/precision.h>
#include <levin/core/sweep/sweep_options.h>

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

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
std::string row(const std::string& name, const std::string& meaning, size_t name_width = 24) {
  const std::string lines = wrapped(meaning, name_width);
  if (name.size() + 4 > name_width) return fmt::format("  {}\n{}", name, lines);
  return fmt::format("  {:<{}}", name, name_width - 2) + lines.substr(std::min(name_width, lines.size()));
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

/// A class that can be named in YAML.
struct NamedTopic {
  std::string name;
  std::string doc;
  std::vector<FieldDoc> fields;
};

/// A page of the help: a section's own options, or the classes that can be named in a place.
struct TopicGroup {
  std::string name;
  std::string kind;    ///< what each of `topics` is, "callback"; another word for the group
  std::string usage;   ///< how one is written in YAML, for NAME its name; empty where that is plain
  std::string prefix;  ///< of options, for NAME the name
  std::vector<FieldDoc> fields;
  std::vector<NamedTopic> topics;
  bool are_own = false;  ///< the program's own classes, few, of which the first is the default

  bool is_section() const { return kind.empty(); }
};

template <class Base>
TopicGroup group_of(const std::string& name, const Registry<Base>& registry, const std::string& usage,
                    const std::string& prefix, bool are_own = false) {
  TopicGroup group{.name = name, .kind = registry.kind(), .usage = usage, .prefix = prefix, .are_own = are_own};
  for (const auto& item : registry.items()) group.topics.push_back({item.name, item.doc, item.fields});
  return group;
}

TopicGroup mesh_group(const Registry<Strategy>& strategies) {
  TopicGroup group{.name = "mesh",
                   .kind = "dimension",
                   .usage = "`trainer: {strategy: {NAME: 2}}`, with options `{NAME: {size: 2, option: value}}`",
                   .prefix = "--trainer.strategy.NAME."};
  for (const MeshDimension& dimension : kMeshDimensions)
    group.topics.push_back({std::string(dimension.name), fmt::format("ranks that divide as {}", dimension.strategy),
                            fields_of(dimension, strategies)});
  return group;
}

std::vector<TopicGroup> groups_of(const HelpContents& contents) {
  const auto& names = contents.names;
  std::vector<TopicGroup> groups;
  groups.push_back({.name = "trainer", .prefix = "--trainer.", .fields = schema_of<TrainerOptions>().fields()});
  groups.push_back({.name = "plan", .prefix = "--plan.", .fields = schema_of<PlanOptions>().fields()});
  groups.push_back({.name = "sweep", .prefix = "--sweep.", .fields = schema_of<sweep::SweepOptions>().fields()});
  groups.push_back({.name = "export", .prefix = "--export.", .fields = schema_of<ExportCommandOptions>().fields()});
  groups.push_back({.name = "inspect", .prefix = "--inspect.", .fields = schema_of<DataCommandOptions>().fields()});
  for (const auto& section : names.sections)
    groups.push_back({.name = section.name, .prefix = fmt::format("--{}.", section.name), .fields = section.fields});
  groups.push_back(group_of("model", names.modules, "", "--model.", /*are_own=*/true));
  groups.push_back(group_of("data", names.data, "", "--data.", /*are_own=*/true));
  groups.push_back(group_of("callbacks", names.callbacks, "`trainer: {callbacks: [NAME: {option: value}]}`",
                            "--trainer.callbacks.NAME."));
  groups.push_back(
      group_of("loggers", names.loggers, "`trainer: {logger: [NAME: {option: value}]}`", "--trainer.logger.NAME."));
  groups.push_back(group_of("strategies", names.strategies, "`trainer: {strategy: {name: NAME, option: value}}`",
                            "--trainer.strategy."));
  groups.back().topics.push_back({"auto", "ddp on several devices; with a memory limit, the cheapest mesh that fits",
                                  schema_of<AutoStrategyOptions>().fields()});
  groups.push_back(mesh_group(names.strategies));
  groups.push_back(group_of("precisions", names.precisions, "`trainer: {precision: {name: NAME, option: value}}`",
                            "--trainer.precision."));
  groups.push_back(group_of("profilers", names.profilers, "`trainer: {profiler: {name: NAME, option: value}}`",
                            "--trainer.profiler."));
  groups.push_back(
      group_of("optimizers", names.optimizers, "`optimizer: {name: NAME, option: value}`", "--optimizer."));
  groups.push_back(
      group_of("schedulers", names.schedulers, "`scheduler: {name: NAME, option: value}`", "--scheduler."));
  for (auto& topic : groups.back().topics) {
    const auto common = optim::common_scheduler_fields();
    topic.fields.insert(topic.fields.end(), common.begin(), common.end());
  }
  return groups;
}

std::string title_of(const TopicGroup& group, const NamedTopic& topic) {
  const bool is_default = group.are_own && &topic == &group.topics.front();
  return topic.name + (is_default ? " (default)" : "") + (topic.doc.empty() ? "" : ": " + topic.doc);
}

/// Stands for the name of a topic.
constexpr std::string_view kPlace = "NAME";

/// `text` about the topic of this name.
std::string about(std::string text, const std::string& name) {
  for (size_t found = text.find(kPlace); found != std::string::npos; found = text.find(kPlace, found + name.size()))
    text.replace(found, kPlace.size(), name);
  return text;
}

/// The path of a topic whose options stand below its name, as in `trainer.strategy.pipeline`; empty for others.
std::string path_of(const TopicGroup& group, const NamedTopic& topic) {
  if (group.prefix.find(kPlace) == std::string::npos) return "";
  const std::string path = about(group.prefix, topic.name);
  return path.substr(2, path.size() - 3);  // without dashes and the last dot
}

std::string topic_options(const TopicGroup& group, const NamedTopic& topic) {
  return options_text(topic.fields, about(group.prefix, topic.name));
}

/// What `--help early_stopping` prints.
std::string topic_text(const TopicGroup& group, const NamedTopic& topic) {
  const std::string usage = group.usage.empty() ? "" : ", in YAML " + about(group.usage, topic.name);
  const char* const article = std::string_view("aeiou").find(group.kind.front()) == std::string_view::npos ? "a" : "an";
  return fmt::format("\n{}\n\n{} {}{}\n", title_of(group, topic), article, group.kind, usage) +
         topic_options(group, topic);
}

/// A group's names with a line each, or with all their options.
std::string group_text(const TopicGroup& group, bool with_options) {
  std::string text = heading(group.name);
  if (group.is_section()) return text + options_text(group.fields, group.prefix);
  if (!group.usage.empty()) text += "In YAML " + group.usage + "\n";
  if (group.topics.empty()) return text + fmt::format("  (this program has no {})\n", group.kind);
  for (const auto& topic : group.topics)
    text +=
        with_options ? "\n" + title_of(group, topic) + "\n" + topic_options(group, topic) : row(topic.name, topic.doc);
  return with_options ? text : text + "\nThe options of one: --help NAME\n";
}

std::string general_text() {
  std::string text = heading("general");
  text += row("--config FILE", "a YAML file with sections (trainer, model, ...); may be given several times");
  text += row("--seed N", "seeds weights, data order and random transforms; null draws one and prints it");
  text += row(
      "--ckpt CKPT",
      "last, best, auto (last, or a fresh start where there is none) or a path: what fit resumes from, and the weights "
      "that the other commands use");
  text += row("--SECTION.OPTION=VALUE",
              "any option, also as two words; VALUE is YAML such as 3, [1, 2] or '{name: x}'; a flag without VALUE "
              "means true");
  text += row("--print_config", "prints the resolved configuration and where each value comes from, and ends");
  text += row("--print_schema", "prints a JSON schema, with which editors complete and check the YAML, and ends");
  text += row("--print_completion SHELL", "prints a script by which bash or zsh completes options, and ends");
  text += row("LEVIN_SECTION__OPTION", "a variable that sets an option: LEVIN_TRAINER__MAX_EPOCHS=3");
  text += row("--help [TOPIC]", "the short help, or that of a topic; all: everything");
  text += row("--version", "the versions of Levin and LibTorch");
  text += row("--local_rank N", "as older launchers append it: LOCAL_RANK, where that is not set");
  text +=
      "\nValues come from the defaults, then files in order, variables, the command line. What comes later\n"
      "changes a mapping key by key and replaces everything else, lists too.\n";
  return text;
}

std::string names_in(const TopicGroup& group) {
  std::vector<std::string> names;
  for (const auto& topic : group.topics) names.push_back(topic.name);
  return join(names);
}

/// What `--help` prints.
std::string short_text(const HelpContents& contents, const std::vector<TopicGroup>& groups) {
  constexpr size_t kOptionWidth = 36;
  static const std::vector<std::string> kUsedMost = {"max_epochs",
                                                     "accelerator",
                                                     "devices",
                                                     "strategy",
                                                     "precision",
                                                     "callbacks",
                                                     "logger",
                                                     "limit_train_batches",
                                                     "fast_dev_run",
                                                     "gradient_clip_val",
                                                     "accumulate_grad_batches"};
  std::string text =
      fmt::format("Usage: {} COMMAND [--config FILE]... [--SECTION.OPTION=VALUE]...\n\nCommands\n", contents.program);
  for (const auto& [name, doc] : contents.commands) text += row(name, doc);
  text += "\nOptions\n";
  text += row("--config FILE", "a YAML file with options; may be given several times, later ones win");
  text += row("--ckpt CKPT", "last, best, auto or a path: what fit resumes from, what the other commands use");
  text += row("--seed N", "seeds everything that is random");
  text += row("--print_config", "prints every option with its value and where that comes from");
  text += row("--version", "the versions of Levin and LibTorch");
  text += "\nOptions that are used most\n";
  for (const auto& group : groups) {
    if (group.are_own && !group.topics.empty())
      text +=
          row(fmt::format("--{}.name=NAME", group.name), names_in(group) + "; the first is the default", kOptionWidth);
    for (const auto& field : group.name == "trainer" ? group.fields : std::vector<FieldDoc>{})
      if (std::find(kUsedMost.begin(), kUsedMost.end(), field.name) != kUsedMost.end())
        text += row(group.prefix + field.name, field.doc, kOptionWidth);
  }
  text += fmt::format("\nTopics: {} --help TOPIC\n", contents.program);
  text += row("all", "everything, a long text");
  text += row("general", "the options that are in no section");
  for (const auto& group : groups) {
    if (group.is_section())
      text += row(group.name, fmt::format("the options of the section {}", group.name));
    else if (!group.topics.empty())
      text += row(group.name, names_in(group));
  }
  return text + "\nEach of these names is a topic too, and so is each option of trainer: --help max_epochs\n";
}

/// All that is of this name; empty for what is no topic.
std::string text_of(const std::vector<TopicGroup>& groups, const std::string& wanted) {
  std::string text;
  for (const auto& group : groups) {
    if (wanted == group.name || wanted == group.kind) text += group_text(group, /*with_options=*/group.are_own);
    for (const auto& topic : group.topics) {
      const std::string path = path_of(group, topic);
      const auto is_wanted = [&](const std::string& full) {
        return !path.empty() && (wanted == full || "trainer." + wanted == full);
      };
      if (wanted == topic.name || is_wanted(path)) text += topic_text(group, topic);
      for (const auto& field : topic.fields)
        if (is_wanted(path + "." + field.name)) text += "\n" + option_text(field, about(group.prefix, topic.name));
    }
    for (const auto& field : group.fields)
      if (wanted == field.name || wanted == group.name + "." + field.name)
        text += "\n" + option_text(field, group.prefix);
  }
  return text;
}

[[noreturn]] void throw_no_topic(const std::vector<TopicGroup>& groups, const std::string& wanted) {
  std::vector<std::string> pages = {"all", "general"};
  for (const auto& group : groups) pages.push_back(group.name);
  std::vector<std::string> names = pages;
  for (const auto& group : groups) {
    names.push_back(group.kind);
    for (const auto& topic : group.topics) {
      names.push_back(topic.name);
      const std::string path = path_of(group, topic);
      if (path.empty()) continue;
      names.push_back(path);
      for (const auto& field : topic.fields) names.push_back(path.substr(path.find('.') + 1) + "." + field.name);
    }
    for (const auto& field : group.fields) names.push_back(field.name);
  }
  // A page comes before the options in it, some of which have names like those of pages.
  std::string nearest = nearest_name(wanted, pages);
  if (nearest.empty()) nearest = nearest_name(wanted, names);
  throw ConfigError(fmt::format("command line: there is no help for '{}'{}; valid: {}, and each name in them", wanted,
                                nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest), join(pages)));
}

}  // namespace

std::string help_text(const HelpContents& contents, const std::string& topic) {
  const auto groups = groups_of(contents);
  if (topic.empty()) return short_text(contents, groups);
  if (topic == "general") return general_text();
  if (topic == "all") {
    std::string all = short_text(contents, groups) + general_text();
    for (const auto& group : groups) all += group_text(group, /*with_options=*/true);
    return all;
  }
  const std::string text = text_of(groups, topic);
  if (text.empty()) throw_no_topic(groups, topic);
  return text;
}

}  // namespace levin
