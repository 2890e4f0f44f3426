#include <levin/core/nn/context_units.h>

#include <levin/core/nn/cut_context.h>
#include <levin/core/nn/unit.h>

#include <torch/nn/module.h>

#include <memory>

namespace levin {
namespace {

// Units run one inside another on a thread, each ended before the one around it.
thread_local std::vector<std::unique_ptr<detail::ContextUnitScope>> context_unit_scopes;

}  // namespace

ContextUnits::ContextUnits(torch::nn::Module& module) : units_(named_units(module)) {
  for (const NamedUnit& unit : units_) {
    paths_.emplace(unit.unit, unit.path);
    unit.unit->add_hook(*this);
  }
}

ContextUnits::~ContextUnits() {
  for (const NamedUnit& unit : units_) unit.unit->remove_hook(*this);
}

void ContextUnits::before_forward(UnitCall& call) {
  context_unit_scopes.push_back(std::make_unique<detail::ContextUnitScope>(&paths_.at(call.unit())));
}

void ContextUnits::after_forward(UnitCall& /*call*/) { context_unit_scopes.pop_back(); }

}  // namespace levin
