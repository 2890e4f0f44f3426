#pragma once

#include <levin/core/interfaces/strategy.h>

#include <string>

namespace levin {

/// Lists, for messages, the registered strategies that can do something, made with their default options: "ddp,
/// ddp_spawn".
std::string capable_strategies(bool StrategyCapabilities::*capability);

}  // namespace levin
