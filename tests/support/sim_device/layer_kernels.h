#pragma once

namespace torch {
class Library;
}

namespace levin::testing::sim {

/// Operators that LibTorch sends to other kernels on a device than on the CPU: convolution, attention, and dropout,
/// which is one operator there. Their results are the CPU's to the bit.
void register_layer_kernels(torch::Library& operators);

}  // namespace levin::testing::sim
