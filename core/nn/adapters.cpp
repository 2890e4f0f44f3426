#include <levin/core/nn/adapters.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/base/released_storage.h>
#include <levin/core/base/wildcard.h>
#include <levin/core/nn/adapter_layer.h>

#include <fmt/format.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <memory>
#include <set>
#include <unordered_map>
#include <unordered_set>

namespace levin {
namespace {

struct FoundLayer {
  std::string path;
  torch::nn::Module* layer;
  at::Tensor weight;
  bool is_embedding;
};

std::vector<FoundLayer> layers_of(const torch::nn::Module& module) {
  std::vector<FoundLayer> layers;
  std::unordered_set<const void*> seen;
  for (const auto& entry : module.named_modules("", /*include_self=*/false)) {
    if (!seen.insert(entry.value().get()).second) continue;
    if (const auto* linear = entry.value()->as<torch::nn::LinearImpl>())
      layers.push_back({entry.key(), entry.value().get(), linear->weight, /*is_embedding=*/false});
    if (const auto* embedding = entry.value()->as<torch::nn::EmbeddingImpl>())
      layers.push_back({entry.key(), entry.value().get(), embedding->weight, /*is_embedding=*/true});
  }
  return layers;
}

/// The first few of many names.
std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t kMost = 8;
  if (names.empty()) return "there is none";
  if (names.size() <= kMost) return join(names);
  return fmt::format("{} and {} more", join(std::span(names).first(kMost)), names.size() - kMost);
}

bool matches_any(const std::vector<std::string>& patterns, const std::string& path) {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) { return matches_wildcard(pattern, path); });
}

/// Whether a parameter, or a module that it is in, is to be trained whole.
bool is_saved_whole(const AdapterOptions& options, std::string path) {
  for (;;) {
    if (matches_any(options.modules_to_save, path)) return true;
    const size_t dot = path.rfind('.');
    if (dot == std::string::npos) return false;
    path.resize(dot);
  }
}

void require_matches(const char* option, const std::vector<std::string>& patterns,
                     const std::vector<std::string>& paths, const std::string& kind) {
  for (const std::string& pattern : patterns)
    if (std::ranges::none_of(paths, [&](const std::string& path) { return matches_wildcard(pattern, path); }))
      throw ConfigError(
          fmt::format("adapters.{}: '{}' matches no {}; valid: {}; hint: `*` stands for any characters, "
                      "as in *.q_proj",
                      option, pattern, kind, some_of(paths)));
}

void check_options(const AdapterOptions& options) {
  if (options.name != "lora" && options.name != "rslora")
    throw ConfigError(fmt::format("adapters.name: got '{}'; valid: lora, rslora", options.name));
  if (!options.quantize.empty() && options.quantize != "nf4" && options.quantize != "int8")
    throw ConfigError(fmt::format("adapters.quantize: got '{}'; valid: nf4, int8", options.quantize));
  if (options.targets.empty())
    throw ConfigError("adapters.targets is not set; hint: paths of linear layers, as in [\"*.q_proj\", \"*.v_proj\"]");
  if (options.rank < 1 || options.dropout < 0 || options.dropout >= 1)
    throw ConfigError(fmt::format("adapters: rank is at least 1 and dropout at least 0 and below 1; got {} and {}",
                                  options.rank, options.dropout));
  if (options.adapter.empty() || options.adapter.find('.') != std::string::npos)
    throw ConfigError(fmt::format("adapters.adapter: got '{}'; valid: a name without dots", options.adapter));
}

std::shared_ptr<detail::AdapterLayer> adapters_of(const FoundLayer& found) {
  const auto children = found.layer->named_children();
  const auto* const there = children.find("adapters");
  return there == nullptr ? nullptr : std::dynamic_pointer_cast<detail::AdapterLayer>(*there);
}

std::shared_ptr<detail::AdapterLayer> make_adapters_of(const FoundLayer& found) {
  if (auto there = adapters_of(found); there != nullptr) return there;
  return found.layer->register_module(
      "adapters", std::make_shared<detail::AdapterLayer>(found.path, found.weight, found.is_embedding));
}

void check_layer(const FoundLayer& found, const AdapterOptions& options) {
  const int64_t smallest = std::min(found.weight.size(0), found.weight.size(1));
  if (options.rank > smallest)
    throw ConfigError(fmt::format("adapters.rank: got {}, above the sizes of '{}' [{}, {}]; valid: at most {}",
                                  options.rank, found.path, found.weight.size(0), found.weight.size(1), smallest));
  if (const auto there = adapters_of(found); there != nullptr && there->quantized() != nullptr) return;
  if (is_released(found.weight))
    throw ConfigError(
        fmt::format("adapters: the weight of '{}' was divided over ranks as it was built; hint: build "
                    "the layers in the module's constructor",
                    found.path));
  if (const auto* children = found.layer->named_children().find("adapters");
      children != nullptr && std::dynamic_pointer_cast<detail::AdapterLayer>(*children) == nullptr)
    throw ConfigError(fmt::format("adapters: '{}' has a module 'adapters' of its own", found.path));
}

