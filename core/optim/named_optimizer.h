#pragma once

#include <levin/core/base/registry.h>
#include <levin/core/base/schema.h>
#include <levin/core/optim/group_options.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torch {
namespace nn {
class Module;
}
namespace optim {
class Optimizer;
}
}  // namespace torch

namespace levin::optim {

/// An optimizer that configurations name, with its options: the option `optimizer`. It makes the optimizer itself when
/// the module is known.
class NamedOptimizer : public Configurable {
 public:
  /// Makes the optimizer for the module's parameters that require gradients. Throws levin::Error for a pattern that no
  /// parameter's name matches.
  virtual std::shared_ptr<torch::optim::Optimizer> make_for(const torch::nn::Module& module) const = 0;
};

namespace detail {

/// Parameters, and what is set for them in place of the optimizer's options.
struct NamedGroup {
  std::vector<at::Tensor> params;
  Config overrides;
  std::string path;  ///< of `overrides`, for messages
};

/// Splits the module's parameters by the groups of the option `groups`; those that are in none come first.
std::vector<NamedGroup> named_groups(const torch::nn::Module& module, const std::vector<Config>& groups);
/// Returns a group without its pattern. Throws ConfigError for one that has none.
Config group_overrides(const Config& group, const std::string& path);

}  // namespace detail

/// Makes optimizers of one class: built as `T(std::vector<ParameterGroup<T::Options>>)`. How a program adds one:
///
///     cli.optimizers.add<levin::optim::NamedOptimizerOf<MyOptimizer>>("mine", "what it is");
template <class T>
class NamedOptimizerOf final : public NamedOptimizer {
 public:
  struct Options {
    typename T::Options base = {};
    std::vector<Config> groups = {};  ///< each `{pattern: "*.bias", OPTION: VALUE}`

    static void describe(Schema<Options>& schema) {
      schema.fields_of(&Options::base);
      schema.field("groups", &Options::groups,
                   "parameters with options of their own, by name: {pattern: \"*.bias\", weight_decay: 0}");
    }
  };

  explicit NamedOptimizerOf(Options options) : options_(std::move(options)) {
    for (size_t i = 0; i < options_.groups.size(); ++i) {
      const std::string path = "optimizer.groups[" + std::to_string(i) + "]";
      with_overrides(detail::group_overrides(options_.groups[i], path), path);
    }
  }

  std::shared_ptr<torch::optim::Optimizer> make_for(const torch::nn::Module& module) const override {
    std::vector<ParameterGroup<typename T::Options>> groups;
    for (auto& group : detail::named_groups(module, options_.groups))
      groups.push_back({std::move(group.params), with_overrides(group.overrides, group.path)});
    return std::make_shared<T>(std::move(groups));
  }

 private:
  typename T::Options with_overrides(const Config& overrides, const std::string& path) const {
    typename T::Options options = options_.base;
    schema_of<typename T::Options>().apply(options, overrides, path);
    return options;
  }

  Options options_;
};

/// Adds the optimizers that come with Levin.
void register_builtin_optimizers(Registry<NamedOptimizer>& registry);

}  // namespace levin::optim
