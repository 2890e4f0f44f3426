#include <levin/core/models/language_model_files.h>

#include <levin/core/base/error.h>
#include <levin/core/nn/adapter_layer.h>
#include <levin/core/nn/skip_initialization.h>
#include <levin/core/nn/transformer/language_model_config.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

namespace levin {
namespace {

bool is_gpt2(const nn::LanguageModelOptions& options) { return options.family == "gpt2"; }

std::string file_prefix(const nn::LanguageModelOptions& options) {
  return is_gpt2(options) ? "transformer." : "model.";
}

/// GPT-2's files have [in, out] matrices, and queries, keys and values in one.
std::vector<WeightRule> gpt2_layer_rules(const std::string& from, const std::string& to) {
  return {{.match = from + R"(ln_1\.(.*))", .to = to + "input_layernorm.$1"},
          {.match = from + R"(ln_2\.(.*))", .to = to + "post_attention_layernorm.$1"},
          {.match = from + R"(attn\.c_attn\.(.*))",
           .to = to + "self_attn.{part}_proj.$1",
           .transpose = true,
           .parts = {"q", "k", "v"}},
          {.match = from + R"(attn\.c_proj\.(.*))", .to = to + "self_attn.o_proj.$1", .transpose = true},
          {.match = from + R"(mlp\.c_fc\.(.*))", .to = to + "mlp.up_proj.$1", .transpose = true},
          {.match = from + R"(mlp\.c_proj\.(.*))", .to = to + "mlp.down_proj.$1", .transpose = true},
          {.match = from + R"(attn\.(?:bias|masked_bias))", .drop = true, .required = false}};
}

}  // namespace

WeightRules language_model_rules(const nn::LanguageModelOptions& options, bool has_prefix,
                                 const std::string& module_prefix) {
  const bool gpt2 = is_gpt2(options);
  std::string from = has_prefix ? file_prefix(options) : "";
  if (has_prefix) from = from.substr(0, from.size() - 1) + R"(\.)";
  const auto member = [&](int64_t index) { return fmt::format("{}net.{}.", module_prefix, index); };
  const std::string head = member(options.layers + 1);
  std::vector<WeightRule> rules{
      {.match = from + (gpt2 ? R"(wte\.weight)" : R"(embed_tokens\.weight)"), .to = member(0) + "embed_tokens"},
      {.match = from + (gpt2 ? R"(ln_f\.(.*))" : R"(norm\.(.*))"), .to = head + "norm.$1"},
      {.match = R"(lm_head\.weight)", .to = head + "lm_head", .required = false}};
  if (gpt2) rules.push_back({.match = from + R"(wpe\.weight)", .to = member(0) + "embed_positions"});
  for (int64_t layer = 0; layer < options.layers; ++layer) {
    const std::string layer_from = fmt::format(R"({}{}\.{}\.)", from, gpt2 ? "h" : "layers", layer);
    const std::string to = member(layer + 1);
    if (gpt2) {
      for (auto& rule : gpt2_layer_rules(layer_from, to)) rules.push_back(std::move(rule));
    } else {
      // What a file lacks is said by the module's names, all of them.
      rules.push_back({.match = layer_from + R"(((?!self_attn\.rotary_emb).*))", .to = to + "$1", .required = false});
      rules.push_back({.match = layer_from + R"(self_attn\.rotary_emb\.inv_freq)", .drop = true, .required = false});
    }
  }
  return rules;
}

LoadWeightsOptions language_model_weights(const nn::LanguageModelOptions& options, const std::string& path,
                                          const std::string& module_prefix) {
  const Weights weights = open_weights(path);
  const bool has_prefix = std::any_of(weights.tensors.begin(), weights.tensors.end(),
                                      [&](const auto& entry) { return entry.first.starts_with(file_prefix(options)); });
  return {.path = path, .rules = language_model_rules(options, has_prefix, module_prefix)};
}

nn::CausalLanguageModel load_language_model(const std::string& folder) {
  const nn::LanguageModelOptions options = nn::language_model_options(folder);
  const auto make = [&] {
    const SkipInitialization skip;
    return nn::CausalLanguageModel(options);
  };
  nn::CausalLanguageModel model = make();
  load_weights(*model, language_model_weights(options, folder));
  return model;
}

std::string hugging_face_path(const nn::LanguageModelOptions& options, const std::string& path,
                              const std::string& module_prefix) {
  if (is_gpt2(options))
    throw Error("adapters",
                "GPT-2's files have queries, keys and values in one layer, so that adapters of this model do "
                "not fit them; hint: save_folder writes them merged");
  const std::string net = module_prefix + "net.";
  const size_t dot = path.find('.', net.size());
  if (!path.starts_with(net) || dot == std::string::npos) return path;
  const int64_t member = std::stoll(path.substr(net.size(), dot - net.size()));
  const std::string rest = path.substr(dot + 1);
  if (member == 0) return "model." + rest + (rest == "embed_tokens" ? ".weight" : "");
  if (member <= options.layers) return fmt::format("model.layers.{}.{}", member - 1, rest);
  return rest == "lm_head" ? "lm_head.weight" : "model." + rest;
}

void save_language_model(const nn::CausalLanguageModel& model, const std::string& folder, const std::string& config) {
  const at::NoGradGuard no_gradients;
  const nn::LanguageModelOptions& options = model->options();
  const bool gpt2 = is_gpt2(options);
  const std::string prefix = file_prefix(options);
  const std::string head = fmt::format("net.{}.", options.layers + 1);
  std::map<std::string, at::Tensor> left;
  std::unordered_map<const void*, at::Tensor> merged;  // no tensor: an adapter's own
  for (const auto& entry : model->named_modules("", /*include_self=*/false)) {
    const auto layer = std::dynamic_pointer_cast<detail::AdapterLayer>(entry.value());
    if (layer == nullptr) continue;
    for (const at::Tensor& parameter : layer->parameters()) merged[parameter.unsafeGetTensorImpl()] = at::Tensor();
    if (layer->quantized() != nullptr)  // no parameter of its layer
      left[entry.key().substr(0, entry.key().rfind('.')) + ".weight"] = layer->merged_weight();
    else
      merged[layer->weight().unsafeGetTensorImpl()] = layer->merged_weight();
  }
  for (const auto& entry : model->named_parameters()) {
    const auto found = merged.find(entry.value().unsafeGetTensorImpl());
    if (found == merged.end())
      left[entry.key()] = entry.value().detach();
    else if (found->second.defined())
      left[entry.key()] = found->second;
  }
  std::vector<std::pair<std::string, TensorLeaf>> named;
  const auto take = [&](const std::string& name) {
    const auto found = left.find(name);
    LEVIN_CHECK(found != left.end(), "a language model has a parameter " + name);
    at::Tensor tensor = found->second;
    left.erase(found);
    return tensor;
  };
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    named.emplace_back(name, TensorLeaf{tensor.contiguous()});
  };
  add(prefix + (gpt2 ? "wte.weight" : "embed_tokens.weight"), take("net.0.embed_tokens"));
  if (gpt2) add(prefix + "wpe.weight", take("net.0.embed_positions"));
  const at::Tensor lm_head = take(head + "lm_head");
  if (!options.tie_embeddings) add("lm_head.weight", lm_head);
  for (const std::string kind : {"weight", "bias"})
    if (left.contains(head + "norm." + kind))
      add(prefix + (gpt2 ? "ln_f." : "norm.") + kind, take(head + "norm." + kind));
  for (int64_t layer = 0; layer < options.layers; ++layer) {
    const std::string own = fmt::format("net.{}.", layer + 1);
    const std::string to = fmt::format("{}{}.{}.", prefix, gpt2 ? "h" : "layers", layer);
    if (!gpt2) {
      while (left.lower_bound(own) != left.end() && left.lower_bound(own)->first.starts_with(own)) {
        const std::string name = left.lower_bound(own)->first;
        add(to + name.substr(own.size()), take(name));
      }
      continue;
    }
    for (const std::string kind : {"weight", "bias"}) {
      const auto as_file = [&](const at::Tensor& tensor) { return tensor.dim() == 2 ? tensor.t() : tensor; };
      add(to + "ln_1." + kind, take(own + "input_layernorm." + kind));
      add(to + "ln_2." + kind, take(own + "post_attention_layernorm." + kind));
      add(to + "attn.c_attn." + kind,
          as_file(at::cat({take(own + "self_attn.q_proj." + kind), take(own + "self_attn.k_proj." + kind),
                           take(own + "self_attn.v_proj." + kind)})));
      add(to + "attn.c_proj." + kind, as_file(take(own + "self_attn.o_proj." + kind)));
      add(to + "mlp.c_fc." + kind, as_file(take(own + "mlp.up_proj." + kind)));
      add(to + "mlp.c_proj." + kind, as_file(take(own + "mlp.down_proj." + kind)));
    }
  }
  LEVIN_CHECK(left.empty(), "all parameters of a language model are saved");
  write_weights(folder, WeightsFormat::kHuggingFace, named, {.config = config});
}

}  // namespace levin