/// Holds the linear layers in few bits that are not trained whole. Those that share a weight stay as they are.
void quantize_layers(const std::vector<FoundLayer>& layers, const AdapterOptions& options) {
  std::unordered_map<const void*, int> uses;
  for (const FoundLayer& found : layers) ++uses[found.weight.unsafeGetTensorImpl()];
  for (const FoundLayer& found : layers) {
    if (found.is_embedding || uses[found.weight.unsafeGetTensorImpl()] > 1 || is_released(found.weight) ||
        is_saved_whole(options, found.path + ".weight"))
      continue;
    const auto layer = make_adapters_of(found);
    layer->quantize(*found.layer, options.quantize);
    layer->attach();
  }
}

void require_names(const torch::nn::Module& module, const std::vector<std::string>& adapters) {
  const std::vector<std::string> names = adapter_names(module);
  for (const std::string& adapter : adapters)
    if (std::ranges::find(names, adapter) == names.end())
      throw Error("adapters", fmt::format("the module has no adapter '{}'{}", adapter,
                                          names.empty() ? "" : valid_names_hint(adapter, names)));
}

void require_unmerged(const torch::nn::Module& module) {
  for (const auto& layer : detail::adapter_layers(module))
    if (layer->is_merged())
      throw Error("adapters",
                  "the adapters are merged into the weights; hint: unmerge_adapters before others are used");
}

/// Throws levin::Error for an adapter that has trained parameters whole, of which nothing is left of what they were,
/// and is not among those that are to be active.
void require_none_whole(const torch::nn::Module& module, const std::vector<std::string>& active) {
  for (const auto& layer : detail::adapter_layers(module))
    for (const auto& [name, pair] : layer->all())
      if (!pair->adapter().whole.empty() && std::ranges::find(active, name) == active.end())
        throw Error(
            "adapters",
            fmt::format("the adapter '{}' has parameters that it trains whole (modules_to_save), which would stay "
                        "where it is not active; hint: load the base once more where its own outputs are needed",
                        name));
}

}  // namespace

bool asks_for_adapters(const AdapterOptions& options) {
  if (!options.name.empty()) return true;
  if (!options.quantize.empty() || !options.targets.empty() || !options.modules_to_save.empty())
    log::rank_zero_warning(
        "adapters.name is empty, so that the other options of adapters do nothing and all weights are as they are; "
        "valid: lora, rslora");
  return false;
}

std::vector<std::string> add_adapters(torch::nn::Module& module, const AdapterOptions& options) {
  check_options(options);
  require_unmerged(module);
  require_none_whole(module, {});  // the new one will be active alone
  if (const auto names = adapter_names(module); std::ranges::find(names, options.adapter) != names.end())
    throw ConfigError(
        fmt::format("adapters.adapter: the module has an adapter '{}'; hint: another name", options.adapter));

  std::vector<std::string> modules;
  for (const auto& entry : module.named_modules("", /*include_self=*/false)) modules.push_back(entry.key());
  for (const auto& entry : module.named_parameters()) modules.push_back(entry.key());
  require_matches("modules_to_save", options.modules_to_save, modules, "module or parameter");

  const std::vector<FoundLayer> layers = layers_of(module);
  std::vector<std::string> paths;
  for (const FoundLayer& layer : layers) paths.push_back(layer.path);
  require_matches("targets", options.targets, paths, "linear layer or embedding");

  std::vector<FoundLayer> targets;
  std::unordered_map<const void*, std::string> path_of_weight;
  for (const auto& layer : detail::adapter_layers(module))
    path_of_weight.emplace(layer->weight().unsafeGetTensorImpl(), layer->path());
  for (const FoundLayer& found : layers) {
    if (!matches_any(options.targets, found.path) || is_saved_whole(options, found.path + ".weight")) continue;
    check_layer(found, options);
    const auto [other, is_new] = path_of_weight.emplace(found.weight.unsafeGetTensorImpl(), found.path);
    if (other->second != found.path)
      throw ConfigError(
          fmt::format("adapters.targets: '{}' and '{}' share their weight, so that their calls cannot be "
                      "told apart; hint: a pattern that matches one of them",
                      other->second, found.path));
    targets.push_back(found);
  }
  if (targets.empty())
    throw ConfigError("adapters.targets: all layers that match are in modules_to_save; hint: leave some to adapters");

  for (const at::Tensor& parameter : module.parameters()) parameter.set_requires_grad(false);
  if (!options.quantize.empty()) quantize_layers(layers, options);
  std::unordered_set<const void*> of_adapters;
  for (const auto& layer : detail::adapter_layers(module))
    for (const at::Tensor& parameter : layer->parameters()) of_adapters.insert(parameter.unsafeGetTensorImpl());
  const auto added = std::make_shared<detail::AddedAdapter>(detail::AddedAdapter{.options = options});
  for (const auto& entry : module.named_parameters()) {
    if (of_adapters.contains(entry.value().unsafeGetTensorImpl()) || !is_saved_whole(options, entry.key())) continue;
    entry.value().set_requires_grad(true);
    added->whole.push_back(entry.value());
  }
  for (const at::Tensor& parameter : module.parameters())
    if (!parameter.requires_grad() && !of_adapters.contains(parameter.unsafeGetTensorImpl()))
      added->frozen.push_back(parameter);
  std::vector<std::string> adapted;
  for (const FoundLayer& found : targets) {
    const auto layer = make_adapters_of(found);
    const auto pair = layer->add(added);
    pair->train(found.layer->is_training());
    layer->attach();
    adapted.push_back(found.path);
  }
  set_active_adapters(module, {options.adapter});
  return adapted;
}

