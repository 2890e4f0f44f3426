#pragma once

#include <levin/core/data/batch.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace levin::data {

/// Returns the bytes of a batch's tensors and texts.
int64_t num_bytes(const Batch& example);

/// Returns an example whose tensors have memory of their own without gaps, in the order of dimensions that they had.
/// Throws levin::Error for tensors that are undefined, not dense or not on the CPU.
Batch with_dense_memory(const Batch& example);

/// Returns texts, names, types, shapes, strides and values of an example, whose tensors are as with_dense_memory gives
/// them.
std::string to_bytes(const Batch& example);

/// Returns the example of `size` bytes that to_bytes gave; nothing where they are no such bytes. Its tensors share the
/// memory.
std::optional<Batch> example_of_bytes(const std::shared_ptr<char[]>& memory, size_t offset, size_t size);

}  // namespace levin::data
