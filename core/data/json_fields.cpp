#include <levin/core/data/json_fields.h>

#include <levin/core/data/permutation_sampler.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace levin::data {

int64_t held_out_rows(int64_t rows, double val_fraction) {
  const auto wanted = static_cast<int64_t>(std::nearbyint(val_fraction * static_cast<double>(rows)));
  return std::clamp<int64_t>(wanted, 0, rows - 1);
}

DataLoader unlisted_loader(std::shared_ptr<const Dataset> dataset, DataLoaderOptions options) {
  const bool shuffles = std::exchange(options.shuffle, false);
  return shuffles ? DataLoader(std::move(dataset), options, std::make_shared<PermutationSampler>())
                  : DataLoader(std::move(dataset), options);
}

}  // namespace levin::data
