#pragma once

namespace torch {
class Library;
}

namespace levin::testing::sim {

/// Registers the fused cells of LSTM and GRU layers, which the CPU has not: it computes the same of several operators.
void register_recurrent_kernels(torch::Library& operators);

}  // namespace levin::testing::sim
