#include <levin/core/base/error_stack.h>

#include <unwind.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <typeinfo>

namespace levin::detail {
namespace {

/// The innermost functions say most, and there is no memory to be had from an allocator that has just failed.
struct Stack {
  std::array<const void*, 96> addresses;
  size_t size = 0;
};

thread_local Stack last_stack;

_Unwind_Reason_Code add_frame(_Unwind_Context* frame, void* /*unused*/) {
  if (last_stack.size == last_stack.addresses.size()) return _URC_END_OF_STACK;
  int before_instruction = 0;
  // A return address is after the call, maybe in the next line.
  const uintptr_t address = _Unwind_GetIPInfo(frame, &before_instruction) - (before_instruction != 0 ? 0 : 1);
  last_stack.addresses[last_stack.size++] = reinterpret_cast<const void*>(address);  // NOLINT: what the ABI gives
  return _URC_NO_REASON;
}

}  // namespace

/// The type information of AnyError. The C++ runtime asks a handler's type whether it catches what was thrown, before
/// anything of the stack is taken down.
class AnyErrorType : public std::type_info {
 public:
  AnyErrorType() : type_info("N5levin6detail8AnyErrorE") {}

  bool __do_catch(const type_info* thrown, void** object, unsigned outer) const override {
    const auto is_a = [&](const type_info& type) {
      void* adjusted = *object;
      return type.__do_catch(thrown, &adjusted, outer);
    };
    if (!is_a(typeid(std::exception)) || is_a(typeid(ControlFlow))) return false;
    last_stack.size = 0;
    _Unwind_Backtrace(add_frame, nullptr);
    return true;
  }
};

extern const AnyErrorType kAnyErrorType __asm__("_ZTIN5levin6detail8AnyErrorE");
const AnyErrorType kAnyErrorType;

std::vector<const void*> stack_at_throw() {
  const auto* first = last_stack.addresses.data();
  return std::vector<const void*>(first, first + last_stack.size);  // not braces: pointers are void* too
}

}  // namespace levin::detail
