#pragma once

#include <levin/core/interfaces/load_weights.h>
#include <levin/core/nn/transformer/language_model.h>

#include <string>

namespace levin {

/// Returns the rules that lead from the names in files of Hugging Face to those of an nn::CausalLanguageModel.
/// `has_prefix`: names begin with "model." (of GPT-2 with "transformer."), as those of a whole model and not of its
/// body do. `module_prefix`: put in front of the module's names.
WeightRules language_model_rules(const nn::LanguageModelOptions& options, bool has_prefix = true,
                                 const std::string& module_prefix = "");

/// Returns how to load the weights of a folder of Hugging Face, or of a file of such weights, into a module that has an
/// nn::CausalLanguageModel under `module_prefix`. Reads names, no tensor.
LoadWeightsOptions language_model_weights(const nn::LanguageModelOptions& options, const std::string& path,
                                          const std::string& module_prefix = "");

/// Makes the model that a folder's config.json describes, with the weights that are there. Throws levin::Error and
/// ConfigError, for tensors of other shapes too.
nn::CausalLanguageModel load_language_model(const std::string& folder);

/// Returns the path that Hugging Face's files have for a layer or a parameter of an nn::CausalLanguageModel under
/// `module_prefix` ("net.1.mlp.up_proj" and "model.layers.0.mlp.up_proj"). Throws levin::Error for GPT-2, whose files
/// have other layers.
std::string hugging_face_path(const nn::LanguageModelOptions& options, const std::string& path,
                              const std::string& module_prefix = "");

/// Writes a folder for from_pretrained: weights under Hugging Face's names, and a copy of `config`, the config.json of
/// the model. Active adapters are merged into what is written.
void save_language_model(const nn::CausalLanguageModel& model, const std::string& folder, const std::string& config);

}  // namespace levin
