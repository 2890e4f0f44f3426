#pragma once

#include <torch/nn/pimpl.h>

#include <functional>
#include <string>
#include <type_traits>
#include <utility>

namespace torch::nn {
class Module;
}

namespace levin {

class Unit;

/// What a strategy attaches to a unit: sharding gathers and frees around it, checkpointing recomputes it, profiling
/// times it.
class UnitHook {
 public:
  virtual ~UnitHook() = default;
  /// Before the unit's forward.
  virtual void before_forward(Unit& unit) = 0;
  /// After the unit's forward, also when it threw.
  virtual void after_forward(Unit& unit) = 0;
};

/// A submodule that is called through a hookable holder: the one seam that sharding, activation checkpointing,
/// pipelining, profiling and memory reports use. LEVIN_UNIT derives the class that carries it.
class Unit {
 public:
  virtual ~Unit() = default;
  /// At most one hook; nullptr removes it. The hook must outlive the unit or be removed.
  void set_hook(UnitHook* hook) { hook_ = hook; }
  UnitHook* hook() const { return hook_; }

 protected:
  Unit();

 private:
  UnitHook* hook_ = nullptr;
};

/// Sees the units that this thread constructs while it exists: how a strategy materialises a large model piece by
/// piece.
class UnitBuildScope {
 public:
  explicit UnitBuildScope(std::function<void(Unit&)> on_built);
  ~UnitBuildScope();
  UnitBuildScope(const UnitBuildScope&) = delete;
  UnitBuildScope& operator=(const UnitBuildScope&) = delete;

 private:
  friend class Unit;
  std::function<void(Unit&)> on_built_;
  UnitBuildScope* outer_;
};

namespace detail {

/// Calls a unit's hook around a scope.
class UnitCall {
 public:
  explicit UnitCall(Unit& unit) : unit_(unit), hook_(unit.hook()) {
    if (hook_ != nullptr) hook_->before_forward(unit_);
  }
  ~UnitCall() {
    if (hook_ != nullptr) hook_->after_forward(unit_);
  }
  UnitCall(const UnitCall&) = delete;
  UnitCall& operator=(const UnitCall&) = delete;

 private:
  Unit& unit_;
  UnitHook* hook_;
};

template <class Impl, class Signature>
class UnitOfSignature;

template <class Impl, class Class, class Result, class... Arguments>
class UnitOfSignature<Impl, Result (Class::*)(Arguments...)> : public Impl, public Unit {
 public:
  template <class... Parameters>
  explicit UnitOfSignature(Parameters&&... parameters) : Impl(std::forward<Parameters>(parameters)...) {}

  Result forward(Arguments... arguments) {
    UnitCall call(*this);
    return Impl::forward(std::forward<Arguments>(arguments)...);
  }
};

template <class Impl, class = void>
struct HasOneForward : std::false_type {};
template <class Impl>
struct HasOneForward<Impl, std::void_t<decltype(&Impl::forward)>> : std::true_type {};

template <class Impl>
struct UnitTraits {
  static_assert(HasOneForward<Impl>::value, "a unit needs exactly one forward(), neither overloaded nor a template");
  using type = UnitOfSignature<Impl, decltype(&Impl::forward)>;
};

}  // namespace detail

/// The class derived from the user's that carries the hook slot. Its `forward` hides the user's, so that `block(x)`,
/// `block->forward(x)` and torch::nn::Sequential all go through the hook.
template <class Impl>
using UnitOf = typename detail::UnitTraits<Impl>::type;

}  // namespace levin

/// As TORCH_MODULE(Name): a holder `Name` for the class `NameImpl`; `name(x)` is where strategies hook in.
#define LEVIN_UNIT(Name)                                                      \
  class Name : public torch::nn::ModuleHolder<::levin::UnitOf<Name##Impl>> {  \
   public:                                                                    \
    using torch::nn::ModuleHolder<::levin::UnitOf<Name##Impl>>::ModuleHolder; \
    using Impl [[maybe_unused]] = ::levin::UnitOf<Name##Impl>;                \
  }
