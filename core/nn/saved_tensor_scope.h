#pragma once

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>

namespace levin {

/// Makes Levin's the autograd engine of the process: the one that was there before (LibTorch's, or PyTorch's in a
/// Python process) does all its work, but the SavedTensorScope of a thread, where it has one, says how to keep what
/// operations save for backward. Does nothing the second time. No backward may be under way.
void install_autograd_engine();

/// Decides, while it is the innermost of its thread, how autograd keeps the tensors that operations save for backward.
class SavedTensorScope {
 public:
  SavedTensorScope();
  virtual ~SavedTensorScope();
  SavedTensorScope(const SavedTensorScope&) = delete;
  SavedTensorScope& operator=(const SavedTensorScope&) = delete;

  /// The innermost scope of the calling thread, or nullptr.
  static SavedTensorScope* current();

  /// Makes the keeper of one tensor: autograd hands it the tensor at once, and asks for it in backward, on any thread.
  /// Autograd may also drop it unused.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> make_keeper() = 0;

 private:
  SavedTensorScope* outer_;
};

}  // namespace levin
