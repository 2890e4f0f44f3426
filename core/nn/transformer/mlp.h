#pragma once

#include <levin/core/nn/tensor_plan.h>
#include <levin/core/nn/unit.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>

namespace levin::nn {

/// What is between the layers of an Mlp.
enum class Activation {
  kSilu,      ///< x · sigmoid(x)
  kGelu,      ///< exact
  kGeluTanh,  ///< approximated by a tanh, as GPT-2 and Gemma have it
  kRelu,
};

at::Tensor activate(const at::Tensor& x, Activation activation);

struct MlpOptions {
  int64_t width = 0;   ///< features of the input and of the output
  int64_t hidden = 0;  ///< features between; 0: four times the width
  Activation activation = Activation::kSilu;
  bool gated = true;  ///< what is activated is multiplied by a second projection
  bool bias = false;
  double dropout = 0;             ///< of the hidden features, while training
  double initial_std = 0;         ///< deviation of the initial weights; 0: as torch::nn::Linear
  double initial_output_std = 0;  ///< likewise of down_proj; 0: as the others
};

/// The layers of a transformer that see each token by itself: down(act(gate(x)) · up(x)), with SiLU or GELU called
/// SwiGLU or GeGLU (Shazeer, "GLU Variants Improve Transformer", 2020); not gated, down(act(up(x))).
struct MlpImpl : torch::nn::Module, HasTensorPlan {
  explicit MlpImpl(const MlpOptions& options);
  /// [..., width] stays so.
  at::Tensor forward(const at::Tensor& x);
  /// Along the hidden features.
  TensorPlan tensor_plan() const override;

  /// Weights [hidden, width]; of down_proj [width, hidden].
  torch::nn::Linear gate_proj{nullptr}, up_proj{nullptr}, down_proj{nullptr};
  torch::nn::Dropout dropout{nullptr};

 private:
  Activation activation_;
};
LEVIN_UNIT(Mlp);

}  // namespace levin::nn
