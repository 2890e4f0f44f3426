#pragma once

#include <levin/core/comm/collective.h>
#include <levin/core/interfaces/strategy.h>

#include <ATen/core/Tensor.h>

namespace levin {

/// Finds out the totals of a window by a reduction of its own, where no other carries them along; called by all of
/// `ranks` where it ends. On the CPU the weight is a number; on another `device` it stays there, and nobody waits.
Strategy::WindowTotals reduce_window(const AccumulationWindow& window, const LossWeight& window_weight,
                                     Collective& ranks, at::Device device);

}  // namespace levin
