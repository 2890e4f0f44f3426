#include <levin/core/nn/transformer/language_model_config.h>

#include <levin/core/base/config.h>
#include <levin/core/base/error.h>
#include <levin/core/base/schema.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>
#include <utility>

namespace levin::nn {
namespace {

/// Which layers have the `sliding_window`, where `layer_types` says nothing.
enum class Windows {
  kNone,
  kAll,
  kPattern,       ///< all but each sixth, `sliding_window_pattern`
  kAfter,         ///< with `use_sliding_window`, those from `max_window_layers` on
  kWhereUnturned  ///< with `use_sliding_window`, those without a rotary embedding
};

/// What transformers' class of a `model_type` has where the file says nothing, and what it never says.
struct Family {
  double norm_eps = 1e-6;
  double theta = 10'000;
  int64_t head_dim = 0;  ///< 0: width / heads
  bool tie_embeddings = false;
  bool has_bias = false;           ///< of queries, keys and values alone
  bool has_optional_bias = false;  ///< `attention_bias`, of the output too
  bool has_mlp_bias = false;       ///< `mlp_bias`
  Windows windows = Windows::kNone;
  int64_t window = 0;           ///< 0: none
  int64_t key_value_heads = 0;  ///< 0: as many as of queries
  QueryKeyNorm query_key_norm = QueryKeyNorm::kNone;
  NormPlacement norm_placement = NormPlacement::kPre;
};

const std::map<std::string, Family>& families() {
  static const std::map<std::string, Family> all{
      {"gemma3_text",
       {.theta = 1'000'000,
        .head_dim = 256,
        .tie_embeddings = true,
        .has_optional_bias = true,
        .windows = Windows::kPattern,
        .window = 4096,
        .key_value_heads = 4,
        .query_key_norm = QueryKeyNorm::kHead,
        .norm_placement = NormPlacement::kBoth}},
      {"gpt2", {.norm_eps = 1e-5, .tie_embeddings = true}},
      {"llama", {.has_optional_bias = true, .has_mlp_bias = true}},
      {"mistral", {.windows = Windows::kAll, .window = 4096, .key_value_heads = 8}},
      {"olmo2",
       {.norm_eps = 1e-5,
        .has_optional_bias = true,
        .query_key_norm = QueryKeyNorm::kProjection,
        .norm_placement = NormPlacement::kOutput}},
      {"qwen2", {.has_bias = true, .windows = Windows::kAfter, .window = 4096, .key_value_heads = 32}},
      {"qwen3",
       {.head_dim = 128,
        .has_optional_bias = true,
        .windows = Windows::kAfter,
        .window = 4096,
        .key_value_heads = 32,
        .query_key_norm = QueryKeyNorm::kHead}},
      {"smollm3",
       {.theta = 2'000'000,
        .tie_embeddings = true,
        .has_optional_bias = true,
        .has_mlp_bias = true,
        .windows = Windows::kWhereUnturned,
        .key_value_heads = 4}},
  };
  return all;
}

/// Keys that say nothing about what the model computes.
const std::set<std::string_view>& passed_over() {
  static const std::set<std::string_view> keys{"_name_or_path",
                                               "architectures",
                                               "attn_implementation",
                                               "_attn_implementation",
                                               "_sliding_window_pattern",
                                               "bos_token_id",
                                               "cache_implementation",
                                               "chunk_size_feed_forward",
                                               "decoder_start_token_id",
                                               "do_sample",
                                               "dtype",
                                               "id2label",
                                               "is_decoder",
                                               "is_encoder_decoder",
                                               "label2id",
                                               "max_length",
                                               "model_type",
                                               "n_ctx",
                                               "output_attentions",
                                               "output_hidden_states",
                                               "pad_token_id",
                                               "pretraining_tp",
                                               "problem_type",
                                               "return_dict",
                                               "sep_token_id",
                                               "summary_activation",
                                               "summary_first_dropout",
                                               "summary_proj_to_labels",
                                               "summary_type",
                                               "summary_use_proj",
                                               "task_specific_params",
                                               "temperature",
                                               "tokenizer_class",
                                               "top_k",
                                               "top_p",
                                               "torch_dtype",
                                               "transformers_version",
                                               "unsloth_fixed",
                                               "unsloth_version",
                                               "use_cache",
                                               "reorder_and_upcast_attn",
                                               "transformers.js_config",
                                               "is_llama_config",
                                               "rope_interleaved",
                                               "gradient_checkpointing"};
  return keys;
}

/// The values of a mapping, each of which is asked for or refused.
class Reader {
 public:
  Reader(const Config& config, std::string path) : config_(config), path_(std::move(path)) {
    if (!config.is_mapping()) throw ConfigError(fmt::format("{} is no mapping", path_));
  }

