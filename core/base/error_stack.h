#pragma once

#include <exception>
#include <vector>

namespace levin {

/// Exception that Levin throws to leave code early and catches itself. It is no error: no notes are taken of it.
class ControlFlow : public std::exception {};

namespace detail {

/// Type for handlers: `catch (const AnyError&)` takes every std::exception except ControlFlow. While the runtime looks
/// for the handler, with the stack still as it was at the throw, the stack's addresses are recorded: for this the class
/// has type information of its own (error_stack.cpp), which the compiler leaves to us because the first virtual
/// function is defined nowhere. There are no objects of it.
class AnyError {
 public:
  AnyError() = delete;
  virtual ~AnyError();
};

/// Returns the stack's code addresses at the throw, innermost first. For use in a handler of AnyError.
std::vector<const void*> stack_at_throw();

}  // namespace detail
}  // namespace levin
