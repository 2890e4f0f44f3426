#pragma once

#include <levin/core/cli/cli_config.h>

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

/// What `--help TOPIC` prints, in lines of at most 100 columns: the options of a section (trainer, plan, model, data),
/// the names that a place may have (callbacks, strategies, ...), or what is called so (early_stopping, ddp,
/// max_epochs). An empty topic is a page with what is used most and the topics; "all" is everything. Throws ConfigError
/// with the nearest name for what is no topic.
std::string help_text(const HelpContents& contents, const std::string& topic);

}  // namespace levin
