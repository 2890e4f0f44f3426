#pragma once

#include <levin/core/nn/tensor_visitor.h>
#include <levin/core/nn/unit_hook.h>

#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

namespace torch::nn {
class Module;
}

namespace levin {

class Unit;
struct ErrorNotes;

/// One call of a forward, without its types: what the hooks and the runner of a unit work with.
class UnitCall {
 public:
  virtual ~UnitCall() = default;
  UnitCall& operator=(const UnitCall&) = delete;

  /// The unit; nullptr where a function is called that is none.
  Unit* unit() const { return unit_; }
  /// The module whose forward it is; nullptr for a function.
  torch::nn::Module* module() const { return module_; }
  /// Whether it is a copy: the forward is run another time, and nobody waits for its results.
  bool is_repetition() const { return is_repetition_; }

  /// Runs the forward between the hooks of the unit and keeps what it returns. Once: it uses up the arguments.
  void run();
  /// Makes the same call once more, with copies of the arguments (tensors are handles); it keeps the module alive. To
  /// be asked for before run(). Throws levin::Error when an argument cannot be copied.
  virtual std::unique_ptr<UnitCall> copy() const = 0;
  /// Visits the tensors among the arguments, always in the same order, undefined ones too. Before run().
  virtual void for_each_argument(const TensorVisitor& visitor) = 0;
  /// Visits the tensors among the results: none before run() and when the forward threw.
  virtual void for_each_result(const TensorVisitor& visitor) = 0;

 protected:
  /// `hooks`: those of the unit, as they are whenever the call runs; nullptr without a unit.
  UnitCall(Unit* unit, const UnitHooks* hooks, torch::nn::Module* module)
      : unit_(unit), hooks_(hooks), module_(module) {}
  UnitCall(const UnitCall& other)
      : unit_(other.unit_), hooks_(other.hooks_), module_(other.module_), is_repetition_(true) {}
  virtual void run_forward() = 0;

 private:
  Unit* unit_;
  const UnitHooks* hooks_;
  torch::nn::Module* module_;
  bool is_repetition_ = false;
};

/// Writes down the unit whose forward an error leaves, unless an inner one was. `module`: nullptr for a function.
void note_unit(ErrorNotes& notes, const Unit& unit, const torch::nn::Module* module);

namespace detail {

[[noreturn]] void throw_not_repeatable(const UnitCall& call);

/// What can be written to through the argument, or not be copied, is handed on as the caller gave it.
template <class Argument>
constexpr bool kIsHandedOn = std::is_lvalue_reference_v<Argument> &&
                             (!std::is_const_v<std::remove_reference_t<Argument>> ||
                              !std::is_copy_constructible_v<std::remove_cvref_t<Argument>>);
template <class Argument>
using StoredArgument = std::conditional_t<kIsHandedOn<Argument>, Argument, std::remove_cvref_t<Argument>>;

/// A call of `function`, which takes `Arguments` (as a forward declares them) and keeps its module alive.
template <class Function, class Result, class... Arguments>
class TypedUnitCall final : public UnitCall {
  static_assert(!std::is_reference_v<Result>, "the forward of a unit returns a value, not a reference");

 public:
  TypedUnitCall(Unit* unit, const UnitHooks* hooks, torch::nn::Module* module, Function function,
                Arguments&&... arguments)
      : UnitCall(unit, hooks, module),
        function_(std::move(function)),
        arguments_(std::forward<Arguments>(arguments)...) {}

  std::unique_ptr<UnitCall> copy() const override {
    if constexpr (((!kIsHandedOn<Arguments> && std::is_copy_constructible_v<StoredArgument<Arguments>>)&&...))
      return std::unique_ptr<UnitCall>(new TypedUnitCall(*this));
    else
      throw_not_repeatable(*this);
  }

  void for_each_argument(const TensorVisitor& visitor) override {
    std::apply([&](auto&... arguments) { (for_each_tensor(arguments, visitor), ...); }, arguments_);
  }

  void for_each_result(const TensorVisitor& visitor) override {
    if (result_) for_each_tensor(*result_, visitor);
  }

  Result take_result() {
    if constexpr (!std::is_void_v<Result>) return std::move(*result_);
  }

 private:
  TypedUnitCall(const TypedUnitCall& other)
      : UnitCall(other), function_(other.function_), arguments_(other.arguments_) {}

  void run_forward() override {
    const auto call = [&](StoredArgument<Arguments>&... arguments) -> Result {
      return function_(static_cast<Arguments&&>(arguments)...);
    };
    if constexpr (std::is_void_v<Result>) {
      std::apply(call, arguments_);
      result_.emplace();
    } else {
      result_.emplace(std::apply(call, arguments_));
    }
  }

  Function function_;
  std::tuple<StoredArgument<Arguments>...> arguments_;
  std::optional<std::conditional_t<std::is_void_v<Result>, std::monostate, std::remove_cv_t<Result>>> result_;
};

}  // namespace detail
}  // namespace levin
