#include <levin/core/nn/tensor_plan.h>

#include <levin/core/base/error.h>
#include <levin/core/base/wildcard.h>
#include <levin/core/nn/module_type_name.h>
#include <levin/core/nn/parallelize.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

namespace levin {
namespace {

constexpr std::string_view kWeight = "weight";

const char* name_of(TensorCut cut) {
  switch (cut) {
    case TensorCut::kColumn:
      return "column";
    case TensorCut::kRow:
      return "row";
    case TensorCut::kVocabulary:
      return "vocabulary";
    case TensorCut::kWhole:
      break;
  }
  return "whole";
}

/// A matrix of a module, and the bias beside it. One that is tied has several names, and so the bias of a head.
struct Layer {
  std::vector<std::string> paths;  ///< as patterns name it: without ".weight"
  std::vector<std::string> names;
  CutWeight weight;  ///< with the first name
  bool is_matched_by(const std::string& pattern) const {
    const auto matches = [&](const std::string& name) { return matches_wildcard(pattern, name); };
    return std::ranges::any_of(paths, matches) || std::ranges::any_of(names, matches);
  }
};

std::vector<Layer> layers_of(const torch::nn::Module& module) {
  const auto parameters = module.named_parameters();
  std::vector<Layer> layers;
  std::map<const void*, size_t> places;
  for (const auto& item : parameters) {
    const std::string& name = item.key();
    if (!item.value().defined() || item.value().dim() != 2) continue;
    const auto [place, is_new] = places.try_emplace(item.value().unsafeGetTensorImpl(), layers.size());
    if (is_new) layers.push_back({.paths = {}, .names = {}, .weight = {.name = name, .weight = item.value()}});
    Layer& layer = layers[place->second];
    layer.names.push_back(name);
    if (name != kWeight && !name.ends_with(fmt::format(".{}", kWeight))) {
      layer.paths.push_back(name);
      continue;
    }
    layer.paths.push_back(name == kWeight ? "" : name.substr(0, name.size() - kWeight.size() - 1));
    const std::string bias = name.substr(0, name.size() - kWeight.size()) + "bias";
    const at::Tensor* const found = parameters.find(bias);
    if (layer.weight.bias.defined() || found == nullptr || !found->defined()) continue;
    layer.weight.bias_name = bias;
    layer.weight.bias = *found;
  }
  return layers;
}

/// Whose rules they are, for messages: "tensor_plan of Block 'blocks.0'".
struct Rules {
  TensorPlan plan;
  std::string owner;
  bool replace = false;  ///< others of the same weights
};

/// Which sizes, of the weight or of `tensor`, would do: "a multiple of 3 (the next is 6), or over 2 or 4 ranks".
std::string what_divides(int64_t size, int64_t multiple, int64_t ranks) {
  constexpr size_t kNamed = 4;
  std::vector<std::string> others;
  for (int64_t other = ranks - 1; other > 1 && others.size() < kNamed; --other)
    if (size % (multiple / ranks * other) == 0) others.insert(others.begin(), std::to_string(other));
  const int64_t next = (size + multiple - 1) / multiple * multiple;
  std::string text = fmt::format("a multiple of {} (the next is {})", multiple, next);
  if (!others.empty()) text += fmt::format(", or over {} ranks", fmt::join(others, " or "));
  return text;
}

void check_divides(const CutWeight& weight, int64_t ranks, const std::string& owner) {
  const bool is_column = weight.rule.cut == TensorCut::kColumn;
  const bool is_row = weight.rule.cut == TensorCut::kRow;
  const int64_t size = weight.weight.size(is_row ? 1 : 0);
  const auto fail = [&](const std::string& what) {
    throw ConfigError(fmt::format("{}: the weight '{}' cannot be cut by {} over {} ranks: {}", owner, weight.name,
                                  name_of(weight.rule.cut), ranks, what));
  };
  if (weight.rule.parts < 1 || weight.rule.heads < 0 || (!is_column && weight.rule.parts != 1))
    fail(fmt::format("parts are at least 1 (but by column: 1) and heads 0 or above; got {} and {}", weight.rule.parts,
                     weight.rule.heads));
  if (weight.rule.heads > 0 && weight.rule.heads % ranks != 0)
    fail(fmt::format("it has {} heads; valid: {}", weight.rule.heads, what_divides(weight.rule.heads, ranks, ranks)));
  const int64_t unit = weight.rule.parts * std::max<int64_t>(weight.rule.heads, 1);
  if (size % unit != 0)
    fail(fmt::format("its {} {} do not consist of {} parts of {} heads", size,
                     is_row      ? "inputs"
                     : is_column ? "outputs"
                                 : "rows",
                     weight.rule.parts, std::max<int64_t>(weight.rule.heads, 1)));
  if (size % (weight.rule.parts * ranks) != 0)
    fail(fmt::format("it has {} {}; valid: {}", size,
                     is_row      ? "inputs"
                     : is_column ? "outputs"
                                 : "rows",
                     what_divides(size, weight.rule.parts * ranks, ranks)));
}

/// Rules of one owner, by the weight that they match.
std::map<const void*, CutWeight> matches(const std::vector<Layer>& layers, const Rules& rules, int64_t ranks) {
  std::map<const void*, CutWeight> matched;
  bool has_column = false;
  bool has_row = false;
  for (const TensorRule& rule : rules.plan) {
    bool matches_any = false;
    for (const Layer& layer : layers) {
      if (!layer.is_matched_by(rule.pattern)) continue;
      matches_any = true;
      CutWeight weight = layer.weight;
      weight.rule = rule;
      const auto [place, is_new] = matched.emplace(weight.weight.unsafeGetTensorImpl(), weight);
      // Each of the names of a tied weight may be cut so.
      const bool is_tied = layer.names.size() > 1 && place->second.rule.cut == TensorCut::kVocabulary &&
                           rule.cut == TensorCut::kVocabulary;
      if (!is_new && !is_tied)
        throw ConfigError(
            fmt::format("{}: the weight '{}' matches twice; got '{}' as the second pattern; valid: one "
                        "pattern for each weight",
                        rules.owner, weight.name, rule.pattern));
      if (rule.cut == TensorCut::kWhole) continue;
      check_divides(weight, ranks, rules.owner);
      has_column |= rule.cut == TensorCut::kColumn;
      has_row |= rule.cut == TensorCut::kRow;
    }
    if (matches_any) continue;
    std::vector<std::string> paths;
    for (const Layer& layer : layers) paths.insert(paths.end(), layer.paths.begin(), layer.paths.end());
    throw ConfigError(fmt::format("{}: the pattern '{}' matches no weight{}", rules.owner, rule.pattern,
                                  valid_names_hint(rule.pattern, paths)));
  }
  if (has_column != has_row && !rules.replace)
    throw ConfigError(
        fmt::format("{}: it cuts layers by {} and none by {}; valid: both, as what a column layer gives "
                    "is cut until a row layer adds it up",
                    rules.owner, has_column ? "column" : "row", has_column ? "row" : "column"));
  return matched;
}

std::string joined(const std::string& prefix, const std::string& name) {
  return prefix.empty() || name.empty() ? prefix + name : prefix + "." + name;
}

}  // namespace

std::vector<CutWeight> weights_to_cut(torch::nn::Module& module, int64_t ranks, const TensorPlan& further,
                                      const std::string& option) {
  std::map<const void*, CutWeight> cut;
  for (const auto& part : module.named_modules(/*name_prefix=*/"", /*include_self=*/true)) {
    const std::optional<TensorPlan> plan = tensor_plan_of(*part.value());
    if (!plan) continue;
    const Rules rules{
        .plan = *plan,
        .owner = fmt::format("tensor_plan of {} '{}'", short_type_name(part.value()->name()), part.key())};
    for (auto& [tensor, weight] : matches(layers_of(*part.value()), rules, ranks)) {
      weight.name = joined(part.key(), weight.name);
      if (weight.bias.defined()) weight.bias_name = joined(part.key(), weight.bias_name);
      // An embedding and a head may share their weight.
      const auto [place, is_new] = cut.emplace(tensor, weight);
      if (!is_new && (place->second.rule.cut != TensorCut::kVocabulary || weight.rule.cut != TensorCut::kVocabulary))
        throw ConfigError(
            fmt::format("{}: the weight '{}' is in two plans; valid: in one, that of the module or of one "
                        "in it",
                        rules.owner, weight.name));
      if (!is_new && !place->second.bias.defined()) {
        place->second.bias_name = weight.bias_name;
        place->second.bias = weight.bias;
      }
    }
  }
  const std::vector<Layer> layers = layers_of(module);
  for (auto& [tensor, weight] : matches(layers, {.plan = further, .owner = option, .replace = true}, ranks))
    cut.insert_or_assign(tensor, std::move(weight));
  std::erase_if(cut, [](const auto& item) { return item.second.rule.cut == TensorCut::kWhole; });
  if (cut.empty())
    throw ConfigError(
        fmt::format("strategy 'tensor' cuts layers by their modules' plans, and {} has none; hint: derive "
                    "the modules to cut from levin::HasTensorPlan, give them plans with levin::parallelize, or give {}",
                    short_type_name(module.name()), option));
  const auto count = [&](TensorCut how) {
    return std::ranges::count_if(cut, [&](const auto& item) { return item.second.rule.cut == how; });
  };
  if (const auto rows = count(TensorCut::kRow); (rows == 0) != (count(TensorCut::kColumn) == 0))
    throw ConfigError(
        fmt::format("{}: layers are cut by {} and none by {}; valid: both, as what a column layer gives is "
                    "cut until a row layer adds it up",
                    option, rows == 0 ? "column" : "row", rows == 0 ? "row" : "column"));
  std::vector<CutWeight> ordered;
  for (const Layer& layer : layers)
    if (const auto found = cut.find(layer.weight.weight.unsafeGetTensorImpl()); found != cut.end())
      ordered.push_back(found->second);
  return ordered;
}

}  // namespace levin
