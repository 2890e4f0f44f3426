#pragma once

#include <levin/core/base/registry.h>
#include <levin/core/cli/command_section.h>

#include <vector>

namespace levin {

class Callback;
class DataModule;
class Logger;
class Module;
class Precision;
class Profiler;
class Strategy;

namespace optim {
class NamedOptimizer;
class Scheduler;
}  // namespace optim

/// Registries of the names that a program's configuration may use, and the sections of its own commands.
struct ConfigNames {
  const Registry<Module>& modules;
  const Registry<DataModule>& data;
  const Registry<Callback>& callbacks;
  const Registry<Logger>& loggers;
  const Registry<Strategy>& strategies;
  const Registry<Precision>& precisions;
  const Registry<Profiler>& profilers;
  const Registry<optim::NamedOptimizer>& optimizers;
  const Registry<optim::Scheduler>& schedulers;
  std::vector<CommandSection> sections = {};
};

/// Returns those of a program, a Cli, which must outlive them; the sections are left to it.
template <class Program>
ConfigNames names_of(const Program& program) {
  return {.modules = program.modules,
          .data = program.data,
          .callbacks = program.callbacks,
          .loggers = program.loggers,
          .strategies = program.strategies,
          .precisions = program.precisions,
          .profilers = program.profilers,
          .optimizers = program.optimizers,
          .schedulers = program.schedulers};
}

}  // namespace levin
