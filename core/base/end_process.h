#pragma once

#include <string>

namespace levin {

/// Prints "[levin] error: REASON" on standard error and ends the process with status 1, without anything that is done
/// at an exit: for helper threads, when the program's own is stuck and may hold any lock.
[[noreturn]] void end_process(const std::string& reason);

}  // namespace levin
