#pragma once

#include <levin/core/base/vector_set.h>

#include <cstdint>

namespace levin {

/// Takes the largest element of each 2 × 2 window of contiguous planes; an odd last row or column is left out. To the
/// bit what at::max_pool2d_with_indices gives: of equal elements the first counts, a NaN more than anything before it.
/// `output` and `indices` have planes × height / 2 × width / 2 elements; an index is that of the element in its plane,
/// which must have fewer than 2^31. Works on the calling thread.
void max_pool_2x2(const float* input, float* output, int64_t* indices, int64_t planes, int64_t height, int64_t width,
                  VectorSet vectors = vector_set());

}  // namespace levin
