#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace levin {

/// A program that Python exported, for prediction alone: its results have no gradients. Sizes that were not declared
/// dynamic are fixed in it. Two kinds of files, told apart by their contents:
/// - an exported program (`torch.export.save`), which LibTorch interprets operator by operator on the CPU;
/// - a package of AOTInductor (`torch._inductor.aoti_compile_and_package`), in which the kind of device and the threads
///   of its loops are fixed too. Such a package is code, which runs in this process: load only what you trust.
class ExportedProgram {
 public:
  /// Reads the file. Throws levin::Error where it is missing, or neither kind for this machine and LibTorch.
  explicit ExportedProgram(const std::string& path);
  ~ExportedProgram();
  ExportedProgram(const ExportedProgram&) = delete;
  ExportedProgram& operator=(const ExportedProgram&) = delete;

  /// Runs the program; results that are nested in Python come one after another. Waits for another thread's run. Throws
  /// levin::Error with the program's complaint where the inputs do not fit it.
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs);

  /// Names of the weights that can be replaced: none of an exported program, and of a package those that the compiler
  /// did not fold into its code, which are all if it was made with `always_keep_tensor_constants`.
  std::vector<std::string> constant_names() const;
  /// Replaces all of these weights, with copies. Throws levin::Error for a name that is not among them, such as that of
  /// a weight that was folded and would go on with its old value, and for one that has no tensor.
  void load_constants(const std::unordered_map<std::string, at::Tensor>& constants);

 private:
  class Program;
  class CompiledProgram;
  class InterpretedProgram;

  std::unique_ptr<Program> program_;
};

}  // namespace levin
