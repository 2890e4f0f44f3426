#include "vit.h"

#include <string>

namespace example::models {

namespace {

torch::nn::LayerNorm make_norm(int64_t width) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}).eps(1e-6));  // as torchvision's
}

/// A module that only has names in it.
struct Names : torch::nn::Module {};

}  // namespace

void VitOptions::describe(levin::Schema<VitOptions>& schema) {
  using O = VitOptions;
  schema.field("image_size", &O::image_size, "height and width of an image; a multiple of patch_size").at_least(1);
  schema.field("patch_size", &O::patch_size, "height and width of a patch, which becomes a token").at_least(1);
  schema.field("hidden", &O::hidden, "features of a token; a multiple of heads").at_least(1);
  schema.field("layers", &O::layers, "blocks").at_least(1);
  schema.field("heads", &O::heads, "attention heads of a block").at_least(1);
  schema.field("mlp", &O::mlp, "features inside the MLP of a block").at_least(1);
  schema.field("classes", &O::classes, "logits of an image").at_least(1);
  schema.field("dropout", &O::dropout, "share of the features left out while training").at_least(0).below(1);
}

VitBlockImpl::VitBlockImpl(const VitOptions& options) {
  using torch::nn::Dropout;
  using torch::nn::Linear;
  ln_1 = register_module("ln_1", make_norm(options.hidden));
  self_attention = register_module("self_attention", torch::nn::MultiheadAttention(torch::nn::MultiheadAttentionOptions(
                                                         options.hidden, options.heads)));
  dropout = register_module("dropout", Dropout(options.dropout));
  ln_2 = register_module("ln_2", make_norm(options.hidden));
  mlp = register_module(
      "mlp", torch::nn::Sequential(Linear(options.hidden, options.mlp), torch::nn::GELU(), Dropout(options.dropout),
                                   Linear(options.mlp, options.hidden), Dropout(options.dropout)));
}

torch::Tensor VitBlockImpl::forward(const torch::Tensor& x) {
  const torch::Tensor tokens_first = ln_1(x).transpose(0, 1);
  const torch::Tensor mixed = std::get<0>(self_attention(tokens_first, tokens_first, tokens_first, torch::Tensor(),
                                                         /*need_weights=*/false));
  const torch::Tensor y = x + dropout(mixed.transpose(0, 1));
  return y + mlp->forward(ln_2(y));
}

VitLayersImpl::VitLayersImpl(const VitOptions& options) {
  for (int64_t i = 0; i < options.layers; ++i)
    blocks.push_back(register_module("encoder_layer_" + std::to_string(i), VitBlock(options)));
}

torch::Tensor VitLayersImpl::forward(torch::Tensor x) {
  for (auto& block : blocks) x = block(x);
  return x;
}

VitEncoderImpl::VitEncoderImpl(const VitOptions& options) {
  const int64_t patches = (options.image_size / options.patch_size) * (options.image_size / options.patch_size);
  pos_embedding = register_parameter("pos_embedding", torch::empty({1, patches + 1, options.hidden}));
  torch::nn::init::normal_(pos_embedding, 0, 0.02);
  dropout = register_module("dropout", torch::nn::Dropout(options.dropout));
  layers = register_module("layers", VitLayers(options));
  ln = register_module("ln", make_norm(options.hidden));
}

torch::Tensor VitEncoderImpl::forward(const torch::Tensor& x) { return ln(layers(dropout(x + pos_embedding))); }

VitImpl::VitImpl(const VitOptions& options) {
  if (options.image_size % options.patch_size != 0 || options.hidden % options.heads != 0)
    throw levin::ConfigError("image_size must be a multiple of patch_size, hidden one of heads; got " +
                             std::to_string(options.image_size) + " and " + std::to_string(options.patch_size) + ", " +
                             std::to_string(options.hidden) + " and " + std::to_string(options.heads));
  class_token = register_parameter("class_token", torch::zeros({1, 1, options.hidden}));
  conv_proj = register_module(
      "conv_proj",
      torch::nn::Conv2d(torch::nn::Conv2dOptions(3, options.hidden, options.patch_size).stride(options.patch_size)));
  encoder = register_module("encoder", VitEncoder(options));
  const auto names = std::make_shared<Names>();
  head = names->register_module("head", torch::nn::Linear(options.hidden, options.classes));
  register_module("heads", names);
}

torch::Tensor VitImpl::forward(const torch::Tensor& images) {
  const torch::Tensor patches = conv_proj(images).flatten(2).transpose(1, 2);
  const torch::Tensor first = class_token.expand({images.size(0), -1, -1});
  return head(encoder(torch::cat({first, patches}, 1)).select(1, 0));
}

}  // namespace example::models
