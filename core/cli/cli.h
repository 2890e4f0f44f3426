#pragma once

#include <levin/core/base/registry.h>

#include <string>

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

/// Turns modules and data modules into a program with the commands fit, validate, test, predict, tune, plan, export and
/// sweep,
/// configured by YAML files and command-line options. `PROGRAM --help` lists all of them.
///
///     int main(int argc, char** argv) {
///       levin::Cli cli;
///       cli.modules.add<Classifier>("mlp");
///       cli.data.add<levin::data::FashionMnist>("fashion_mnist");
///       return cli.run(argc, argv);
///     }
class Cli {
 public:
  Cli();

  Registry<Module> modules{"model"};         ///< `model: {name: mlp, ...}`; the first one added is the default
  Registry<DataModule> data{"data module"};  ///< `data: {name: ...}`; the first one added is the default

  // References to those of levin::registries() and levin::optim::scheduler_registry(); YAML can name what is added
  // here.
  Registry<Callback>& callbacks;
  Registry<Logger>& loggers;
  Registry<Strategy>& strategies;
  Registry<Precision>& precisions;
  Registry<Profiler>& profilers;
  Registry<optim::NamedOptimizer>& optimizers;
  Registry<optim::Scheduler>& schedulers;

  /// Runs the command that the arguments name. Returns the program's exit status: 0; 1 for an error of training or of
  /// user code; 2 for a wrong configuration or command line; 128 + the signal's number when a signal ended the run
  /// after a whole step (130 for Ctrl-C). Errors are printed on standard error, never thrown.
  int run(int argc, char** argv);

 private:
  int run_command(int argc, char** argv);
};

}  // namespace levin
