#pragma once

#include <functional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace levin {

/// How a module's adapter is in PEFT's files (https://github.com/huggingface/peft): a folder with adapter_config.json
/// and adapter_model.safetensors.
struct AdapterFilesOptions {
  std::string adapter = "";  ///< its name in the module; empty: the active one, or when reading "default"
  /// Returns PEFT's path, without `base_model.model.`, of a layer or a parameter ("net.1.up", "net.1.up.weight");
  /// unset: the module's own.
  std::function<std::string(const std::string& path)> path_in_file = {};
  std::string base = "";       ///< `base_model_name_or_path`
  std::string task_type = "";  ///< as CAUSAL_LM
};

/// Writes an adapter, and the modules that are trained whole with it, to a folder from which PEFT's
/// PeftModel.from_pretrained reads. Adapters' tensors are float32. Parameters are whole: call it after the trainer's
/// call, or in a scope of Trainer::full_parameters. Throws levin::Error.
void save_adapter(const torch::nn::Module& module, const std::string& folder, const AdapterFilesOptions& options = {});

/// Adds the adapter of a folder that save_adapter or PEFT wrote; see add_adapters. Returns the paths of its layers.
/// Throws levin::Error, and changes nothing, where the folder has what is not supported (DoRA, trained biases, ranks of
/// single layers), or layers that the module does not have or has in other sizes.
std::vector<std::string> load_adapter(torch::nn::Module& module, const std::string& folder,
                                      const AdapterFilesOptions& options = {});

}  // namespace levin
