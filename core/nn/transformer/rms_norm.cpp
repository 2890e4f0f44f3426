#include <levin/core/nn/transformer/rms_norm.h>

#include <levin/core/base/error.h>
#include <levin/core/nn/transformer/block_operators.h>
#include <levin/core/nn/transformer/token_kernels.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <limits>
#include <ostream>

namespace levin::nn {

RMSNormImpl::RMSNormImpl(const RMSNormOptions& options) : options_(options) {
  if (options.size < 1) throw ConfigError(fmt::format("RMSNorm: size is at least 1; got {}", options.size));
  if (options.elementwise_affine)
    weight =
        register_parameter("weight", options.weight_is_offset ? at::zeros({options.size}) : at::ones({options.size}));
}

at::Tensor RMSNormImpl::forward(const at::Tensor& x) {
  const bool fits = (options_.eps || x.scalar_type() == at::kFloat) && x.size(-1) == options_.size;
  if (fits && detail::fits_block_operators_by_token(x, weight))
    return detail::rms_norm(x, weight, options_.eps.value_or(std::numeric_limits<float>::epsilon()),
                            options_.weight_is_offset);
  return at::rms_norm(x, x.sizes().slice(x.dim() - 1),
                      options_.weight_is_offset && weight.defined() ? weight + 1 : weight, options_.eps);
}

void RMSNormImpl::normalize_(const at::Tensor& x) const {
  auto* const values = x.mutable_data_ptr<float>();
  detail::normalize_rows(
      values, weight.defined() ? weight.const_data_ptr<float>() : nullptr, options_.weight_is_offset ? 1 : 0,
      options_.eps.value_or(std::numeric_limits<float>::epsilon()), values, x.numel() / options_.size, options_.size);
}

void RMSNormImpl::pretty_print(std::ostream& stream) const { stream << "levin::nn::RMSNorm(" << options_.size << ")"; }

}  // namespace levin::nn
