#pragma once

#include <levin/core/nn/unit.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

namespace levin {

/// A TorchScript file as a module that trains: the parameters, buffers and submodules of the file under their own
/// names, so that checkpoints, strategies, `train()`, `to()` and parameter groups see an ordinary module.
struct ScriptModuleImpl : torch::nn::Module {
  /// Reads the file onto the CPU. Throws levin::Error naming the path where it is missing or no TorchScript.
  explicit ScriptModuleImpl(const std::string& path);

  /// Calls the script's forward with one tensor. Throws levin::Error where it takes or gives something else.
  at::Tensor forward(const at::Tensor& input);
  /// Calls the script's forward with these tensors. A tuple or list of tensors comes as they are in it, a mapping in
  /// the order of its entries.
  std::vector<at::Tensor> forward_all(const std::vector<at::Tensor>& inputs);

  /// Writes the script with the present weights; a file of that name stays whole until the new one is.
  void write(const std::string& path) const;

  void train(bool on = true) override;

 private:
  struct Script;
  std::shared_ptr<Script> script_;
};

/// Holder of ScriptModuleImpl, a unit: `levin::ScriptModule net("net.pt"); net(images)`.
class ScriptModule : public torch::nn::ModuleHolder<UnitOf<ScriptModuleImpl>> {
 public:
  using torch::nn::ModuleHolder<UnitOf<ScriptModuleImpl>>::ModuleHolder;
  using Impl [[maybe_unused]] = UnitOf<ScriptModuleImpl>;
};

}  // namespace levin
