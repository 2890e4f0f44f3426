#include <levin/core/precision/true_precision.h>

#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/base/error.h>
#include <levin/core/base/mutex.h>
#include <levin/core/base/released_storage.h>

#include <c10/core/DefaultDtype.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace levin {
namespace {

/// The type of tensors made without one. It is one a process, and ranks or replicas that are threads are in forward at
/// the same time: the first to enter sets it, the last to leave puts back what was before.
struct DefaultType {
  Mutex mutex;
  int64_t inside LEVIN_GUARDED_BY(mutex) = 0;
  at::ScalarType before LEVIN_GUARDED_BY(mutex) = at::kFloat;
};
DefaultType default_type;

/// Adds the buffers that a module computes with. One in double precision among parameters that are not was made so for
/// what it holds, such as a sum or a time.
void add_compute_buffers(const torch::nn::Module& module, std::vector<at::Tensor>& buffers) {
  const auto is_double = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.scalar_type() == at::kDouble;
  };
  const bool in_double = std::ranges::any_of(module.parameters(/*recurse=*/false), is_double);
  for (const at::Tensor& buffer : module.buffers(/*recurse=*/false))
    if (in_double || !is_double(buffer)) buffers.push_back(buffer);
  for (const auto& child : module.named_children()) add_compute_buffers(*child.value(), buffers);
}

}  // namespace

std::string TruePrecision::name() const {
  if (type_ == at::kDouble) return "64-true";
  if (type_ == at::kHalf) return "16-true";
  return type_ == at::kBFloat16 ? "bf16-true" : "32-true";
}

void TruePrecision::require_type(const at::Device& device, at::ScalarType type) const {
  const std::string lack = accelerator_of(device).lacks_type(device, type);
  if (lack.empty()) return;
  throw Error("precision", fmt::format("'{}' needs a device that computes in {}; {}; hint: precision: {}", name(),
                                       c10::toString(type), lack, type == at::kBFloat16 ? "16-mixed" : "32-true"));
}

void TruePrecision::set_up(const at::Device& device) {
  if (is_half()) require_type(device, type_);
}

void TruePrecision::convert_module(torch::nn::Module& module) {
  // Module::to would convert integer buffers (such as BatchNorm's count of batches) as well.
  at::NoGradGuard no_grad;
  const auto convert = [this](at::Tensor& tensor) {
    // What a strategy has divided over ranks already was converted before.
    // Types of 8 bits are how weights are stored; nothing is computed in them.
    const bool computes = tensor.defined() && tensor.is_floating_point() && tensor.element_size() > 1;
    if (computes && !is_released(tensor) && tensor.scalar_type() != type_) tensor.set_data(tensor.to(type_));
  };
  std::vector<at::Tensor> buffers;
  add_compute_buffers(module, buffers);
  for (auto& parameter : module.parameters()) convert(parameter);
  for (auto& buffer : buffers) convert(buffer);
}

at::Tensor TruePrecision::convert_input(const at::Tensor& tensor) const {
  return tensor.is_floating_point() && tensor.scalar_type() != type_ ? tensor.to(type_) : tensor;
}

ForwardSettings TruePrecision::enter_forward() {
  const MutexLock lock(default_type.mutex);
  if (default_type.inside++ == 0) default_type.before = c10::get_default_dtype_as_scalartype();
  if (default_type.before != type_) c10::set_default_dtype(c10::scalarTypeToTypeMeta(type_));
  return {};
}

void TruePrecision::exit_forward(const ForwardSettings& /*before*/) {
  const MutexLock lock(default_type.mutex);
  if (--default_type.inside == 0 && default_type.before != type_)
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(default_type.before));
}

}  // namespace levin
