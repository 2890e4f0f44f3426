#pragma once

#include <levin/core/options/options.h>

#include <memory>

namespace levin {

class DataModule;
class Module;

/// Returns the options with a strategy instead of `{name: auto, memory: 24GiB}`: the cheapest mesh of all ranks that
/// fits into the memory of each device, and activation checkpointing where it is a part of that; docs/planning.md says
/// what is compared. Other options, and other strategies, stay as they are.
///
/// Measures two steps of the module on one device, takes them back, and logs on rank 0 why the others were not taken.
/// Ranks that this process starts later as further runs of the program make the same calls in the same order, and get
/// its choices without a measurement; those of a launcher measure, each on its own device. Throws ConfigError where
/// nothing fits.
TrainerOptions choose_strategy(TrainerOptions options, const std::shared_ptr<Module>& module,
                               const std::shared_ptr<DataModule>& data = nullptr);

}  // namespace levin
