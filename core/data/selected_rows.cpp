#include <levin/core/data/selected_rows.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <utility>

namespace levin::data {

SelectedRows::SelectedRows(std::shared_ptr<const Dataset> dataset, std::vector<int64_t> rows)
    : dataset_(std::move(dataset)), rows_(std::move(rows)) {}

Batch SelectedRows::get_batch(std::span<const int64_t> indices, Generator& generator) const {
  std::vector<int64_t> rows;
  rows.reserve(indices.size());
  for (const int64_t index : indices) {
    if (index < 0 || index >= size())
      throw Error("data", fmt::format("there is no example {}; the data set has {}", index, size()));
    rows.push_back(rows_[static_cast<size_t>(index)]);
  }
  return dataset_->get_batch(rows, generator);
}

}  // namespace levin::data
