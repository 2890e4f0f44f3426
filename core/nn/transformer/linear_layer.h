#pragma once

#include <torch/nn/init.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>

namespace levin::nn::detail {

/// Makes a linear layer with PyTorch's initial values; with an `initial_std` above 0 the weight is normal with that
/// deviation and the bias zero.
inline torch::nn::Linear make_linear(int64_t in, int64_t out, bool bias, double initial_std) {
  torch::nn::Linear linear(torch::nn::LinearOptions(in, out).bias(bias));
  if (initial_std > 0) {
    torch::nn::init::normal_(linear->weight, 0, initial_std);
    if (bias) torch::nn::init::zeros_(linear->bias);
  }
  return linear;
}

}  // namespace levin::nn::detail
