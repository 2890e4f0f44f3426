#pragma once

#include <levin/core/base/error.h>
#include <levin/core/base/registry.h>
#include <levin/core/base/schema.h>
#include <levin/core/base/spec.h>
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

  /// Finds the optimizers that this one names in its options; called before make_for. Throws ConfigError, led by
  /// `path`, for a name that is not registered.
  virtual void resolve_parts(const Registry<NamedOptimizer>& /*registry*/, const std::string& /*path*/) {}
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

/// Parameters by their names, with some of the options `O` of their own: `{pattern: "*.bias", weight_decay: 0}`.
template <class O>
struct NamedGroupOptions {
  Config config = {};
  NamedGroupOptions(Config given) : config(std::move(given)) {}  // NOLINT(google-explicit-constructor)
};

}  // namespace levin::optim

namespace levin {

template <class O>
struct ConfigCodec<optim::NamedGroupOptions<O>> {
  static std::string type_name() { return ConfigCodec<Config>::type_name(); }
  static optim::NamedGroupOptions<O> parse(const Config& node, const std::string&) { return node; }
  static Config dump(const optim::NamedGroupOptions<O>& value) {
    if (!TypedFormScope::is_active()) return value.config;
    const std::string path = "optimizer.groups";
    const Config given = optim::detail::group_overrides(value.config, path);
    const Config all = schema_of<O>().resolve(given, path);
    Config form = value.config;
    for (const auto& entry : given.entries())
      if (const Config* typed = all.find(entry.key)) form.set(entry.key, *typed);
    return form;
  }
};

}  // namespace levin

namespace levin::optim {

/// Makes optimizers of one class: built as `T(std::vector<ParameterGroup<T::Options>>)`. How a program adds one:
///
///     cli.optimizers.add<levin::optim::NamedOptimizerOf<MyOptimizer>>("mine", "what it is");
template <class T>
class NamedOptimizerOf final : public NamedOptimizer {
 public:
  struct Options {
    typename T::Options base = {};
    std::vector<NamedGroupOptions<typename T::Options>> groups = {};

    static void describe(Schema<Options>& schema) {
      schema.fields_of(&Options::base);
      schema.field("groups", &Options::groups, "parameter groups by name: {pattern: \"*.bias\", weight_decay: 0}");
    }
  };

  explicit NamedOptimizerOf(Options options) : options_(std::move(options)) {
    for (size_t i = 0; i < options_.groups.size(); ++i) {
      const std::string path = "optimizer.groups[" + std::to_string(i) + "]";
      with_overrides(detail::group_overrides(options_.groups[i].config, path), path);
    }
  }

  std::shared_ptr<torch::optim::Optimizer> make_for(const torch::nn::Module& module) const override {
    std::vector<ParameterGroup<typename T::Options>> groups;
    std::vector<Config> rules;
    for (const auto& group : options_.groups) rules.push_back(group.config);
    for (auto& group : detail::named_groups(module, rules))
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

/// Makes optimizers around others: built as `T(std::shared_ptr<torch::optim::Optimizer>, T::Options)`.
template <class T>
class NamedWrapperOf final : public NamedOptimizer {
 public:
  struct Options {
    Spec<NamedOptimizer> base = {};  ///< a name, `{name: adamw, lr: 1e-3}` or `adamw: {lr: 1e-3}`
    typename T::Options own = {};

    static void describe(Schema<Options>& schema) {
      schema.field("base", &Options::base, "wrapped optimizer: {name: adamw, lr: 1e-3}; required");
      schema.fields_of(&Options::own);
    }
  };

  explicit NamedWrapperOf(Options options) : options_(std::move(options)) {}

  std::shared_ptr<torch::optim::Optimizer> make_for(const torch::nn::Module& module) const override {
    LEVIN_CHECK(base_ != nullptr, "the parts of an optimizer are resolved before it is made");
    return std::make_shared<T>(base_->make_for(module), options_.own);
  }

  void resolve_parts(const Registry<NamedOptimizer>& registry, const std::string& path) override {
    if (options_.base.empty())
      throw ConfigError(path + " needs `base`, the optimizer that it wraps, such as {name: adamw, lr: 1e-3}");
    base_ = options_.base.resolve(registry, path + ".base");
    base_->resolve_parts(registry, path + ".base");
  }

 private:
  Options options_;
  std::shared_ptr<NamedOptimizer> base_;
};

/// Adds the optimizers that come with Levin.
void register_builtin_optimizers(Registry<NamedOptimizer>& registry);

}  // namespace levin::optim
