#include <levin/core/nn/adapter_layer.h>

#include <levin/core/base/error.h>
#include <levin/core/base/released_storage.h>
#include <levin/core/nn/linear_partition.h>
#include <levin/core/nn/weight_behaviour.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <fmt/format.h>
#include <torch/nn/init.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

namespace levin::detail {
namespace {

/// Adds scale · hidden · lora_Bᵀ to an output [N, out] that nothing else has, in one product.
void add_product(const at::Tensor& output, const at::Tensor& hidden, const LoraPair& pair) {
  // Under autocast products have another type than the parameters.
  const at::ScalarType type = output.scalar_type();
  output.addmm_(hidden.to(type), pair.lora_B.to(type).t(), 1, pair.scale());
}

/// Gives rows [N, features] the leading sizes of what they were made of.
at::Tensor in_shape(const at::Tensor& rows, at::IntArrayRef leading) {
  at::DimVector sizes(leading);
  sizes.push_back(rows.size(-1));
  return rows.view(sizes);
}

/// The active adapters of a layer, around what its weight computes. Rows are computed flat, as adding to a view in
/// place would have backward copy the gradient.
class AdapterBehaviour final : public WeightBehaviour {
 public:
  explicit AdapterBehaviour(const std::shared_ptr<AdapterLayer>& layer) : layer_(layer) {}

  at::Tensor linear(const LinearCall& call, const Linear& next) override {
    const auto layer = layer_.lock();
    if (layer == nullptr || layer->is_embedding()) return next(call);
    const auto& quantized = layer->quantized();
    if (!layer->adds() && quantized == nullptr) return next(call);
    if (quantized != nullptr && call.weight.requires_grad()) layer->refuse_training();
    LinearCall flat = call;
    flat.input = call.input.reshape({-1, call.input.size(-1)});
    const at::Tensor output =
        quantized != nullptr ? QuantizedWeight::linear(quantized, flat.input, flat.bias) : next(flat);
    if (!layer->adds()) return in_shape(output, call.input.sizes().slice(0, call.input.dim() - 1));
    for (const auto& pair : layer->active()) add_product(output, layer->hidden(*pair, flat.input), *pair);
    return in_shape(output, call.input.sizes().slice(0, call.input.dim() - 1));
  }
  at::Tensor embedding(const EmbeddingCall& call, const Embedding& next) override {
    const auto layer = layer_.lock();
    if (layer == nullptr || !layer->adds() || !layer->is_embedding()) return next(call);
    EmbeddingCall flat = call;
    flat.indices = call.indices.reshape({-1});
    const at::Tensor output = next(flat);
    for (const auto& pair : layer->active())
      add_product(output,
                  at::embedding(pair->lora_A.t(), flat.indices, call.padding_idx, call.scale_grad_by_freq,
                                /*sparse=*/false),
                  *pair);
    return in_shape(output, call.indices.sizes());
  }

