#include <levin/core/base/shape_bytes.h>

#include <algorithm>
#include <limits>

namespace levin {

std::optional<uint64_t> bytes_of_shape(const std::vector<int64_t>& shape, size_t element_size) {
  if (std::any_of(shape.begin(), shape.end(), [](int64_t size) { return size < 0; })) return {};
  // Sizes beside a zero count as well: strides are their products.
  uint64_t bytes = element_size;
  for (const int64_t size : shape) {
    const auto factor = static_cast<uint64_t>(std::max<int64_t>(size, 1));
    if (bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) / factor) return {};
    bytes *= factor;
  }
  return std::find(shape.begin(), shape.end(), 0) != shape.end() ? 0 : bytes;
}

}  // namespace levin
