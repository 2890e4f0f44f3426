#pragma once

#include <exception>
#include <string>

namespace levin {

class Module;
class OptimizerConnector;
class Strategy;

/// Says what a rank's module holds, by unit, and what its device has allocated; see Trainer::memory_summary.
std::string memory_summary(Strategy& strategy, Module& module, const OptimizerConnector& optimizers);

/// Returns an error that says that memory does not suffice as a levin::Error with the summary and what may help; any
/// other error as it is. `module`: nullptr before there is one.
std::exception_ptr with_memory_summary(Strategy& strategy, Module* module, const OptimizerConnector& optimizers,
                                       const std::exception_ptr& error);

}  // namespace levin
