#include <levin/core/base/operator_interceptor.h>

#include <levin/core/base/permanent_library.h>

#include <torch/library.h>

#include <mutex>
#include <utility>

namespace levin {
namespace {

/// LibTorch's Python has it for tensors without memory; nothing in C++ uses it.
constexpr auto kInterceptorKey = c10::DispatchKey::Fake;

thread_local OperatorInterceptor* interceptor_here = nullptr;

void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto after = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kInterceptorKey);
  if (interceptor_here == nullptr) return op.redispatchBoxed(after, stack);
  interceptor_here->call(op, after, stack);
}

c10::DispatchKey registered_key() {
  static std::once_flag once;
  std::call_once(once, [] {
    permanent_library(torch::Library::IMPL, "_", kInterceptorKey)
        .fallback(torch::CppFunction::makeFromBoxedFunction<&intercept>());
  });
  return kInterceptorKey;
}

}  // namespace

OperatorInterceptor::Scope::Scope(OperatorInterceptor* interceptor)
    : outer_(std::exchange(interceptor_here, interceptor)), include_(registered_key()) {}

OperatorInterceptor::Scope::~Scope() { interceptor_here = outer_; }

OperatorInterceptor::Pause::Pause() : exclude_(kInterceptorKey) {}

}  // namespace levin
