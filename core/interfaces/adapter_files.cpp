#include <levin/core/interfaces/adapter_files.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/released_storage.h>
#include <levin/core/checkpoint/safetensors.h>
#include <levin/core/nn/adapter_layer.h>
#include <levin/core/nn/adapters.h>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <unordered_set>

namespace levin {
namespace {

constexpr const char* kConfigFile = "adapter_config.json";
constexpr const char* kWeightsFile = "adapter_model.safetensors";
constexpr std::string_view kPrefix = "base_model.model.";

std::string key_of(const AdapterFilesOptions& options, const std::string& path) {
  return std::string(kPrefix) + (options.path_in_file ? options.path_in_file(path) : path);
}

/// PEFT's names of the two tensors of a layer.
std::pair<std::string, std::string> pair_keys(const AdapterFilesOptions& options, const std::string& path,
                                              bool is_embedding) {
  const std::string key = key_of(options, path);
  if (is_embedding) return {key + ".lora_embedding_A", key + ".lora_embedding_B"};
  return {key + ".lora_A.weight", key + ".lora_B.weight"};
}

/// The adapter of a layer, by the layer's path in a module.
struct LayerPair {
  std::string path;
  std::shared_ptr<detail::LoraPair> pair;
};

/// In the module's order.
std::vector<LayerPair> pairs_of(const torch::nn::Module& module, std::string adapter) {
  const std::vector<std::string> active = active_adapters(module);
  if (adapter.empty() && active.size() != 1)
    throw Error("adapters", fmt::format("the module has {} active adapters, and none was named; valid: {}",
                                        active.size(), join(adapter_names(module))));
  if (adapter.empty()) adapter = active.front();
  std::vector<LayerPair> pairs;
  std::unordered_set<const void*> seen;
  for (const auto& entry : module.named_modules("", /*include_self=*/false)) {
    const auto layer = std::dynamic_pointer_cast<detail::AdapterLayer>(entry.value());
    if (layer == nullptr || !seen.insert(layer.get()).second) continue;
    if (auto pair = layer->find(adapter); pair != nullptr)
      pairs.push_back({entry.key().substr(0, entry.key().rfind('.')), std::move(pair)});
  }
  if (pairs.empty())
    throw Error("adapters",
                fmt::format("the module has no adapter '{}'; valid: {}", adapter, join(adapter_names(module))));
  return pairs;
}

/// The last word but one of a parameter's path in a file is its module.
std::string module_of_key(const std::string& key) { return key.substr(0, key.rfind('.')); }

bool is_set(const nlohmann::json& config, const char* name) {
  const auto found = config.find(name);
  if (found == config.end() || found->is_null()) return false;
  if (found->is_boolean()) return found->get<bool>();
  if (found->is_string()) return !found->get<std::string>().empty() && *found != "none";
  if (found->is_object() || found->is_array()) return !found->empty();
  return true;
}

AdapterOptions options_of_config(const std::string& folder) {
  const std::string path = folder + "/" + kConfigFile;
  const auto fail = [&](const std::string& what) { throw Error("adapters", fmt::format("{}: {}", path, what)); };
  if (!FileSystem::current().exists(path))
    throw Error("adapters", fmt::format("{} is not there; valid: a folder of PEFT with {} and {}", path, kConfigFile,
                                        kWeightsFile));
  const nlohmann::json config = nlohmann::json::parse(FileSystem::current().read_file(path), nullptr, false);
  if (!config.is_object()) fail("is not a JSON object");
  AdapterOptions options;
  try {
    if (const std::string type = config.value("peft_type", ""); type != "LORA")
      fail(fmt::format("peft_type is not supported; got '{}'; valid: LORA", type));
    for (const char* name :
         {"use_dora", "lora_bias", "bias", "rank_pattern", "alpha_pattern", "layer_replication", "target_parameters",
          "trainable_token_indices", "use_qalora", "megatron_config", "alora_invocation_tokens", "arrow_config",
          "kasa_config", "monteclora_config", "use_bdlora"})
      if (is_set(config, name))
        fail(fmt::format("{} is not supported; got {}; hint: merge it in PEFT, by merge_and_unload", name,
                         config.at(name).dump()));
    if (const auto begun = config.find("init_lora_weights"); begun != config.end() && begun->is_string() &&
                                                             *begun != "gaussian" && *begun != "eva" &&
                                                             *begun != "orthogonal")
      fail(fmt::format("init_lora_weights is not supported: it changes the base's weights; got {}", begun->dump()));
    options.name = config.value("use_rslora", false) ? "rslora" : "lora";
    options.rank = config.at("r").get<int64_t>();
    options.alpha = config.at("lora_alpha").get<double>();
    options.dropout = config.value("lora_dropout", 0.0);
  } catch (const nlohmann::json::exception& error) {
    fail(error.what());
  }
  return options;
}

}  // namespace

void save_adapter(const torch::nn::Module& module, const std::string& folder, const AdapterFilesOptions& options) {
  const at::NoGradGuard no_gradients;
  const auto pairs = pairs_of(module, options.adapter);
  const detail::AddedAdapter& adapter = pairs.front().pair->adapter();
  const auto whole = [](const std::string& name, const at::Tensor& tensor) {
    if (is_released(tensor)) throw Error("adapters", fmt::format("'{}': {}", name, released_message(tensor)));
    return tensor.detach().cpu().contiguous();
  };
  std::vector<NamedTensor> tensors;
  std::vector<std::string> targets;
  for (const auto& [path, pair] : pairs) {
    const auto [a, b] = pair_keys(options, path, pair->is_embedding());
    tensors.emplace_back(a, whole(a, pair->lora_A).to(at::kFloat));
    tensors.emplace_back(b, whole(b, pair->lora_B).to(at::kFloat));
    targets.push_back(key_of(options, path).substr(kPrefix.size()));
  }
  std::set<std::string> saved_modules;
  for (const auto& entry : module.named_parameters()) {
    if (std::ranges::none_of(adapter.whole, [&](const at::Tensor& one) { return one.is_same(entry.value()); }))
      continue;
    const std::string key = key_of(options, entry.key());
    tensors.emplace_back(key, whole(key, entry.value()));
    saved_modules.insert(module_of_key(key).substr(kPrefix.size()));
  }
  const AdapterOptions& made = adapter.options;
  nlohmann::json config = {
      {"peft_type", "LORA"},
      {"task_type", options.task_type.empty() ? nlohmann::json() : nlohmann::json(options.task_type)},
      {"base_model_name_or_path", options.base.empty() ? nlohmann::json() : nlohmann::json(options.base)},
      {"inference_mode", true},
      {"r", made.rank},
      {"lora_alpha", made.alpha},
      {"lora_dropout", made.dropout},
      {"use_rslora", made.name == "rslora"},
      {"bias", "none"},
      {"fan_in_fan_out", false},
      {"target_modules", targets},
      {"modules_to_save", saved_modules.empty() ? nlohmann::json() : nlohmann::json(saved_modules)}};
  if (made.alpha == std::floor(made.alpha)) config["lora_alpha"] = static_cast<int64_t>(made.alpha);
  FileSystem& files = FileSystem::current();
  files.create_directories(folder);
  files.replace_file(folder + "/" + kWeightsFile, [&](WritableFile& file) {
    write_safetensors(file, tensors, {{"format", "pt"}});
  });
  files.replace_file(folder + "/" + kConfigFile, config.dump(2) + "\n");
}

std::vector<std::string> load_adapter(torch::nn::Module& module, const std::string& folder,
                                      const AdapterFilesOptions& options) {
  AdapterOptions added = options_of_config(folder);
  if (!options.adapter.empty()) added.adapter = options.adapter;
  if (const std::string path = folder + "/" + kWeightsFile; !FileSystem::current().exists(path))
    throw Error("adapters", fmt::format("{} is not there; hint: save_pretrained of a newer PEFT writes it", path));
  const SafetensorsFile file(folder + "/" + kWeightsFile);
  std::set<std::string> left(file.names().begin(), file.names().end());
  const auto fits = [&](const std::string& key, const std::vector<int64_t>& wanted) {
    if (!file.contains(key)) throw Error("adapters", fmt::format("{} lacks '{}'; hint: it is not whole", folder, key));
    if (file.shape(key) != wanted)
      throw Error(
          "adapters",
          fmt::format("{} is an adapter of another base: '{}' is [{}], and would be [{}] for this module; hint: "
                      "the base that it was trained on",
                      folder, key, fmt::join(file.shape(key), ", "), fmt::join(wanted, ", ")));
    left.erase(key);
  };
  std::unordered_set<const void*> seen;
  for (const auto& entry : module.named_modules("", /*include_self=*/false)) {
    const auto* const linear = entry.value()->as<torch::nn::LinearImpl>();
    const auto* const embedding = entry.value()->as<torch::nn::EmbeddingImpl>();
    if ((linear == nullptr && embedding == nullptr) || !seen.insert(entry.value().get()).second) continue;
    const auto [a, b] = pair_keys(options, entry.key(), embedding != nullptr);
    if (!file.contains(a) && !file.contains(b)) continue;
    const at::Tensor weight = linear != nullptr ? linear->weight : embedding->weight;
    fits(a, {added.rank, weight.size(linear != nullptr ? 1 : 0)});
    fits(b, {weight.size(linear != nullptr ? 0 : 1), added.rank});
    added.targets.push_back(entry.key());
  }
  std::map<std::string, at::Tensor> whole;
  std::map<const void*, std::string> key_of_whole;  // a tied one has several
  for (const auto& entry : module.named_parameters()) {
    const std::string key = key_of(options, entry.key());
    if (!file.contains(key) || !left.contains(key)) continue;
    fits(key, entry.value().sizes().vec());
    const auto [first, is_first] = key_of_whole.try_emplace(entry.value().unsafeGetTensorImpl(), key);
    if (!is_first && !file.read(key).equal(file.read(first->second)))
      throw Error(
          "adapters",
          fmt::format("{} has other values for '{}' than for '{}', which are one tied parameter of this module; "
                      "hint: PEFT has untied them; train with its ensure_weight_tying, or merge by "
                      "merge_and_unload",
                      folder, key, first->second));
    added.modules_to_save.push_back(entry.key());
    whole.emplace(key, entry.value());
  }
  for (const auto& entry : module.named_parameters()) {
    const auto kept = key_of_whole.find(entry.value().unsafeGetTensorImpl());
    const std::string key = key_of(options, entry.key());
    if (kept == key_of_whole.end() || file.contains(key)) continue;
    throw Error("adapters",
                fmt::format("{} has '{}' of its own, and not '{}', which is the same tied parameter in this module; "
                            "hint: PEFT has untied them; train with its ensure_weight_tying, or merge by "
                            "merge_and_unload",
                            folder, kept->second, key));
  }
  const auto is_adapted = [](const std::string& key) { return key.find(".base_layer.") != std::string::npos; };
  if (const auto found = std::ranges::find_if(left, is_adapted); found != left.end())
    throw Error(
        "adapters",
        fmt::format("{} adapts a layer that this module has none of in its place: '{}'; valid: torch::nn::Linear "
                    "and torch::nn::Embedding; hint: the base that it was trained on, or merge_and_unload in "
                    "PEFT",
                    folder, *found));
  if (!left.empty() || added.targets.empty())
    throw Error(
        "adapters",
        fmt::format("{} is an adapter of another base: {}; hint: the base that it was trained on", folder,
                    left.empty() ? "it has no layer of this module"
                                 : fmt::format("it has '{}'{}, which has no counterpart in this module", *left.begin(),
                                               left.size() > 1 ? fmt::format(" and {} more", left.size() - 1) : "")));
  auto paths = add_adapters(module, added);
  const at::NoGradGuard no_gradients;
  for (const auto& [path, pair] : pairs_of(module, added.adapter)) {
    const auto [a, b] = pair_keys(options, path, pair->is_embedding());
    pair->lora_A.copy_(file.read(a));
    pair->lora_B.copy_(file.read(b));
  }
  for (const auto& [key, tensor] : whole) tensor.detach().copy_(file.read(key));
  return paths;
}

}  // namespace levin
