#include <levin/core/optim/parameter_groups.h>

#include <levin/core/base/wildcard.h>
#include <levin/core/optim/parameter_names.h>

#include <fmt/format.h>

namespace levin::optim::detail {
namespace {

[[noreturn]] void matches_nothing(const std::string& pattern, const std::vector<ParameterNames::Item>& parameters) {
  std::vector<std::string> names;
  for (const auto& [name, parameter] : parameters) names.push_back(name);
  throw Error("optim", fmt::format("the pattern '{}' of a parameter group matches no parameter{}", pattern,
                                   valid_names_hint(pattern, names)));
}

}  // namespace

std::vector<std::vector<at::Tensor>> parameters_by_rule(const torch::nn::Module& module,
                                                        const std::vector<GroupRule>& rules) {
  const ParameterNames named(module);
  std::vector<std::vector<at::Tensor>> groups(rules.size() + 1);
  std::vector<bool> matched(rules.size());  // at all
  std::vector<bool> used(rules.size());     // as the first
  for (const auto& [name, parameter] : named.items()) {
    size_t group = 0;
    for (size_t rule = 0; rule < rules.size(); ++rule) {
      if (!matches_wildcard(rules[rule].pattern, name)) continue;
      matched[rule] = true;
      if (group != 0) continue;
      used[rule] = true;
      group = rule + 1;
    }
    if (parameter.requires_grad()) groups[group].push_back(parameter);
  }
  for (size_t rule = 0; rule < rules.size(); ++rule) {
    if (!matched[rule]) matches_nothing(rules[rule].pattern, named.items());
    if (!used[rule])
      throw Error("optim", fmt::format("the pattern '{}' of a parameter group matches only parameters that patterns "
                                       "before it match; hint: put it before them",
                                       rules[rule].pattern));
  }
  return groups;
}

std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>> matrices_and_vectors(const torch::nn::Module& module) {
  const ParameterNames named(module);
  std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>> parts;
  for (const auto& [name, parameter] : named.items())
    if (parameter.requires_grad()) (parameter.dim() > 1 ? parts.first : parts.second).push_back(parameter);
  return parts;
}

}  // namespace levin::optim::detail