 private:
  std::weak_ptr<AdapterLayer> layer_;  ///< which has the weight, whose behaviour this is
};

/// Reaches the parameters that a module has registered.
struct ParametersOf : torch::nn::Module {
  static void erase(torch::nn::Module& module, const std::string& name) {
    (module.*(&ParametersOf::parameters_)).erase(name);
  }
};

}  // namespace

LoraPair::LoraPair(const at::Tensor& weight, bool is_embedding, std::shared_ptr<const AddedAdapter> adapter)
    : adapter_(std::move(adapter)), is_embedding_(is_embedding) {
  const AdapterOptions& options = adapter_->options;
  const double rank = static_cast<double>(options.rank);
  scale_ = options.alpha / (options.name == "rslora" ? std::sqrt(rank) : rank);
  dropout_ = is_embedding ? 0 : options.dropout;
  const auto like = weight.options().requires_grad(false);
  const int64_t in = is_embedding ? weight.size(0) : weight.size(1);
  const int64_t out = is_embedding ? weight.size(1) : weight.size(0);
  lora_A = register_parameter("lora_A", at::empty({options.rank, in}, like));
  lora_B = register_parameter("lora_B", at::empty({out, options.rank}, like));
  const at::NoGradGuard no_gradients;
  if (is_embedding) {
    lora_A.zero_();
    lora_B.normal_();
  } else {
    torch::nn::init::kaiming_uniform_(lora_A, std::sqrt(5.0));
    lora_B.zero_();
  }
}

at::Tensor LoraPair::delta() const {
  const at::Tensor product = at::matmul(lora_B, lora_A).mul(scale_);
  return is_embedding_ ? product.t() : product;
}

AdapterLayer::AdapterLayer(std::string path, at::Tensor weight, bool is_embedding)
    : path_(std::move(path)), weight_(std::move(weight)), is_embedding_(is_embedding) {}

std::shared_ptr<LoraPair> AdapterLayer::add(const std::shared_ptr<const AddedAdapter>& adapter) {
  return register_module(adapter->options.adapter, std::make_shared<LoraPair>(weight_, is_embedding_, adapter));
}

void AdapterLayer::remove(const std::string& adapter) {
  std::erase(active_, find(adapter));
  unregister_module(adapter);
}

std::shared_ptr<LoraPair> AdapterLayer::find(const std::string& adapter) const {
  const auto& children = named_children();
  const auto* const found = children.find(adapter);
  return found == nullptr ? nullptr : std::dynamic_pointer_cast<LoraPair>(*found);
}

std::vector<std::pair<std::string, std::shared_ptr<LoraPair>>> AdapterLayer::all() const {
  std::vector<std::pair<std::string, std::shared_ptr<LoraPair>>> pairs;
  for (const auto& child : named_children())
    if (auto pair = std::dynamic_pointer_cast<LoraPair>(child.value()); pair != nullptr)
      pairs.emplace_back(child.key(), std::move(pair));
  return pairs;
}

void AdapterLayer::set_active(const std::vector<std::string>& adapters) {
  set_trained(false);
  active_.clear();
  for (const std::string& adapter : adapters)
    if (auto pair = find(adapter); pair != nullptr) active_.push_back(std::move(pair));
  set_trained(true);
}

void AdapterLayer::set_trained(bool trained) const {
  for (const auto& pair : active_)
    for (const at::Tensor& tensor : {pair->lora_A, pair->lora_B}) tensor.set_requires_grad(trained);
}

at::Tensor AdapterLayer::merged_weight() const {
  const at::NoGradGuard no_gradients;
  at::Tensor weight = quantized_ != nullptr ? quantized_->dequantize(weight_.scalar_type()) : weight_.detach();
  if (is_merged() || active_.empty()) return weight;
  if (quantized_ == nullptr) weight = weight.clone();
  for (const auto& pair : active_) weight.add_(pair->delta());
  return weight;
}

void AdapterLayer::set_cut(std::shared_ptr<Collective> group, bool by_row) {
  cut_group_ = std::move(group);
  is_cut_by_row_ = by_row;
}

at::Tensor AdapterLayer::hidden(const LoraPair& pair, const at::Tensor& input) const {
  const at::Tensor hidden = at::linear(at::dropout(input, pair.dropout(), pair.is_training()), pair.lora_A);
  if (cut_group_ == nullptr) return hidden;
  return is_cut_by_row_ ? sum_over_ranks(hidden, cut_group_) : with_summed_gradients(hidden, cut_group_);
}

void AdapterLayer::merge() {
  if (is_merged()) return;
  const at::NoGradGuard no_gradients;
  unmerged_ = weight_.detach().clone();
  for (const auto& pair : active_) weight_.add_(pair->delta());
  set_trained(false);
}

void AdapterLayer::unmerge() {
  if (!is_merged()) return;
  const at::NoGradGuard no_gradients;
  weight_.copy_(unmerged_);
  unmerged_.reset();
  set_trained(true);
}

void AdapterLayer::quantize(torch::nn::Module& layer, const std::string& format) {
  quantized_ =
      layer.register_module("quantized", std::make_shared<QuantizedWeight>(path_ + ".weight", weight_, format));
  ParametersOf::erase(layer, "weight");
  weight_.set_requires_grad(false);
  release_weight();
}

void AdapterLayer::release_weight() {
  const at::NoGradGuard no_gradients;
  weight_.set_data(released_tensor(weight_, quantized_->device(),
                                   fmt::format("[adapters] the weight '{}.weight' is held in {}; valid: calls of "
                                               "its layer",
                                               path_, quantized_->format())));
}

void AdapterLayer::refuse_training() const {
  throw Error("adapters", fmt::format("the weight '{}.weight' is held in {} and cannot be trained; hint: leave it to "
                                      "adapters, or name '{}' in modules_to_save",
                                      path_, quantized_->format(), path_));
}

void AdapterLayer::attach() {
  // It follows what holds it to other devices.
  if (quantized_ != nullptr && quantized_->device() != weight_.device()) release_weight();
  if ((quantized_ != nullptr || !is_released(weight_)) && !has_weight_behaviours(weight_))
    add_weight_behaviour(
        weight_, path_ + ".weight",
        std::make_shared<AdapterBehaviour>(std::dynamic_pointer_cast<AdapterLayer>(shared_from_this())));
}

std::vector<std::shared_ptr<AdapterLayer>> adapter_layers(const torch::nn::Module& module) {
  std::vector<std::shared_ptr<AdapterLayer>> layers;
  std::unordered_set<const void*> seen;
  for (const auto& part : module.modules(/*include_self=*/false))
    if (auto layer = std::dynamic_pointer_cast<AdapterLayer>(part); layer != nullptr && seen.insert(layer.get()).second)
      layers.push_back(std::move(layer));
  return layers;
}

}  // namespace levin::detail
