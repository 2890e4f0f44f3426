#include <levin/core/nn/unit.h>

#include <levin/core/base/error.h>

namespace levin {
namespace {

// Construction happens on one thread and never inside backward, so the scope may be the thread's.
thread_local UnitBuildScope* current_build = nullptr;

}  // namespace

Unit::Unit() {
  if (current_build != nullptr) current_build->on_built_(*this);
}

void Unit::add_hook(UnitHook& hook) {
  hooks_.push_back(&hook);
  is_hooked_ = true;
}

void Unit::remove_hook(UnitHook& hook) {
  std::erase(hooks_, &hook);
  is_hooked_ = runner_ != nullptr || !hooks_.empty();
}

void Unit::set_runner(UnitRunner* runner) {
  LEVIN_CHECK(runner == nullptr || runner_ == nullptr, "a unit has a runner already");
  runner_ = runner;
  is_hooked_ = runner_ != nullptr || !hooks_.empty();
}

void Unit::share_hooks(const Unit& other) {
  hooks_ = other.hooks_;
  runner_ = other.runner_;
  is_hooked_ = other.is_hooked_;
}

UnitBuildScope::UnitBuildScope(std::function<void(Unit&)> on_built)
    : on_built_(std::move(on_built)), outer_(current_build) {
  current_build = this;
}

UnitBuildScope::~UnitBuildScope() { current_build = outer_; }

}  // namespace levin
