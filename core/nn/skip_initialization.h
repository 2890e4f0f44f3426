#pragma once

namespace levin {

/// Scope in which this thread's modules are made without their random initial values, as torch.nn.utils.skip_init makes
/// them in Python: for weights that are loaded next. `uniform_` and `normal_` leave their tensors as they are, and the
/// random generators too. What is not loaded then holds any values: load strictly.
///
/// The first scope registers with LibTorch's dispatcher, for good; calls of threads without a scope go on to LibTorch.
class [[nodiscard]] SkipInitialization {
 public:
  SkipInitialization();
  ~SkipInitialization();
  SkipInitialization(const SkipInitialization&) = delete;
  SkipInitialization& operator=(const SkipInitialization&) = delete;

 private:
  bool before_;
};

}  // namespace levin
