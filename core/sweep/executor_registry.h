#pragma once

#include <levin/core/base/registry.h>
#include <levin/core/sweep/executor.h>

namespace levin::sweep {

/// The names that the option `sweep.executor` may have, to which a program may add its own before Cli::run. One for the
/// process.
Registry<Executor>& executor_registry();

}  // namespace levin::sweep
