#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

namespace levin {

class Collective;
class SavedTensorScope;

/// Returns this rank's part of activations [N, T, ...] that are identical on every rank of `group`: T / ranks
/// positions, in the order of ranks (Korthikanti et al., "Reducing activation recomputation in large transformer
/// models", 2022, arXiv:2205.05198). T is a multiple of the number of ranks. The gradient is all-gathered.
///
/// In a forward (see WeightForwardScope, and where gradients are enabled) operators that treat each position by itself
/// give parts again: element-wise ones, norms and products over the last dimensions, views of these. Dropout draws the
/// mask of all positions, as one device does, and takes its part. Full tensors that meet a part are cut, and gradients
/// of what has no positions (weights of norms, biases) are added up over the ranks, those of one call of a unit in one
/// reduction. For every other operator the sequence is all-gathered, so that it computes what it does on one device.
/// Throws levin::Error where a tensor made from the size of a part meets one.
at::Tensor cut_sequence(const at::Tensor& activations, const std::shared_ptr<Collective>& group);
/// Whether a tensor is a rank's part of a sequence.
bool is_cut_sequence(const at::Tensor& tensor);
/// Returns the activations of all positions, of a part or of what is none; each rank goes on with them alike.
/// Collective where they are cut.
at::Tensor full_sequence(const at::Tensor& tensor);
/// Returns the number of positions [N, T, ...] of all ranks, of a part or of what is none: for code in a block that
/// makes positions or masks.
int64_t full_sequence_length(const at::Tensor& tensor);

/// Scope in which row layers of a unit give this rank's part of the sequence that a tensor is a part of; where it is
/// none, all positions. It is that of the innermost scope of the thread, and found by forwards that run again.
class [[nodiscard]] SequenceScope {
 public:
  /// `unit`: for messages.
  SequenceScope(const at::Tensor& activations, std::string unit);
  ~SequenceScope();
  SequenceScope(const SequenceScope&) = delete;
  SequenceScope& operator=(const SequenceScope&) = delete;

 private:
  std::shared_ptr<void> former_;
};

namespace detail {

/// Activations of all positions for a layer of which each rank has a share: their gradient is added up over the ranks,
/// of which each gets its part.
struct GatheredSequence {
  at::Tensor activations;
  /// While it lives, operators save the part for backward, where it is gathered again.
  std::shared_ptr<SavedTensorScope> saved;
};
/// Gathers a part; gives other tensors as they are, without a scope. Under autocast they are converted before. Layers
/// of a unit that take the same part share what is gathered.
GatheredSequence gather_for_layer(const at::Tensor& input);

/// Whether the present SequenceScope is of a sequence that is cut.
bool has_present_sequence();
/// Whether it is of the sequence of such sums [N, T, ...] of a row layer.
bool is_of_present_sequence(const at::Tensor& sums);
/// Adds up what the ranks have; each gets its part. `bias`: added once, or undefined.
at::Tensor scatter_to_present_sequence(const at::Tensor& sums, const at::Tensor& bias);

}  // namespace detail
}  // namespace levin
