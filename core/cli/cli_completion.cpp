#include <levin/core/cli/cli_completion.h>

#include <levin/core/base/error.h>
#include <levin/core/data/data_module.h>
#include <levin/core/interfaces/callback.h>
#include <levin/core/interfaces/logger.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/profiler.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/optim/named_optimizer.h>
#include <levin/core/optim/scheduler.h>
#include <levin/core/options/mesh_strategy.h>
#include <levin/core/options/options.h>
#include <levin/core/planning/strategy_choice.h>
#include <levin/core/precision/precision.h>

#include <fmt/format.h>

#include <cctype>
#include <set>

namespace levin {
namespace {

/// What may follow PROGRAM, once and sorted; an option that takes a value ends with "=".
class Words {
 public:
  void add(const std::string& word) { words_.insert(word); }

  /// `--trainer.strategy=ddp` for each name, and `--trainer.strategy.OPTION=` for their options.
  template <class Base>
  void add_named(const std::string& option, const Registry<Base>& registry) {
    for (const auto& item : registry.items()) {
      add(fmt::format("--{}={}", option, item.name));
      for (const auto& field : item.fields) add(fmt::format("--{}.{}=", option, field.name));
    }
  }
  /// `--trainer.callbacks.NAME.OPTION=`.
  template <class Base>
  void add_members(const std::string& option, const Registry<Base>& registry) {
    for (const auto& item : registry.items())
      for (const auto& field : item.fields) add(fmt::format("--{}.{}.{}=", option, item.name, field.name));
  }
  /// The program's own: `--model.name=NAME`, `--model.OPTION=`.
  template <class Base>
  void add_section(const std::string& section, const Registry<Base>& registry) {
    for (const auto& item : registry.items()) {
      add(fmt::format("--{}.name={}", section, item.name));
      for (const auto& field : item.fields) add(fmt::format("--{}.{}=", section, field.name));
    }
  }

  std::string text() const {
    std::string text;
    for (const auto& word : words_) text += word + "\n";
    return text;
  }

 private:
  std::set<std::string> words_;
};

}  // namespace

std::string completion_script(const std::string& shell, const std::string& program,
                              const std::vector<std::string>& commands, const ConfigNames& names) {
  if (shell != "bash" && shell != "zsh")
    throw ConfigError(fmt::format("command line: no completion for the shell '{}'; valid: bash, zsh", shell));
  Words words;
  for (const auto& command : commands) words.add(command);
  for (const char* option : {"--config", "--help", "--print_config", "--print_schema", "--version"}) words.add(option);
  for (const char* option : {"--seed=", "--ckpt=", "--ckpt=last", "--ckpt=best", "--ckpt=auto"}) words.add(option);
  for (const auto& field : schema_of<TrainerOptions>().fields()) words.add("--trainer." + field.name + "=");
  for (const auto& section : names.sections)
    for (const auto& field : section.fields) words.add(fmt::format("--{}.{}=", section.name, field.name));
  words.add_section("model", names.modules);
  words.add_section("data", names.data);
  words.add_named("trainer.strategy", names.strategies);
  words.add("--trainer.strategy=auto");
  for (const FieldDoc& field : schema_of<AutoStrategyOptions>().fields())
    words.add(fmt::format("--trainer.strategy.{}=", field.name));
  for (const MeshDimension& dimension : kMeshDimensions) {
    words.add(fmt::format("--trainer.strategy.{}=", dimension.name));
    for (const FieldDoc& field : fields_of(dimension, names.strategies))
      words.add(fmt::format("--trainer.strategy.{}.{}=", dimension.name, field.name));
  }
  words.add_named("trainer.precision", names.precisions);
  words.add_named("trainer.profiler", names.profilers);
  for (const FieldDoc& field : schema_of<AdapterOptions>().fields())
    words.add(fmt::format("--adapters.{}=", field.name));
  words.add_named("optimizer", names.optimizers);
  words.add_named("scheduler", names.schedulers);
  words.add_members("trainer.callbacks", names.callbacks);
  words.add_members("trainer.logger", names.loggers);

  std::string function = "_levin_";
  for (const char letter : program) function += std::isalnum(static_cast<unsigned char>(letter)) != 0 ? letter : '_';
  // Bash replaces what follows the last '=' or ':' of a word alone.
  return fmt::format(R"({zsh}{function}() {{
  local current="${{COMP_LINE:0:$COMP_POINT}}"
  current="${{current##* }}"
  local words='{words}'
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  [ -n "${{BASH_VERSION:-}}" ] || return 0
  if [[ ${{#COMPREPLY[@]}} == 1 && ${{COMPREPLY[0]}} == *= ]]; then compopt -o nospace; fi
  if [[ $current == *[=:]* ]]; then COMPREPLY=("${{COMPREPLY[@]#"${{current%"${{current##*[=:]}}"}}"}}"); fi
}}
complete -o default -F {function} {program}
)",
                     fmt::arg("zsh", shell == "zsh" ? "autoload -U +X bashcompinit && bashcompinit\n" : ""),
                     fmt::arg("function", function), fmt::arg("words", words.text()), fmt::arg("program", program));
}

}  // namespace levin
