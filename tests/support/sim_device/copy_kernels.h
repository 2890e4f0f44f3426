#pragma once

namespace torch {
class Library;
}

namespace levin::testing::sim {

/// Copies between the host and devices and between devices, and item().
void register_copy_kernels(torch::Library& operators);

}  // namespace levin::testing::sim
