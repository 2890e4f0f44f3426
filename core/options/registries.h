#pragma once

#include <levin/core/base/registry.h>
#include <levin/core/interfaces/cluster_environment.h>

#include <functional>
#include <memory>

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
}

/// The names that YAML may use. Built-in classes are registered when it is first asked for; users add their own in the
/// same way, through levin::Cli or here.
struct Registries {
  Registry<Callback> callbacks{"callback"};
  Registry<Logger> loggers{"logger"};
  Registry<Strategy> strategies{"strategy"};
  Registry<Precision> precisions{"precision"};
  Registry<Profiler> profilers{"profiler"};
  Registry<optim::NamedOptimizer> optimizers{"optimizer"};
  /// The launcher that started this process as one of several ranks; nullptr when there is none.
  std::function<std::unique_ptr<ClusterEnvironment>()> detect_environment = [] { return nullptr; };
};

/// The registries of this process.
Registries& registries();

}  // namespace levin
