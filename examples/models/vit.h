#pragma once

#include <levin/levin.h>

#include <cstdint>
#include <vector>

namespace example::models {

/// Those of torchvision's VisionTransformer, of ViT-B/16 unless given.
struct VitOptions {
  int64_t image_size = 224;
  int64_t patch_size = 16;
  int64_t hidden = 768;
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t mlp = 3072;
  int64_t classes = 1000;
  double dropout = 0;

  static void describe(levin::Schema<VitOptions>& schema);
};

/// torchvision's EncoderBlock: [N, T, hidden] stays so.
struct VitBlockImpl : torch::nn::Module {
  explicit VitBlockImpl(const VitOptions& options);
  torch::Tensor forward(const torch::Tensor& x);

  torch::nn::LayerNorm ln_1{nullptr}, ln_2{nullptr};
  torch::nn::MultiheadAttention self_attention{nullptr};
  torch::nn::Dropout dropout{nullptr};
  torch::nn::Sequential mlp{nullptr};
};
LEVIN_UNIT(VitBlock);

/// `encoder.layers`: blocks named encoder_layer_0 and so on.
struct VitLayersImpl : torch::nn::Module {
  explicit VitLayersImpl(const VitOptions& options);
  torch::Tensor forward(torch::Tensor x);

  std::vector<VitBlock> blocks;
};
TORCH_MODULE(VitLayers);

/// `encoder`: adds what says where a patch is, then runs the blocks. [N, T, hidden] stays so.
struct VitEncoderImpl : torch::nn::Module {
  explicit VitEncoderImpl(const VitOptions& options);
  torch::Tensor forward(const torch::Tensor& x);

  torch::Tensor pos_embedding;  ///< [1, patches + 1, hidden]
  torch::nn::Dropout dropout{nullptr};
  VitLayers layers{nullptr};
  torch::nn::LayerNorm ln{nullptr};
};
TORCH_MODULE(VitEncoder);

/// torchvision's VisionTransformer (Dosovitskiy et al., 2020, arXiv:2010.11929): images [N, 3, size, size] become
/// logits [N, classes].
struct VitImpl : torch::nn::Module {
  explicit VitImpl(const VitOptions& options);
  torch::Tensor forward(const torch::Tensor& images);

  torch::nn::Conv2d conv_proj{nullptr};
  torch::Tensor class_token;  ///< [1, 1, hidden]
  VitEncoder encoder{nullptr};
  torch::nn::Linear head{nullptr};  ///< `heads.head` in the names
};
TORCH_MODULE(Vit);

}  // namespace example::models
