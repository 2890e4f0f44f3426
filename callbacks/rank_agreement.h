#pragma once

#include <levin/core/interfaces/callback.h>

#include <string>
#include <vector>

namespace levin {

/// Throws levin::Error where the ranks are threads and this callback serves one of them alone, because it was handed
/// over as an object that cannot be made again. For callbacks whose ranks exchange values. `name`: the callback's.
void require_on_every_rank(const Trainer& trainer, const Callback& callback, const std::string& name);

/// Sums each value over all ranks: a collective, and a wait for the device, where there are several.
std::vector<double> sum_over_ranks(const Trainer& trainer, std::vector<double> values);

/// Waits until a device has done what was asked of it on the current stream.
void wait_for(const at::Device& device);

}  // namespace levin
