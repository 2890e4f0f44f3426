#pragma once

namespace torch {
class Library;
}

namespace levin::testing::sim {

/// Registers the fused step of SGD, which is wrong in LibTorch's CPU kernel in 16 bits: it rounds as Levin's own on the
/// CPU.
void register_optimizer_kernels(torch::Library& operators);

}  // namespace levin::testing::sim
