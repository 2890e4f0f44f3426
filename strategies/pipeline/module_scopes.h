#pragma once

#include <levin/core/base/expanded_tensor.h>
#include <levin/core/base/released_storage.h>
#include <levin/core/data/batch.h>
#include <levin/core/interfaces/module.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <utility>
#include <vector>

namespace levin {

/// Puts the buffers of a module back to what they were when it was made; those without memory stay.
class KeptBuffers {
 public:
  explicit KeptBuffers(const torch::nn::Module& module) {
    const c10::InferenceMode ordinary(false);
    for (const at::Tensor& buffer : module.buffers())
      if (!is_released(buffer)) buffers_.emplace_back(buffer, buffer.detach().clone());
  }
  ~KeptBuffers() {
    const c10::InferenceMode ordinary(false);
    const at::NoGradGuard no_grad;
    for (auto& [buffer, copy] : buffers_) copy_elements(copy, buffer);
  }
  KeptBuffers(const KeptBuffers&) = delete;
  KeptBuffers& operator=(const KeptBuffers&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;
};

/// Returns a batch with memory of its own, for a step whose changes in place must leave no trace.
inline Batch copy_of(Batch batch) {
  for (auto& [name, tensor] : batch.items())
    if (tensor.defined()) tensor = tensor.detach().clone().requires_grad_(tensor.requires_grad());
  return batch;
}

/// Hands what the module logs and asks for to another runtime, while it lives.
class RuntimeScope {
 public:
  RuntimeScope(Module& module, detail::ModuleRuntime& runtime) : module_(module), former_(module.attached_runtime()) {
    module_.attach(&runtime);
  }
  ~RuntimeScope() { module_.attach(former_); }
  RuntimeScope(const RuntimeScope&) = delete;
  RuntimeScope& operator=(const RuntimeScope&) = delete;

 private:
  Module& module_;
  detail::ModuleRuntime* former_;
};

}  // namespace levin
