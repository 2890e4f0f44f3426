#pragma once

#include <levin/core/nn/adapter_options.h>
#include <levin/core/nn/quantized_weight.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace levin {

class Collective;

}

namespace levin::detail {

/// An adapter of a module.
struct AddedAdapter {
  AdapterOptions options = {};
  std::vector<at::Tensor> whole = {};   ///< parameters of modules_to_save
  std::vector<at::Tensor> frozen = {};  ///< parameters of the module that are neither its own nor of modules_to_save
};

/// One adapter of one layer: parameters `lora_A` [rank, in] and `lora_B` [out, rank]; of an embedding [rank, rows] and
/// [features, rank].
class LoraPair : public torch::nn::Module {
 public:
  LoraPair(const at::Tensor& weight, bool is_embedding, std::shared_ptr<const AddedAdapter> adapter);

  /// Returns what it adds to the weight, in the weight's shape.
  at::Tensor delta() const;
  double scale() const { return scale_; }
  double dropout() const { return dropout_; }
  bool is_embedding() const { return is_embedding_; }
  const AddedAdapter& adapter() const { return *adapter_; }

  at::Tensor lora_A, lora_B;

 private:
  std::shared_ptr<const AddedAdapter> adapter_;
  bool is_embedding_;
  double scale_ = 1;
  double dropout_ = 0;
};

/// The adapters of a layer: its child module `adapters`, with a LoraPair for each, by name.
class AdapterLayer : public torch::nn::Module {
 public:
  /// `path`: of the layer, with the weight [out, in], or [rows, features] of an embedding.
  AdapterLayer(std::string path, at::Tensor weight, bool is_embedding);

  const std::string& path() const { return path_; }
  const at::Tensor& weight() const { return weight_; }
  bool is_embedding() const { return is_embedding_; }
  std::shared_ptr<LoraPair> add(const std::shared_ptr<const AddedAdapter>& adapter);
  void remove(const std::string& adapter);
  /// Returns the adapter of a name, or nullptr.
  std::shared_ptr<LoraPair> find(const std::string& adapter) const;
  std::vector<std::pair<std::string, std::shared_ptr<LoraPair>>> all() const;

  /// Holds the weight of the linear layer `layer` in few bits from here on: it is no parameter of the layer any more,
  /// and its memory is freed. See QuantizedWeight.
  void quantize(torch::nn::Module& layer, const std::string& format);
  /// Returns what holds the weight, or nullptr.
  const std::shared_ptr<QuantizedWeight>& quantized() const { return quantized_; }

  /// Those whose sum is added; they alone are trained.
  void set_active(const std::vector<std::string>& adapters);
  const std::vector<std::shared_ptr<LoraPair>>& active() const { return active_; }
  bool is_merged() const { return unmerged_.defined(); }
  /// Whether the layer's call adds anything to what the weight gives.
  bool adds() const { return !active_.empty() && !is_merged(); }
  /// Returns the weight with what the active adapters add to it.
  at::Tensor merged_weight() const;
  void merge();
  void unmerge();
  /// Throws the levin::Error of a weight in few bits that is to be trained.
  [[noreturn]] void refuse_training() const;
  /// Says that the weight of a linear layer is cut over the ranks of a group, and with it lora_B (by column) or lora_A
  /// (by row), while the other factor is whole on every rank. nullptr: not cut.
  void set_cut(std::shared_ptr<Collective> group, bool by_row);
  /// Returns input [N, in] · lora_Aᵀ, in which ranks share what a cut leaves to each.
  at::Tensor hidden(const LoraPair& pair, const at::Tensor& input) const;
  /// Puts the behaviour in front of the weight, where it is not there.
  void attach();

 private:
  void set_trained(bool trained) const;
  void release_weight();

  std::string path_;
  at::Tensor weight_;
  bool is_embedding_;
  std::shared_ptr<QuantizedWeight> quantized_;
  std::vector<std::shared_ptr<LoraPair>> active_;
  std::shared_ptr<Collective> cut_group_;
  bool is_cut_by_row_ = false;
  at::Tensor unmerged_;  ///< the weight before merge()
};

/// Returns the layers of a module that have adapters, in its order, each once.
std::vector<std::shared_ptr<AdapterLayer>> adapter_layers(const torch::nn::Module& module);

}  // namespace levin::detail
