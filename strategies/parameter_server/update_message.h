#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace levin {

/// What a worker tells a server before the gradients of a batch, or in place of any: that it is done for now.
struct UpdateMessage {
  bool done = false;
  int64_t epoch = 0;
  int64_t batch = 0;
  std::vector<double> rates = {};  ///< learning rates of the optimizer's groups

  /// As a tensor of always the same size. Throws levin::Error for an optimizer with more groups than it holds.
  at::Tensor pack() const;
  static UpdateMessage unpack(const at::Tensor& tensor);
  /// What to receive one in.
  static at::Tensor empty();
};

}  // namespace levin
