#pragma once

#include <vector>

namespace levin {

class UnitCall;

/// Is told of every time that the forward of a unit runs: sharding gathers and frees parameters around it, profiling
/// times it, a monitor looks at its results. Called on whichever thread runs the forward.
class UnitHook {
 public:
  virtual ~UnitHook() = default;
  /// Called before the forward, its repetitions included.
  virtual void before_forward(UnitCall& /*call*/) {}
  /// Called after the forward, also when it threw: the call has no results then.
  virtual void after_forward(UnitCall& /*call*/) {}
};

/// Hooks of a unit, in the order in which they were added.
using UnitHooks = std::vector<UnitHook*>;

/// Takes over the calls of a unit: it may keep a copy of one and run the forward again later, as activation
/// checkpointing does.
class UnitRunner {
 public:
  virtual ~UnitRunner() = default;
  /// Called instead of `call.run()`, which it must call once.
  virtual void run(UnitCall& call) = 0;
};

}  // namespace levin
