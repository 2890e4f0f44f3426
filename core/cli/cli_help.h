#pragma once

#include <levin/core/cli/cli_config.h>

#include <string>
#include <utility>
#include <vector>

namespace levin {

/// Contents that `--help` describes.
struct HelpContents {
  std::string program;
  std::vector<std::pair<std::string, std::string>> commands;  ///< name and one line
  const ConfigNames& names;
};

/// Returns the text of `--help TOPIC`, in lines of at most 100 columns. Topics are sections (trainer, plan, model,
/// data: their options), kinds (callbacks, strategies, ...: their names) and single names (early_stopping, ddp,
/// max_epochs). The empty topic is a page with the most used options and the topics; "all" is everything. Throws
/// ConfigError with the nearest name for an unknown topic.
std::string help_text(const HelpContents& contents, const std::string& topic);

}  // namespace levin
