#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace levin {

class Collective;

/// How attention sees the positions of other ranks (see attend_over_context, attend_in_ring).
enum class ContextMethod { kAllToAll, kRing };

/// Returns this rank's part of a tensor that is identical on every rank of `group`: size / ranks of the positions along
/// dimension `dim`. With all-to-all they are neighbours, in the order of ranks; in a ring rank r has chunks r and
/// 2 * ranks - 1 - r of 2 * ranks. The number of positions is a multiple of the ranks, in a ring of twice the ranks,
/// and at least twice as many as ranks. Tensors that follow from it are parts too, of the losses of all of whose
/// positions this rank computes its own: gradients of parameters are to be added up over the ranks afterwards.
///
/// In a forward (see WeightForwardScope, and where gradients are enabled) operators that treat each position by itself
/// run on the part, and scaled_dot_product_attention on all positions (see context_attention). Dropout draws the mask
/// of all positions, as one device does, and takes its part. Full tensors that meet a part are cut. Reductions of all
/// elements to one number and losses are those of this rank's positions. Every other operator, which would mix
/// positions, throws levin::Error with its name; so does a tensor made from the size of a part that meets one.
at::Tensor cut_context(const at::Tensor& tensor, int64_t dim, const std::shared_ptr<Collective>& group,
                       ContextMethod method = ContextMethod::kAllToAll);
/// Whether a tensor is a rank's part, from cut_context or from what follows from it.
bool is_context_part(const at::Tensor& tensor);
/// Returns a part as an ordinary tensor, which operators treat as any other, and what is none as it is: for code that
/// knows what the ranks have.
at::Tensor local_part(const at::Tensor& tensor);

namespace detail {

/// Where the positions of a part are: those of a dimension, which has `outer` times the positions times `inner`
/// elements, as one that is the product of several (`x.flatten(0, 1)`).
struct ContextLayout {
  int64_t dim = 0;
  int64_t outer = 1;
  int64_t inner = 1;
  bool operator==(const ContextLayout&) const = default;
};

/// Gathers all positions; each rank's gradient of them counts. Collective.
at::Tensor full_context(const at::Tensor& part);
int64_t full_context_length(const at::Tensor& part);

/// Runs a unit: inside of one, numbers that this rank has reduced its positions to are refused.
class [[nodiscard]] ContextUnitScope {
 public:
  explicit ContextUnitScope(const std::string* path);
  ~ContextUnitScope();
  ContextUnitScope(const ContextUnitScope&) = delete;
  ContextUnitScope& operator=(const ContextUnitScope&) = delete;

 private:
  const std::string* const outer_;
};

/// Runs what treats each position by itself on a part as an ordinary tensor. Its result is a part again, whose
/// dimensions are those of the part but behind the positions. `name`: for messages.
at::Tensor run_on_context_part(const at::Tensor& part, const std::string& name,
                               const std::function<at::Tensor(const at::Tensor& part)>& function);

/// Makes a tensor that has the shape of a part, and was computed of its positions by themselves, a part too.
at::Tensor like_context_part(const at::Tensor& tensor, const at::Tensor& part);

/// How often attention has run over positions that are cut, in the process.
int64_t context_attention_calls();

}  // namespace detail
}  // namespace levin
