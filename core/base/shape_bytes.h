#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace levin {

/// Returns the bytes of a tensor's elements; nothing for a size below 0, and for sizes of which LibTorch could not
/// compute the strides, whatever else is 0.
std::optional<uint64_t> bytes_of_shape(const std::vector<int64_t>& shape, size_t element_size);

}  // namespace levin
