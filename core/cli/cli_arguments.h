#pragma once

#include <levin/core/base/config.h>

#include <string>
#include <vector>

namespace levin {

/// Parsed command line.
struct CliArguments {
  /// One setting: `--trainer.max_epochs=3`.
  struct Setting {
    std::string path;  ///< "trainer.max_epochs"
    Config value;      ///< its text parsed as YAML
  };

  std::string program;  ///< argv[0] without its folder
  std::string command;  ///< empty when none was given
  std::vector<std::string> config_files;
  std::vector<Setting> settings;  ///< in order
  bool help = false;
  std::string help_topic;  ///< topic of --help; empty: the short page
  bool version = false;
  bool print_config = false;
  std::string local_rank;  ///< of `--local_rank N`, which older launchers append; empty when it was not given
};

/// Parses a command line without looking up what the settings name. `commands` are the valid commands. Throws
/// ConfigError.
CliArguments parse_arguments(int argc, const char* const* argv, const std::vector<std::string>& commands);

}  // namespace levin
