#pragma once

#include <functional>

namespace torch::nn {
class Module;
}

namespace levin {

class Collective;

/// Computes anew the running means and variances of the BatchNorm layers that are in train mode: the mean over all
/// batches that `run_batches` puts through the module, on all ranks together. Without such a layer nothing is run. As
/// torch.optim.swa_utils.update_bn.
void recompute_running_statistics(torch::nn::Module& module, Collective& collective,
                                  const std::function<void()>& run_batches);

/// Whether this rank holds the running statistics of all BatchNorm layers; false where a strategy has cut the module.
bool has_all_running_statistics(torch::nn::Module& module);

}  // namespace levin
