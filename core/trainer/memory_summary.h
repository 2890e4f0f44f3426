#pragma once

#include <exception>
#include <string>

namespace levin {

class RankCore;

/// See Trainer::memory_summary.
std::string memory_summary(RankCore& core);

/// An error that says that memory does not suffice, as a levin::Error with the summary and what may help; any other
/// error as it is.
std::exception_ptr with_memory_summary(RankCore& core, const std::exception_ptr& error);

}  // namespace levin
