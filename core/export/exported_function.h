#pragma once

#include <levin/core/data/batch.h>

#include <functional>

namespace levin {

/// Named tensors in, named tensors out: what an exported model computes.
using ExportedFunction = std::function<Batch(const Batch&)>;

}  // namespace levin
