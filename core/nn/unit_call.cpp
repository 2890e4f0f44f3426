#include <levin/core/nn/unit_call.h>

#include <levin/core/base/error.h>
#include <levin/core/base/error_notes.h>
#include <levin/core/nn/module_type_name.h>

#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <exception>
#include <sstream>
#include <string>
#include <string_view>

namespace levin {
namespace {

/// "Linear 784→128", other layers of LibTorch as they print themselves, other classes by name.
std::string type_and_sizes(const torch::nn::Module& module) {
  if (const auto* linear = module.as<torch::nn::Linear>())
    return fmt::format("Linear {}→{}", linear->options.in_features(), linear->options.out_features());
  constexpr std::string_view kLibTorch = "torch::nn::";
  if (!module.name().starts_with(kLibTorch) || !module.children().empty()) return short_type_name(module.name());
  std::ostringstream stream;
  module.pretty_print(stream);
  const std::string text = stream.str();
  return text.starts_with(kLibTorch) ? text.substr(kLibTorch.size()) : text;
}

}  // namespace

void UnitCall::run() {
  static const UnitHooks kNone;
  const UnitHooks& hooks = hooks_ == nullptr ? kNone : *hooks_;
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

void note_unit(ErrorNotes& notes, const Unit& unit, const torch::nn::Module* module) {
  if (notes.unit != nullptr) return;
  notes.unit = &unit;
  notes.unit_type = module == nullptr ? "Function" : type_and_sizes(*module);
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
