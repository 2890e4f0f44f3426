#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace levin::data {

/// Reads a file of unsigned bytes in the IDX format (yann.lecun.com/exdb/mnist), plain or compressed by gzip, into a
/// uint8 tensor of `dimensions` dimensions. Throws levin::Error when it cannot be read, is not such a file, or is too
/// short or long.
at::Tensor read_idx(const std::string& path, int64_t dimensions);

/// Returns the path of `name.gz` or `name`, whichever is in `folder`. When neither is, throws levin::Error naming both
/// and `hint`.
std::string find_idx_file(const std::string& folder, const std::string& name, const std::string& hint);

}  // namespace levin::data
