#include <levin/core/data/index_order.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <typeinfo>
#include <utility>

namespace levin::data {

namespace {

class ListedOrder : public IndexOrder {
 public:
  explicit ListedOrder(std::vector<int64_t> order) : order_(std::move(order)) {}
  int64_t size() const override { return std::ssize(order_); }
  std::vector<int64_t> indices(int64_t begin, int64_t end) const override {
    return {order_.begin() + begin, order_.begin() + end};
  }

 private:
  std::vector<int64_t> order_;
};

class CountingOrder : public IndexOrder {
 public:
  explicit CountingOrder(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  std::vector<int64_t> indices(int64_t begin, int64_t end) const override {
    std::vector<int64_t> indices(static_cast<size_t>(end - begin));
    std::iota(indices.begin(), indices.end(), begin);
    return indices;
  }

 private:
  int64_t size_;
};

}  // namespace

std::vector<int64_t> UnlistedSampler::order(int64_t dataset_size, uint64_t seed, int64_t epoch) const {
  const auto order = index_order(dataset_size, seed, epoch);
  return order->indices(0, order->size());
}

std::shared_ptr<const IndexOrder> index_order_of(const Sampler& sampler, int64_t dataset_size, uint64_t seed,
                                                 int64_t epoch) {
  if (const auto* unlisted = dynamic_cast<const UnlistedSampler*>(&sampler))
    return unlisted->index_order(dataset_size, seed, epoch);
  if (typeid(sampler) == typeid(SequentialSampler)) return std::make_shared<const CountingOrder>(dataset_size);
  return listed_order(sampler.order(dataset_size, seed, epoch), dataset_size);
}

std::shared_ptr<const IndexOrder> listed_order(std::vector<int64_t> order, int64_t dataset_size) {
  check_indices(order, dataset_size);
  return std::make_shared<const ListedOrder>(std::move(order));
}

void check_indices(const std::vector<int64_t>& indices, int64_t dataset_size) {
  const auto [least, greatest] = std::minmax_element(indices.begin(), indices.end());
  if (indices.empty() || (*least >= 0 && *greatest < dataset_size)) return;
  throw Error("data", fmt::format("the sampler gave the index {} for a data set of {} examples",
                                  *least < 0 ? *least : *greatest, dataset_size));
}

}  // namespace levin::data
