#include <levin/core/profilers/unit_spans.h>

#include <levin/core/nn/named_units.h>

#include <fmt/format.h>

namespace levin {

void UnitSpans::find(torch::nn::Module& module) {
  detach();
  hooks_.clear();
  for (const NamedUnit& unit : named_units(module))
    hooks_.emplace_back(profiler_, fmt::format("[Unit]{}{}({})", unit.path, unit.path.empty() ? "" : " ", unit.type),
                        *unit.unit);
}

void UnitSpans::attach() {
  if (std::exchange(attached_, true)) return;
  for (Hook& hook : hooks_) hook.unit().add_hook(hook);
}

void UnitSpans::detach() {
  if (!std::exchange(attached_, false)) return;
  for (Hook& hook : hooks_) hook.unit().remove_hook(hook);
}

}  // namespace levin
