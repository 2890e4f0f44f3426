#pragma once

#include <levin/core/interchange/weight_plan.h>
#include <levin/core/interchange/write_weights.h>

#include <map>
#include <string>

namespace torch::nn {
class Module;
}

namespace levin {

/// Copies weights that Levin, PyTorch, Lightning or Hugging Face saved into a module's parameters and buffers, in
/// place: all, or, where something is wrong, none. Returns what was loaded. Throws levin::Error where tensors do not
/// fit and `options.strict` is set, where none fits, and for a file that cannot be read.
WeightReport load_weights(torch::nn::Module& module, const LoadWeightsOptions& options);
WeightReport load_weights(torch::nn::Module& module, const std::string& path, const WeightRules& rules = {});

/// Returns how weights that are no checkpoint of Levin's are loaded as a module's checkpoint: by the rules of one with
/// ForeignWeights.
LoadWeightsOptions checkpoint_weights(const torch::nn::Module& module, const std::string& path);

/// Writes a module's parameters and buffers in the format that the path's end names; see write_weights. Each is there
/// once, and under all of its names where the format keeps_tied_names.
void save_weights(const torch::nn::Module& module, const std::string& path, const WriteWeightsOptions& options = {});

/// Returns the further names of tensors that a module has under several, such as tied weights, the parameters of a
/// module that is registered twice and shared buffers; each with the tensor's name in saved_tensors.
std::map<std::string, std::string> tied_names(const torch::nn::Module& module);

/// Gives saved tensors the names of saved_tensors where they are under further names of the module's.
void keep_first_names(State& model, const torch::nn::Module& module);

/// Finds a tensor for each of the module's, as load_weights does, and changes nothing.
WeightPlan plan_weights(const torch::nn::Module& module, const LoadWeightsOptions& options);

}  // namespace levin
