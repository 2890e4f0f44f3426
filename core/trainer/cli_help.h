#pragma once

#include <levin/core/trainer/cli_config.h>

#include <string>
#include <utility>
#include <vector>

namespace levin {

namespace optim {
class Scheduler;
}

/// What `--help` describes.
struct HelpContents {
  std::string program;
  std::vector<std::pair<std::string, std::string>> commands;  ///< name and one line
  const ConfigNames& names;
  const Registry<optim::Scheduler>& schedulers;
};

/// The help of one section (general, trainer, model, data, callbacks, ...) or, for an empty name, of all of them, in
/// lines of at most 100 columns. Throws ConfigError for a section that does not exist.
std::string help_text(const HelpContents& contents, const std::string& section);

}  // namespace levin
