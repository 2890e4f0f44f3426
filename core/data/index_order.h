#pragma once

#include <levin/core/data/sampler.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace levin::data {

/// The order of one epoch, read where it is needed: that of a large data set need not be in memory. Thread-safe.
class IndexOrder {
 public:
  virtual ~IndexOrder() = default;
  /// Returns the number of indices.
  virtual int64_t size() const = 0;
  /// Returns those at the places [begin, end).
  virtual std::vector<int64_t> indices(int64_t begin, int64_t end) const = 0;
};

/// A sampler whose orders are computed where they are read.
class UnlistedSampler : public Sampler {
 public:
  virtual std::shared_ptr<const IndexOrder> index_order(int64_t dataset_size, uint64_t seed, int64_t epoch) const = 0;
  std::vector<int64_t> order(int64_t dataset_size, uint64_t seed, int64_t epoch) const override;
};

/// Returns the order of a sampler: that of an UnlistedSampler and of the SequentialSampler takes no memory, any other
/// is a list. Throws levin::Error for a list with indices that the data set does not have.
std::shared_ptr<const IndexOrder> index_order_of(const Sampler& sampler, int64_t dataset_size, uint64_t seed,
                                                 int64_t epoch);
/// Returns a list as an order. Throws levin::Error for indices that the data set does not have.
std::shared_ptr<const IndexOrder> listed_order(std::vector<int64_t> order, int64_t dataset_size);

/// Throws levin::Error for indices that a sampler gave for a data set that does not have them.
void check_indices(const std::vector<int64_t>& indices, int64_t dataset_size);

}  // namespace levin::data
