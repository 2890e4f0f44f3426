#pragma once

#include <levin/core/base/error.h>
#include <levin/core/optim/group_options.h>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace levin::optim {

/// Options of a group in place of the base options.
struct GroupOverrides {
  std::optional<double> lr = {};
  std::optional<double> weight_decay = {};
};

/// Options for the parameters whose dotted name matches a pattern, in which `*` stands for any characters, dots
/// included: "*.bias", "backbone.*".
struct GroupRule {
  std::string pattern = {};
  GroupOverrides overrides = {};
};

namespace detail {

/// The module's parameters that require gradients, each once, by the first rule that matches: element 0 those that no
/// rule does, element i + 1 those of rule i. Throws levin::Error for a pattern that no parameter's name matches, or
/// only names that earlier patterns match.
std::vector<std::vector<at::Tensor>> parameters_by_rule(const torch::nn::Module& module,
                                                        const std::vector<GroupRule>& rules);
/// Splits the parameters that require gradients into those of two and more dimensions and the others (biases, the
/// scales and shifts of norms).
std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>> matrices_and_vectors(const torch::nn::Module& module);

template <class Options>
Options overridden(Options options, const GroupOverrides& overrides) {
  if (overrides.lr) options.lr = *overrides.lr;
  if (overrides.weight_decay) {
    if constexpr (requires { options.weight_decay; })
      options.weight_decay = *overrides.weight_decay;
    else
      throw Error("optim", "a group was given a weight_decay, which the options of this optimizer do not have");
  }
  return options;
}

}  // namespace detail

/// The parameter groups of an optimizer by name: every parameter of the module that requires a gradient lands in the
/// group of the first rule that matches its name, the rest in a group with `base`. Groups without a parameter are left
/// out; that of the rest comes first.
///
///     std::make_shared<AdamW>(parameter_groups(*this, AdamWOptions{.lr = 1e-3},
///                                              {{"*.bias", {.weight_decay = 0}}, {"backbone.*", {.lr = 1e-4}}}));
template <Described Options>
std::vector<ParameterGroup<Options>> parameter_groups(const torch::nn::Module& module, const Options& base,
                                                      const std::vector<GroupRule>& rules) {
  std::vector<ParameterGroup<Options>> groups;
  auto parameters = detail::parameters_by_rule(module, rules);
  for (size_t i = 0; i < parameters.size(); ++i)
    if (!parameters[i].empty())
      groups.push_back({.params = std::move(parameters[i]),
                        .options = detail::overridden(base, i == 0 ? GroupOverrides{} : rules[i - 1].overrides)});
  return groups;
}

/// Two groups: weights with the weight decay of `base`; biases and the parameters of norms (all of one dimension) with
/// none.
template <Described Options>
std::vector<ParameterGroup<Options>> decay_weights_only(const torch::nn::Module& module, const Options& base) {
  auto [matrices, vectors] = detail::matrices_and_vectors(module);
  std::vector<ParameterGroup<Options>> groups;
  if (!matrices.empty()) groups.push_back({.params = std::move(matrices), .options = base});
  if (!vectors.empty())
    groups.push_back({.params = std::move(vectors), .options = detail::overridden(base, {.weight_decay = 0})});
  return groups;
}

}  // namespace levin::optim
