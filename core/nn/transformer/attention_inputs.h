#pragma once

#include <levin/core/nn/tensor_visitor.h>
#include <levin/core/nn/unit.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/pimpl.h>

#include <utility>

namespace levin::nn {

/// What attention may be given beside its input x [N, T, width]; each tensor may be undefined.
struct AttentionInputs {
  /// Where the tokens are, integers. [T]: consecutive ones of every row; undefined is 0 to T − 1. [N, T]: of each row,
  /// where −1 is padding on either side, which no other token attends to, and a number that does not follow the one
  /// before it begins another document, as in packed rows: tokens attend inside of their document.
  at::Tensor positions = {};
  /// Which keys a query attends to, in addition: [T, S], [N, 1 or heads, T, S] or anything that broadcasts to it.
  /// Bools: true attends, as for scaled_dot_product_attention; numbers are added to the scores.
  at::Tensor mask = {};
  /// Of cross-attention: keys and values come from this [N, S, memory_width].
  at::Tensor memory = {};
  /// Which tokens of the memory there are, bools [N, S]; undefined: all.
  at::Tensor memory_mask = {};
};

namespace detail {

/// A unit whose forward takes AttentionInputs, which may be left out.
template <class Impl>
class UnitWithInputs : public UnitOf<Impl> {
 public:
  template <class... Parameters>
  explicit UnitWithInputs(Parameters&&... parameters) : UnitOf<Impl>(std::forward<Parameters>(parameters)...) {}

  at::Tensor forward(const at::Tensor& x) { return UnitOf<Impl>::forward(x, AttentionInputs{}); }
  at::Tensor forward(const at::Tensor& x, const AttentionInputs& inputs) { return UnitOf<Impl>::forward(x, inputs); }
};

/// The holder of such a unit: `block(x)`, `block(x, {.mask = mask})`.
template <class Impl>
class HolderWithInputs : public torch::nn::ModuleHolder<Impl> {
 public:
  using torch::nn::ModuleHolder<Impl>::ModuleHolder;
  at::Tensor operator()(const at::Tensor& x, const AttentionInputs& inputs = {}) const {
    return this->impl_->forward(x, inputs);
  }
};

}  // namespace detail
}  // namespace levin::nn

namespace levin::detail {

template <>
struct TensorsIn<nn::AttentionInputs> {
  static void visit(nn::AttentionInputs& inputs, const TensorVisitor& visitor) {
    for (at::Tensor* tensor : {&inputs.positions, &inputs.mask, &inputs.memory, &inputs.memory_mask}) visitor(*tensor);
  }
};

}  // namespace levin::detail
