#pragma once

#include <levin/core/data/dataset.h>

#include <cstdint>
#include <string>
#include <vector>

namespace levin::data {

/// Returns one tensor of all examples, [N, ...]. Data sets in memory have it; of others every example is read, with the
/// random numbers of seed 0 and epoch 0. Throws levin::Error where they have none of the name.
at::Tensor read_column(const Dataset& dataset, const std::string& name);

/// Returns the numbers of the classes of all examples, which `values` has, [N]. Throws levin::Error naming `name` for
/// other shapes, and for numbers that are no classes: fractions, and those below 0.
std::vector<int64_t> to_labels(const at::Tensor& values, const std::string& name = "label");

}  // namespace levin::data
