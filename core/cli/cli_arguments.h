#pragma once

#include <levin/core/base/config.h>
#include <levin/core/cli/command_section.h>

#include <string>
#include <vector>

namespace levin {

/// Parsed command line.
struct CliArguments {
  /// One setting: `--trainer.max_epochs=3`.
  struct Setting {
    std::string path;  ///< "trainer.max_epochs"
    Config value;      ///< its text parsed as YAML; text that YAML would change stays as it is
  };

  std::string program;  ///< argv[0] without its folder
  std::string command;  ///< empty when none was given
  std::vector<std::string> config_files;
  std::vector<Setting> settings;  ///< in order
  bool help = false;
  std::string help_topic;  ///< topic of --help; empty: the short page
  bool version = false;
  bool print_config = false;
  bool print_schema = false;
  std::string completion;  ///< of --print_completion: the shell; empty when it was not given
  std::string local_rank;  ///< of `--local_rank N`, which older launchers append; empty when it was not given
};

/// Parses a command line without looking up what the settings name. `commands` are the valid commands, `sections` those
/// of commands that the program adds: their options may go without the section's name. Throws ConfigError.
CliArguments parse_arguments(int argc, const char* const* argv, const std::vector<std::string>& commands,
                             const std::vector<CommandSection>& sections = {});

/// Returns the settings that variables give: LEVIN_TRAINER__MAX_EPOCHS=3 is `trainer.max_epochs`, two underscores being
/// the dot. In the order of their names.
std::vector<CliArguments::Setting> environment_settings();

}  // namespace levin
