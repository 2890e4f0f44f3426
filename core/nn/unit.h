#pragma once

#include <levin/core/base/error_notes.h>
#include <levin/core/nn/unit_call.h>
#include <levin/core/nn/unit_hook.h>

#include <torch/nn/pimpl.h>

#include <functional>
#include <string>
#include <type_traits>
#include <utility>

namespace levin {

/// A submodule that is called through a hookable holder: the one seam that sharding, activation checkpointing,
/// pipelining, profiling and memory reports use. LEVIN_UNIT derives the class that carries it.
///
/// Hooks and runners are not owned: they are removed before they go. They change while the unit is not being called.
class Unit {
 public:
  virtual ~Unit() = default;

  /// Hooks run in the order in which they were added, and in the opposite order after the forward.
  void add_hook(UnitHook& hook);
  void remove_hook(UnitHook& hook);
  const UnitHooks& hooks() const { return hooks_; }

  /// Sets the runner, at most one; nullptr removes it. It is outside of the hooks, so that they run at each repetition.
  void set_runner(UnitRunner* runner);
  UnitRunner* runner() const { return runner_; }

  /// Takes the hooks and the runner of another unit in place of its own: for a replica, which they must expect to run
  /// in another thread at the same time.
  void share_hooks(const Unit& other);

 protected:
  Unit();
  /// Whether anything is attached; asking is the only cost of a unit that has nothing.
  bool is_hooked() const { return is_hooked_; }
  void run_call(UnitCall& call) { runner_ != nullptr ? runner_->run(call) : call.run(); }

 private:
  UnitHooks hooks_;
  UnitRunner* runner_ = nullptr;
  bool is_hooked_ = false;
};

/// Sees the units that this thread constructs while it exists: a strategy materialises a large model with it piece by
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

template <class Impl, class Signature>
class UnitOfSignature;

template <class Impl, class Class, class Result, class... Arguments>
class UnitOfSignature<Impl, Result (Class::*)(Arguments...)> : public Impl, public Unit {
 public:
  template <class... Parameters>
  explicit UnitOfSignature(Parameters&&... parameters) : Impl(std::forward<Parameters>(parameters)...) {}

  Result forward(Arguments... arguments) {
    if (!is_hooked())
      return noting_errors([&]() -> Result { return Impl::forward(std::forward<Arguments>(arguments)...); },
                           [this](ErrorNotes& notes) { note_unit(notes, *this, this); });
    // A repetition in backward may be the last to hold the module.
    auto function = [this, owner = this->weak_from_this().lock()](Arguments... given) -> Result {
      return Impl::forward(std::forward<Arguments>(given)...);
    };
    TypedUnitCall<decltype(function), Result, Arguments...> call(this, &hooks(), this, std::move(function),
                                                                 std::forward<Arguments>(arguments)...);
    run_call(call);
    return call.take_result();
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

/// The class derived from the user's that carries the hooks. Its `forward` hides the user's, so that `block(x)`,
/// `block->forward(x)` and torch::nn::Sequential all go through the hooks.
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
