#pragma once

#include <levin/core/nn/transformer/language_model.h>

#include <string>

namespace levin {
class Config;
}

namespace levin::nn {

/// Returns the options of the model that a config.json of Hugging Face describes: `path` is the file, or the folder
/// that has it. Throws ConfigError, with what is known, for a model or a feature that CausalLanguageModel lacks: what
/// is not understood would be a model that computes something else.
LanguageModelOptions language_model_options(const std::string& path);
/// Likewise of the file's tree; `path` is what messages call it.
LanguageModelOptions language_model_options(const Config& config, const std::string& path);

}  // namespace levin::nn
