#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

#include <optional>

namespace c10 {
class OperatorHandle;
}

namespace levin::detail {

/// The dispatch key of tensors that operators treat in another way (WeightBehaviour, cut logits): above autocast and
/// autograd, and unused by LibTorch. Tensors have it in their own key sets, and views take it along.
inline constexpr auto kBehaviourKey = c10::DispatchKey::DeferredInit;
inline constexpr c10::DispatchKeySet kBelowBehaviours(c10::DispatchKeySet::FULL_AFTER, kBehaviourKey);

bool has_behaviour_key(const at::Tensor& tensor);
/// Makes a tensor with the memory, shape and keys of another one, with or without the key; it is no view of it.
at::Tensor with_behaviour_key(const at::Tensor& tensor, bool key);
/// The same tensor with or without the key, to autograd too: not a view of it, and not another node.
at::Tensor alias_with_behaviour_key(const at::Tensor& tensor, bool key);

/// Looks at the arguments of an operator that has no kernel at the key. Returns whether it has run it; throws where it
/// must not run.
using OperatorHandler = bool (*)(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
                                 torch::jit::Stack* stack);
/// Adds a handler for the life of the process. An operator that none has run is run as LibTorch has it. The first call
/// registers a fallback with LibTorch's dispatcher.
void add_operator_handler(OperatorHandler handler);

/// Runs an operator that has a kernel at the key as those that have none: `arguments` are all that it takes.
torch::jit::Stack run_as_others(const char* name, const char* overload, c10::DispatchKeySet keys,
                                torch::jit::Stack arguments);

/// Whether the thread runs a forward, which computes with tensors that have the key as their behaviours say;
/// optimizers, checkpoints and backward do not. See WeightForwardScope.
bool is_forward();
/// Begins and ends one that may be without gradients; one may be inside another.
void enter_forward();
void leave_forward();

/// Whether the first result of an operator is a view of an argument.
bool gives_view(const c10::OperatorHandle& operation);
/// Calls `visit` with each tensor among the arguments.
template <class Visit>
void for_each_tensor_argument(size_t arguments, const torch::jit::Stack& stack, Visit&& visit) {
  for (size_t i = stack.size() - arguments; i < stack.size(); ++i) {
    if (stack[i].isTensor()) visit(stack[i].toTensor());
    if (stack[i].isTensorList())
      for (const at::Tensor& tensor : stack[i].toTensorVector()) visit(tensor);
    if (stack[i].isOptionalTensorList())
      for (const std::optional<at::Tensor>& tensor : stack[i].toOptionalTensorVector())
        if (tensor) visit(*tensor);
  }
}

}  // namespace levin::detail
