#include <levin/core/cli/trainer_config.h>

#include <levin/core/cli/cli.h>
#include <levin/core/cli/cli_config.h>

namespace levin {

Config load_trainer_config(const std::string& path) {
  const Cli program;
  const Config config = merge_sources({path}, {}, names_of(program));
  const Config* trainer = config.find("trainer");
  return trainer != nullptr ? *trainer : Config::mapping();
}

}  // namespace levin
