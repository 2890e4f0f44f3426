#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace levin {

/// A package of AOTInductor (`torch._inductor.aoti_compile_and_package` of Python), a compiled program for prediction
/// alone: it has no gradients. What it was compiled for is fixed in it: the kind of device, the threads of its loops,
/// sizes that were not declared dynamic. The package is code, which runs in this process: load only what you trust.
class ExportedProgram {
 public:
  /// Reads the package. Throws levin::Error where the file is missing, or no package for this machine and LibTorch.
  explicit ExportedProgram(const std::string& path);
  ~ExportedProgram();
  ExportedProgram(const ExportedProgram&) = delete;
  ExportedProgram& operator=(const ExportedProgram&) = delete;

  /// Runs the program; the results have no gradients. Waits for another thread's run. Throws levin::Error with the
  /// program's complaint where the inputs do not fit it.
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs);

  /// Names of the weights that can be replaced. The compiler folds others into its code, unless the package was made
  /// with `always_keep_tensor_constants`.
  std::vector<std::string> constant_names() const;
  /// Replaces all of these weights, with copies. Throws levin::Error for a name that is not among them, such as that of
  /// a weight that was folded and would go on with its old value, and for one that has no tensor.
  void load_constants(const std::unordered_map<std::string, at::Tensor>& constants);

 private:
  class Loader;
  std::unique_ptr<Loader> loader_;
};

}  // namespace levin
