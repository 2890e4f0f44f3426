#include <levin/core/trainer/call_scope.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

namespace levin {

void CallScope::begin(std::atomic<bool>& at_work, std::string_view call) {
  if (at_work.exchange(true))
    throw Error("trainer", fmt::format("{} was called while the trainer is at work; hint: use a second trainer inside "
                                       "hooks and in other threads",
                                       call));
}

}  // namespace levin
