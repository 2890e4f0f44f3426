#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace levin {

/// A product with a weight [out, in]: input · weightᵀ + bias.
struct LinearCall {
  at::Tensor input;
  at::Tensor weight;
  at::Tensor bias;   ///< undefined: none
  std::string name;  ///< of the weight, for messages
};

/// Rows of a weight [rows, features].
struct EmbeddingCall {
  at::Tensor weight;
  at::Tensor indices;
  int64_t padding_idx = -1;
  bool scale_grad_by_freq = false;
  bool sparse = false;
  std::string name;  ///< of the weight, for messages
};

/// What happens around the operators that take a certain weight, instead of what LibTorch does.
class WeightBehaviour {
 public:
  using Linear = std::function<at::Tensor(const LinearCall& call)>;
  using Embedding = std::function<at::Tensor(const EmbeddingCall& call)>;

  virtual ~WeightBehaviour() = default;
  /// Runs torch::nn::Linear, at::linear, at::matmul and at::addmm of the weight's transpose. `next`: the rest of the
  /// chain, whose end is LibTorch.
  virtual at::Tensor linear(const LinearCall& call, const Linear& next) { return next(call); }
  /// Runs torch::nn::Embedding and at::embedding.
  virtual at::Tensor embedding(const EmbeddingCall& call, const Embedding& next) { return next(call); }
  /// Whether `linear` gathers a part of a sequence (cut_sequence) itself; else a chain is given all positions.
  virtual bool takes_cut_sequences() const { return false; }
  /// Returns why other operators must not compute with the weight, as in "is cut over 2 ranks"; empty: they may.
  virtual std::string why_not_elsewhere() const { return {}; }
};

/// Adds a behaviour to the chain of a weight, inside of those that it has. Modules stay as they are: the weight keeps
/// its identity, and is told from others by a dispatch key that it gets (DeferredInit, which LibTorch leaves unused,
/// above autocast and autograd), so that other tensors pay nothing, and recomputations and other threads find it too.
///
/// Operators that take the weight, or a view of it, and are none of those above run as LibTorch has them, unless a
/// behaviour says why they must not: then they throw levin::Error with the names of weight and operator, where
/// gradients are enabled or inference mode is, and in a WeightForwardScope. Else (optimizers, checkpoints) they run.
///
/// `name`: of the weight, for messages. What gives the weight other memory (set_data, Module::to) takes its behaviours
/// away, unless that memory is from with_behaviours_of; see has_weight_behaviours. The first call of the process
/// registers kernels with LibTorch's dispatcher. Thread-safe.
void add_weight_behaviour(const at::Tensor& weight, const std::string& name,
                          std::shared_ptr<WeightBehaviour> behaviour);
/// Whether operators still find behaviours for the weight.
bool has_weight_behaviours(const at::Tensor& weight);
/// Returns other memory for a weight, of its shape and of any type and device, which operators find with the weight's
/// behaviours once set_data has given it to the weight; `memory` itself where there are none. The weight keeps its own.
/// Thread-safe.
at::Tensor with_behaviours_of(const at::Tensor& weight, const at::Tensor& memory);
/// Makes the weight an ordinary one.
void remove_weight_behaviours(const at::Tensor& weight);

/// Scope in which this thread runs a forward, without gradients perhaps, so that no operator may compute with a weight
/// that must not.
class [[nodiscard]] WeightForwardScope {
 public:
  WeightForwardScope();
  ~WeightForwardScope();
  WeightForwardScope(const WeightForwardScope&) = delete;
  WeightForwardScope& operator=(const WeightForwardScope&) = delete;
};

/// Throws the levin::Error of an operator that must not compute with a weight. `why`: see why_not_elsewhere.
[[noreturn]] void throw_weight_not_usable(const std::string& name, const std::string& why, const std::string& what);

}  // namespace levin
