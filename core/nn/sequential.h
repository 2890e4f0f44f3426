#pragma once

#include <levin/core/nn/unit.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace levin {

class SequentialImpl;

/// One step of a levin::Sequential: a module, or a function for what has no parameters (a reshape). A unit by itself.
class SequentialElement : public Unit, public std::enable_shared_from_this<SequentialElement> {
 public:
  /// Function from tensors to tensors, which pass between elements.
  using Function = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

  SequentialElement(std::string name, std::shared_ptr<torch::nn::Module> module, Function function)
      : name_(std::move(name)), module_(std::move(module)), function_(std::move(function)) {}

  const std::string& name() const { return name_; }
  /// The module; nullptr for a function.
  const std::shared_ptr<torch::nn::Module>& module() const { return module_; }
  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& inputs);

 private:
  std::string name_;
  std::shared_ptr<torch::nn::Module> module_;
  Function function_;
};

namespace detail {

template <class T>
struct ForwardTraits;
template <class Class, class Result, class... Arguments>
struct ForwardTraits<Result (Class::*)(Arguments...)> {
  static constexpr size_t kArity = sizeof...(Arguments);
};
template <class Class, class Result, class... Arguments>
struct ForwardTraits<Result (Class::*)(Arguments...) const> {
  static constexpr size_t kArity = sizeof...(Arguments);
};

inline std::vector<at::Tensor> to_tensors(at::Tensor result) {
  std::vector<at::Tensor> tensors;
  tensors.push_back(std::move(result));
  return tensors;
}
inline std::vector<at::Tensor> to_tensors(std::vector<at::Tensor> result) { return result; }
template <class... Tensors>
std::vector<at::Tensor> to_tensors(std::tuple<Tensors...> result) {
  return std::apply([](auto&&... parts) { return std::vector<at::Tensor>{std::forward<decltype(parts)>(parts)...}; },
                    std::move(result));
}

[[noreturn]] void throw_wrong_arity(const std::string& element, size_t wanted, size_t got);

template <class Callable, size_t... Index>
std::vector<at::Tensor> call_with(Callable& callable, const std::vector<at::Tensor>& inputs,
                                  std::index_sequence<Index...>) {
  return to_tensors(callable(inputs[Index]...));
}

/// Adapts a callable taking tensors (as many as the element before gives) to SequentialElement::Function.
template <size_t kArity, class Callable>
SequentialElement::Function adapt(std::string name, Callable callable) {
  return [name = std::move(name), callable](const std::vector<at::Tensor>& inputs) mutable {
    if (inputs.size() < kArity) throw_wrong_arity(name, kArity, inputs.size());
    return call_with(callable, inputs, std::make_index_sequence<kArity>{});
  };
}

/// Counts the leading parameters of a forward that are given tensors: all of them, up to the first with a default.
template <class Module>
constexpr size_t forward_arity() {
  if constexpr (requires(Module & module, const at::Tensor& tensor) { module.forward(tensor); })
    return 1;
  else
    return ForwardTraits<decltype(&Module::forward)>::kArity;
}

}  // namespace detail

/// Takes over the forwards of a levin::Sequential: it may run some of the elements elsewhere, as a pipeline does.
class SequentialRunner {
 public:
  virtual ~SequentialRunner() = default;
  /// Runs in place of all elements.
  virtual std::vector<at::Tensor> run(SequentialImpl& sequential, std::vector<at::Tensor> inputs) = 0;
};

/// A chain of modules and functions. As torch::nn::Sequential, but its members are units by themselves, functions are
/// members too, several tensors may pass between members (a tuple or a vector), and a pipeline can cut it.
class SequentialImpl : public torch::nn::Module {
 public:
  SequentialImpl() = default;

  /// Appends modules (as holders or shared pointers) and functions of tensors, in order.
  template <class First, class... Rest>
  requires(!std::is_same_v<std::decay_t<First>, SequentialImpl>) explicit SequentialImpl(First&& first,
                                                                                         Rest&&... rest) {
    push_back(std::forward<First>(first));
    (push_back(std::forward<Rest>(rest)), ...);
  }

  template <class Contained>
  void push_back(const torch::nn::ModuleHolder<Contained>& holder) {
    push_back(holder.ptr());
  }

  template <class M>
  requires std::is_base_of_v<torch::nn::Module, M>
  void push_back(std::shared_ptr<M> module) {
    constexpr size_t kArity = detail::forward_arity<M>();
    auto call = [raw = module.get()](const auto&... tensors) { return raw->forward(tensors...); };
    add(module, detail::adapt<kArity>(next_name(), std::move(call)));
  }

  /// Appends a function of one or more tensors that returns a tensor, a tuple or a vector of tensors.
  template <class Function>
  requires requires(Function& function) { &Function::operator(); }
  void push_back(Function function) {
    constexpr size_t kArity = detail::ForwardTraits<decltype(&Function::operator())>::kArity;
    add(nullptr, detail::adapt<kArity>(next_name(), std::move(function)));
  }

  /// Runs all elements; the last one must give one tensor.
  at::Tensor forward(const at::Tensor& input);
  /// Runs all elements on any number of tensors, which may give any number.
  std::vector<at::Tensor> forward_all(std::vector<at::Tensor> inputs);
  /// Runs elements [begin, end) on any number of tensors.
  std::vector<at::Tensor> forward_range(std::vector<at::Tensor> inputs, size_t begin, size_t end);

  /// Sets the runner, at most one, which is not owned; nullptr removes it.
  void set_runner(SequentialRunner* runner) { runner_ = runner; }
  SequentialRunner* runner() const { return runner_; }

  size_t size() const { return elements_.size(); }
  SequentialElement& element(size_t index) { return *elements_.at(index); }

  void pretty_print(std::ostream& stream) const override;

 private:
  std::string next_name() const { return std::to_string(elements_.size()); }
  void add(std::shared_ptr<torch::nn::Module> module, SequentialElement::Function function);

  std::vector<std::shared_ptr<SequentialElement>> elements_;
  SequentialRunner* runner_ = nullptr;
};

/// Holder of SequentialImpl: `levin::Sequential(torch::nn::Linear(784, 10), torch::nn::ReLU())`.
class Sequential : public torch::nn::ModuleHolder<SequentialImpl> {
 public:
  using torch::nn::ModuleHolder<SequentialImpl>::ModuleHolder;
  using Impl [[maybe_unused]] = SequentialImpl;
};

}  // namespace levin
