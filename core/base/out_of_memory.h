#pragma once

#include <levin/core/base/error.h>

#include <exception>

namespace levin {

/// The memory of a device or of the host does not suffice.
class OutOfMemoryError : public Error {
 public:
  explicit OutOfMemoryError(std::string_view message) : Error("memory", message) {}
};

/// Whether an error says that the memory of a device or of the host does not suffice, whichever library noticed.
bool is_out_of_memory(const std::exception_ptr& error);

}  // namespace levin
