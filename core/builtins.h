#pragma once

namespace levin {

struct Registries;

/// Registers everything that comes with Levin: callbacks, loggers, strategies and precisions. Explicit, because a
/// static object that registers itself vanishes from a static library.
void register_builtins(Registries& registries);

}  // namespace levin
