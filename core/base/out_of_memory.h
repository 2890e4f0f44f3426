#pragma once

#include <levin/core/base/error.h>

#include <exception>

namespace levin {

/// Error of too little memory on a device or the host.
class OutOfMemoryError : public Error {
 public:
  explicit OutOfMemoryError(std::string_view message) : Error("memory", message) {}
};

/// Returns whether an error, of any library, says that a device or the host has too little memory.
bool is_out_of_memory(const std::exception_ptr& error);

}  // namespace levin
