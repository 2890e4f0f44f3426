#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace levin {

/// Stands in front of the operators that a thread calls: below autograd, autocast and the functions that keep track of
/// views; above the backends. Threads where none does pay nothing.
class OperatorInterceptor {
 public:
  virtual ~OperatorInterceptor() = default;
  /// Called in place of an operator, whose arguments are on the stack and whose results are to be; it is run by
  /// `op.redispatchBoxed(after, stack)`.
  virtual void call(const c10::OperatorHandle& op, c10::DispatchKeySet after, torch::jit::Stack* stack) = 0;

  /// Puts one in front of this thread's operators, in place of the one that is there; nullptr: none.
  class Scope {
   public:
    explicit Scope(OperatorInterceptor* interceptor);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    OperatorInterceptor* const outer_;
    // Guards that the code in it makes may live on: this one takes away what it added, and nothing else.
    c10::impl::IncludeDispatchKeyGuard include_;
  };

  /// While one lives, this thread's operators run as ever: for what an operator calls in turn.
  class Pause {
   public:
    Pause();

   private:
    c10::impl::ExcludeDispatchKeyGuard exclude_;
  };
};

}  // namespace levin
