#pragma once

#include <levin/core/data/dataset.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace levin::data {

/// Some examples of a data set, for parts that are held out.
class SelectedRows : public Dataset {
 public:
  /// `rows`: indices in `dataset`, in the order in which they are counted here.
  SelectedRows(std::shared_ptr<const Dataset> dataset, std::vector<int64_t> rows);

  int64_t size() const override { return static_cast<int64_t>(rows_.size()); }
  Batch get_batch(std::span<const int64_t> indices, Generator& generator) const override;

 private:
  std::shared_ptr<const Dataset> dataset_;
  std::vector<int64_t> rows_;
};

}  // namespace levin::data
