#include <levin/core/cli/trainer_config.h>

#include <levin/core/cli/cli.h>
#include <levin/core/cli/cli_config.h>

namespace levin {

Config load_trainer_config(const std::string& path) {
  const Cli names;
  const Config config = merge_sources({path}, {},
                                      {.modules = names.modules,
                                       .data = names.data,
                                       .callbacks = names.callbacks,
                                       .loggers = names.loggers,
                                       .strategies = names.strategies,
                                       .precisions = names.precisions,
                                       .profilers = names.profilers,
                                       .optimizers = names.optimizers,
                                       .schedulers = names.schedulers});
  const Config* trainer = config.find("trainer");
  return trainer != nullptr ? *trainer : Config::mapping();
}

}  // namespace levin