  bool has(std::string_view key) const { return config_.find(key) != nullptr; }
  const Config* find(std::string_view key) {
    asked_.insert(std::string(key));
    const Config* const found = config_.find(key);
    return found == nullptr || found->is_null() ? nullptr : found;
  }
  template <class T>
  std::optional<T> get(std::string_view key) {
    const Config* const found = find(key);
    if (found == nullptr) return std::nullopt;
    return ConfigCodec<T>::parse(*found, path_of(key));
  }
  template <class T>
  T get(std::string_view key, T otherwise) {
    return get<T>(key).value_or(std::move(otherwise));
  }
  int64_t size(std::string_view key) {
    const auto found = get<int64_t>(key);
    if (!found) fail(key, "is missing");
    return size(key, *found);
  }
  int64_t size(std::string_view key, int64_t otherwise) {
    const auto found = get<int64_t>(key, otherwise);
    if (found < 1) fail(key, fmt::format("is at least 1; got {}", found));
    return found;
  }
  /// Throws where the file has a key that changes what a model computes and that has not been read.
  void refuse_rest(const std::string& family) const {
    for (const auto& entry : config_.entries()) {
      if (is_off(entry.value) || asked_.contains(entry.key) || passed_over().contains(entry.key)) continue;
      throw ConfigError(fmt::format("{}: '{}' is not supported for model_type '{}'; got {}; valid: {}", path_,
                                    entry.key, family, entry.value.describe(), join(asked())));
    }
  }
  void refuse_if_set(std::string_view key, std::string_view what) const {
    const Config* const found = config_.find(key);
    if (found != nullptr && !is_off(*found))
      fail(key, fmt::format("{} is not supported; got {}", what, found->describe()));
  }
  [[noreturn]] void fail(std::string_view key, const std::string& what) const {
    throw ConfigError(fmt::format("{} {}", path_of(key), what));
  }
  std::string path_of(std::string_view key) const { return fmt::format("{}: {}", path_, key); }

 private:
  static bool is_off(const Config& value) { return value.is_null() || (value.is_scalar() && value.text() == "false"); }
  std::vector<std::string> asked() const { return {asked_.begin(), asked_.end()}; }

