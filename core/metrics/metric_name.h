#pragma once

#include <string_view>

namespace levin::metrics {

/// Throws levin::Error for a name that cannot be logged: an empty one, and "epoch" and "step", which loggers and
/// checkpoints' names use for the trainer's own counters.
void check_metric_name(std::string_view name);

}  // namespace levin::metrics