bool has_adapter(const torch::nn::Module& module, const AdapterOptions& options) {
  for (const auto& layer : detail::adapter_layers(module))
    if (const auto pair = layer->find(options.adapter); pair != nullptr) {
      if (pair->adapter().options == options) return true;
      throw ConfigError(
          fmt::format("adapters.adapter: the module has an adapter '{}' with other options; hint: another name, or "
                      "`adapters` in one place alone",
                      options.adapter));
    }
  return false;
}

void remove_adapter(torch::nn::Module& module, const std::string& adapter) {
  require_names(module, {adapter});
  require_unmerged(module);
  for (const auto& layer : detail::adapter_layers(module))
    if (layer->find(adapter) != nullptr) layer->remove(adapter);
}

std::vector<std::string> adapter_names(const torch::nn::Module& module) {
  std::set<std::string> names;
  for (const auto& layer : detail::adapter_layers(module))
    for (const auto& [name, pair] : layer->all()) names.insert(name);
  return {names.begin(), names.end()};
}

void set_active_adapters(torch::nn::Module& module, const std::vector<std::string>& adapters) {
  require_names(module, adapters);
  require_unmerged(module);
  require_none_whole(module, adapters);
  for (const auto& layer : detail::adapter_layers(module)) layer->set_active(adapters);
}

std::vector<std::string> active_adapters(const torch::nn::Module& module) {
  std::set<std::string> names;
  for (const auto& layer : detail::adapter_layers(module))
    for (const auto& pair : layer->active()) names.insert(pair->adapter().options.adapter);
  return {names.begin(), names.end()};
}

void merge_adapters(torch::nn::Module& module) {
  for (const auto& layer : detail::adapter_layers(module))
    if (layer->quantized() != nullptr && !layer->active().empty())
      throw Error("adapters",
                  fmt::format("the weight '{}.weight' is held in {}, which would round what adapters add to it; hint: "
                              "save_adapter, or save_folder of a causal_lm, which writes merged weights",
                              layer->path(), layer->quantized()->format()));
  for (const auto& layer : detail::adapter_layers(module)) layer->merge();
}

void unmerge_adapters(torch::nn::Module& module) {
  for (const auto& layer : detail::adapter_layers(module)) layer->unmerge();
}

std::vector<at::Tensor> parameters_left_out(const torch::nn::Module& module) {
  std::vector<at::Tensor> parameters;
  std::unordered_set<const detail::AddedAdapter*> seen;
  for (const auto& layer : detail::adapter_layers(module))
    for (const auto& [name, pair] : layer->all()) {
      const detail::AddedAdapter& adapter = pair->adapter();
      if (!adapter.options.save_adapters_only || !seen.insert(&adapter).second) continue;
      for (const at::Tensor& parameter : adapter.frozen)
        if (!parameter.requires_grad()) parameters.push_back(parameter);
    }
  if (!seen.empty())
    for (const auto& layer : detail::adapter_layers(module))
      if (layer->quantized() != nullptr)
        for (const at::Tensor& codes : layer->quantized()->buffers()) parameters.push_back(codes);
  return parameters;
}

void reattach_adapters(torch::nn::Module& module) {
  for (const auto& layer : detail::adapter_layers(module)) layer->attach();
}

}  // namespace levin
