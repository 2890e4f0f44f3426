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
  /// Called instead of an operator: takes its arguments off the stack and puts its results there.
  /// `op.redispatchBoxed(after, stack)` runs the operator.
  virtual void call(const c10::OperatorHandle& op, c10::DispatchKeySet after, torch::jit::Stack* stack) = 0;

  /// Passes this thread's operators to an interceptor while it lives. An inner scope replaces an outer one.
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

  /// While it lives, this thread's operators run without interceptor: for those that an operator calls itself.
  class Pause {
   public:
    Pause();

   private:
    c10::impl::ExcludeDispatchKeyGuard exclude_;
  };
};

}  // namespace levin