  const Config& config_;
  std::string path_;
  std::set<std::string, std::less<>> asked_;
};

template <class Value>
std::vector<std::string> names_in(const std::map<std::string, Value>& known) {
  std::vector<std::string> names;
  names.reserve(known.size());
  for (const auto& [name, _] : known) names.push_back(name);
  return names;
}

Activation activation_of(Reader& reader, std::string_view key, const std::string& otherwise) {
  static const std::map<std::string, Activation> known{
      {"gelu", Activation::kGelu}, {"gelu_new", Activation::kGeluTanh}, {"gelu_pytorch_tanh", Activation::kGeluTanh},
      {"relu", Activation::kRelu}, {"silu", Activation::kSilu},         {"swish", Activation::kSilu}};
  const auto name = reader.get<std::string>(key, otherwise);
  const auto found = known.find(name);
  if (found != known.end()) return found->second;
  reader.fail(key, fmt::format("is not supported; got '{}'{}", name, valid_names_hint(name, names_in(known))));
}

/// A mapping of `rope_parameters`, or of `rope_scaling` of older files, which have `theta` beside it.
RotaryOptions rotary_of(const Config* config, const std::string& path, double theta, int64_t head_dim,
                        int64_t max_positions) {
  RotaryOptions options{.dim = head_dim, .theta = theta};
  if (config == nullptr) return options;
  Reader reader(*config, path);
  options.theta = reader.get<double>("rope_theta", theta);
  if (const double part = reader.get<double>("partial_rotary_factor", 1.0); part != 1)
    reader.fail("partial_rotary_factor", fmt::format("is not supported for these families; got {}; valid: 1", part));
  const auto older = reader.get<std::string>("type", "default");
  const auto type = reader.get<std::string>("rope_type", older);
  static const std::map<std::string, RotaryScaling> known{{"default", RotaryScaling::kNone},
                                                          {"dynamic", RotaryScaling::kDynamic},
                                                          {"linear", RotaryScaling::kLinear},
                                                          {"llama3", RotaryScaling::kLlama3},
                                                          {"yarn", RotaryScaling::kYarn}};
  const auto found = known.find(type);
  if (found == known.end())
    reader.fail("rope_type",
                fmt::format("is not supported; got '{}'{}", type, valid_names_hint(type, names_in(known))));
  options.scaling = found->second;
  const auto factor = reader.get<double>("factor");
  if (!factor && options.scaling != RotaryScaling::kNone) reader.fail("factor", "is missing");
  options.factor = factor.value_or(1.0);
  options.max_position = max_positions;
  options.original_max_position = reader.get<int64_t>("original_max_position_embeddings", max_positions);
  options.low_freq_factor = reader.get<double>("low_freq_factor", 1.0);
  options.high_freq_factor = reader.get<double>("high_freq_factor", 4.0);
  options.beta_fast = reader.get<double>("beta_fast", 32.0);
  options.beta_slow = reader.get<double>("beta_slow", 1.0);
  options.attention_factor = reader.get<double>("attention_factor");
  options.mscale = reader.get<double>("mscale", 0.0);
  options.mscale_all_dim = reader.get<double>("mscale_all_dim", 0.0);
  options.truncate = reader.get<bool>("truncate", true);
  reader.refuse_rest(type);
  return options;
}

/// By layer, whether it has the sliding window. `has_rotary`: by layer; empty: all have.
std::vector<bool> sliding_layers(Reader& reader, const Family& family, int64_t layers,
                                 const std::vector<bool>& has_rotary) {
  const int64_t pattern = family.windows == Windows::kPattern ? reader.size("sliding_window_pattern", 6) : 1;
  const bool has_switch = family.windows == Windows::kAfter || family.windows == Windows::kWhereUnturned;
  const int64_t first = has_switch ? reader.get<int64_t>("max_window_layers", 28) : 0;
  std::vector<bool> slides;
  if (const Config* const types = reader.find("layer_types"); types != nullptr) {
    for (const Config& type : types->items()) {
      if (type.text() != "full_attention" && type.text() != "sliding_attention")
        reader.fail("layer_types",
                    fmt::format("is not supported; got '{}'; valid: full_attention, sliding_attention", type.text()));
      slides.push_back(type.text() == "sliding_attention");
    }
    if (static_cast<int64_t>(slides.size()) != layers)
      reader.fail("layer_types", fmt::format("has an entry for each layer; got {} for {}", slides.size(), layers));
    return slides;
  }
  for (int64_t layer = 0; layer < layers; ++layer) {
    switch (family.windows) {
      case Windows::kNone:
      case Windows::kAll:
        slides.push_back(family.windows == Windows::kAll);
        break;
      case Windows::kPattern:
        slides.push_back((layer + 1) % pattern != 0);
        break;
      case Windows::kAfter:
        slides.push_back(layer >= first);
        break;
      case Windows::kWhereUnturned:
        slides.push_back(!has_rotary.at(static_cast<size_t>(layer)));
        break;
    }
  }
  return slides;
}

/// Of SmolLM 3, by layer, whether it has a rotary embedding.
std::vector<bool> rotary_layers(Reader& reader, int64_t layers) {
  const int64_t interval = reader.size("no_rope_layer_interval", 4);
  const Config* const list = reader.find("no_rope_layers");
  if (list != nullptr && static_cast<int64_t>(list->items().size()) < layers)
    reader.fail("no_rope_layers",
                fmt::format("has an entry for each layer; got {} for {}", list->items().size(), layers));
  std::vector<bool> rotates;
  for (int64_t layer = 0; layer < layers; ++layer)
    rotates.push_back(list != nullptr ? list->items()[static_cast<size_t>(layer)].text() == "1"
                                      : (layer + 1) % interval != 0);
  return rotates;
}

LanguageModelOptions gpt2_options(Reader& reader) {
  LanguageModelOptions options{.family = "gpt2"};
  const int64_t width = reader.size("n_embd", 768);
  options.vocabulary = reader.size("vocab_size", 50257);
  options.layers = reader.size("n_layer", 12);
  options.learned_positions = reader.size("n_positions", 1024);
  options.max_positions = options.learned_positions;
  options.initial_std = reader.get<double>("initializer_range", 0.02);
  options.embedding_dropout = reader.get<double>("embd_pdrop", 0.1);
  options.tie_embeddings = reader.get<bool>("tie_word_embeddings", true);
  const double output_std = options.initial_std / std::sqrt(2.0 * static_cast<double>(options.layers));
  options.block = {.attention = {.width = width,
                                 .heads = reader.size("n_head", 12),
                                 .bias = true,
                                 .output_bias = true,
                                 .dropout = reader.get<double>("attn_pdrop", 0.1),
                                 .initial_std = options.initial_std,
                                 .initial_output_std = output_std},
                   .mlp = {.width = width,
                           .hidden = reader.size("n_inner", 4 * width),
                           .activation = activation_of(reader, "activation_function", "gelu_new"),
                           .gated = false,
                           .bias = true,
                           .initial_std = options.initial_std,
                           .initial_output_std = output_std},
                   .norm = NormKind::kLayer,
                   .norm_eps = reader.get<double>("layer_norm_epsilon", 1e-5),
                   .dropout = reader.get<double>("resid_pdrop", 0.1)};
  if (!reader.get<bool>("scale_attn_weights", true)) reader.fail("scale_attn_weights", "is not supported; got false");
  reader.refuse_if_set("scale_attn_by_inverse_layer_idx", "a scale by layer");
  reader.refuse_if_set("add_cross_attention", "cross-attention");
  return options;
}

LanguageModelOptions llama_options(Reader& reader, const std::string& name, const Family& family) {
  LanguageModelOptions options{.family = name};
  const bool is_gemma = name == "gemma3_text";
  options.vocabulary = reader.size("vocab_size");
  const int64_t width = reader.size("hidden_size");
  const int64_t heads = reader.size("num_attention_heads");
  options.layers = reader.size("num_hidden_layers");
  options.max_positions = reader.get<int64_t>("max_position_embeddings", 0);
  options.initial_std = reader.get<double>("initializer_range", 0.02);
  options.tie_embeddings = reader.get<bool>("tie_word_embeddings", family.tie_embeddings);
  if (is_gemma) options.embedding_scale = std::sqrt(static_cast<double>(width));

  AttentionOptions& attention = options.block.attention;
  attention.width = width;
  attention.heads = heads;
  const bool leaves_heads_out = family.key_value_heads > 0 && !reader.has("num_key_value_heads");
  attention.key_value_heads = reader.size("num_key_value_heads", leaves_heads_out ? family.key_value_heads : heads);
  attention.head_dim =
      reader.size("head_dim", family.head_dim > 0 ? family.head_dim : std::max<int64_t>(width / heads, 1));
  attention.bias = family.has_bias;
  if (family.has_optional_bias) attention.bias = attention.output_bias = reader.get<bool>("attention_bias", false);
  attention.dropout = reader.get<double>("attention_dropout", 0.0);
  attention.query_key_norm = family.query_key_norm;
  attention.norm_eps = reader.get<double>("rms_norm_eps", family.norm_eps);
  attention.norm_weight_is_offset = is_gemma;
  if (is_gemma) attention.scale = 1 / std::sqrt(reader.get<double>("query_pre_attn_scalar", 256.0));

  options.block.mlp = {.width = width,
                       .hidden = reader.size("intermediate_size"),
                       .activation = is_gemma ? activation_of(reader, "hidden_activation", "gelu_pytorch_tanh")
                                              : activation_of(reader, "hidden_act", "silu"),
                       .bias = family.has_mlp_bias && reader.get<bool>("mlp_bias", false)};
  options.block.norm_eps = attention.norm_eps;
  options.block.norm_placement = family.norm_placement;
  options.block.norm_weight_is_offset = is_gemma;

  if (name == "smollm3") options.has_rotary = rotary_layers(reader, options.layers);
  const std::vector<bool> slides = sliding_layers(reader, family, options.layers, options.has_rotary);
  if (family.windows != Windows::kNone) {
    // A window of null is none.
    const int64_t window = reader.get<int64_t>("sliding_window", reader.has("sliding_window") ? 0 : family.window);
    const bool has_switch = family.windows == Windows::kAfter || family.windows == Windows::kWhereUnturned;
    if (window > 0 && (!has_switch || reader.get<bool>("use_sliding_window", false))) {
      attention.sliding_window = window;
      if (family.windows != Windows::kAll) options.has_sliding_window = slides;
    }
  }

  const Config* parameters = reader.find("rope_parameters");
  const Config* const scaling = reader.find("rope_scaling");
  const double theta = reader.get<double>("rope_theta", family.theta);
  const double local_theta = reader.get<double>("rope_local_base_freq", 10'000.0);
  const Config* local = nullptr;
  const bool is_by_layer = parameters != nullptr && parameters->find("full_attention") != nullptr;
  if (is_by_layer) {
    local = parameters->find("sliding_attention");
    parameters = parameters->find("full_attention");
  }
  const auto rotary = [&](const Config* config, double base) {
    return rotary_of(config, reader.path_of(config == scaling ? "rope_scaling" : "rope_parameters"), base,
                     attention.head_dim, options.max_positions);
  };
  // Where a file has both, transformers takes the older one.
  options.rotary = rotary(scaling != nullptr && !scaling->is_null() && !is_by_layer ? scaling : parameters, theta);
  if (is_gemma) options.sliding_rotary = rotary(local, local_theta);

  reader.refuse_if_set("final_logit_softcapping", "soft-capping of logits");
  reader.refuse_if_set("attn_logit_softcapping", "soft-capping of attention");
  reader.refuse_if_set("use_bidirectional_attention", "attention to later tokens");
  return options;
}

/// A number, a list of numbers, or nothing.
std::vector<int64_t> end_tokens_of(const Config* config, const std::string& path) {
  if (config == nullptr || config->is_null()) return {};
  if (config->is_sequence()) return ConfigCodec<std::vector<int64_t>>::parse(*config, path);
  return {ConfigCodec<int64_t>::parse(*config, path)};
}

}  // namespace

LanguageModelOptions language_model_options(const std::string& path) {
  std::filesystem::path file(path);
  if (std::filesystem::is_directory(file)) file /= "config.json";
  if (!std::filesystem::exists(file))
    throw ConfigError(fmt::format("a language model needs a config.json; there is no file '{}'", file.string()));
  LanguageModelOptions options = language_model_options(Config::load(file.string()), file.string());
  // What a folder says of generation is newer than its config.json.
  const std::filesystem::path generation = file.parent_path() / "generation_config.json";
  if (std::filesystem::exists(generation)) {
    const Config config = Config::load(generation.string());
    if (const Config* const end = config.is_mapping() ? config.find("eos_token_id") : nullptr; end != nullptr)
      options.end_tokens = end_tokens_of(end, generation.string() + ": eos_token_id");
  }
  return options;
}

LanguageModelOptions language_model_options(const Config& config, const std::string& path) {
  Reader reader(config, path);
  const std::vector<std::string> known = names_in(families());
  for (const std::string_view part : {"vision_config", "audio_config", "text_config"})
    if (config.find(part) != nullptr)
      reader.fail(part, fmt::format("is not supported: the model sees or hears; valid: text models alone, of "
                                    "model_type {}",
                                    join(known)));
  const auto name = reader.get<std::string>("model_type", "");
  const auto found = families().find(name);
  if (found == families().end())
    reader.fail("model_type", name.empty()
                                  ? fmt::format("is missing; valid: {}", join(known))
                                  : fmt::format("is not supported; got '{}'{}", name, valid_names_hint(name, known)));
  for (const std::string_view key : {"kv_lora_rank", "q_lora_rank"})
    reader.refuse_if_set(key, "multi-latent attention");
  LanguageModelOptions options = name == "gpt2" ? gpt2_options(reader) : llama_options(reader, name, found->second);
  options.end_tokens = end_tokens_of(reader.find("eos_token_id"), reader.path_of("eos_token_id"));
  reader.refuse_rest(name);
  return options;
}

}  // namespace levin::nn
