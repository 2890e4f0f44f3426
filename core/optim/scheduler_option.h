#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/optim/optimizer_config.h>

#include <string>
#include <vector>

namespace levin {

/// The option `scheduler`: a name, or `{name: cosine, t_max: 10, interval: step, warmup_steps: 100}`, in which the
/// schedule's own options stand beside those of SchedulerConfig. With warmup_steps it steps with the optimizer, or else
/// every epoch.
template <>
struct ConfigCodec<SchedulerConfig> {
  static std::string type_name() { return "name, or mapping of a name and options"; }
  /// Throws ConfigError for an unknown scheduler or option.
  static SchedulerConfig parse(const Config& node, const std::string& path);
  static Config dump(const SchedulerConfig& value);
};

namespace optim {

/// The options that every scheduler has in a configuration, for documentation.
std::vector<FieldDoc> common_scheduler_fields();

}  // namespace optim

}  // namespace levin
