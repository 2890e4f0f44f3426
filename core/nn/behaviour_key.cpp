#include <levin/core/nn/behaviour_key.h>

#include <levin/core/base/error.h>
#include <levin/core/base/permanent_library.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <utility>

namespace levin::detail {
namespace {

constexpr size_t kMostHandlers = 4;
std::array<std::atomic<OperatorHandler>, kMostHandlers> handlers{};

void run_operator(const c10::OperatorHandle& operation, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  for (const auto& handler : handlers) {
    const OperatorHandler handle = handler.load(std::memory_order_acquire);
    if (handle == nullptr) break;
    if (handle(operation, keys, stack)) return;
  }
  operation.redispatchBoxed(keys & kBelowBehaviours, stack);
}

thread_local int forwards = 0;  // one inside another

}  // namespace

bool is_forward() { return forwards > 0 || c10::GradMode::is_enabled() || c10::InferenceMode::is_enabled(); }
void enter_forward() { ++forwards; }
void leave_forward() { --forwards; }

torch::jit::Stack run_as_others(const char* name, const char* overload, c10::DispatchKeySet keys,
                                torch::jit::Stack arguments) {
  const c10::OperatorHandle operation = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  run_operator(operation, keys, &arguments);
  return arguments;
}

bool has_behaviour_key(const at::Tensor& tensor) { return tensor.defined() && tensor.key_set().has(kBehaviourKey); }

at::Tensor with_behaviour_key(const at::Tensor& tensor, bool key) {
  const c10::DispatchKeySet keys = key ? tensor.key_set().add(kBehaviourKey) : tensor.key_set().remove(kBehaviourKey);
  at::Tensor alias = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(tensor.storage()), keys, tensor.dtype());
  alias.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return alias;
}

at::Tensor alias_with_behaviour_key(const at::Tensor& tensor, bool key) {
  at::Tensor alias = with_behaviour_key(tensor, key);
  if (tensor.is_inference() || alias.is_inference()) return alias;
  alias.unsafeGetTensorImpl()->set_version_counter(tensor.unsafeGetTensorImpl()->version_counter());
  if (tensor.requires_grad())
    torch::autograd::impl::set_gradient_edge(alias, torch::autograd::impl::gradient_edge(tensor));
  return alias;
}

void add_operator_handler(OperatorHandler handler) {
  static std::once_flag once;
  std::call_once(once, [] {
    permanent_library(torch::Library::IMPL, "_", kBehaviourKey)
        .fallback(torch::CppFunction::makeFromBoxedFunction<&run_operator>());
  });
  for (auto& place : handlers) {
    OperatorHandler none = nullptr;
    if (place.compare_exchange_strong(none, handler, std::memory_order_acq_rel)) return;
  }
  LEVIN_CHECK(false, "there are as many handlers as files that add one");
}

bool gives_view(const c10::OperatorHandle& operation) {
  const auto& results = operation.schema().returns();
  return !results.empty() && results.front().alias_info() != nullptr && !results.front().alias_info()->isWrite();
}

}  // namespace levin::detail
