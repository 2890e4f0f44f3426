#pragma once

#include <levin/core/nn/adapter_options.h>

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace levin {

/// Adds adapters to layers of a module, whose forward stays as it is: each torch::nn::Linear and torch::nn::Embedding
/// whose path matches `targets` computes weight · x + scale · B · A · x from then on, with scale = alpha / rank (lora)
/// or alpha / √rank (rslora: Kalajdzievski, "A Rank Stabilization Scaling Factor for Fine-Tuning with LoRA", 2023,
/// arXiv:2312.03732). A begins random and B zero, in an embedding the other way round, so that outputs stay as they
/// were.
///
/// All parameters but the adapter's and those of `modules_to_save` are frozen. The adapter's are parameters of the
/// module: `PATH.adapters.NAME.lora_A` [rank, in] and `lora_B` [out, rank], of the weight's type. A further adapter
/// becomes the active one. Returns the paths of the layers.
///
/// With `quantize`, every torch::nn::Linear of the module that is not in modules_to_save is held in 4 or 8 bits, not
/// those with adapters alone, and is computed with as the type of its inputs: QLoRA (Dettmers et al., 2023,
/// arXiv:2305.14314). Weights that layers share stay as they are. The weight is no parameter any more; the buffers of
/// its layer's `quantized` hold it.
///
/// Throws ConfigError for patterns that match nothing, a rank above a layer's sizes, an adapter that is there, and
/// layers that share their weight.
std::vector<std::string> add_adapters(torch::nn::Module& module, const AdapterOptions& options);

/// Whether options ask for adapters. Warns where they have no name, and say more.
bool asks_for_adapters(const AdapterOptions& options);
/// Whether the module has the adapter that these options made. Throws ConfigError where it has another one of that
/// name.
bool has_adapter(const torch::nn::Module& module, const AdapterOptions& options);
/// Takes an adapter away; the others stay as they are. Throws levin::Error where there is none of that name.
void remove_adapter(torch::nn::Module& module, const std::string& adapter);
/// Returns the names of a module's adapters, in alphabetical order.
std::vector<std::string> adapter_names(const torch::nn::Module& module);

/// Has the layers add the sum of these adapters, which alone are trained; none: the weights alone. Throws levin::Error
/// for a name that is not there, and for merged adapters.
void set_active_adapters(torch::nn::Module& module, const std::vector<std::string>& adapters);
/// Returns the names of the active adapters, in alphabetical order.
std::vector<std::string> active_adapters(const torch::nn::Module& module);

/// Adds what the active adapters compute to the weights, which then cost what they cost without adapters. The weights
/// from before are kept for unmerge_adapters, which restores them to the bit. Nothing of an adapter is trained
/// meanwhile. Does nothing where they are merged. Throws levin::Error for layers in 4 or 8 bits.
void merge_adapters(torch::nn::Module& module);
void unmerge_adapters(torch::nn::Module& module);

/// Returns the frozen parameters, and the buffers of those in 4 or 8 bits, that checkpoints leave out: those of
/// adapters with save_adapters_only.
std::vector<at::Tensor> parameters_left_out(const torch::nn::Module& module);

/// Has the weights find their adapters again where something has given them other memory (Module::to, set_data). The
/// trainer calls it.
void reattach_adapters(torch::nn::Module& module);

}  // namespace levin
