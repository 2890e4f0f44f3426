#pragma once

#include <exception>

namespace levin {

/// Whether an error says that the memory of a device or of the host does not suffice, whichever library noticed.
bool is_out_of_memory(const std::exception_ptr& error);

}  // namespace levin
