#pragma once

#include <levin/core/base/config.h>

#include <string>
#include <vector>

namespace levin {

/// A command line taken apart.
struct CliArguments {
  /// `--trainer.max_epochs=3`
  struct Setting {
    std::string path;  ///< "trainer.max_epochs"
    Config value;      ///< its text read as YAML
  };

  std::string program;  ///< argv[0] without its folder
  std::string command;  ///< empty when none was given
  std::vector<std::string> config_files;
  std::vector<Setting> settings;  ///< in order
  bool help = false;
  std::string help_topic;  ///< what --help is about; empty: the short page
  bool version = false;
  bool print_config = false;
  std::string local_rank;  ///< of `--local_rank N`, which older launchers append; empty when it was not given
};

/// Takes a command line apart without looking at what the settings name. `commands` are the words that may stand for a
/// command. Throws ConfigError.
CliArguments parse_arguments(int argc, const char* const* argv, const std::vector<std::string>& commands);

}  // namespace levin
