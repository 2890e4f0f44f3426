#pragma once

#include <levin/core/data/batch.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace levin::data {

/// A tensor of a batch in words and numbers.
struct TensorSummary {
  std::string name = {};
  std::vector<int64_t> shape = {};
  std::string type = {};           ///< "float32", "int64"
  std::optional<double> min = {};  ///< nothing where there is no number, or none that is finite
  std::optional<double> max = {};
  std::optional<double> mean = {};
  int64_t not_finite = 0;  ///< values that are NaN or infinite
};

/// Describes the tensors of a batch, in their order. Waits for its device.
std::vector<TensorSummary> summarize(const Batch& batch);

/// Lays out the images of a batch, at most so many, in one: uint8 [channels, height, width], on the CPU. Images are its
/// first tensor [N, 1 or 3, height, width]; unless they are bytes, their smallest value becomes black and the largest
/// white. Returns nothing where it has none.
std::optional<at::Tensor> batch_picture(const Batch& batch, int64_t most_images);

/// Counts how often each class occurs in batches. Classes are numbers of 0 or more in a tensor [N] of whole numbers
/// named label, labels, target or y, or in a floating one [N, classes] the greatest probability.
class ClassCounts {
 public:
  /// Adds a batch; one without classes, or with numbers that can be none, changes nothing. Waits for its device.
  void add(const Batch& batch);
  /// Returns counts by class; empty where no batch had any.
  const std::vector<int64_t>& counts() const { return counts_; }

 private:
  std::vector<int64_t> counts_;
};

}  // namespace levin::data
