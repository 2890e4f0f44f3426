#pragma once

#include <levin/core/interfaces/logger.h>
#include <levin/loggers/wandb_sink.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace levin::wandb {

/// Returns those of `values` that are device statistics (of device_stats_monitor) and that W&B's own client samples as
/// well, under its names and in its units, for stats_record: "rank1/gpu0/power_watts" as "gpu.0.powerWatts/l:rank1".
/// `cores`: of a host; W&B's "cpu" is a share of all of them. `prefix`: of the logger, before the names. What is not
/// finite is left out.
std::vector<Item> system_items(std::span<const MetricValue> values, int64_t cores, std::string_view prefix = {});

}  // namespace levin::wandb
