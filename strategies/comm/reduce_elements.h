#pragma once

#include <levin/core/comm/collective.h>

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>

namespace levin {

/// Whether reduce_elements knows the type and the operation on it: floating types and integers; of bool everything but
/// the mean.
bool can_reduce(at::ScalarType type, ReduceOp op);

/// Combines `count` elements of every source, in the order of the sources, and writes the result to every output. An
/// output may be one of the sources (not overlap it otherwise). float16 and bfloat16 are accumulated in float32 and
/// rounded once; a mean of integers is rounded towards zero; a sum of bools is their "or"; the minimum and maximum of
/// floats are NaN where one of them is. Equal on every processor. Throws nothing if can_reduce().
void reduce_elements(std::span<const void* const> sources, std::span<void* const> outputs, int64_t count,
                     at::ScalarType type, ReduceOp op);

/// Whether add_scaled_elements knows the type: float32 and float64.
bool can_add_scaled(at::ScalarType type);

/// As reduce_elements, a sum of which each element is multiplied by `factor` before. Throws nothing if
/// can_add_scaled().
void add_scaled_elements(std::span<const void* const> sources, std::span<void* const> outputs, int64_t count,
                         at::ScalarType type, double factor);

}  // namespace levin
