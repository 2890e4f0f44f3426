#pragma once

namespace torch {
class Library;
}

namespace levin::testing::sim {

/// Registers batch normalisation in parts, which several ranks combine: with the formulas of LibTorch's CUDA kernels,
/// as the CPU has none.
void register_batch_norm_kernels(torch::Library& operators);

}  // namespace levin::testing::sim
