#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace levin {

class Collective;

/// Which classes of logits a rank has.
struct ClassShare {
  std::shared_ptr<Collective> group = nullptr;
  int64_t begin = 0;    ///< the first class here
  int64_t size = 0;     ///< how many are here: the last dimension
  int64_t classes = 0;  ///< of all ranks
};

/// Marks logits [..., classes here] as a rank's share of them. Element-wise operators, copies and views give marked
/// ones again; cross_entropy (of rows; with ignore_index and label smoothing, in float32 at least) and argmax over the
/// last dimension are those of all classes, as collectives of the group, and every other operator is refused by name.
at::Tensor make_cut_logits(const at::Tensor& logits, ClassShare share);
/// Whether a tensor is a rank's share of logits.
bool are_cut_logits(const at::Tensor& tensor);
/// Returns the shape of the logits of all classes, of a share or of what is none.
std::vector<int64_t> full_logits_shape(const at::Tensor& logits);
/// Returns the logits of all classes, of a share or of what is none, for samplers and metrics: without a gradient.
/// Collective where they are cut.
at::Tensor full_logits(const at::Tensor& logits);

}  // namespace levin
