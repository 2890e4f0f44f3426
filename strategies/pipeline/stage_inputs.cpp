#include <levin/strategies/pipeline/stage_inputs.h>

#include <levin/core/base/detached_alias.h>

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>

namespace levin {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The identity. A view of a leaf that requires a gradient could not be changed in place either.
class SameMemory : public torch::autograd::Function<SameMemory> {
 public:
  static at::Tensor forward(AutogradContext* /*context*/, const at::Tensor& leaf) { return detached_alias(leaf); }
  static variable_list backward(AutogradContext* /*context*/, const variable_list& gradients) { return gradients; }
};

}  // namespace

std::vector<at::Tensor> changeable(const std::vector<at::Tensor>& leaves) {
  std::vector<at::Tensor> given;
  given.reserve(leaves.size());
  for (const at::Tensor& leaf : leaves)
    given.push_back(leaf.requires_grad() && leaf.is_leaf() ? SameMemory::apply(leaf) : leaf);
  return given;
}

InPlaceChanges::InPlaceChanges(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    std::optional<Version>& version = versions_.emplace_back();
    if (!tensor.defined() || tensor.is_inference()) continue;
    const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
    version = {counter, counter.current_version()};
  }
}

std::vector<bool> InPlaceChanges::read() const {
  std::vector<bool> changed;
  for (const auto& version : versions_)
    changed.push_back(version && version->counter.current_version() != version->before);
  return changed;
}

}  // namespace levin
