#pragma once

#include <levin/core/data/batch.h>

#include <torch/csrc/utils/pybind.h>

namespace pybind11::detail {

/// A levin::Batch in Python is a dict of tensors by name. Both sides have the same tensors, nothing is copied.
template <>
struct type_caster<levin::Batch> {
  PYBIND11_TYPE_CASTER(levin::Batch, const_name("dict[str, torch.Tensor]"));

  bool load(handle source, bool /*convert*/) {
    if (!isinstance<dict>(source)) return false;
    for (const auto& [name, tensor] : reinterpret_borrow<dict>(source)) {
      make_caster<at::Tensor> caster;
      if (!isinstance<str>(name) || !caster.load(tensor, false)) return false;
      value.set(name.cast<std::string>(), cast_op<at::Tensor&>(caster));
    }
    return true;
  }

  static handle cast(const levin::Batch& batch, return_value_policy policy, handle parent) {
    dict tensors;
    for (const auto& [name, tensor] : batch.items())
      tensors[str(name)] = reinterpret_steal<object>(make_caster<at::Tensor>::cast(tensor, policy, parent));
    return tensors.release();
  }
};

}  // namespace pybind11::detail
