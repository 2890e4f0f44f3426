#pragma once

#include <levin/core/data/dataset.h>

namespace levin::data {

/// Tensors in memory whose first dimensions count the examples, and texts. A batch is one index_select a tensor.
class TensorDataset : public Dataset {
 public:
  /// Keeps the tensors. Throws levin::Error unless their first dimensions are equal.
  explicit TensorDataset(Batch tensors);

  int64_t size() const override { return tensors_.size(); }
  Batch get_batch(std::span<const int64_t> indices, Generator& generator) const override;
  const Batch& tensors() const { return tensors_; }

 private:
  Batch tensors_;
};

}  // namespace levin::data
