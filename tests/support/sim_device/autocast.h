#pragma once

namespace levin::testing::sim {

/// Makes autocast treat operators on the device as it does those on the CPU, so that results are the same to the bit.
/// (CUDA's autocast has other lists: softmax and layer_norm in float32, for instance.)
void register_autocast();

}  // namespace levin::testing::sim
