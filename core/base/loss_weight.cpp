#include <levin/core/base/loss_weight.h>

#include <levin/core/base/error.h>
#include <levin/core/base/host_scalar.h>

#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace levin {

LossWeight::LossWeight(at::Tensor tensor) : tensor_(std::move(tensor)) {
  if (tensor_.defined() && tensor_.numel() != 1)
    throw Error("module", fmt::format("the weight of a loss must be one number; got a tensor of shape {}; hint: the "
                                      "sum of a mask",
                                      c10::str(tensor_.sizes())));
}

std::optional<double> LossWeight::on_host() const {
  if (number_ || !tensor_.defined() || !tensor_.device().is_cpu()) return number_;
  return read_host_scalar(tensor_);
}

at::Tensor LossWeight::on(at::Device device) const {
  const auto options = at::TensorOptions().dtype(device.is_mps() ? at::kFloat : at::kDouble).device(device);
  if (!tensor_.defined()) return at::full({}, number_.value_or(0), options);
  return tensor_.detach().to(options).reshape({});
}

void LossWeight::require_valid() const {
  const auto weight = on_host();
  if (weight && (!(*weight >= 0) || std::isinf(*weight)))
    throw Error("module", fmt::format("the weight of a loss must be a number of at least 0; got {}", *weight));
}

at::Tensor LossWeight::share_of(const LossWeight& sum, at::Device device, at::ScalarType type) const {
  constexpr double kLeast = 1e-30;  // where the sum is zero
  return (on(device) / sum.on(device).clamp_min(kLeast)).to(type);
}

LossWeight& LossWeight::operator+=(const LossWeight& other) {
  if (!other.defined()) return *this;
  const auto own_number = on_host();
  const auto other_number = other.on_host();
  if ((own_number || !defined()) && other_number) return *this = LossWeight(own_number.value_or(0) + *other_number);
  const at::NoGradGuard no_grad;
  const at::Device device = other_number ? tensor_.device() : other.tensor_.device();
  return *this = LossWeight(on(device) + other.on(device));
}

}  // namespace levin
