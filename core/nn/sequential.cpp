#include <levin/core/nn/sequential.h>

#include <levin/core/base/error.h>
#include <levin/core/base/error_notes.h>

#include <fmt/format.h>

#include <ostream>

namespace levin {

std::vector<at::Tensor> SequentialElement::operator()(const std::vector<at::Tensor>& inputs) {
  using Tensors = std::vector<at::Tensor>;
  if (!is_hooked())
    return noting_errors([&] { return function_(inputs); },
                         [this](ErrorNotes& notes) { note_unit(notes, *this, module_.get()); });
  auto function = [self = shared_from_this()](const Tensors& given) { return self->function_(given); };
  detail::TypedUnitCall<decltype(function), Tensors, const Tensors&> call(this, &hooks(), module_.get(),
                                                                          std::move(function), inputs);
  run_call(call);
  return call.take_result();
}

at::Tensor SequentialImpl::forward(const at::Tensor& input) {
  auto outputs = forward_all({input});
  if (outputs.size() != 1)
    throw Error("sequential", fmt::format("the last element must give one tensor; got {}; hint: call forward_all for "
                                          "several",
                                          outputs.size()));
  return std::move(outputs.front());
}

std::vector<at::Tensor> SequentialImpl::forward_all(std::vector<at::Tensor> inputs) {
  if (runner_ != nullptr) return runner_->run(*this, std::move(inputs));
  return forward_range(std::move(inputs), 0, elements_.size());
}

std::vector<at::Tensor> SequentialImpl::forward_range(std::vector<at::Tensor> inputs, size_t begin, size_t end) {
  LEVIN_CHECK(begin <= end && end <= elements_.size(), "a range outside the sequential");
  for (size_t i = begin; i < end; ++i) inputs = (*elements_[i])(inputs);
  return inputs;
}

void SequentialImpl::add(std::shared_ptr<torch::nn::Module> module, SequentialElement::Function function) {
  const std::string name = next_name();
  if (module != nullptr) register_module(name, module);
  elements_.push_back(std::make_shared<SequentialElement>(name, std::move(module), std::move(function)));
}

void SequentialImpl::pretty_print(std::ostream& stream) const { stream << "levin::Sequential"; }

namespace detail {

void throw_wrong_arity(const std::string& element, size_t wanted, size_t got) {
  throw Error("sequential",
              fmt::format("element {} takes {} tensors; got {} from the element before it", element, wanted, got));
}

}  // namespace detail
}  // namespace levin
