#include <levin/core/nn/unit.h>

namespace levin {
namespace {

// Construction happens on one thread and never inside backward, so the scope may be the thread's.
thread_local UnitBuildScope* current_scope = nullptr;

}  // namespace

Unit::Unit() {
  if (current_scope != nullptr) current_scope->on_built_(*this);
}

UnitBuildScope::UnitBuildScope(std::function<void(Unit&)> on_built)
    : on_built_(std::move(on_built)), outer_(current_scope) {
  current_scope = this;
}

UnitBuildScope::~UnitBuildScope() { current_scope = outer_; }

}  // namespace levin
