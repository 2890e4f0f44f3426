#pragma once

#include <levin/core/base/registry.h>
#include <levin/core/cli/command_section.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace levin {

class Callback;
class DataModule;
class Logger;
class Module;
class Precision;
class Profiler;
class Strategy;
class Trainer;
struct ConfigNames;

namespace optim {
class NamedOptimizer;
class Scheduler;
}  // namespace optim

/// What a command line has built.
struct CliRun {
  std::string command = {};
  Config config = {};  ///< resolved: with every default
  std::shared_ptr<Trainer> trainer = nullptr;
  std::shared_ptr<Module> module = nullptr;
  std::shared_ptr<DataModule> data = nullptr;  ///< nullptr: the module has the data hooks
  std::string ckpt = {};
};

/// Turns modules and data modules into a program with the commands fit, validate, test, predict, tune, plan, export,
/// data and sweep, configured by YAML files and command-line options. `PROGRAM --help` lists all of them.
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

  /// YAML under all other sources: "trainer: {max_epochs: 20}".
  std::string defaults = {};
  /// Called before and after each command that builds a trainer, sweeps excepted; after it not where it failed.
  std::function<void(const CliRun&)> before_command = {};
  std::function<void(const CliRun&)> after_command = {};

  /// Adds a command. `needs_data` false: it gets no data module, whose options may be left out. Throws ConfigError for
  /// the name of a built-in one, or of one that was added before.
  void add_command(const std::string& name, const std::string& doc, std::function<void(const CliRun&)> run,
                   bool needs_data = true);
  /// Adds a command with options of its own, a struct with describe(). They are a section of the configuration that has
  /// the command's name, and on its command line they may go without that: `PROGRAM serve --port=80`. Throws
  /// ConfigError where there is a section of that name too.
  template <Described Options>
  void add_command(const std::string& name, const std::string& doc,
                   std::function<void(const CliRun&, const std::type_identity_t<Options>&)> run,
                   bool needs_data = true) {
    const auto run_with_options = [name, run = std::move(run)](const CliRun& built) {
      const Config* section = built.config.find(name);
      run(built, parse_options<Options>(section != nullptr ? *section : Config::null(), name));
    };
    add_own({.name = name,
             .doc = doc,
             .run = run_with_options,
             .needs_data = needs_data,
             .section = CommandSection{
                 .name = name, .fields = schema_of<Options>().fields(), .resolve = [name](const Config& node) {
                   return schema_of<Options>().resolve(node, name);
                 }}});
  }
  /// Sets one option from another: link("data.num_classes", "model.num_classes"); `compute` makes the value. The target
  /// cannot be given beside it. Links are followed in the order in which they were added.
  void link(const std::string& source, const std::string& target, std::function<Config(const Config&)> compute = {});

  /// Builds what options (no command) say, and runs nothing. Throws levin::Error or ConfigError.
  CliRun build(int argc, char** argv);

  /// Runs the command that the arguments name. Returns the program's exit status: 0; 1 for an error of training or of
  /// user code; 2 for a wrong configuration or command line; 128 + the signal's number when a signal ended the run
  /// after a whole step (130 for Ctrl-C). Errors are printed on standard error, never thrown.
  int run(int argc, char** argv);

 private:
  struct OwnCommand {
    std::string name;
    std::string doc;
    std::function<void(const CliRun&)> run;
    bool needs_data = true;
    std::optional<CommandSection> section = {};
  };
  struct Link {
    std::string source;
    std::string target;
    std::function<Config(const Config&)> compute;
  };

  void add_own(OwnCommand command);
  ConfigNames config_names() const;
  int run_command(int argc, char** argv);
  std::vector<std::string> command_names() const;
  /// The whole configuration; `settings`: those of the command line.
  Config configure(const std::vector<std::string>& files,
                   const std::vector<std::pair<std::string, Config>>& settings) const;

  std::vector<OwnCommand> own_commands_;
  std::vector<Link> links_;
};

}  // namespace levin
