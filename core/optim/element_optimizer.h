#pragma once

#include <levin/core/optim/fused_optimizer.h>

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>

namespace levin::optim {

/// Base of the optimizers whose update of an element is a formula of Levin's own: one pass over memory on CPUs, and
/// LibTorch's operators, parameter by parameter, on other devices and in 16 bits.
template <class OptionsType>
class ElementOptimizerOf : public FusedOptimizerOf<OptionsType> {
 protected:
  using typename FusedOptimizer::KernelScaling;
  using typename FusedOptimizer::TensorLists;
  using FusedOptimizerOf<OptionsType>::FusedOptimizerOf;

  /// Updates one parameter. `step` counts this one.
  virtual void update_parameter(const OptionsType& options, double step, const at::Tensor& param,
                                const at::Tensor& grad, const std::array<at::Tensor, 3>& states) = 0;

  void update(size_t group, TensorLists& lists, const KernelScaling& scaling) final {
    for (size_t i = 0; i < lists.params.size(); ++i) {
      if (scaling.grad_scale.has_value()) lists.grads[i].div_(*scaling.grad_scale);
      std::array<at::Tensor, 3> states;
      for (size_t field = 0; field < states.size(); ++field)
        if (!lists.states[field].empty()) states[field] = lists.states[field][i];
      update_parameter(this->group_options(group), *lists.steps[i].template const_data_ptr<float>(), lists.params[i],
                       lists.grads[i], states);
    }
  }
  bool steps_on_host() const final { return true; }
};

}  // namespace levin::optim
