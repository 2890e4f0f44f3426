#include <levin/core/nn/unit_call.h>

#include <levin/core/base/error.h>
#include <levin/core/base/error_notes.h>
#include <levin/core/nn/module_type_name.h>
#include <levin/core/nn/unit.h>
#include <levin/core/nn/unit_notes.h>

#include <fmt/format.h>
#include <torch/nn/module.h>

#include <exception>
#include <string>
#include <vector>

namespace levin {

void UnitCall::run() {
  static const std::vector<UnitHook*> kNone;
  const std::vector<UnitHook*>& hooks = unit_ == nullptr ? kNone : unit_->hooks();
  std::exception_ptr error;  // the first: what the forward threw, not what hooks make of it
  size_t entered = 0;
  try {
    for (; entered < hooks.size(); ++entered) hooks[entered]->before_forward(*this);
    noting_errors([this] { run_forward(); },
                  [this](ErrorNotes& notes) {
                    if (unit_ != nullptr) note_unit(notes, *unit_, module_);
                  });
  } catch (...) {
    error = std::current_exception();
  }
  while (entered > 0) {
    try {
      hooks[--entered]->after_forward(*this);
    } catch (...) {
      if (error == nullptr) error = std::current_exception();
    }
  }
  if (error != nullptr) std::rethrow_exception(error);
}

namespace detail {

void throw_not_repeatable(const UnitCall& call) {
  const std::string name = call.module() == nullptr ? "a function" : short_type_name(call.module()->name());
  throw Error("units", fmt::format("the forward of {} cannot be run again, because it takes an argument by non-const "
                                   "reference, or one that cannot be copied; valid: arguments by value or by const "
                                   "reference",
                                   name));
}

}  // namespace detail
}  // namespace levin
