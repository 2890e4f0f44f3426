#pragma once

#include <exception>
#include <vector>

namespace levin {

/// What Levin throws to leave code early, and catches itself: no error, so that nothing is noted about it.
class ControlFlow : public std::exception {};

namespace detail {

/// As a handler, `catch (const AnyError&)` takes every std::exception that is no ControlFlow, whatever its type. While
/// the handler is being looked for, and the stack is still as it was at the throw, the stack's addresses are written
/// down: for this the class has type information of its own (error_stack.cpp), which the compiler leaves to us because
/// the first virtual function is defined nowhere. There are no objects of it.
class AnyError {
 public:
  AnyError() = delete;
  virtual ~AnyError();
};

/// In such a handler: where each function of the stack was at the throw, the innermost first.
std::vector<const void*> stack_at_throw();

}  // namespace detail
}  // namespace levin
