#pragma once

#include <levin/core/interfaces/strategy.h>

#include <string>

namespace levin {

/// The names of the registered strategies that can do something, made with their default options: "ddp, ddp_spawn",
/// for messages.
std::string capable_strategies(bool StrategyCapabilities::*capability);

}  // namespace levin
