#pragma once

namespace torch {
class Library;
}

namespace levin::testing::sim {

/// Makes the CPU's kernels those of the device: `all` is the library of the namespace "_", `operators` that of "aten".
/// An operator's generator, if the caller gives none, is that of its device.
void register_cpu_fallback(torch::Library& all, torch::Library& operators);

}  // namespace levin::testing::sim
